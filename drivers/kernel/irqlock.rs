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
///
/// Guards may be dropped in any order: interrupts stay off until the last is gone.
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
///
/// The state belongs to the CPU and not to a guard, which knows nothing of the others that there are.
pub struct IrqSaveBackend;

// SAFETY: The `spinlock_t` ensures mutual exclusion, in interrupt context too since interrupts are off while it is
// held, until the last such lock is released. `relock` is the default, which locks in the same way.
unsafe impl Backend for IrqSaveBackend {
    type State = bindings::spinlock_t;
    type GuardState = ();

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
        unsafe { nk::nk_spin_lock_irq(ptr.cast()) }
    }

    #[inline]
    unsafe fn unlock(ptr: *mut Self::State, _guard_state: &Self::GuardState) {
        // SAFETY: By this function's contract the caller owns the lock; on this CPU, because guards are not `Send` and
        // nobody is moved with interrupts off.
        unsafe { nk::nk_spin_unlock_irq(ptr.cast()) }
    }

    #[inline]
    unsafe fn try_lock(ptr: *mut Self::State) -> Option<Self::GuardState> {
        // SAFETY: By this function's contract `ptr` has been initialised.
        unsafe { nk::nk_spin_trylock_irq(ptr.cast()) }.then_some(())
    }

    #[inline]
    unsafe fn assert_is_held(ptr: *mut Self::State) {
        // SAFETY: By this function's contract `ptr` has been initialised.
        unsafe { bindings::spin_assert_is_held(ptr) }
    }
}
