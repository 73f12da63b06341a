// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Datagrams to and from nodes of other hosts. They go with the short requests, but are not answered.

use super::{fill::Place, Incoming, GONE};
use crate::{
    nodes::NodeTable,
    path::engine::Engine,
    state::{grh::Grh, nak::RnrPolicy, qp::Remote, request::Outcome},
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
    /// Puts the current datagram into the ring to a node of another host. One for everybody waits for nobody, nor does it overtake: it is lost
    /// if the ring is full or others wait for room in it.
    pub(crate) fn send_datagram<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        destination: u16,
        grh: &Grh,
        policy: RnrPolicy,
    ) -> Outcome {
        let Some(peer) = nodes
            .peer_mut(destination)
            .filter(|peer| peer.epoch().is_some())
        else {
            return Outcome::Done;
        };
        let len = self.request.len;
        let class = Class::ShortRequest;
        let place = peer.reserve_first(class, len);
        let waits = policy == RnrPolicy::Wait;
        let must_wait = self.must_wait_for_ring(nodes, destination, class);
        let Some(place) = place.filter(|_| !must_wait) else {
            if let Some((node, _)) = nodes.node_mut(self.request.source.node).filter(|_| !waits) {
                node.lost_copy();
                return Outcome::Done;
            }
            return Outcome::RingFull {
                node: destination,
                class,
                need: len,
            };
        };
        match self.fill(nodes, Place::Entry(destination, class), place, len) {
            Ok(()) => {}
            Err(GONE) => return Outcome::Done,
            Err(error) => return Outcome::Failed(error),
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
        self.has_room(nodes, destination);
        if let Some(peer) = nodes.peer_mut(destination) {
            peer.commit(class, &Outgoing::Request(&body), 0);
        }
        if !waits {
            self.spend_copy(nodes, self.request.source.node);
        }
        Outcome::Done
    }

    /// Delivers a datagram that has arrived.
    pub(super) fn take_datagram<N: NodeTable>(
        &mut self,
        nodes: &mut N,
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
        request.load_arrival(opcode, source, home, &incoming.arrival);
        request.destination.qpn = body.target_qpn.get();
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
        if self.take_in(nodes, &grh) != Outcome::Done {
            self.unreadable(nodes, id, &incoming.arrival);
        }
    }
}
