// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Events for messages that went past the engines: a program that waits for one has its peer's engine tell this one.

use crate::{
    hal::{Platform, Storage},
    node::Node,
    nodes::NodeTable,
    path::engine::Engine,
    state::qp::QueuePair,
};
use nupa_proto::{
    admin::QpType,
    pool::message::{NotifyBody, NOTIFY_ALL, NOTIFY_EVENT},
};
use zerocopy::FromZeros;

/// Queue pairs that are looked at in one turn, because those of any number may have messages.
const PIECE: u32 = 64;

/// A queue pair of another host.
#[derive(Clone, Copy)]
pub(super) struct Sender {
    pub(super) node: u16,
    pub(super) epoch: u32,
    /// Its number; `None`: any.
    pub(super) qpn: Option<u32>,
}

impl Engine {
    /// A connected queue pair of node `home` has left a message in the process ring of its peer, of another host, whose program waits for an
    /// event: that one's engine makes it. Nothing happens if there is no such queue pair, or its peer's node has gone.
    pub fn send_event<N: NodeTable>(&mut self, nodes: &mut N, home: u16, qpn: u32) {
        let there = nodes.node(home).and_then(|(node, _)| node.qps.get(qpn));
        let connected = there.filter(|qp| qp.kind == QpType::Rc && qp.has_rings);
        let Some(remote) = connected.and_then(|qp| qp.remote) else {
            return;
        };
        let peer = nodes.peer_mut(remote.node);
        if !peer.is_some_and(|peer| peer.home() == home && peer.epoch() == Some(remote.epoch)) {
            return;
        }
        let mut body = NotifyBody::new_zeroed();
        body.qpn.set(qpn);
        body.source_qpn.set(remote.qpn);
        body.flags = NOTIFY_EVENT;
        self.notify(nodes, remote.node, &body);
    }

    /// A process has receive entries for messages in the process ring of a connected queue pair of node `home`, which have waited for that: makes the event
    /// of the pair's receive completion queue, if that is armed. Nothing happens if there is no such queue pair.
    pub fn make_own_event<N: NodeTable>(&mut self, nodes: &mut N, home: u16, qpn: u32) {
        if let Some((node, platform)) = nodes.node_mut(home) {
            node.expect_message(platform, qpn);
        }
    }

    /// Makes the event that a peer asks for.
    pub(super) fn take_event<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        id: u16,
        home: u16,
        body: &NotifyBody,
    ) {
        let Some(peer) = nodes.peer_mut(id) else {
            return;
        };
        let Some(epoch) = peer.epoch() else {
            return;
        };
        if body.qpn.get() == NOTIFY_ALL {
            // In turns of their own: a peer may say it again and again.
            peer.transit.events_left = u32::MAX;
            self.more = true;
            return;
        }
        let sender = Sender {
            node: id,
            epoch,
            qpn: Some(body.qpn.get()),
        };
        if let Some((node, platform)) = nodes.node_mut(home) {
            node.make_event(platform, body.source_qpn.get(), sender);
        }
    }

    /// Makes the events of queue pairs that are connected to a peer's, of as many as one turn may look at.
    pub(super) fn make_more_events<N: NodeTable>(&mut self, nodes: &mut N, id: u16) {
        let Some(peer) = nodes.peer_mut(id) else {
            return;
        };
        let (home, epoch, transit) = (peer.home(), peer.epoch(), &mut peer.transit);
        let (mut left, mut at) = (transit.events_left, transit.events_at);
        let mut end = transit.events_end;
        let Some(epoch) = epoch.filter(|_| left != 0) else {
            return;
        };
        let sender = Sender {
            node: id,
            epoch,
            qpn: None,
        };
        if let Some((node, platform)) = nodes.node_mut(home) {
            if left == u32::MAX || end != node.qps.end() {
                // All of them once, from where the last look has ended, so that each has its turn.
                end = node.qps.end();
                left = end;
                at = if at < end { at } else { 0 };
            }
            for _ in 0..left.min(PIECE) {
                node.make_event(platform, at, sender);
                at = at.wrapping_add(1).checked_rem(node.qps.end()).unwrap_or(0);
            }
            self.budget.spend(platform, 0);
        }
        let left = left.saturating_sub(PIECE);
        self.more |= left != 0;
        if let Some(peer) = nodes.peer_mut(id) {
            let transit = &mut peer.transit;
            (transit.events_left, transit.events_at, transit.events_end) = (left, at, end);
        }
    }
}

impl<S: Storage> Node<S> {
    /// Makes the event of a queue pair's receive completion queue, if that is armed, for a message of this sender.
    fn make_event(&mut self, platform: &impl Platform, qpn: u32, sender: Sender) {
        let Some(qp) = self.qps.get(qpn) else {
            return;
        };
        let of_it = qp.remote.is_some_and(|remote| {
            (remote.node, remote.epoch) == (sender.node, sender.epoch)
                && sender.qpn.is_none_or(|qpn| qpn == remote.qpn)
        });
        if of_it {
            self.expect_message(platform, qpn);
        }
    }

    /// As [`Node::make_event`], whoever the message is from.
    pub(super) fn expect_message(&mut self, platform: &impl Platform, qpn: u32) {
        let takes = |qp: &&QueuePair<_>| {
            qp.kind == QpType::Rc && qp.has_rings && qp.receives() && qp.has_recv()
        };
        let Some(cqn) = self.qps.get(qpn).filter(takes).map(|qp| qp.recv.cqn) else {
            return;
        };
        let queue = self.cqs.get_mut(cqn);
        if queue.is_some_and(|queue| queue.expect_event(platform)) {
            self.fire(platform, cqn);
        }
    }
}
