// SPDX-License-Identifier: GPL-2.0
//! Transmit queues: the lock, what it protects, stopping and waking, byte queue limits.
//!
//! A driver's state of a transmit queue is both filled in `start_xmit` and emptied by whoever reaps completions. Here
//! the queue's own transmit lock protects it, which the core holds anyway around `start_xmit`; reapers take it. So no
//! second lock is paid per packet, and stopping and waking cannot miss each other.
//!
//! C header: `include/linux/netdevice.h`

use super::operations::Operations;
use crate::bindings;
use core::{
    cell::UnsafeCell,
    marker::PhantomData,
    ops::{Deref, DerefMut},
};

/// A driver's data of one queue, protected by the queue's transmit lock.
pub(super) struct TxSlot<Q>(UnsafeCell<Option<Q>>);

impl<Q> TxSlot<Q> {
    pub(super) const fn new() -> Self {
        Self(UnsafeCell::new(None))
    }
}

/// A transmit queue whose lock is not held.
pub struct TxQueueRef<'a, T: Operations> {
    txq: *mut bindings::netdev_queue,
    slot: &'a TxSlot<T::TxQueue>,
    index: usize,
}

impl<'a, T: Operations> TxQueueRef<'a, T> {
    /// # Safety
    ///
    /// `txq` is queue `index` of a device that lives for `'a`, and `slot` is the slot of that same queue.
    #[inline]
    pub(super) unsafe fn new(
        txq: *mut bindings::netdev_queue,
        slot: &'a TxSlot<T::TxQueue>,
        index: usize,
    ) -> Self {
        Self { txq, slot, index }
    }

    /// Takes the transmit lock. From process or softirq context; not from within a transmit on any queue.
    #[inline]
    pub fn lock(self) -> TxQueueGuard<'a, T> {
        // SAFETY: The queue is alive by the requirements of `new`.
        unsafe { bindings::nk_tx_lock_bh(self.txq) };
        TxQueueGuard {
            queue: self,
            bh: true,
            not_send: PhantomData,
        }
    }

    /// Takes the transmit lock if nobody has it. With softirqs or interrupts off.
    #[inline]
    pub fn try_lock(self) -> Option<TxQueueGuard<'a, T>> {
        // SAFETY: The queue is alive by the requirements of `new`.
        if !unsafe { bindings::nk_tx_trylock(self.txq) } {
            return None;
        }
        Some(TxQueueGuard {
            queue: self,
            bh: false,
            not_send: PhantomData,
        })
    }
}

/// A transmit queue whose lock is held, with softirqs off.
pub struct TxQueueGuard<'a, T: Operations> {
    queue: TxQueueRef<'a, T>,
    /// Softirqs are off because of this.
    bh: bool,
    not_send: PhantomData<*mut ()>,
}

impl<'a, T: Operations> TxQueueGuard<'a, T> {
    fn slot(&mut self) -> &mut Option<T::TxQueue> {
        // SAFETY: The transmit lock is held, and the borrow ends before the guard does.
        unsafe { &mut *self.queue.slot.0.get() }
    }

    /// Puts the driver's data of this queue in place and returns what was there.
    pub fn replace(&mut self, data: Option<T::TxQueue>) -> Option<T::TxQueue> {
        core::mem::replace(self.slot(), data)
    }

    /// The queue with the driver's data, if there is any.
    #[inline]
    pub fn queue(&mut self) -> Option<TxQueue<'_, T>> {
        let (txq, index) = (self.queue.txq, self.queue.index);
        // SAFETY: The transmit lock is held for as long as the borrow of the guard lasts, so the slot is ours.
        unsafe { TxQueue::locked(txq, self.queue.slot, index) }
    }

    /// Forgets what byte queue limits know of the queue, whose packets are all gone.
    pub fn reset_limits(&mut self) {
        // SAFETY: The queue is alive and locked.
        unsafe { bindings::nk_tx_reset(self.queue.txq) };
    }
}

impl<T: Operations> Drop for TxQueueGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: Taken by this thread, because the guard is not `Send`, in the way that `bh` says.
        unsafe {
            match self.bh {
                true => bindings::nk_tx_unlock_bh(self.queue.txq),
                false => bindings::nk_tx_unlock(self.queue.txq),
            }
        }
    }
}

/// A locked transmit queue and the driver's data of it. All methods are for any context that has one.
pub struct TxQueue<'a, T: Operations> {
    txq: *mut bindings::netdev_queue,
    data: &'a mut T::TxQueue,
    index: usize,
}

impl<'a, T: Operations> TxQueue<'a, T> {
    /// The queue, `None` if no data is in place.
    ///
    /// # Safety
    ///
    /// `txq` is queue `index` of a live device and `slot` its slot; its transmit lock is held for `'a`, in which nobody
    /// else borrows the slot.
    #[inline]
    pub(super) unsafe fn locked(
        txq: *mut bindings::netdev_queue,
        slot: &'a TxSlot<T::TxQueue>,
        index: usize,
    ) -> Option<Self> {
        // SAFETY: The lock protects the slot, and it is held.
        let data = unsafe { &mut *slot.0.get() }.as_mut()?;
        Some(Self { txq, data, index })
    }

    /// Number of the queue.
    #[inline]
    pub fn index(&self) -> usize {
        self.index
    }

    /// Tells byte queue limits that `bytes` were queued, `more` packets being about to follow at once
    /// (`__netdev_tx_sent_queue()`). Returns whether the hardware must be told of the packet now.
    #[inline]
    pub fn sent(&mut self, bytes: u32, more: bool) -> bool {
        // SAFETY: The queue is alive and locked.
        unsafe { bindings::nk_tx_sent(self.txq, bytes, more) }
    }

    /// Tells byte queue limits that packets are done (`netdev_tx_completed_queue()`).
    #[inline]
    pub fn completed(&mut self, packets: u32, bytes: u32) {
        // SAFETY: The queue is alive; completions are serialised by its lock.
        unsafe { bindings::nk_tx_completed(self.txq, packets, bytes) };
    }

    /// Says that something was sent past the core, so that the watchdog does not take the queue for stuck.
    #[inline]
    pub fn in_use(&mut self) {
        // SAFETY: The queue is alive and locked.
        unsafe { bindings::nk_tx_in_use(self.txq) };
    }

    /// Stops the queue: the core sends nothing on it until it is woken.
    #[inline]
    pub fn stop(&mut self) {
        // SAFETY: The queue is alive.
        unsafe { bindings::nk_tx_stop(self.txq) };
    }

    /// Whether the driver stopped the queue.
    #[inline]
    pub fn is_stopped(&self) -> bool {
        // SAFETY: The queue is alive.
        unsafe { bindings::nk_tx_stopped(self.txq) }
    }

    /// Lets the core send again and makes it try.
    #[inline]
    pub fn wake(&mut self) {
        // SAFETY: The queue is alive.
        unsafe { bindings::netif_tx_wake_queue(self.txq) };
    }
}

impl<T: Operations> Deref for TxQueue<'_, T> {
    type Target = T::TxQueue;

    #[inline]
    fn deref(&self) -> &T::TxQueue {
        self.data
    }
}

impl<T: Operations> DerefMut for TxQueue<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T::TxQueue {
        self.data
    }
}
