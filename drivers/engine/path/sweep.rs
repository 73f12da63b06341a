// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Sweeps: after a rare event (a dead completion queue, a peer's node that has gone, a timeout) all queue pairs are checked, some in
//! each turn. No lists of the affected ones are kept.

use crate::{hal::Storage, node::Node, nodes::NodeTable, path::engine::Engine, state::qp::Remote};
use nupa_proto::admin::QpStateCode;

/// Queue pairs checked in one turn: some microseconds.
const PIECE: u32 = 256;

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// Nothing is wrong.
    Fine,
    /// Its completion queue is dead, or its peer's node has gone.
    Lost,
    /// The time is over that its peer, a node of another host, has to do something.
    Checked,
}

impl<S: Storage> Node<S> {
    /// Has all queue pairs looked at.
    pub(crate) fn start_sweep(&mut self) {
        self.sweep_left = self.qps.end();
    }
}

impl Engine {
    /// Looks at some more queue pairs of a node, if there is reason to.
    pub(crate) fn sweep<N: NodeTable>(&mut self, nodes: &mut N, id: u16) {
        for _ in 0..PIECE {
            let Some((node, platform)) = nodes.node_mut(id) else {
                return;
            };
            if node.sweep_left == 0 {
                return;
            }
            node.sweep_left = node.sweep_left.saturating_sub(1);
            let qpn = node.sweep_at;
            node.sweep_at = qpn.wrapping_add(1).checked_rem(node.qps.end()).unwrap_or(0);
            // A piece is looked at in any case, so that nothing that spends all turns holds it up.
            if qpn % 16 == 0 {
                self.budget.spend(platform, 0);
            }
            match find(nodes, id, qpn) {
                Found::Fine => {}
                Found::Lost => {
                    if let Some((node, platform)) = nodes.node_mut(id) {
                        node.fail(platform, qpn);
                    }
                }
                Found::Checked => self.check_progress(nodes, id, qpn),
            }
        }
        self.more = true;
    }
}

fn find<N: NodeTable>(nodes: &mut N, id: u16, qpn: u32) -> Found {
    let Some((node, _)) = nodes.node(id) else {
        return Found::Fine;
    };
    let Some(qp) = node.qps.get(qpn) else {
        return Found::Fine;
    };
    if matches!(qp.state, QpStateCode::Reset | QpStateCode::Err) {
        return Found::Fine;
    }
    let mut cqs = qp.cqns().into_iter().flatten();
    if cqs.any(|cqn| node.cqs.get(cqn).is_some_and(|cq| cq.dead)) {
        return Found::Lost;
    }
    let (Some(remote), up) = (qp.remote, node.is_up()) else {
        return Found::Fine;
    };
    if remote.node != id && (!up || !is_there(nodes, remote)) {
        return Found::Lost;
    }
    match nodes
        .peer_mut(remote.node)
        .is_some_and(|peer| peer.transit.checked.is_some())
    {
        true => Found::Checked,
        false => Found::Fine,
    }
}

/// Whether the node of a peer is up, in the same epoch.
fn is_there<N: NodeTable>(nodes: &mut N, remote: Remote) -> bool {
    if let Some((node, _)) = nodes.node(remote.node) {
        return node.is_up() && node.epoch() == remote.epoch;
    }
    let peer = nodes.peer_mut(remote.node);
    peer.is_some_and(|peer| peer.epoch() == Some(remote.epoch))
}
