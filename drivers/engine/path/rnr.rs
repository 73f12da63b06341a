// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Requests that cannot be carried out now: for want of receive buffers, or because the other end does not receive.

use crate::{
    hal::{Clock, Storage},
    node::Node,
    nodes::NodeTable,
    path::engine::Engine,
    state::{
        qp::{after, Wait},
        stall::Stall,
    },
};
use nupa_proto::{admin::QpType, pool::Class, wqe::Opcode};

/// How long a request waits for a queue pair that does not receive. A channel adapter gets no answer and sends it again and again
/// meanwhile. One end of a connection is always made ready before the other, and one is always gone before the other: a program that has
/// requests left when it has all that it waits for must see them fail after that, not before.
const PEER_TIMEOUT_US: u64 = 500_000;

/// What becomes of a request that was refused for want of receive buffers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RnrWait {
    /// It was not refused before.
    first: bool,
    /// It waits; else it has waited for as long as it may.
    pub(crate) waits: bool,
}

impl Engine {
    /// Lets the current request wait for receive buffers of a queue pair. False if it has waited for as long as it may.
    ///
    /// A frame that was given up marks the responder as stalled until it posts buffers or takes a message again: were
    /// each of the frames behind it to wait as long, a responder that hangs would hold up those for everyone else.
    #[cold]
    pub(crate) fn rnr_wait<N: NodeTable>(&self, nodes: &mut N, destination: u16, qpn: u32) -> bool {
        let frame = self.request.opcode == Opcode::Frame;
        let there = nodes
            .node(destination)
            .and_then(|(node, _)| node.qps.get(qpn));
        let stalled = frame && there.is_some_and(|qp| qp.recv.stall.is_stalled());
        let source = self.request.source;
        let timer = there.map_or(0, |qp| qp.min_rnr_timer);
        let wait = Wait::Rnr {
            node: destination,
            qpn,
        };
        let mut waiting = RnrWait::default();
        if let Some((node, platform)) = nodes.node_mut(source.node).filter(|_| !stalled) {
            waiting = node.wait_for_rnr(platform, source.qpn, wait, timer);
        }
        let RnrWait { first, waits } = waiting;
        if let Some((node, _)) = nodes.node_mut(destination).filter(|_| !frame) {
            node.counters.rx_rnr_naks.add(u32::from(first));
            if waits {
                node.note_waiter(qpn, (source.node, source.qpn));
            }
        }
        if waits {
            return true;
        }
        if let Some((node, platform)) = nodes.node_mut(destination).filter(|_| frame) {
            node.counters.rx_no_buffer.add(1);
            if let Some(qp) = node.qps.get_mut(qpn) {
                qp.recv.stall.begin(platform);
            }
        }
        false
    }

    /// Lets the current request wait for its destination to be connected. False if it has waited for as long as it may.
    #[cold]
    pub(crate) fn peer_wait<N: NodeTable>(
        &self,
        nodes: &mut N,
        destination: u16,
        qpn: u32,
    ) -> bool {
        let source = self.request.source;
        let wait = Wait::Peer {
            node: destination,
            qpn,
        };
        let there = nodes.node_mut(source.node);
        let waits = there.is_some_and(|(node, platform)| {
            node.wait_for_peer(platform, source.qpn, wait, u64::MAX)
        });
        if let Some((node, _)) = nodes.node_mut(destination).filter(|_| waits) {
            node.note_waiter(qpn, (source.node, source.qpn));
        }
        waits
    }

    /// Lets the current request wait for room for `need` bytes in the ring to a node of another host, behind those that do. False if it
    /// has waited for as long as it may.
    ///
    /// A peer that takes nothing out holds up frames and datagrams for others only once, as a receive queue that hangs does.
    #[cold]
    pub(crate) fn ring_wait<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        destination: u16,
        class: Class,
        need: u32,
    ) -> bool {
        let source = self.request.source;
        let peer = nodes.peer_mut(destination);
        if !peer.is_some_and(|peer| peer.is_open() && peer.may_begin()) {
            // Nothing comes through before there is a link, and there is none for what does not wait.
            self.change_stall(nodes, destination, Stall::end);
        }
        // Where there is room, and others only come first, it is not the peer that holds it up.
        let peer = nodes.peer_mut(destination);
        let full = peer.is_none_or(|peer| peer.reserve_first(class, need).is_none());
        let stalled = full
            && nodes
                .peer_mut(destination)
                .is_none_or(|peer| peer.stall.is_stalled());
        let Some((node, platform)) = nodes.node_mut(source.node) else {
            return false;
        };
        let wait = Wait::RingSpace {
            node: destination,
            class,
        };
        if let Some(qp) = node.qps.get_mut(source.qpn) {
            qp.send.ring_need = need;
        }
        let waits = node.wait_for_ring(platform, source.qpn, wait, stalled);
        self.expect_progress(nodes, destination);
        if !waits && full {
            self.change_stall(nodes, destination, Stall::begin);
        }
        waits
    }

    /// Something was put into the ring to a node of another host that others may have waited for.
    #[inline]
    pub(crate) fn has_room<N: NodeTable>(&self, nodes: &mut N, destination: u16) {
        let peer = nodes.peer_mut(destination);
        if peer.is_some_and(|peer| peer.stall.is_stalled()) {
            self.change_stall(nodes, destination, Stall::end);
        }
    }

    #[cold]
    fn change_stall<N: NodeTable>(
        &self,
        nodes: &mut N,
        destination: u16,
        change: fn(&mut Stall, &N::Platform),
    ) {
        let Some(peer) = nodes.peer_mut(destination) else {
            return;
        };
        let (home, mut stall) = (peer.home(), peer.stall);
        if let Some((_, platform)) = nodes.node(home) {
            change(&mut stall, platform);
        }
        if let Some(peer) = nodes.peer_mut(destination) {
            peer.stall = stall;
        }
    }
}

impl<S: Storage> Node<S> {
    /// Lets a send queue wait for receive buffers at the responder, whose `min_rnr_timer` is given.
    pub(crate) fn wait_for_rnr(
        &mut self,
        clock: &impl Clock,
        qpn: u32,
        wait: Wait,
        min_rnr_timer: u8,
    ) -> RnrWait {
        let Some(qp) = self.qps.get_mut(qpn) else {
            return RnrWait::default();
        };
        let now = clock.now_us();
        // Its peer receives: a time when it does not begins anew.
        qp.send.peer_deadline = None;
        let first = qp.send.rnr_deadline.is_none();
        let latest = qp.rnr_deadline(now, min_rnr_timer);
        let deadline = *qp.send.rnr_deadline.get_or_insert(latest);
        let waits = now < deadline;
        if waits {
            self.counters.tx_rnr_waits.add(u32::from(first));
            self.park(qpn, wait, deadline);
        }
        RnrWait { first, waits }
    }

    /// Lets a send queue wait for its peer, and try again after `retry_us` should nobody tell. False if it has waited for as long as it may.
    pub(crate) fn wait_for_peer(
        &mut self,
        clock: &impl Clock,
        qpn: u32,
        wait: Wait,
        retry_us: u64,
    ) -> bool {
        let Some(qp) = self.qps.get_mut(qpn) else {
            return false;
        };
        let now = clock.now_us();
        let latest = now.saturating_add(PEER_TIMEOUT_US);
        let deadline = *qp.send.peer_deadline.get_or_insert(latest);
        if now >= deadline {
            return false;
        }
        let again = now.saturating_add(retry_us);
        self.park(qpn, wait, deadline.min(again));
        true
    }

    /// Lets a send queue wait for a process of its peer's that takes entries of its process ring: as long as that takes, because the process may have been
    /// stopped.
    pub(crate) fn wait_for_process(
        &mut self,
        clock: &impl Clock,
        qpn: u32,
        wait: Wait,
        retry_us: u64,
    ) {
        if let Some(qp) = self.qps.get_mut(qpn) {
            // If the process has ended by the next time, its queue pair has not been waited for yet.
            qp.send.peer_deadline = None;
        }
        self.wait_for_peer(clock, qpn, wait, retry_us);
    }

    /// Lets a send queue wait for room in the ring to a peer. False if it has waited for as long as it may. `stalled`: others have
    /// waited in vain.
    fn wait_for_ring(&mut self, clock: &impl Clock, qpn: u32, wait: Wait, stalled: bool) -> bool {
        let Some(qp) = self.qps.get_mut(qpn) else {
            return false;
        };
        let now = clock.now_us();
        let until = match qp.kind {
            // There is nobody else that it holds up, and it ends when nothing is heard of the peer.
            QpType::Rc => u64::MAX,
            _ if stalled => now,
            QpType::Raw => {
                let latest = after(now, qp.rnr_timeout_us);
                *qp.send.rnr_deadline.get_or_insert(latest)
            }
            QpType::Ud => {
                let latest = now.saturating_add(PEER_TIMEOUT_US);
                *qp.send.peer_deadline.get_or_insert(latest)
            }
        };
        let waits = now < until;
        if waits {
            self.park(qpn, wait, until);
        }
        waits
    }
}
