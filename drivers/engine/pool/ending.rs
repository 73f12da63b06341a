// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Links that end while both nodes stay, in pools that lend inboxes: nothing is lost, and requests that have not begun go over the next one.

use crate::{
    hal::Storage,
    nodes::NodeTable,
    path::engine::Engine,
    state::{peer::Peer, qp::QueuePair},
};

impl Engine {
    /// Whether nothing that was asked of a node of another host is under way, nothing that it has asked is left to be answered or told, and no process has mapped
    /// anything of its.
    /// While its [link](crate::link::Link::may_begin) lets nothing begin, this becomes true, and then stays so but for what the node asks.
    pub fn is_done_with<N: NodeTable>(&self, nodes: &mut N, id: u16) -> bool {
        let clear = |peer: &mut Peer<N::Link>| peer.transit.is_clear() && peer.mapped == 0;
        nodes.peer_mut(id).is_none_or(clear)
            && self.all_pairs_with(nodes, id, |qp| {
                qp.has_sent_whole() && qp.send.inflight.count == 0
            })
    }

    /// Whether all that has begun to be sent to a node of another host was sent, answered or not.
    pub fn has_sent_whole<N: NodeTable>(&self, nodes: &mut N, id: u16) -> bool {
        self.all_pairs_with(nodes, id, QueuePair::has_sent_whole)
    }

    /// Whether queue pairs wait for room in rings to a node of another host, or for a link to it; or that node's wait to be told something.
    pub fn has_waiters<N: NodeTable>(&self, nodes: &mut N, id: u16) -> bool {
        let Some(peer) = nodes.peer_mut(id) else {
            return false;
        };
        let (home, owes) = (peer.home(), peer.transit.owes_notify);
        let waits = || {
            nodes
                .node(home)
                .is_some_and(|(node, _)| node.awaits_room(id))
        };
        owes || waits()
    }

    /// The link to a node that stays up has ended: nothing that was granted over it holds any more.
    pub fn link_ended<N: NodeTable>(&mut self, nodes: &mut N, id: u16) {
        if let Some(peer) = nodes.peer_mut(id) {
            peer.link_ended();
        }
    }

    /// Whether something holds for all queue pairs that are connected to one of a node's.
    fn all_pairs_with<N: NodeTable>(
        &self,
        nodes: &mut N,
        id: u16,
        holds: impl Fn(&QueuePair<<N::Storage as Storage>::Pages>) -> bool,
    ) -> bool {
        let Some(home) = nodes.peer_mut(id).map(|peer| peer.home()) else {
            return true;
        };
        nodes.node(home).is_none_or(|(node, _)| {
            let to_it = |qp: &&QueuePair<_>| qp.remote.is_some_and(|remote| remote.node == id);
            let mut pairs = node.qps.iter().map(|(_, qp)| qp).filter(to_it);
            pairs.all(holds)
        })
    }
}

impl<P> QueuePair<P> {
    /// Whether no request of it was put in in part, or written directly in part. What the peer was not ready for counts as not sent: it is tried
    /// again, over the next link as well.
    fn has_sent_whole(&self) -> bool {
        self.send.inflight.sent.is_none() && self.send.done == 0
    }
}
