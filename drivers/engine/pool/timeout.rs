// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Peers that are up and do nothing: neither answer nor take anything out of their rings.
//!
//! A channel adapter would send its requests again some times and give them up then. Here they lie where they are, so a
//! peer that does nothing at all for as long as that counts as one that cannot be reached. While it does something for
//! anyone, the others have their turn some time.

use super::GONE;
use crate::{hal::Clock, nodes::Fabric, path::engine::Engine, state::qp::Wait};
use nupa_proto::admin::QpStateCode;

/// How long a peer may do nothing: requests to it fail after that, and before twice as long.
const PATIENCE_US: u64 = 10_000_000;

impl Engine {
    /// Notes that something is expected of a peer.
    pub(crate) fn expect_news<F: Fabric>(&self, fabric: &mut F, id: u16) {
        let home = match fabric.peer_mut(id) {
            Some(peer) if peer.progress.silent_at.is_none() => peer.home(),
            _ => return,
        };
        let now = fabric.node(home).map(|(_, platform)| platform.now_us());
        if let Some(peer) = fabric.peer_mut(id) {
            peer.progress.heard = false;
            peer.progress.silent_at = now.map(|now| now.saturating_add(PATIENCE_US));
        }
    }

    /// Notes that a peer has done something.
    pub(super) fn note_news<F: Fabric>(&self, fabric: &mut F, id: u16) {
        if let Some(peer) = fabric.peer_mut(id) {
            peer.progress.heard = true;
        }
    }

    /// Gives up what is asked of a peer that has done nothing for too long. Returns when to look again.
    pub(crate) fn mind_silence<F: Fabric>(&mut self, fabric: &mut F, id: u16) -> Option<u64> {
        let peer = fabric.peer_mut(id)?;
        let (home, silent_at) = (peer.home(), peer.progress.silent_at?);
        let now = fabric.node(home)?.1.now_us();
        if now < silent_at {
            return Some(silent_at);
        }
        let peer = fabric.peer_mut(id)?;
        peer.progress.silent_at = None;
        let heard = core::mem::take(&mut peer.progress.heard);
        let mut again = None;
        for qpn in 0..fabric.node(home)?.0.pairs.end() {
            if !expects_something(fabric, home, qpn, id) {
                continue;
            }
            if heard {
                self.expect_news(fabric, id);
                return fabric.peer_mut(id)?.progress.silent_at;
            }
            if let Some(pair) = fabric.node_mut(home)?.0.pairs.get_mut(qpn) {
                pair.ground();
            }
            self.give_up(fabric, home, qpn, GONE);
            // What is behind it is to be flushed.
            again = Some(now);
        }
        again
    }
}

/// Whether a connected queue pair waits for a peer to do something.
fn expects_something<F: Fabric>(fabric: &F, home: u16, qpn: u32, id: u16) -> bool {
    let there = fabric.node(home);
    let pair = there.and_then(|(node, _)| node.pairs.get(qpn));
    pair.is_some_and(|pair| {
        let active = matches!(pair.state, QpStateCode::Rts | QpStateCode::Sqd);
        let connected = pair.remote.is_some_and(|remote| remote.node == id);
        let blocked = matches!(pair.send.wait, Wait::Room { node, .. } if node == id);
        active && connected && (blocked || pair.send.flight.count != 0)
    })
}
