// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The lock of a queue.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};

/// Tries before a waiting thread gives its processor away: the holder may be waiting for one.
const SPINS: u32 = 100;

/// A spin lock, as the queues of other providers have. Unlike a mutex of the standard library it can be held from
/// `ibv_wr_start()` to `ibv_wr_complete()`, which no guard can span.
#[derive(Debug)]
pub(crate) struct Lock<T> {
    held: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached by the thread that holds the lock only, so sharing the lock sends the value.
unsafe impl<T: Send> Sync for Lock<T> {}

/// Shows that the lock is held, and gives it back when dropped.
#[derive(Debug)]
pub(crate) struct Guard<'a, T>(&'a Lock<T>);

impl<T> Lock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self {
            held: AtomicBool::new(false),
            value: UnsafeCell::new(value),
        }
    }

    /// Waits for the lock.
    #[inline(always)]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        if self.held.swap(true, Ordering::Acquire) {
            self.wait();
        }
        Guard(self)
    }

    /// The guard, if nobody has the lock.
    #[inline(always)]
    pub(crate) fn try_lock(&self) -> Option<Guard<'_, T>> {
        if self.held.swap(true, Ordering::Acquire) {
            return None;
        }
        Some(Guard(self))
    }

    #[cold]
    fn wait(&self) {
        loop {
            for _ in 0..SPINS {
                if !self.held.load(Ordering::Relaxed) && !self.held.swap(true, Ordering::Acquire) {
                    return;
                }
                std::hint::spin_loop();
            }
            std::thread::yield_now();
        }
    }

    /// Takes the lock and keeps it after the return, until the guard of [`Lock::resume`] is dropped.
    #[inline(always)]
    pub(crate) fn keep(&self) {
        std::mem::forget(self.lock());
    }

    /// The guard of a lock that [`Lock::keep`] took.
    ///
    /// # Safety
    ///
    /// The calling thread took the lock with [`Lock::keep`], has not given it back, and has no other guard of it.
    #[inline(always)]
    pub(crate) unsafe fn resume(&self) -> Guard<'_, T> {
        Guard(self)
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: a guard exists only while the lock is held, and there is one guard at a time.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`; `&mut self` is the only way to this reference.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.held.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_take_turns() {
        let lock = Lock::new(0u32);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        let mut count = lock.lock();
                        *count += 1;
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), 30_000);
    }

    #[test]
    fn a_kept_lock_is_given_back_by_the_resumed_guard() {
        let lock = Lock::new(1);
        lock.keep();
        // SAFETY: this thread kept it just now.
        drop(unsafe { lock.resume() });
        assert_eq!(*lock.lock(), 1);
    }
}
