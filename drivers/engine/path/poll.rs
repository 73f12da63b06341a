// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Doorbells that are polled: those of queue pairs that had work lately.
//!
//! A host with a processor to spare looks at them, so that their owners need not kick. Others kick once, and are polled then; so what
//! a look costs does not depend on how many queue pairs there are.

use crate::{
    hal::{Platform, Storage},
    node::Node,
    nodes::NodeTable,
    path::engine::Engine,
    state::qp::Wait,
};
use nupa_proto::admin::QpStateCode;

/// Queue pairs whose doorbells are polled at most: a load each, about 2 us for all of them.
const MAX_POLLED: u32 = 256;
/// Polls in a row that found nothing after which a queue pair is polled no more, and has to kick again.
const MAX_IDLE_POLLS: u16 = 4096;

impl Engine {
    /// Looks at the doorbells of a node that are polled, and serves the queues that were rung. True if a queue moved on: one
    /// whose doorbell makes no sense is no reason to stay awake.
    ///
    /// For a host with a processor to spare: between [`Engine::set_polled`] on and off it calls this all the time.
    pub fn poll<N: NodeTable>(&mut self, nodes: &mut N, id: u16) -> bool {
        let count = nodes.node(id).map_or(0, |(node, _)| node.polled_qps.len());
        let mut found = false;
        for _ in 0..count {
            if self.budget.is_spent() {
                self.more = true;
                break;
            }
            let Some((node, platform)) = nodes.node_mut(id) else {
                break;
            };
            let Some(qpn) = node.next_rung(platform) else {
                continue;
            };
            let before = node.qps.get(qpn).map(|qp| qp.send.index);
            match node.ready.is_empty() {
                true => self.serve(nodes, id, qpn, None),
                false => node.schedule(qpn),
            }
            let qp = nodes.node(id).and_then(|(node, _)| node.qps.get(qpn));
            found |= qp.is_some_and(|qp| Some(qp.send.index) != before || qp.send.wait != Wait::No);
        }
        found
    }

    /// Says whether the host polls a node's doorbells. Turned off, kicks are wanted again; true if a doorbell was rung
    /// just before, so that polling must go on for another round.
    pub fn set_polled<N: NodeTable>(&mut self, nodes: &mut N, id: u16, polled: bool) -> bool {
        let Some((node, platform)) = nodes.node_mut(id) else {
            return false;
        };
        node.polled = polled;
        let mut rung = false;
        if !polled {
            while let Some(qpn) = node.polled_qps.pop(&mut node.qps) {
                let qp = node.qps.get(qpn).filter(|qp| qp.send.ring.is_some());
                if qp.is_some_and(|qp| qp.publish(platform, false)) {
                    node.schedule(qpn);
                    rung = true;
                }
            }
        }
        rung
    }
}

impl<S: Storage> Node<S> {
    /// Whether the doorbell of a queue pair, which has no work now, is polled from now on.
    #[inline(always)]
    pub(crate) fn polls(&mut self, qpn: u32) -> bool {
        self.polled && self.add_polled(qpn)
    }

    fn add_polled(&mut self, qpn: u32) -> bool {
        let full = self.polled_qps.len() >= MAX_POLLED;
        let Some(qp) = self.qps.get_mut(qpn) else {
            return false;
        };
        if !qp.poll_links.is_listed() {
            if full {
                return false;
            }
            // It has work now: that it once was idle for long does not count any more.
            qp.idle_polls = 0;
        }
        self.polled_qps.push(&mut self.qps, qpn);
        true
    }

    /// Looks at the next doorbell, which has its turn again after all the others. Its queue pair, if that has work.
    fn next_rung(&mut self, platform: &impl Platform) -> Option<u32> {
        let qpn = self.polled_qps.pop(&mut self.qps)?;
        let qp = self.qps.get_mut(qpn)?;
        let active = matches!(
            qp.state,
            QpStateCode::Rts | QpStateCode::Err | QpStateCode::Sqe
        );
        // One that waits is not idle: its doorbell is looked at when its wait ends.
        let waits = qp.send.wait != Wait::No;
        let rung = active && !waits && qp.has_work(platform) != Some(false);
        qp.idle_polls = match rung || waits {
            true => 0,
            false => qp.idle_polls.saturating_add(1),
        };
        let leaves = qp.idle_polls >= MAX_IDLE_POLLS;
        if !leaves || qp.publish(platform, false) {
            self.polled_qps.push(&mut self.qps, qpn);
        }
        rung.then_some(qpn)
    }
}
