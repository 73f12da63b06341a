// SPDX-License-Identifier: GPL-2.0
//! Auxiliary devices that come and go while their parent stays bound.
//!
//! C header: `include/linux/auxiliary_bus.h`. The `kernel` crate's registration lives as long as a borrow of its parent
//! in a bus callback; here it can be made and ended from work items as well.

use kernel::{
    auxiliary::Registration,
    device::{Bound, Device},
    devres, new_mutex,
    prelude::*,
    sync::{aref::ARef, Arc, Mutex},
    types::ForLt,
};

/// A place for one auxiliary device. `F` is the [`ForLt!`](macro@ForLt) encoding of its registration data.
pub struct ChildSlot<F: ForLt + 'static> {
    inner: Arc<Inner<F>>,
}

#[pin_data]
struct Inner<F: ForLt + 'static> {
    parent: ARef<Device>,
    #[pin]
    state: Mutex<State<F>>,
}

struct State<F: ForLt + 'static> {
    /// Whether devices can be added: the parent is bound and nobody has closed the slot.
    open: bool,
    /// Boxed, because the lock gives out what can be moved only.
    child: Option<KBox<Registration<'static, F>>>,
}

/// Closes the slot when the parent's managed resources are released.
struct Close<F: ForLt + 'static>(Arc<Inner<F>>);

impl<F: ForLt + 'static> Drop for Close<F> {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl<F: ForLt + 'static> Inner<F> {
    fn close(&self) {
        let mut state = self.state.lock();
        state.open = false;
        state.child = None;
    }
}

impl<F: ForLt + 'static> ChildSlot<F>
where
    for<'a> F::Of<'a>: Send + Sync,
    F::Of<'static>: 'static,
{
    /// An empty slot below `parent`. Sleeps.
    pub fn new(parent: &Device<Bound>) -> Result<Self> {
        let inner = Arc::pin_init(
            pin_init!(Inner {
                parent: parent.into(),
                state <- new_mutex!(State { open: true, child: None }),
            }),
            GFP_KERNEL,
        )?;
        devres::register(parent, Close(inner.clone()), GFP_KERNEL)?;
        Ok(Self { inner })
    }

    /// Adds the device `modname.name.id`; a driver that is there is probed before this returns. Does nothing if the
    /// device is there already. `ENODEV` if the slot is closed. Sleeps; not from the device's own driver.
    pub fn add(
        &self,
        name: &'static CStr,
        id: u32,
        modname: &CStr,
        data: F::Of<'static>,
    ) -> Result {
        let mut state = self.inner.state.lock();
        if !state.open {
            return Err(ENODEV);
        }
        if state.child.is_some() {
            return Ok(());
        }
        let parent: *const Device = &*self.inner.parent;
        // SAFETY: `parent` points to a device that `inner` holds a reference to. It is bound, because the slot is open
        // and `Close`, which is dropped before the parent is unbound, waits for the lock held here. `'static` is longer
        // than that, but the registration, the only one to keep the lifetime, is dropped by `Close` at the latest.
        let parent: &'static Device<Bound> = unsafe { (*parent).as_bound() };
        let child = Registration::new(parent, name, id, modname, data)?;
        state.child = Some(KBox::new(child, GFP_KERNEL)?);
        Ok(())
    }

    /// Takes the device away if it is there; waits until its driver has let go of it. Sleeps; not from that driver.
    pub fn remove(&self) {
        self.inner.state.lock().child = None;
    }

    /// As [`ChildSlot::remove`], and none can be added any more.
    pub fn close(&self) {
        self.inner.close();
    }
}
