// SPDX-License-Identifier: GPL-2.0
//! Who works with the node: softirqs, which never wait, or a task, which may sleep meanwhile. As for a socket
//! (`lock_sock()`), a softirq that comes while a task has it leaves its work behind.

use super::node::PoolNode;
use kernel::{
    new_mutex, new_spinlock,
    prelude::*,
    sync::{
        atomic::{Atomic, Full},
        Mutex, SpinLock,
    },
};
use nk::bh;

/// Where the node is.
#[pin_data]
pub(super) struct OwnerLock {
    /// Tasks wait for each other here.
    #[pin]
    tasks: Mutex<()>,
    /// Empty while a task has it, and while it is closed. Held with softirqs off.
    #[pin]
    node: SpinLock<Option<KBox<PoolNode>>>,
    /// Somebody found it taken.
    missed: Atomic<bool>,
}

impl OwnerLock {
    pub(super) fn new(node: KBox<PoolNode>) -> impl PinInit<Self> {
        pin_init!(Self {
            tasks <- new_mutex!(()),
            node <- new_spinlock!(Some(node)),
            missed: Atomic::new(false),
        })
    }

    /// Runs `f`, which may sleep, with the node. `ENODEV` once it is closed. What comes meanwhile is missed. Sleeps.
    pub(super) fn with<R>(&self, f: impl FnOnce(&mut PoolNode) -> R) -> Result<R> {
        let _turn = self.tasks.lock();
        let mut node = self.take().ok_or(ENODEV)?;
        let result = f(&mut node);
        bh::disabled(|| *self.node.lock() = Some(node));
        Ok(result)
    }

    /// Runs `f` with the node; `None` if somebody has it, who then [misses](Self::take_missed) something, or if it is
    /// closed. With softirqs off.
    pub(super) fn try_with<R>(&self, f: impl FnOnce(&mut PoolNode) -> R) -> Option<R> {
        let mut node = self.node.try_lock();
        if node.as_ref().is_none_or(|node| node.is_none()) {
            drop(node);
            // Who has it looks at this after giving it back. If that was just now, it is there by now.
            self.missed.xchg(true, Full);
            node = self.node.try_lock();
        }
        Option::as_mut(&mut *node?).map(|node| f(node))
    }

    /// Whether somebody found the node taken since the last time this was asked. To be asked after each use of it: it is
    /// to be looked at again then. Any context.
    pub(super) fn take_missed(&self) -> bool {
        self.missed.xchg(false, Full)
    }

    /// Takes the node away, until [`OwnerLock::open`]. Sleeps.
    pub(super) fn close(&self) -> Option<KBox<PoolNode>> {
        let _turn = self.tasks.lock();
        self.take()
    }

    /// Puts the node back. Sleeps.
    pub(super) fn open(&self, node: KBox<PoolNode>) {
        let _turn = self.tasks.lock();
        bh::disabled(|| *self.node.lock() = Some(node));
    }

    /// The mutex `tasks` is held: nobody but a softirq on another processor has it.
    fn take(&self) -> Option<KBox<PoolNode>> {
        bh::disabled(|| self.node.lock().take())
    }
}
