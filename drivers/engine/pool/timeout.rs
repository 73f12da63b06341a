// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Peers that are up and do nothing: neither answer nor take anything out of their rings.
//!
//! A channel adapter would send its requests again some times and give them up then. Here they lie where they are, so a
//! peer that does nothing at all for as long as that counts as one that cannot be reached. While it does something for
//! anyone, the others have their turn some time.

use super::GONE;
use crate::{hal::Clock, nodes::NodeTable, path::engine::Engine, state::qp::Wait};
use nupa_proto::admin::QpStateCode;

/// How long a peer may do nothing: requests to it fail after that, and before twice as long.
const TIMEOUT_US: u64 = 10_000_000;

impl Engine {
    /// Notes that something is expected of a peer.
    pub(crate) fn expect_progress<N: NodeTable>(&self, nodes: &mut N, id: u16) {
        let home = match nodes.peer_mut(id) {
            Some(peer) if peer.transit.times_out_at.is_none() => peer.home(),
            _ => return,
        };
        let now = nodes.node(home).map(|(_, platform)| platform.now_us());
        if let Some(peer) = nodes.peer_mut(id) {
            peer.transit.progressed = false;
            peer.transit.times_out_at = now.map(|now| now.saturating_add(TIMEOUT_US));
        }
    }

    /// Notes that a peer has done something.
    pub(super) fn note_progress<N: NodeTable>(&self, nodes: &mut N, id: u16) {
        if let Some(peer) = nodes.peer_mut(id) {
            peer.transit.progressed = true;
        }
    }

    /// Gives up what is asked of a peer that has done nothing for too long. Returns when to look again.
    pub(crate) fn check_timeout<N: NodeTable>(&mut self, nodes: &mut N, id: u16) -> Option<u64> {
        let peer = nodes.peer_mut(id)?;
        let (home, times_out_at) = (peer.home(), peer.transit.times_out_at?);
        let now = nodes.node(home)?.1.now_us();
        if now < times_out_at {
            return Some(times_out_at);
        }
        let peer = nodes.peer_mut(id)?;
        peer.transit.times_out_at = None;
        let progressed = core::mem::take(&mut peer.transit.progressed);
        let mut again = None;
        for qpn in 0..nodes.node(home)?.0.qps.end() {
            if !expects_progress(nodes, home, qpn, id) {
                continue;
            }
            if progressed {
                self.expect_progress(nodes, id);
                return nodes.peer_mut(id)?.transit.times_out_at;
            }
            if let Some(qp) = nodes.node_mut(home)?.0.qps.get_mut(qpn) {
                qp.rewind();
            }
            self.give_up(nodes, home, qpn, GONE);
            // What is behind it is to be flushed.
            again = Some(now);
        }
        again
    }
}

/// Whether a connected queue pair waits for a peer to do something.
fn expects_progress<N: NodeTable>(nodes: &N, home: u16, qpn: u32, id: u16) -> bool {
    let there = nodes.node(home);
    let qp = there.and_then(|(node, _)| node.qps.get(qpn));
    qp.is_some_and(|qp| {
        let active = matches!(qp.state, QpStateCode::Rts | QpStateCode::Sqd);
        let connected = qp.remote.is_some_and(|remote| remote.node == id);
        let blocked = matches!(qp.send.wait, Wait::RingSpace { node, .. } if node == id);
        active && connected && (blocked || qp.send.inflight.count != 0)
    })
}
