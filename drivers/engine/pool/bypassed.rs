// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Counters of what goes past the engine in process rings (`Documentation/process-rings.md`, "Counters").

use crate::{
    hal::{Platform, Storage},
    node::Node,
    state::{bypassed::PeerRing, process_ring::RingAt, qp::QueuePair},
};
use nupa_proto::process_ring::{TOTALS_PUT, TOTALS_TAKEN};

impl<S: Storage> Node<S> {
    /// Adds to the counters of the port and of queue pairs what has gone past the engine since the last time. To be called before counters of the port are
    /// read. Reads a line of each process ring: there are few of them.
    pub fn count_bypassed(&mut self, platform: &impl Platform) {
        for _ in 0..self.rings.all.len() {
            if let Some(qpn) = self.rings.all.rotate(&mut self.qps) {
                self.count_bypassed_of(platform, qpn);
            }
        }
    }

    /// The same for one queue pair, before what it has counted is read.
    pub fn count_bypassed_of(&mut self, platform: &impl Platform, qpn: u32) {
        self.count_taken(platform, qpn);
        self.count_put(platform, qpn);
    }

    /// Adds what the process of a queue pair has taken out of the ring that this receives from.
    pub(super) fn count_taken(&mut self, platform: &impl Platform, qpn: u32) {
        let Self { qps, counters, .. } = self;
        let qp: Option<&mut QueuePair<_>> = qps.get_mut(qpn);
        if let Some(qp) = qp {
            let ring = &mut qp.recv.ring;
            let grown = ring.bypassed.grown(platform, ring.at, TOTALS_TAKEN);
            qp.traffic.served_past(grown);
            counters.rx_messages.add_all(grown.items);
            counters.rx_message_bytes.add_all(grown.bytes);
        }
    }

    /// Adds what the process of a queue pair has put into the ring that this sends to.
    fn count_put(&mut self, platform: &impl Platform, qpn: u32) {
        let Self { qps, counters, .. } = self;
        let qp: Option<&mut QueuePair<_>> = qps.get_mut(qpn);
        if let Some(qp) = qp {
            let ring = &mut qp.send.peer_ring;
            let grown = ring.bypassed.grown(platform, ring.at, TOTALS_PUT);
            qp.traffic.requested_past(grown);
            counters.tx_messages.add_all(grown.items);
            counters.tx_message_bytes.add_all(grown.bytes);
        }
    }

    /// A queue pair sends to the process ring at this address from now on, or to none.
    pub(crate) fn set_peer_ring(&mut self, platform: &impl Platform, qpn: u32, at: Option<RingAt>) {
        self.count_put(platform, qpn);
        if let Some(qp) = self.qps.get_mut(qpn) {
            qp.send.peer_ring = PeerRing::new(platform, at);
        }
        self.list_rings(qpn);
    }

    /// Puts a queue pair among those that are looked at, or takes it away from there.
    pub(super) fn list_rings(&mut self, qpn: u32) {
        let qp: Option<&mut QueuePair<_>> = self.qps.get_mut(qpn);
        match qp.is_some_and(|qp| qp.recv.ring.at.is_some() || qp.send.peer_ring.at.is_some()) {
            true => self.rings.all.push(&mut self.qps, qpn),
            false => self.rings.all.remove(&mut self.qps, qpn),
        }
        self.rings.left = self.rings.left.min(self.rings.all.len());
    }
}
