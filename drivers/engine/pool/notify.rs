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
    /// Tells queue pair `waiter` of a node that its requests to queue pair `qpn` may be sent again; if there is no room for that, all of
    /// them, later.
    pub(crate) fn send_notify<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        id: u16,
        qpn: u32,
        waiter: u32,
    ) {
        let Some(peer) = nodes.peer_mut(id).filter(|peer| peer.epoch().is_some()) else {
            return;
        };
        let mut body = NotifyBody::new_zeroed();
        body.qpn.set(qpn);
        body.source_qpn.set(waiter);
        // In this ring it comes behind the refusal, whichever that is in.
        let behind = peer.transit.owed_response.is_none();
        // On a link that ends it would perhaps not be read any more; whoever was refused may wait for nothing else.
        let room = behind && peer.reserve_first(Class::Response, 0).is_some();
        if room {
            peer.commit(Class::Response, &Outgoing::Notify(&body), 0);
        }
        peer.transit.owes_notify |= !room;
        if !room {
            self.peers.insert(id);
        }
    }

    /// Tells what could not be told before.
    pub(super) fn send_owed_notify<N: NodeTable>(&mut self, nodes: &mut N, id: u16) {
        let peer = nodes.peer_mut(id);
        if peer.is_some_and(|peer| core::mem::take(&mut peer.transit.owes_notify)) {
            self.send_notify(nodes, id, NOTIFY_ALL, 0);
        }
    }
}
