// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Datagrams: sends of UD queue pairs, both halves.
//!
//! A datagram is done for its sender once it was handed over. What its target cannot take is dropped there and counted.

use crate::{
    hal::{Platform, Storage},
    node::Node,
    nodes::Fabric,
    path::engine::Engine,
    state::{
        check::{Check, Refusal},
        copy::{scatter, Fault, Spans},
        grh::Grh,
        request::{Landing, Outcome, Patience, Request},
        rq::Fill,
    },
};
use nupa_proto::{
    admin::QpType,
    cqe::{Cqe, CQE_GRH, CQE_VLAN},
    ident::GRH_SIZE,
    status::WcStatus,
};
use zerocopy::little_endian::{U16, U32};

impl Engine {
    /// Carries out the request at hand, a datagram.
    #[inline(never)]
    pub(crate) fn execute_datagram<F: Fabric>(&mut self, fabric: &mut F) -> Outcome {
        let grh = match self.network_header(fabric) {
            Ok(grh) => grh,
            Err(refusal) => return Outcome::Refused(refusal),
        };
        let up = |id| fabric.node(id).is_some_and(|(node, _)| node.is_up());
        let (source, target) = (self.request.source.node, self.request.target.node);
        if !up(source) {
            return Outcome::Done;
        }
        let Some((node, platform)) = fabric.node_mut(target) else {
            return self.send_datagram(fabric, target, &grh);
        };
        if !node.is_up() {
            return Outcome::Done;
        }
        match node.accept_datagram(platform, &self.request, &mut self.landing) {
            Some(landing) => self.land_datagram(fabric, &grh, &landing),
            None => Outcome::Done,
        }
    }

    /// The network header that the receiver will find.
    fn network_header<F: Fabric>(&self, fabric: &F) -> Result<Grh, Refusal> {
        let segment = self.descriptor.grh()?;
        let unknown = Refusal::new(WcStatus::LocalQpOperation, Check::Gid);
        let (node, _) = fabric.node(self.request.source.node).ok_or(unknown)?;
        let source = node.gids.get(segment.sgid_index.get()).ok_or(unknown)?;
        Ok(Grh::new(source, segment, self.request.len))
    }

    /// Moves an accepted datagram and reports it.
    pub(crate) fn land_datagram<F: Fabric>(
        &mut self,
        fabric: &mut F,
        grh: &Grh,
        landing: &Landing,
    ) -> Outcome {
        let target = self.request.target.node;
        let moved = self.move_datagram(fabric, grh);
        let Some((node, platform)) = fabric.node_mut(target) else {
            return Outcome::Done;
        };
        match moved {
            Ok(()) => {
                node.datagram_arrived(platform, &self.request, landing, grh);
                Outcome::Done
            }
            Err(fault) => {
                let refusal = node.transfer_failed(platform, &self.request, landing, fault);
                match fault {
                    Fault::Source => Outcome::Refused(refusal),
                    Fault::Target => Outcome::Done,
                }
            }
        }
    }

    /// Writes header and payload.
    fn move_datagram<F: Fabric>(&mut self, fabric: &F, grh: &Grh) -> Result<(), Fault> {
        let target = self.request.target.node;
        let there = self.receiver(fabric, target).ok_or(Fault::Target)?;
        scatter(&grh.bytes, &there)?;
        self.landing.skip(GRH_SIZE);
        self.move_data(fabric, target, self.request.len)
    }
}

impl<S: Storage> Node<S> {
    /// Prepares a receive entry for a datagram, if it is to be had.
    pub(crate) fn accept_datagram(
        &mut self,
        platform: &impl Platform,
        request: &Request,
        spans: &mut Spans,
    ) -> Option<Landing> {
        let landing = self.find_entry(platform, request, spans);
        if landing.is_none() {
            self.counters.rx_datagram_drops.add(1);
        }
        landing
    }

    /// Reports a datagram that is in place.
    fn datagram_arrived(
        &mut self,
        platform: &impl Platform,
        request: &Request,
        landing: &Landing,
        grh: &Grh,
    ) {
        self.counters.rx_messages.add(1);
        self.counters.rx_message_bytes.add(request.len);
        let entry = request.arrival();
        let vlan = grh.vlan_id.map_or(0, |_| CQE_VLAN);
        let entry = Cqe {
            byte_len: U32::new(request.len.saturating_add(GRH_SIZE)),
            flags: entry.flags | CQE_GRH | vlan,
            vlan_id: U16::new(grh.vlan_id.unwrap_or(0)),
            network_header: grh.header.to_wire(),
            ..entry
        };
        if let Some(received) = landing.received {
            self.received(platform, landing.qpn, received, entry, request.solicited);
        }
    }

    fn find_entry(
        &mut self,
        platform: &impl Platform,
        request: &Request,
        spans: &mut Spans,
    ) -> Option<Landing> {
        let qpn = request.target.qpn;
        let pair = self.pairs.get(qpn)?;
        if pair.kind != QpType::Ud || !pair.receives() || pair.qkey != request.remote_key {
            return None;
        }
        spans.clear();
        let len = request.len.saturating_add(GRH_SIZE);
        let entry = self.receive(platform, qpn, len, Fill::One, Patience::None, spans);
        let received = Some(entry.ok()?);
        (spans.total() >= len).then_some(Landing { qpn, received })
    }
}
