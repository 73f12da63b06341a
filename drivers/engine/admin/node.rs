// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Nodes that come and go, and changes to queue pairs that others notice.

use crate::{
    hal::{Platform, Storage},
    node::Node,
    nodes::Fabric,
    path::engine::Engine,
    state::{grant::Writers, qp::QueuePair},
};
use nupa_proto::{eqe::EventType, regs::FAULT_NONE};

impl Engine {
    /// The node's driver has enabled it: it joins, and the others are told. Nothing happens to one that has failed.
    pub fn enable<F: Fabric>(&mut self, fabric: &mut F, id: u16) {
        let Some((node, _)) = fabric.node_mut(id) else {
            return;
        };
        let was_up = node.is_up();
        node.enabled = node.fault == FAULT_NONE;
        self.joined(fabric, id, was_up);
    }

    /// The node is reset, or its host is gone: every object of it is gone, its epoch goes up, the others are told.
    pub fn reset<F: Fabric>(&mut self, fabric: &mut F, id: u16) {
        let Some((node, _)) = fabric.node_mut(id) else {
            return;
        };
        let (was_up, epoch) = (node.is_up(), node.epoch());
        node.reset();
        self.take_back(fabric, id, Writers::Await);
        if was_up {
            self.left(fabric, id, epoch);
        }
    }

    /// The node's controller stops for a fault (`FAULT_*` of [`nupa_proto::regs`]): its driver and the others are told.
    /// Only a reset brings it back; until then the host passes it no kicks.
    pub fn fail<F: Fabric>(&mut self, fabric: &mut F, id: u16, fault: u32) {
        let Some((node, platform)) = fabric.node_mut(id) else {
            return;
        };
        let (was_up, epoch) = (node.is_up(), node.epoch());
        node.enabled = false;
        node.report(platform, EventType::Fatal, id, fault);
        // Not what the attempt to report it made of it.
        node.fault = fault;
        self.take_back(fabric, id, Writers::Ignore);
        if was_up {
            self.left(fabric, id, epoch);
        }
    }

    /// The node's link to the switch goes up or down.
    pub fn set_link<F: Fabric>(&mut self, fabric: &mut F, id: u16, up: bool) {
        let Some((node, platform)) = fabric.node_mut(id) else {
            return;
        };
        if node.link == up {
            return;
        }
        let was_up = node.is_up();
        node.link = up;
        let event = if up {
            EventType::LinkUp
        } else {
            EventType::LinkDown
        };
        node.report(platform, event, id, node.epoch());
        if up {
            return self.joined(fabric, id, was_up);
        }
        let epoch = node.epoch();
        node.disconnect(platform, |remote| remote != id);
        self.take_back(fabric, id, Writers::Ignore);
        if was_up {
            self.left(fabric, id, epoch);
        }
    }

    fn joined<F: Fabric>(&mut self, fabric: &mut F, id: u16, was_up: bool) {
        let Some((node, _)) = fabric.node(id) else {
            return;
        };
        let epoch = node.epoch();
        if !was_up && node.is_up() {
            self.tell_joined(fabric, id, epoch);
        }
    }

    pub(crate) fn tell_joined<F: Fabric>(&mut self, fabric: &mut F, id: u16, epoch: u32) {
        for_others(fabric, id, |node, platform| {
            node.report(platform, EventType::NodeUp, id, epoch);
        });
    }

    pub(crate) fn left<F: Fabric>(&mut self, fabric: &mut F, id: u16, epoch: u32) {
        for_others(fabric, id, |node, platform| {
            node.disconnect(platform, |remote| remote == id);
            node.report(platform, EventType::NodeDown, id, epoch);
        });
        self.wake_node(fabric, id);
    }
}

/// Calls `tell` for every node but `id` that is enabled.
fn for_others<F: Fabric>(
    fabric: &mut F,
    id: u16,
    tell: impl Fn(&mut Node<F::Storage>, &F::Platform),
) {
    for other in (0..fabric.max_nodes()).filter(|other| *other != id) {
        if let Some((node, platform)) = fabric.node_mut(other) {
            if node.enabled {
                tell(node, platform);
            }
        }
    }
}

impl<S: Storage> Node<S> {
    /// Puts all queue pairs that are connected to such nodes into the error state; they are flushed at their next turn.
    fn disconnect(&mut self, platform: &impl Platform, gone: impl Fn(u16) -> bool) {
        for qpn in 0..self.pairs.end() {
            let lost = |pair: &QueuePair<_>| pair.remote.is_some_and(|remote| gone(remote.node));
            if self.pairs.get(qpn).is_some_and(lost) {
                self.fail(platform, qpn);
            }
        }
    }
}
