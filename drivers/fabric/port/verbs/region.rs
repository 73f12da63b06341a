// SPDX-License-Identifier: GPL-2.0
//! Memory regions and other keys.

use super::Pd;
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc, Mutex,
    },
};
use nk::trace;
use nupa_proto::admin::{AdminOpcode, CreateMr, Created, ModifyMr, MR_MASK_PD};
use zerocopy::{Immutable, IntoBytes};

/// A memory region, or a key that FAST_REG or BIND_MW binds.
#[pin_data]
pub struct Mr {
    key: Atomic<u32>,
    #[pin]
    object: Mutex<Object>,
}

/// The region in the controller, destroyed when dropped.
struct Object {
    key: u32,
    pd: Arc<Pd>,
    destroyed: bool,
}

impl Drop for Object {
    fn drop(&mut self) {
        if !self.destroyed {
            let pd = &self.pd;
            trace::mr_dereg(pd.controller().device(), self.key);
            pd.controller()
                .destroy(pd.generation(), AdminOpcode::DestroyMr, self.key);
        }
    }
}

impl Mr {
    /// Creates a region or key by a command whose result is the key.
    pub(super) fn create<B: IntoBytes + Immutable>(
        pd: &Arc<Pd>,
        opcode: AdminOpcode,
        body: &B,
    ) -> Result<Arc<Self>> {
        let controller = pd.controller();
        let created: Created = controller.command(pd.generation(), opcode, body)?;
        let object = Object {
            key: created.id.get(),
            pd: pd.clone(),
            destroyed: false,
        };
        let region = pin_init!(Self {
            key: Atomic::new(object.key),
            object <- new_mutex!(object),
        });
        Arc::pin_init(region, GFP_KERNEL_ACCOUNT)
    }

    /// Local key, which is the remote key as well. Any context.
    pub fn key(&self) -> u32 {
        self.key.load(Relaxed)
    }

    /// Destroys the region before it is dropped. `EBUSY` if windows are bound to it: then nothing has changed, and it must
    /// not be dropped before they are gone.
    pub fn destroy(&self) -> Result {
        let mut object = self.object.lock();
        let controller = object.pd.controller();
        let generation = object.pd.generation();
        controller.try_destroy(generation, AdminOpcode::DestroyMr, object.key)?;
        trace::mr_dereg(controller.device(), object.key);
        object.destroyed = true;
        Ok(())
    }

    /// Changes what `mask` (`MR_MASK_*`) says to what `region` says, whose field `pd` is filled in here; `pd` counts
    /// with `MR_MASK_PD`. Returns the new key; the old one is not good any more. `EIO` if the domain is from before a
    /// reset. Nothing has changed if this fails.
    pub fn modify(&self, mask: u32, pd: Option<&Arc<Pd>>, region: &CreateMr) -> Result<u32> {
        let mut object = self.object.lock();
        let owner = object.pd.clone();
        let pd = pd.filter(|_| mask & MR_MASK_PD != 0);
        if pd.is_some_and(|pd| pd.generation() != owner.generation()) {
            return Err(EIO);
        }
        let command = ModifyMr {
            key: object.key.into(),
            mask: mask.into(),
            mr: CreateMr {
                pd: pd.map_or(0, |pd| pd.number()).into(),
                ..*region
            },
        };
        let controller = owner.controller();
        let created: Created =
            controller.command(owner.generation(), AdminOpcode::ModifyMr, &command)?;
        trace::mr_rereg(controller.device(), object.key, created.id.get());
        object.key = created.id.get();
        self.key.store(object.key, Relaxed);
        if let Some(pd) = pd {
            object.pd = pd.clone();
        }
        Ok(object.key)
    }
}
