// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Datagrams: sends of UD queue pairs, both halves.
//!
//! A datagram is done for its sender once it was handed over. What its destination cannot take is dropped there and counted.

use crate::{
    hal::{Platform, Storage},
    node::Node,
    nodes::NodeTable,
    path::engine::Engine,
    state::{
        check::{Check, WcError},
        copy::{scatter, CopyError, Spans},
        grh::Grh,
        nak::RnrPolicy,
        request::{Accepted, Outcome, Request},
        rq::Fill,
    },
};
use nupa_proto::{
    admin::QpType,
    cqe::{Cqe, CQE_GRH, CQE_VLAN},
    ident::{GRH_SIZE, MULTICAST_QPN, NODE_FLOOD},
    status::WcStatus,
};
use zerocopy::little_endian::{U16, U32};

impl Engine {
    /// Carries out the current request, a datagram.
    #[inline(never)]
    pub(crate) fn execute_datagram<N: NodeTable>(&mut self, nodes: &mut N) -> Outcome {
        let grh = match self.network_header(nodes) {
            Ok(grh) => grh,
            Err(error) => return Outcome::Failed(error),
        };
        let up = |id| nodes.node(id).is_some_and(|(node, _)| node.is_up());
        if !up(self.request.source.node) {
            return Outcome::Done;
        }
        let destination = self.request.destination;
        match (destination.node, destination.qpn) {
            (_, MULTICAST_QPN) if !self.reaches_group(&grh) => Outcome::Done,
            (NODE_FLOOD, MULTICAST_QPN) => self.flood_datagram(nodes, &grh),
            _ => self.hand_over(nodes, &grh, RnrPolicy::Wait),
        }
    }

    /// Hands the current datagram to the node that is its destination.
    pub(crate) fn hand_over<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        grh: &Grh,
        policy: RnrPolicy,
    ) -> Outcome {
        let destination = self.request.destination.node;
        match nodes.node(destination) {
            Some(_) => self.take_in(nodes, grh),
            None => self.send_datagram(nodes, destination, grh, policy),
        }
    }

    /// Takes the current datagram in at the node of this host that is its destination.
    pub(crate) fn take_in<N: NodeTable>(&mut self, nodes: &mut N, grh: &Grh) -> Outcome {
        let destination = self.request.destination;
        let there = nodes.node(destination.node);
        match destination.qpn {
            _ if !there.is_some_and(|(node, _)| node.is_up()) => Outcome::Done,
            MULTICAST_QPN => self.deliver_copies(nodes, grh),
            _ => self.deliver_datagram(nodes, grh),
        }
    }

    /// The network header that the receiver will find.
    fn network_header<N: NodeTable>(&self, nodes: &N) -> Result<Grh, WcError> {
        let segment = self.wqe.grh()?;
        let unknown = WcError::new(WcStatus::LocalQpOperation, Check::Gid);
        let (node, _) = nodes.node(self.request.source.node).ok_or(unknown)?;
        let source = node.gids.get(segment.sgid_index.get()).ok_or(unknown)?;
        Ok(Grh::new(source, segment, self.request.len))
    }

    /// Delivers the current datagram to the queue pair that is its destination, if that can take it.
    pub(crate) fn deliver_datagram<N: NodeTable>(&mut self, nodes: &mut N, grh: &Grh) -> Outcome {
        let destination = self.request.destination.node;
        let Some((node, platform)) = nodes.node_mut(destination) else {
            return Outcome::Done;
        };
        let accepted = node.accept_datagram(platform, &self.request, &mut self.accepted);
        let Some(accepted) = accepted else {
            return Outcome::Done;
        };
        let moved = self.move_datagram(nodes, grh);
        let Some((node, platform)) = nodes.node_mut(destination) else {
            return Outcome::Done;
        };
        match moved {
            Ok(()) => {
                node.datagram_arrived(platform, &self.request, &accepted, grh);
                Outcome::Done
            }
            Err(fault) => {
                let error = node.transfer_failed(platform, &self.request, &accepted, fault);
                match fault {
                    CopyError::Source => Outcome::Failed(error),
                    CopyError::Destination => Outcome::Done,
                }
            }
        }
    }

    /// Writes header and payload.
    fn move_datagram<N: NodeTable>(&mut self, nodes: &N, grh: &Grh) -> Result<(), CopyError> {
        let destination = self.request.destination.node;
        let there = self
            .receiver(nodes, destination)
            .ok_or(CopyError::Destination)?;
        scatter(&grh.bytes, &there)?;
        self.accepted.skip(GRH_SIZE);
        self.move_data(nodes, destination, self.request.len)
    }
}

impl<S: Storage> Node<S> {
    /// Prepares a receive entry for a datagram, if it is to be had.
    fn accept_datagram(
        &mut self,
        platform: &impl Platform,
        request: &Request,
        spans: &mut Spans,
    ) -> Option<Accepted> {
        let accepted = self.find_entry(platform, request, spans);
        if accepted.is_none() {
            self.counters.rx_datagram_drops.add(1);
        }
        accepted
    }

    /// Reports a datagram that is in place.
    fn datagram_arrived(
        &mut self,
        platform: &impl Platform,
        request: &Request,
        accepted: &Accepted,
        grh: &Grh,
    ) {
        self.count_served(accepted.qpn, request);
        let entry = request.arrival();
        let vlan = grh.vlan_id.map_or(0, |_| CQE_VLAN);
        let entry = Cqe {
            byte_len: U32::new(request.len.saturating_add(GRH_SIZE)),
            flags: entry.flags | CQE_GRH | vlan,
            vlan_id: U16::new(grh.vlan_id.unwrap_or(0)),
            network_header: grh.header.to_wire(),
            ..entry
        };
        if let Some(received) = accepted.received {
            self.received(platform, accepted.qpn, received, entry, request.solicited);
        }
    }

    fn find_entry(
        &mut self,
        platform: &impl Platform,
        request: &Request,
        spans: &mut Spans,
    ) -> Option<Accepted> {
        let qpn = request.destination.qpn;
        let qp = self.qps.get(qpn)?;
        if qp.kind != QpType::Ud || !qp.receives() || qp.qkey != request.remote_key {
            return None;
        }
        spans.clear();
        let len = request.len.saturating_add(GRH_SIZE);
        let entry = self.receive(platform, request, qpn, Fill::One, RnrPolicy::Drop, spans);
        let received = Some(entry.ok()?);
        (spans.total() >= len).then_some(Accepted { qpn, received })
    }
}
