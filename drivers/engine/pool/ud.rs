// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Datagrams to and from nodes of other hosts. They go with the requests, but are not answered.

use super::{Incoming, GONE};
use crate::{
    nodes::Fabric,
    path::engine::Engine,
    state::{grh::Grh, qp::Remote, request::Outcome},
};
use nupa_pool::Outgoing;
use nupa_proto::{
    cqe::NetworkHeader,
    ident::GRH_SIZE,
    pool::{
        message::{RequestBody, REQUEST_DATAGRAM, REQUEST_IPV4, REQUEST_SOLICITED, REQUEST_VLAN},
        Class,
    },
    wqe::Opcode,
};

impl Engine {
    /// Puts the datagram at hand into the ring to a node of another host.
    pub(crate) fn send_datagram<F: Fabric>(
        &mut self,
        fabric: &mut F,
        target: u16,
        grh: &Grh,
    ) -> Outcome {
        let Some(peer) = fabric
            .peer_mut(target)
            .filter(|peer| peer.epoch().is_some())
        else {
            return Outcome::Done;
        };
        let len = self.request.len;
        let place = match peer.progress.sending {
            None => peer.reserve(Class::Request, len),
            Some(_) => {
                peer.progress.crowded = true;
                None
            }
        };
        let Some(place) = place else {
            return Outcome::Full { node: target };
        };
        match self.fill(fabric, place, len) {
            Ok(()) => {}
            Err(GONE) => return Outcome::Done,
            Err(refusal) => return Outcome::Refused(refusal),
        }
        let mut body = self.request_body();
        body.flags |= REQUEST_DATAGRAM;
        if grh.header == NetworkHeader::Ipv4 {
            body.flags |= REQUEST_IPV4;
        }
        if let Some(vlan_id) = grh.vlan_id {
            body.flags |= REQUEST_VLAN;
            body.vlan_id.set(vlan_id);
        }
        if let Some(header) = body.operand.first_chunk_mut() {
            *header = grh.bytes;
        }
        if let Some(peer) = fabric.peer_mut(target) {
            peer.stalled = false;
            peer.commit(Class::Request, &Outgoing::Request(&body), len);
        }
        Outcome::Done
    }

    /// Delivers a datagram that has arrived.
    pub(super) fn take_datagram<F: Fabric>(
        &mut self,
        fabric: &mut F,
        id: u16,
        opcode: Opcode,
        body: &RequestBody,
        incoming: &Incoming,
    ) {
        let home = incoming.home;
        let source = Remote {
            node: id,
            qpn: body.source_qpn.get(),
            epoch: incoming.epoch,
            psn: 0,
        };
        let request = &mut self.request;
        request.came(opcode, source, home, &incoming.arrival);
        request.target.qpn = body.target_qpn.get();
        (request.datagram, request.imm) = (true, body.imm_or_key.get());
        request.remote_key = body.remote_key.get();
        request.solicited = body.flags & REQUEST_SOLICITED != 0;
        let header = match body.flags & REQUEST_IPV4 {
            0 => NetworkHeader::Ipv6,
            _ => NetworkHeader::Ipv4,
        };
        let mut grh = Grh {
            bytes: [0; GRH_SIZE as usize],
            header,
            vlan_id: (body.flags & REQUEST_VLAN != 0).then_some(body.vlan_id.get()),
        };
        if let Some(header) = body.operand.first_chunk() {
            grh.bytes = *header;
        }
        let there = fabric.node_mut(home).filter(|(node, _)| node.is_up());
        let Some((node, platform)) = there else {
            return;
        };
        if let Some(landing) = node.accept_datagram(platform, &self.request, &mut self.landing) {
            if self.land_datagram(fabric, &grh, &landing) != Outcome::Done {
                self.unreadable(fabric, id, &incoming.arrival);
            }
        }
    }
}
