// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Peers that are up and do nothing: neither answer nor take anything out of their rings.
//!
//! A channel adapter would send its requests again some times and give them up then. Here they lie where they are, so a
//! peer that does nothing at all for as long as that counts as one that cannot be reached. While it does something for
//! anyone, the others have their turn some time.

use super::GONE;
use crate::{
    hal::Clock,
    nodes::NodeTable,
    path::engine::Engine,
    state::qp::{QueuePair, Wait},
};
use nupa_proto::admin::QpStateCode;

/// How long a peer may do nothing: requests to it fail after that, and before twice as long.
const TIMEOUT_US: u64 = 10_000_000;

impl Engine {
    /// Notes that something is expected of a peer.
    pub(crate) fn expect_progress<N: NodeTable>(&mut self, nodes: &mut N, id: u16) {
        let home = match nodes.peer_mut(id) {
            Some(peer) if peer.transit.times_out_at.is_none() => peer.home(),
            _ => return,
        };
        self.peers.insert(id);
        let now = nodes.node(home).map(|(_, platform)| platform.now_us());
        if let Some(peer) = nodes.peer_mut(id) {
            peer.transit.progressed = false;
            peer.transit.taken = peer.taken();
            peer.transit.times_out_at = now.map(|now| now.saturating_add(TIMEOUT_US));
        }
    }

    /// Whether a node of another host is to be looked at in each turn: one without a link only while something is expected of it, or waits.
    pub(crate) fn has_to_do_with<N: NodeTable>(&self, nodes: &mut N, id: u16) -> bool {
        let Some(peer) = nodes.peer_mut(id) else {
            return false;
        };
        peer.is_open() || peer.transit.is_timed() || self.has_waiters(nodes, id)
    }

    /// Notes that a peer has done something.
    pub(super) fn note_progress<N: NodeTable>(&self, nodes: &mut N, id: u16) {
        if let Some(peer) = nodes.peer_mut(id) {
            peer.transit.progressed = true;
            peer.transit.checked = peer.transit.checked.map(|_| true);
        }
    }

    /// Has the queue pairs looked at when the time that a peer has is over. Returns when to call this again.
    pub(crate) fn check_timeout<N: NodeTable>(&mut self, nodes: &mut N, id: u16) -> Option<u64> {
        let home = nodes.peer_mut(id)?.home();
        let looked_at = nodes.node(home)?.0.sweep_left == 0;
        let transit = &mut nodes.peer_mut(id)?.transit;
        if looked_at {
            transit.checked = None;
        }
        let times_out_at = transit.times_out_at?;
        if nodes.node(home)?.1.now_us() < times_out_at {
            return Some(times_out_at);
        }
        let peer = nodes.peer_mut(id)?;
        let taken = peer.taken();
        let transit = &mut peer.transit;
        let progressed = transit.progressed || taken != transit.taken;
        (transit.times_out_at, transit.checked) = (None, Some(progressed));
        nodes.node_mut(home)?.0.start_sweep();
        Some(0)
    }

    /// Looks at a queue pair of node `home` because the time is over that its peer has: if it expects something, and the peer has done
    /// something meanwhile, the peer has as much time again; else that is given up.
    pub(crate) fn check_progress<N: NodeTable>(&mut self, nodes: &mut N, home: u16, qpn: u32) {
        let there = nodes.node(home).and_then(|(node, _)| node.qps.get(qpn));
        let expecting = there.filter(|qp| expects_progress(qp));
        let Some(id) = expecting.and_then(|qp| qp.remote).map(|remote| remote.node) else {
            return;
        };
        let Some((peer, progressed)) = nodes
            .peer_mut(id)
            .and_then(|peer| peer.transit.checked.map(|progressed| (peer, progressed)))
        else {
            return;
        };
        if progressed {
            peer.transit.checked = None;
            return self.expect_progress(nodes, id);
        }
        let there = nodes.node_mut(home);
        if let Some(qp) = there.and_then(|(node, _)| node.qps.get_mut(qpn)) {
            qp.rewind();
        }
        self.give_up(nodes, home, qpn, GONE);
    }
}

/// Whether a connected queue pair waits for a peer to do something.
fn expects_progress<P>(qp: &QueuePair<P>) -> bool {
    let active = matches!(qp.state, QpStateCode::Rts | QpStateCode::Sqd);
    let blocked = matches!(qp.send.wait, Wait::RingSpace { .. });
    active && (blocked || qp.send.inflight.count != 0)
}
