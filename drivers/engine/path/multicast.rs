// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Datagrams for multicast groups: each node gets them once, each queue pair there that is attached to the group a copy.

use crate::{
    hal::Storage,
    node::Node,
    nodes::NodeTable,
    path::engine::Engine,
    state::{
        grh::Grh,
        nak::RnrPolicy,
        request::Outcome,
        slice::{REQUESTS, SLICE},
    },
};
use nupa_proto::ident::NODE_FLOOD;

/// Nodes that are looked at for the price of a copy.
const LOOKS: u16 = 16;

impl Engine {
    /// Whether the current datagram, which is for a group, can reach one: as of IP, addresses of its source and of the group are of one
    /// version.
    pub(crate) fn reaches_group(&self, grh: &Grh) -> bool {
        let segment = self.wqe.grh();
        segment.is_ok_and(|segment| grh.destination() == Some(segment.dgid))
    }

    /// Offers the current datagram to every node, the sender's own included. A node that cannot take it now misses it. Others have their
    /// turn in between if there are many copies.
    pub(crate) fn flood_datagram<N: NodeTable>(&mut self, nodes: &mut N, grh: &Grh) -> Outcome {
        let (source, before) = (self.request.source, self.budget.left());
        let there = nodes.node(source.node);
        let sender = there.and_then(|(node, _)| node.qps.get(source.qpn));
        let first = sender.map_or(0, |qp| qp.send.done);
        let mut outcome = Outcome::Done;
        for node in (0..nodes.max_nodes()).skip(first as usize) {
            // To look at nodes that nothing is for takes time as well.
            if node % LOOKS == LOOKS - 1 {
                self.spend_copy(nodes, source.node);
            }
            let (copies, _) = self.budget.spent_since(before);
            let enough = copies >= REQUESTS || self.moved >= SLICE || self.budget.is_spent();
            // One node in any case, however little was left.
            if enough && u32::from(node) != first {
                self.set_done(nodes, node.into());
                outcome = Outcome::Turn;
                break;
            }
            self.request.destination.node = node;
            outcome = self.hand_over(nodes, grh, RnrPolicy::Drop);
            if outcome != Outcome::Done {
                break;
            }
        }
        self.request.destination.node = NODE_FLOOD;
        outcome
    }

    /// Delivers the current datagram to all queue pairs of its group at its destination, a node of this host.
    pub(crate) fn deliver_copies<N: NodeTable>(&mut self, nodes: &mut N, grh: &Grh) -> Outcome {
        let Some(group) = grh.destination() else {
            return Outcome::Done;
        };
        let destination = self.request.destination;
        let (mut from, mut outcome) = (0, Outcome::Done);
        while outcome == Outcome::Done {
            let there = nodes.node(destination.node);
            let member = there.and_then(|(node, _)| node.groups.next(&group, from));
            let Some((qpn, next)) = member else {
                break;
            };
            self.spend_copy(nodes, destination.node);
            (self.request.destination.qpn, from) = (qpn, next);
            outcome = self.deliver_datagram(nodes, grh);
        }
        self.request.destination = destination;
        outcome
    }

    /// Takes a copy off the turn; its bytes are when the whole request is.
    pub(crate) fn spend_copy<N: NodeTable>(&mut self, nodes: &N, id: u16) {
        if let Some((_, platform)) = nodes.node(id) {
            self.budget.spend(platform, 0);
        }
    }
}

impl<S: Storage> Node<S> {
    /// Counts a copy that found no room on its way to another host: one for everybody waits for nobody.
    #[cold]
    pub(crate) fn lost_copy(&mut self) {
        self.counters.tx_errors.add(1);
    }
}
