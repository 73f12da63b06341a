// SPDX-License-Identifier: GPL-2.0
//! All queue pairs of the kernel, to be flushed when the controller is lost.

use super::KernelQp;
use kernel::{
    new_mutex,
    prelude::*,
    rbtree::{RBTree, RBTreeNode},
    sync::{Arc, Mutex},
};
use nupa_fabric::{Listener, PortEvent};

/// Queue pairs of one device that the kernel posts to, by number.
#[pin_data]
pub(crate) struct KernelQps {
    #[pin]
    pairs: Mutex<RBTree<u32, Arc<KernelQp>>>,
}

impl KernelQps {
    /// None so far. May sleep.
    pub(crate) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self { pairs <- new_mutex!(RBTree::new()) }),
            GFP_KERNEL,
        )
    }

    /// Adds a pair. May sleep.
    pub(super) fn add(&self, qpn: u32, pair: Arc<KernelQp>) -> Result {
        let node = RBTreeNode::new(qpn, pair, GFP_KERNEL)?;
        self.pairs.lock().insert(node);
        Ok(())
    }

    /// Takes a pair out; when this returns it is not being flushed and never will be. Sleeps.
    pub(super) fn remove(&self, qpn: u32) {
        self.pairs.lock().remove(&qpn);
    }
}

impl Listener for KernelQps {
    fn event(&self, event: PortEvent) {
        if !matches!(event, PortEvent::Resetting | PortEvent::Gone) {
            return;
        }
        // Without this their users would wait for completions that nobody writes any more.
        self.pairs.lock().values().for_each(|pair| pair.lose());
    }
}
