// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Links that end while both nodes stay, in pools that lend inboxes: nothing is lost, and requests that have not begun go over the next one.

use crate::{
    hal::Storage,
    node::Node,
    nodes::NodeTable,
    path::engine::Engine,
    state::qp::{QueuePair, Wait},
};

impl Engine {
    /// Whether nothing is asked of a node of another host, and nothing of what it has asked is left to be answered or told. While its
    /// [link](crate::link::Link::may_begin) lets nothing begin, this becomes true, and then stays so but for what the node asks.
    pub fn is_done_with<N: NodeTable>(&self, nodes: &mut N, id: u16) -> bool {
        let Some(peer) = nodes.peer_mut(id) else {
            return true;
        };
        if !peer.transit.is_clear() {
            return false;
        }
        let home = peer.home();
        nodes
            .node(home)
            .is_none_or(|(node, _)| node.is_done_with(id))
    }

    /// The link to a node that stays up has ended: nothing that was granted over it holds any more.
    pub fn link_ended<N: NodeTable>(&mut self, nodes: &mut N, id: u16) {
        if let Some(peer) = nodes.peer_mut(id) {
            peer.link_ended();
        }
    }
}

impl<S: Storage> Node<S> {
    fn is_done_with(&self, id: u16) -> bool {
        let mut pairs = self.qps.iter().map(|(_, qp)| qp);
        pairs.all(|qp| qp.is_done_with(id))
    }
}

impl<P> QueuePair<P> {
    /// Whether nothing of it is under way to a node, or from it, or waits to be told by it, or to be told to it.
    fn is_done_with(&self, id: u16) -> bool {
        let told = self.recv.waiter.is_none_or(|(node, _)| node != id);
        if self.remote.is_none_or(|remote| remote.node != id) {
            return told;
        }
        let (send, recv) = (&self.send, &self.recv);
        let sent = send.inflight.count == 0 && send.inflight.sent.is_none() && send.done == 0;
        let waits = matches!(send.wait, Wait::Rnr { .. } | Wait::Peer { .. });
        told && sent && !waits && recv.taken == 0
    }
}
