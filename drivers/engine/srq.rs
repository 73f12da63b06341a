// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Shared receive queues: one ring of entries for many queue pairs (InfiniBand volume 1, 10.2.9).

use crate::{
    access::KeyHolder, engine::Engine, fabric::Fabric, hal::Platform, held::Held, node::Node,
    recv_queue::RecvQueue, storage::Storage,
};
use nupa_proto::eqe::EventType;

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct SharedQueue<P> {
    pub(crate) queue: RecvQueue<P>,
    /// Whose keys the entries use.
    pub(crate) holder: KeyHolder,
    /// Queue pairs that take entries from it.
    pub(crate) users: u32,
    /// An event is raised when fewer entries than this are left; 0: none.
    pub(crate) limit: u32,
    /// Its owner's producer index was out of bounds: it hands out no more entries.
    pub(crate) dead: bool,
    /// Events that found no room.
    pub(crate) held: Held,
}

impl Engine {
    /// New entries were posted to a shared receive queue: whoever waits for them goes on.
    pub(crate) fn replenished_shared<F: Fabric>(&mut self, fabric: &mut F, id: u16, srqn: u32) {
        let Some((node, _)) = fabric.node_mut(id) else {
            return;
        };
        let Some(srq) = node.shared.get_mut(srqn) else {
            return;
        };
        if core::mem::take(&mut srq.queue.wanted) {
            self.wake_shared(fabric, id, srqn);
            self.take_turns(fabric);
        }
    }
}

impl<S: Storage> Node<S> {
    /// Raises the limit event of a shared receive queue if it is due.
    pub(crate) fn check_limit(&mut self, platform: &impl Platform, srqn: u32) {
        let Some(srq) = self.shared.get_mut(srqn).filter(|srq| srq.limit != 0) else {
            return;
        };
        if srq.queue.left(platform) < srq.limit {
            srq.limit = 0;
            self.report(platform, EventType::SrqLimit, 0, srqn);
        }
    }

    /// Gives a shared receive queue up.
    #[cold]
    pub(crate) fn fail_shared(&mut self, platform: &impl Platform, srqn: u32) {
        let Some(srq) = self.shared.get_mut(srqn) else {
            return;
        };
        if !core::mem::replace(&mut srq.dead, true) {
            self.report(platform, EventType::SrqFatal, 0, srqn);
        }
    }
}
