// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Telling queue pairs of other hosts, which were refused for want of receive buffers or of a connection, to try again.

use crate::{nodes::NodeTable, path::engine::Engine};
use nupa_pool::Outgoing;
use nupa_proto::pool::{
    message::{NotifyBody, NOTIFY_ALL, NOTIFY_EVENT},
    Class,
};
use zerocopy::FromZeros;

impl Engine {
    /// Tells queue pair `waiter` of a node that its requests to queue pair `qpn` may be sent again; if there is no room for that, all of
    /// them, later.
    pub(crate) fn send_notify<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        id: u16,
        qpn: u32,
        waiter: u32,
    ) {
        let mut body = NotifyBody::new_zeroed();
        body.qpn.set(qpn);
        body.source_qpn.set(waiter);
        self.notify(nodes, id, &body);
    }

    /// Sends this; if there is no room for that, one to all, later.
    pub(super) fn notify<N: NodeTable>(&mut self, nodes: &mut N, id: u16, body: &NotifyBody) {
        let Some(peer) = nodes.peer_mut(id).filter(|peer| peer.epoch().is_some()) else {
            return;
        };
        // In this ring it comes behind the refusal, whichever that is in.
        let behind = peer.transit.owed_response.is_none();
        // On a link that ends it would perhaps not be read any more; whoever was refused may wait for nothing else.
        let room = behind && peer.reserve_first(Class::Response, 0).is_some();
        if room {
            peer.commit(Class::Response, &Outgoing::Notify(body), 0);
        }
        peer.transit.owes_notify |= !room;
        peer.transit.owes_event |= !room && body.flags & NOTIFY_EVENT != 0;
        if !room {
            self.peers.insert(id);
        }
    }

    /// Tells what could not be told before.
    pub(super) fn send_owed_notify<N: NodeTable>(&mut self, nodes: &mut N, id: u16) {
        let peer = nodes.peer_mut(id);
        let Some(transit) = peer.map(|peer| &mut peer.transit) else {
            return;
        };
        if core::mem::take(&mut transit.owes_notify) {
            let mut body = NotifyBody::new_zeroed();
            body.qpn.set(NOTIFY_ALL);
            if core::mem::take(&mut transit.owes_event) {
                body.flags = NOTIFY_EVENT;
            }
            self.notify(nodes, id, &body);
        }
    }
}
