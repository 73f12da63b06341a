// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Frames to and from nodes of other hosts.
//!
//! A frame is done for its sender once it lies in the ring. The responder takes it out when it has receive buffers for it; until
//! then those behind it wait as well, but no longer than its receive queue's owner allows.

use super::{fill::Place, Turn};
use crate::{
    hal::{Clock, Memory, Platform},
    link::Arrival,
    nodes::NodeTable,
    path::engine::Engine,
    state::{
        check::{Check, WcError},
        nak::{Nak, RnrPolicy},
        qp::{after, Remote},
        request::Outcome,
    },
};
use nupa_pool::{Body, Outgoing};
use nupa_proto::{
    pool::{
        message::{FrameBody, FRAME_FLOOD},
        Class,
    },
    status::WcStatus,
    wqe::Opcode,
};
use zerocopy::{little_endian::U32, FromZeros};

impl Engine {
    /// Puts the current frame into the ring to a node of another host.
    #[inline(never)]
    pub(crate) fn send_frame<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        destination: u16,
        policy: RnrPolicy,
    ) -> Outcome {
        let Some(peer) = nodes
            .peer_mut(destination)
            .filter(|peer| peer.epoch().is_some())
        else {
            return Outcome::Failed(WcError::new(WcStatus::RetryExceeded, Check::Node));
        };
        let len = self.request.len;
        let place = peer.reserve_first(Class::Frame, len);
        // One for everybody waits for nobody.
        let waits = policy == RnrPolicy::Wait;
        let must_wait = waits && self.must_wait_for_ring(nodes, destination, Class::Frame);
        let Some(place) = place.filter(|_| !must_wait) else {
            return Outcome::RingFull {
                node: destination,
                class: Class::Frame,
                need: len,
            };
        };
        self.has_room(nodes, destination);
        if let Err(error) = self.fill(nodes, Place::Entry(destination, Class::Frame), place, len) {
            return Outcome::Failed(error);
        }
        let mut body = FrameBody::new_zeroed();
        body.meta = self.request.meta;
        body.source_qpn = U32::new(self.request.source.qpn);
        body.flags = match policy {
            RnrPolicy::Wait => 0,
            RnrPolicy::Drop => FRAME_FLOOD,
        };
        if let Some(peer) = nodes.peer_mut(destination) {
            peer.commit(Class::Frame, &Outgoing::Frame(&body), 0);
        }
        Outcome::Done
    }

    /// Delivers the frames that a peer has sent. Returns whether there was one.
    pub(super) fn take_frames<N: NodeTable>(&mut self, nodes: &mut N, id: u16) -> bool {
        let (mut turn, mut found) = (Turn::of(Class::Frame), false);
        while (!found || self.has_another(nodes, id, Class::Frame)) && self.goes_on(&turn) {
            let Some(incoming) = self.next(nodes, id, Class::Frame) else {
                break;
            };
            let (home, arrival) = (incoming.home, incoming.arrival);
            let Body::Frame(body) = arrival.body else {
                self.refuse(nodes, id);
                break;
            };
            let source = Remote {
                node: id,
                qpn: body.source_qpn.get(),
                epoch: incoming.epoch,
                psn: 0,
            };
            if !self.take_frame(nodes, source, home, &body, &arrival) {
                break;
            }
            self.release(nodes, id, Class::Frame);
            self.moved = 0;
            self.spend_on_peer(nodes, home, &mut turn, arrival.len);
            found = true;
        }
        found
    }

    /// Deals with the frame at the head of a ring. False if it has to wait.
    fn take_frame<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        source: Remote,
        home: u16,
        body: &FrameBody,
        arrival: &Arrival,
    ) -> bool {
        self.request
            .load_arrival(Opcode::Frame, source, home, arrival);
        self.request.meta = body.meta;
        let mut address = [0; 6];
        let read = nodes
            .node(home)
            .map(|(_, platform)| platform.memory().read(arrival.payload, &mut address));
        let Some(Ok(())) = read else {
            self.unreadable(nodes, source.node, arrival);
            return true;
        };
        let policy = match body.flags & FRAME_FLOOD {
            0 => RnrPolicy::Wait,
            _ => RnrPolicy::Drop,
        };
        let Some((node, platform)) = nodes.node_mut(home) else {
            return true;
        };
        let Self {
            request, accepted, ..
        } = self;
        let accepted = node.accept_frame(platform, request, &address, policy, accepted);
        let waits = match accepted {
            Ok(accepted) => {
                if self.deliver(nodes, home, &accepted) != Outcome::Done {
                    self.unreadable(nodes, source.node, arrival);
                }
                false
            }
            Err(Nak::Rnr { qpn }) => self.holds_back(nodes, source.node, qpn, policy),
            Err(_) => false,
        };
        if let Some(peer) = nodes.peer_mut(source.node).filter(|_| !waits) {
            peer.transit.frame_deadline = None;
        }
        !waits
    }

    /// There is no receive buffer for the frame at the head of a peer's ring. True if it is to wait for one.
    #[cold]
    fn holds_back<N: NodeTable>(
        &self,
        nodes: &mut N,
        id: u16,
        qpn: u32,
        policy: RnrPolicy,
    ) -> bool {
        let Some(peer) = nodes.peer_mut(id) else {
            return false;
        };
        let (home, before) = (peer.home(), peer.transit.frame_deadline);
        let Some((node, platform)) = nodes.node_mut(home) else {
            return false;
        };
        let Some(qp) = node.qps.get_mut(qpn) else {
            return false;
        };
        let now = platform.now_us();
        let deadline = before.unwrap_or_else(|| after(now, qp.rnr_timeout_us));
        if policy == RnrPolicy::Wait && !qp.recv.stall.is_stalled() && now < deadline {
            if let Some(peer) = nodes.peer_mut(id) {
                peer.transit.frame_deadline = Some(deadline);
            }
            return true;
        }
        if policy == RnrPolicy::Wait {
            qp.recv.stall.begin(platform);
        }
        node.counters.rx_no_buffer.add(1);
        false
    }
}
