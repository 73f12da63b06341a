// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Telling queue pairs of other hosts, which were refused for want of receive buffers or of a connection, to try again.

use crate::{nodes::Fabric, path::engine::Engine};
use nupa_pool::Outgoing;
use nupa_proto::pool::{
    message::{NotifyBody, NOTIFY_ALL},
    Class,
};
use zerocopy::FromZeros;

impl Engine {
    /// Tells the node whose request this queue pair has refused.
    pub(crate) fn notify<F: Fabric>(&mut self, fabric: &mut F, id: u16, qpn: u32) {
        let there = fabric.node_mut(id);
        let pair = there.and_then(|(node, _)| node.pairs.get_mut(qpn));
        if let Some(peer) = pair.and_then(|pair| pair.recv.refused.take()) {
            self.send_notice(fabric, peer, qpn);
        }
    }

    /// Tells all nodes whose requests were refused for want of entries of this shared receive queue.
    pub(crate) fn notify_shared<F: Fabric>(&mut self, fabric: &mut F, id: u16, srqn: u32) {
        let end = fabric.node(id).map_or(0, |(node, _)| node.pairs.end());
        for qpn in 0..end {
            let pair = fabric.node(id).and_then(|(node, _)| node.pairs.get(qpn));
            if pair.is_some_and(|pair| pair.recv.srqn == Some(srqn)) {
                self.notify(fabric, id, qpn);
            }
        }
    }

    /// Tells a node that requests to a queue pair may be sent again; if there is no room for that, to all, later.
    pub(crate) fn send_notice<F: Fabric>(&mut self, fabric: &mut F, id: u16, qpn: u32) {
        let Some(peer) = fabric.peer_mut(id).filter(|peer| peer.epoch().is_some()) else {
            return;
        };
        let mut body = NotifyBody::new_zeroed();
        body.qpn.set(qpn);
        // Not in the middle of another message.
        let between = peer.progress.serving.is_none();
        let room = between && peer.reserve(Class::Response, 0).is_some();
        if room {
            peer.commit(Class::Response, &Outgoing::Notify(&body), 0);
        }
        peer.progress.owes_notice |= !room;
    }

    /// Tells what could not be told before.
    pub(super) fn catch_up<F: Fabric>(&mut self, fabric: &mut F, id: u16) {
        let peer = fabric.peer_mut(id);
        if peer.is_some_and(|peer| core::mem::take(&mut peer.progress.owes_notice)) {
            self.send_notice(fabric, id, NOTIFY_ALL);
        }
    }
}
