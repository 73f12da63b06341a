// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Requests that cannot be carried out yet: for want of receive buffers, or because the other end is not there yet.

use crate::{
    hal::{Clock, Storage},
    node::Node,
    nodes::Fabric,
    path::engine::Engine,
    state::qp::{after, Wait},
};
use nupa_proto::{admin::QpType, wqe::Opcode};

/// How long a request waits for a queue pair that exists, but is not connected yet. A channel adapter would send it
/// again and again meanwhile; one end of a connection is always made ready before the other.
const PEER_PATIENCE_US: u64 = 500_000;

impl Engine {
    /// Lets the request at hand wait for receive buffers of a queue pair. False if it has waited for as long as it may.
    ///
    /// A frame that was given up marks the target as stalled until it posts buffers or takes a message again: were
    /// each of the frames behind it to wait as long, a target that hangs would hold up those for everyone else.
    #[cold]
    pub(crate) fn waits_for_buffers<F: Fabric>(
        &self,
        fabric: &mut F,
        target: u16,
        qpn: u32,
    ) -> bool {
        let frame = self.request.opcode == Opcode::Frame;
        let there = fabric
            .node(target)
            .and_then(|(node, _)| node.pairs.get(qpn));
        let stalled = frame && there.is_some_and(|pair| pair.recv.stalled);
        let source = self.request.source;
        let timer = there.map_or(0, |pair| pair.min_rnr_timer);
        let wait = Wait::Buffers {
            node: target,
            qpn,
            srqn: there.and_then(|pair| pair.recv.srqn),
        };
        if let Some((node, platform)) = fabric.node_mut(source.node).filter(|_| !stalled) {
            if let Some(first) = node.wait_for_buffers(platform, source.qpn, wait, timer) {
                if let Some((node, _)) = fabric.node_mut(target).filter(|_| first && !frame) {
                    node.counters.rx_rnr_naks.add(1);
                }
                return true;
            }
        }
        if let Some((node, _)) = fabric.node_mut(target).filter(|_| frame) {
            node.counters.rx_no_buffer.add(1);
            if let Some(pair) = node.pairs.get_mut(qpn) {
                pair.recv.stalled = true;
            }
        }
        false
    }

    /// Lets the request at hand wait for its target to be connected. False if it has waited for as long as it may.
    #[cold]
    pub(crate) fn waits_for_peer<F: Fabric>(&self, fabric: &mut F, wait: Wait) -> bool {
        let source = self.request.source;
        let there = fabric.node_mut(source.node);
        there.is_some_and(|(node, platform)| node.wait_for_peer(platform, source.qpn, wait))
    }

    /// Lets the request at hand wait for room in the ring to a node of another host. False if it has waited for as long as it may.
    ///
    /// A peer that takes nothing out holds up frames and datagrams for others only once, as a receive queue that hangs does.
    #[cold]
    pub(crate) fn waits_for_room<F: Fabric>(&self, fabric: &mut F, target: u16) -> bool {
        let source = self.request.source;
        let stalled = fabric.peer_mut(target).is_none_or(|peer| peer.stalled);
        let Some((node, platform)) = fabric.node_mut(source.node) else {
            return false;
        };
        let waits = node.wait_for_room(platform, source.qpn, target, stalled);
        self.expect_news(fabric, target);
        if let Some(peer) = fabric.peer_mut(target) {
            peer.stalled |= !waits;
        }
        waits
    }
}

impl<S: Storage> Node<S> {
    /// Lets a send queue wait for receive buffers at the target, whose `min_rnr_timer` is given, and tells whether it did not wait
    /// before. `None` if it has waited for as long as it may.
    pub(crate) fn wait_for_buffers(
        &mut self,
        clock: &impl Clock,
        qpn: u32,
        wait: Wait,
        min_rnr_timer: u8,
    ) -> Option<bool> {
        let pair = self.pairs.get_mut(qpn)?;
        let now = clock.now_us();
        let first = pair.send.rnr_deadline.is_none();
        let latest = pair.rnr_deadline(now, min_rnr_timer);
        let deadline = *pair.send.rnr_deadline.get_or_insert(latest);
        if now >= deadline {
            return None;
        }
        self.counters.tx_rnr_waits.add(u32::from(first));
        self.park(qpn, wait);
        Some(first)
    }

    /// Lets a send queue wait for its peer. False if it has waited for as long as it may.
    pub(crate) fn wait_for_peer(&mut self, clock: &impl Clock, qpn: u32, wait: Wait) -> bool {
        let Some(pair) = self.pairs.get_mut(qpn) else {
            return false;
        };
        let now = clock.now_us();
        let latest = now.saturating_add(PEER_PATIENCE_US);
        let deadline = *pair.send.peer_deadline.get_or_insert(latest);
        if now >= deadline {
            return false;
        }
        self.park(qpn, wait);
        true
    }

    /// Lets a send queue wait for room in the ring to a peer. False if it has waited for as long as it may. `stalled`: others have
    /// waited in vain.
    fn wait_for_room(&mut self, clock: &impl Clock, qpn: u32, peer: u16, stalled: bool) -> bool {
        let Some(pair) = self.pairs.get_mut(qpn) else {
            return false;
        };
        let now = clock.now_us();
        let until = match pair.kind {
            // There is nobody else that it holds up, and it ends when nothing is heard of the peer.
            QpType::Rc => u64::MAX,
            _ if stalled => now,
            QpType::Raw => {
                let latest = after(now, pair.rnr_timeout_us);
                *pair.send.rnr_deadline.get_or_insert(latest)
            }
            QpType::Ud => {
                let latest = now.saturating_add(PEER_PATIENCE_US);
                *pair.send.peer_deadline.get_or_insert(latest)
            }
        };
        let waits = now < until;
        if waits {
            self.park(qpn, Wait::Room { node: peer, until });
        }
        waits
    }
}
