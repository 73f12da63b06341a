// SPDX-License-Identifier: GPL-2.0
//! Work that runs soon in interrupt context, whichever context asks for it.
//!
//! C header: `include/linux/irq_work.h`. The `kernel` crate has no abstraction of it.

use core::marker::PhantomPinned;
use kernel::{bindings, prelude::*, types::Opaque};

/// What is to run.
pub trait IrqWorkItem: Send + Sync + 'static {
    /// Interrupt context: must not sleep.
    fn run(&self);
}

/// An item that can be asked for. Dropping it waits until it is neither pending nor running: sleeps.
#[pin_data(PinnedDrop)]
pub struct IrqWork<T: IrqWorkItem> {
    #[pin]
    work: Opaque<bindings::irq_work>,
    item: T,
    #[pin]
    _pin: PhantomPinned,
}

// SAFETY: `work` is the kernel's, which any CPU may queue; the item is `Send`.
unsafe impl<T: IrqWorkItem> Send for IrqWork<T> {}
// SAFETY: The functions of `irq_work` may be called at the same time; the item is `Sync`.
unsafe impl<T: IrqWorkItem> Sync for IrqWork<T> {}

impl<T: IrqWorkItem> IrqWork<T> {
    /// Nobody has asked for it yet.
    pub fn new(item: T) -> impl PinInit<Self> {
        pin_init!(Self {
            // SAFETY: As `init_irq_work()` does: `slot` is valid for writes, and zeroes are a valid `irq_work`.
            work <- Opaque::ffi_init(|slot: *mut bindings::irq_work| unsafe {
                slot.write_bytes(0, 1);
                (&raw mut (*slot).func).write(Some(run::<T>));
            }),
            item,
            _pin: PhantomPinned,
        })
    }

    /// Has the item run soon, once for all that ask before it begins. Any context.
    pub fn queue(&self) {
        // SAFETY: `work` is initialised and pinned, as it can be made in place only, and waited for before it goes
        // (`PinnedDrop`). The result says whether it was pending already.
        unsafe { bindings::irq_work_queue(self.work.get()) };
    }

    /// Waits until the item is neither pending nor running. May sleep, with interrupts on. Several may wait at a time, as processors
    /// have an interrupt for this (`arch_irq_work_has_interrupt()`) and there is no `CONFIG_PREEMPT_RT` (`device_helpers.c`).
    pub fn sync(&self) {
        // SAFETY: As in `queue`.
        unsafe { bindings::irq_work_sync(self.work.get()) };
    }
}

#[pinned_drop]
impl<T: IrqWorkItem> PinnedDrop for IrqWork<T> {
    fn drop(self: Pin<&mut Self>) {
        self.sync();
    }
}

/// Runs the item that `work` belongs to.
///
/// # Safety
///
/// `work` is that of an [`IrqWork<T>`].
unsafe extern "C" fn run<T: IrqWorkItem>(work: *mut bindings::irq_work) {
    // SAFETY: By this function's contract; it lives, for it is waited for before it goes.
    let this = unsafe { &*kernel::container_of!(Opaque::cast_from(work), IrqWork<T>, work) };
    this.item.run();
}
