// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Frames to and from nodes of other hosts.
//!
//! A frame is done for its sender once it lies in the ring. The target takes it out when it has receive buffers for it; until
//! then those behind it wait as well, but no longer than its receive queue's owner allows.

use crate::{
    hal::{Clock, Memory, Platform},
    link::Arrival,
    nodes::Fabric,
    path::engine::{spend, Engine, BUDGET},
    state::{
        check::{Check, Refusal},
        qp::{after, Remote},
        request::{Declined, Outcome, Patience},
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
    /// Puts the frame at hand into the ring to a node of another host.
    #[inline(never)]
    pub(crate) fn send_frame<F: Fabric>(
        &mut self,
        fabric: &mut F,
        target: u16,
        patience: Patience,
    ) -> Outcome {
        let Some(peer) = fabric
            .peer_mut(target)
            .filter(|peer| peer.epoch().is_some())
        else {
            return Outcome::Refused(Refusal::new(WcStatus::RetryExceeded, Check::Node));
        };
        let len = self.request.len;
        let Some(place) = peer.reserve(Class::Frame, len) else {
            return Outcome::Full { node: target };
        };
        peer.stalled = false;
        if let Err(refusal) = self.fill(fabric, place, len) {
            return Outcome::Refused(refusal);
        }
        let mut body = FrameBody::new_zeroed();
        body.meta = self.request.meta;
        body.source_qpn = U32::new(self.request.source.qpn);
        body.flags = match patience {
            Patience::Wait => 0,
            Patience::None => FRAME_FLOOD,
        };
        if let Some(peer) = fabric.peer_mut(target) {
            peer.commit(Class::Frame, &Outgoing::Frame(&body), len);
        }
        Outcome::Done
    }

    /// Delivers the frames that a peer has sent. Returns whether there was one.
    pub(super) fn take_frames<F: Fabric>(&mut self, fabric: &mut F, id: u16) -> bool {
        let (mut budget, mut found) = (BUDGET, false);
        while budget > 0 {
            let next = fabric.peer_mut(id).and_then(|peer| {
                let home = peer.home();
                let epoch = peer.epoch()?;
                Some((peer.next(Class::Frame)?, home, epoch))
            });
            let Some((arrival, home, epoch)) = next else {
                break;
            };
            let Body::Frame(body) = arrival.body else {
                self.refuse(fabric, id);
                break;
            };
            let source = Remote {
                node: id,
                qpn: body.source_qpn.get(),
                epoch,
                psn: 0,
            };
            if !self.take_frame(fabric, source, home, &body, &arrival) {
                break;
            }
            self.release(fabric, id, Class::Frame);
            (budget, found) = (spend(budget, arrival.len), true);
        }
        found
    }

    /// Deals with the frame at the head of a ring. False if it has to wait.
    fn take_frame<F: Fabric>(
        &mut self,
        fabric: &mut F,
        source: Remote,
        home: u16,
        body: &FrameBody,
        arrival: &Arrival,
    ) -> bool {
        self.request.came(Opcode::Frame, source, home, arrival);
        self.request.meta = body.meta;
        let mut address = [0; 6];
        let read = fabric
            .node(home)
            .map(|(_, platform)| platform.memory().read(arrival.payload, &mut address));
        let Some(Ok(())) = read else {
            self.unreadable(fabric, source.node, arrival);
            return true;
        };
        let patience = match body.flags & FRAME_FLOOD {
            0 => Patience::Wait,
            _ => Patience::None,
        };
        let Some((node, platform)) = fabric.node_mut(home) else {
            return true;
        };
        let Self {
            request, landing, ..
        } = self;
        let accepted = node.accept_frame(platform, request, &address, patience, landing);
        let waits = match accepted {
            Ok(landing) => {
                if self.land(fabric, home, &landing) != Outcome::Done {
                    self.unreadable(fabric, source.node, arrival);
                }
                false
            }
            Err(Declined::NoBuffer { qpn }) => self.holds_back(fabric, source.node, qpn, patience),
            Err(_) => false,
        };
        if let Some(peer) = fabric.peer_mut(source.node).filter(|_| !waits) {
            peer.progress.frame_deadline = None;
        }
        !waits
    }

    /// There is no receive buffer for the frame at the head of a peer's ring. True if it is to wait for one.
    #[cold]
    fn holds_back<F: Fabric>(&self, fabric: &mut F, id: u16, qpn: u32, patience: Patience) -> bool {
        let Some(peer) = fabric.peer_mut(id) else {
            return false;
        };
        let (home, before) = (peer.home(), peer.progress.frame_deadline);
        let Some((node, platform)) = fabric.node_mut(home) else {
            return false;
        };
        let Some(pair) = node.pairs.get_mut(qpn) else {
            return false;
        };
        let now = platform.now_us();
        let deadline = before.unwrap_or_else(|| after(now, pair.rnr_timeout_us));
        if patience == Patience::Wait && !pair.recv.stalled && now < deadline {
            if let Some(peer) = fabric.peer_mut(id) {
                peer.progress.frame_deadline = Some(deadline);
            }
            return true;
        }
        pair.recv.stalled |= patience == Patience::Wait;
        node.counters.rx_no_buffer.add(1);
        false
    }
}
