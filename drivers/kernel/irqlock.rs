// SPDX-License-Identifier: GPL-2.0
//! A spinlock that may be taken in any context, hard interrupts included.
//!
//! C header: `include/linux/spinlock.h` (`spin_lock_irqsave()`).

use crate::bindings as nk;
use kernel::{
    bindings,
    sync::lock::{Backend, Guard, Lock},
};

/// A spinlock whose holder runs with interrupts off on its CPU, so that interrupt handlers may take it too.
pub type SpinLockIrq<T> = Lock<T, IrqSaveBackend>;

/// Guard of a [`SpinLockIrq`].
pub type SpinLockIrqGuard<'a, T> = Guard<'a, T, IrqSaveBackend>;

/// Makes a [`SpinLockIrq`] with a lock class of its own; for use with `<-` in `pin_init!`.
#[macro_export]
macro_rules! new_spinlock_irq {
    ($inner:expr) => {
        $crate::irqlock::SpinLockIrq::new(
            $inner,
            kernel::optional_name!(),
            kernel::static_lock_class!(),
        )
    };
}
pub use new_spinlock_irq;

/// Lock backend that saves and restores the interrupt state.
pub struct IrqSaveBackend;

// SAFETY: The `spinlock_t` ensures mutual exclusion, in interrupt context too since interrupts are off while it is
// held. `relock` is the default, which locks in the same way.
unsafe impl Backend for IrqSaveBackend {
    type State = bindings::spinlock_t;
    type GuardState = kernel::ffi::c_ulong;

    #[inline]
    unsafe fn init(
        ptr: *mut Self::State,
        name: *const kernel::ffi::c_char,
        key: *mut bindings::lock_class_key,
    ) {
        // SAFETY: By this function's contract `ptr` can be written to, and `name` and `key` live for ever.
        unsafe { bindings::__spin_lock_init(ptr, name, key) }
    }

    #[inline]
    unsafe fn lock(ptr: *mut Self::State) -> Self::GuardState {
        // SAFETY: By this function's contract `ptr` has been initialised.
        unsafe { nk::nk_spin_lock_irqsave(ptr.cast()) }
    }

    #[inline]
    unsafe fn unlock(ptr: *mut Self::State, guard_state: &Self::GuardState) {
        // SAFETY: By this function's contract the caller owns the lock, and `guard_state` comes from `lock`.
        unsafe { nk::nk_spin_unlock_irqrestore(ptr.cast(), *guard_state) }
    }

    #[inline]
    unsafe fn try_lock(ptr: *mut Self::State) -> Option<Self::GuardState> {
        let mut flags = 0;
        // SAFETY: By this function's contract `ptr` has been initialised; `flags` can be written to.
        let locked = unsafe { nk::nk_spin_trylock_irqsave(ptr.cast(), &mut flags) };
        locked.then_some(flags)
    }

    #[inline]
    unsafe fn assert_is_held(ptr: *mut Self::State) {
        // SAFETY: By this function's contract `ptr` has been initialised.
        unsafe { bindings::spin_assert_is_held(ptr) }
    }
}
