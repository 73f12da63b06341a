// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Telling queue pairs of other hosts, which were refused for want of receive buffers or of a connection, to try again.

use crate::{nodes::NodeTable, path::engine::Engine};
use nupa_pool::Outgoing;
use nupa_proto::pool::{
    message::{NotifyBody, NOTIFY_ALL},
    Class,
};
use zerocopy::FromZeros;

impl Engine {
    /// Tells the node whose request this queue pair has refused.
    pub(crate) fn notify<N: NodeTable>(&mut self, nodes: &mut N, id: u16, qpn: u32) {
        let there = nodes.node_mut(id);
        let qp = there.and_then(|(node, _)| node.qps.get_mut(qpn));
        if let Some(peer) = qp.and_then(|qp| qp.recv.refused.take()) {
            self.send_notify(nodes, peer, qpn);
        }
    }

    /// Tells all nodes whose requests were refused for want of entries of this shared receive queue.
    pub(crate) fn notify_srq<N: NodeTable>(&mut self, nodes: &mut N, id: u16, srqn: u32) {
        let end = nodes.node(id).map_or(0, |(node, _)| node.qps.end());
        for qpn in 0..end {
            let qp = nodes.node(id).and_then(|(node, _)| node.qps.get(qpn));
            if qp.is_some_and(|qp| qp.recv.srqn == Some(srqn)) {
                self.notify(nodes, id, qpn);
            }
        }
    }

    /// Tells a node that requests to a queue pair may be sent again; if there is no room for that, to all, later.
    pub(crate) fn send_notify<N: NodeTable>(&mut self, nodes: &mut N, id: u16, qpn: u32) {
        let Some(peer) = nodes.peer_mut(id).filter(|peer| peer.epoch().is_some()) else {
            return;
        };
        let mut body = NotifyBody::new_zeroed();
        body.qpn.set(qpn);
        // Not in the middle of another message.
        let between = peer.transit.serving.is_none();
        let room = between && peer.reserve(Class::Response, 0).is_some();
        if room {
            peer.commit(Class::Response, &Outgoing::Notify(&body), 0);
        }
        peer.transit.owes_notify |= !room;
    }

    /// Tells what could not be told before.
    pub(super) fn send_owed_notify<N: NodeTable>(&mut self, nodes: &mut N, id: u16) {
        let peer = nodes.peer_mut(id);
        if peer.is_some_and(|peer| core::mem::take(&mut peer.transit.owes_notify)) {
            self.send_notify(nodes, id, NOTIFY_ALL);
        }
    }
}
