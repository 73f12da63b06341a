// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Nodes that come and go: enable, reset, failure, and the link to the switch.

use crate::{
    hal::Clock, node::Node, nodes::NodeTable, path::engine::Engine, pool::grant::WRITERS_PAUSE_US,
    state::grant::Writers,
};
use nupa_proto::{eqe::EventType, regs::FAULT_NONE};

impl Engine {
    /// The node's driver has enabled it: it joins, and the others are told. Nothing happens to one that has failed.
    pub fn enable<N: NodeTable>(&mut self, nodes: &mut N, id: u16) {
        let Some((node, _)) = nodes.node_mut(id) else {
            return;
        };
        let was_up = node.is_up();
        node.enabled = node.fault == FAULT_NONE;
        self.joined(nodes, id, was_up);
    }

    /// The node is reset, or its host is gone: every object of it is gone, its epoch goes up, the others are told. Waits
    /// ([`Clock::pause_us`]) until no peer writes to its memory; one that goes on is refused after `GRANT_TIMEOUT_US`.
    pub fn reset<N: NodeTable>(&mut self, nodes: &mut N, id: u16) {
        let Some((node, _)) = nodes.node_mut(id) else {
            return;
        };
        let (was_up, epoch) = (node.is_up(), node.epoch());
        node.reset();
        self.revoke_grants(nodes, id, Writers::Await);
        // Nobody else is kept waiting: the node has nothing to do.
        while !self.direct_writers_gone(nodes, id) {
            if let Some((_, platform)) = nodes.node(id) {
                platform.pause_us(WRITERS_PAUSE_US);
            }
        }
        if was_up {
            self.left(nodes, id, epoch);
        }
    }

    /// The node's controller stops for a fault (`FAULT_*` of [`nupa_proto::regs`]): its driver and the others are told.
    /// Only a reset brings it back; until then the host passes it no kicks.
    pub fn fail<N: NodeTable>(&mut self, nodes: &mut N, id: u16, fault: u32) {
        let Some((node, platform)) = nodes.node_mut(id) else {
            return;
        };
        let (was_up, epoch) = (node.is_up(), node.epoch());
        node.enabled = false;
        node.report(platform, EventType::Fatal, id, fault);
        // Not what the attempt to report it made of it.
        node.fault = fault;
        self.revoke_grants(nodes, id, Writers::Ignore);
        if was_up {
            self.left(nodes, id, epoch);
        }
    }

    /// The node's link to the switch goes up or down.
    pub fn set_link<N: NodeTable>(&mut self, nodes: &mut N, id: u16, up: bool) {
        let Some((node, platform)) = nodes.node_mut(id) else {
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
            return self.joined(nodes, id, was_up);
        }
        let epoch = node.epoch();
        node.start_sweep();
        self.sweep(nodes, id);
        self.revoke_grants(nodes, id, Writers::Ignore);
        if was_up {
            self.left(nodes, id, epoch);
        }
    }

    fn joined<N: NodeTable>(&mut self, nodes: &mut N, id: u16, was_up: bool) {
        let Some((node, _)) = nodes.node(id) else {
            return;
        };
        let epoch = node.epoch();
        if !was_up && node.is_up() {
            self.tell_joined(nodes, id, epoch);
        }
    }

    pub(crate) fn tell_joined<N: NodeTable>(&mut self, nodes: &mut N, id: u16, epoch: u32) {
        for_others(nodes, id, |node, platform| {
            node.report(platform, EventType::NodeUp, id, epoch);
        });
    }

    pub(crate) fn left<N: NodeTable>(&mut self, nodes: &mut N, id: u16, epoch: u32) {
        for other in nodes.homes().filter(|other| *other != id) {
            if let Some((node, _)) = nodes.node_mut(other).filter(|(node, _)| node.enabled) {
                node.start_sweep();
                self.sweep(nodes, other);
            }
        }
        for_others(nodes, id, |node, platform| {
            node.report(platform, EventType::NodeDown, id, epoch);
        });
        self.wake_node(nodes, id);
    }
}

/// Calls `tell` for every node but `id` that is enabled.
fn for_others<N: NodeTable>(
    nodes: &mut N,
    id: u16,
    tell: impl Fn(&mut Node<N::Storage>, &N::Platform),
) {
    for other in nodes.homes().filter(|other| *other != id) {
        if let Some((node, platform)) = nodes.node_mut(other) {
            if node.enabled {
                tell(node, platform);
            }
        }
    }
}
