// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What this host's node lets others write to directly: the grants that it has given, see `Documentation/pool.md`.
//!
//! A grant holds for as long as a WRITE through the rings would be carried out. Whatever may have changed that is followed by
//! [`Engine::take_back`], which looks at each grant anew.

use crate::{
    hal::{Clock, Storage},
    link::Link,
    node::Node,
    nodes::Fabric,
    path::engine::Engine,
    state::{
        access::remote_region,
        grant::{Lent, Piece, Writers},
        mr::{Backing, Kind},
        pages::PageMap,
        peer::Peer,
    },
};
use nupa_pool::Grant;
use nupa_proto::{
    admin::ACCESS_REMOTE_WRITE,
    pool::{GRANT_PATIENCE_US, GRANT_SLOTS},
    wqe::Opcode,
};

/// Microseconds from one look at who still writes to the next.
const PAUSE_US: u64 = 2;

impl<L: Link> Peer<L> {
    /// Grants a region to the sender of a request, or finds the grant that it has.
    fn lend(&mut self, lent: Lent, epoch: u32, piece: Piece) -> Option<Grant> {
        let offset = self.link_mut().direct()?.offset_of(piece.dma, piece.len)?;
        let same = |other: &Option<Lent>| {
            other.is_some_and(|other| {
                let who = (other.qpn, other.source, other.key);
                !other.over && who == (lent.qpn, lent.source, lent.key)
            })
        };
        let slot = match self.lending.find(same) {
            Some(slot) => slot,
            None => {
                let slot = self.free_slot()?;
                let serial = self.lending.serial(epoch)?;
                self.lending.set(slot, Some(Lent { serial, ..lent }));
                self.link_mut().direct()?.give(slot, serial);
                slot
            }
        };
        Some(Grant {
            slot,
            serial: self.lending.get(slot)?.serial,
            offset,
            addr: piece.addr,
            len: piece.len,
            key: lent.key,
        })
    }

    /// A slot that is free, or is made so.
    fn free_slot(&mut self) -> Option<u16> {
        if let Some(slot) = self.lending.find(Option::is_none) {
            return Some(slot);
        }
        let slot = self.lending.next;
        self.lending.next = slot.wrapping_add(1).checked_rem(GRANT_SLOTS)?;
        self.end_grant(slot);
        self.is_writing();
        self.lending.get(slot).is_none().then_some(slot)
    }

    /// A grant holds no more.
    fn end_grant(&mut self, slot: u16) {
        if let Some(lent) = self.lending.get(slot).filter(|lent| !lent.over) {
            self.lending.set(slot, Some(Lent { over: true, ..lent }));
            if let Some(link) = self.link_mut().direct() {
                link.give(slot, 0);
            }
        }
    }

    /// Whether the peer writes with a grant that holds no more. The others of those are forgotten.
    fn is_writing(&mut self) -> bool {
        let Some(used) = self.link_mut().direct().map(|link| link.in_use()) else {
            // Who has no link was told that nothing holds.
            self.lending.clear();
            return false;
        };
        let mut writing = false;
        for place in &mut self.lending.slots {
            match place {
                Some(lent) if lent.over && lent.serial == used => writing = true,
                Some(lent) if lent.over => *place = None,
                _ => {}
            }
        }
        writing
    }
}

impl Engine {
    /// The grant that goes with the answer to the request at hand, which was done, if there is to be one.
    #[inline]
    pub(crate) fn lend<F: Fabric>(&self, fabric: &mut F, id: u16) -> Option<Grant> {
        let request = &self.request;
        if request.opcode != Opcode::Write || request.len == 0 {
            return None;
        }
        fabric.peer_mut(id)?.link_mut().direct()?;
        let (node, _) = fabric.node(request.home)?;
        let (qpn, key) = (request.target.qpn, request.remote_key);
        let (piece, epoch) = (node.lendable(qpn, key)?, node.epoch());
        let lent = Lent {
            qpn,
            source: request.source,
            key,
            serial: 0,
            over: false,
        };
        fabric.peer_mut(id)?.lend(lent, epoch, piece)
    }

    /// Ends all grants of a node that would not be given any more.
    pub(crate) fn take_back<F: Fabric>(&self, fabric: &mut F, home: u16, writers: Writers) {
        if let Some((node, _)) = fabric.node_mut(home) {
            node.lends_anew = false;
        }
        let mut patience = GRANT_PATIENCE_US;
        for id in 0..fabric.max_nodes() {
            let peer = fabric.peer_mut(id);
            if peer.is_none_or(|peer| peer.home() != home || peer.lending.is_empty()) {
                continue;
            }
            end_unsound(fabric, home, id);
            if writers == Writers::Await {
                await_writer(fabric, home, id, &mut patience);
            }
        }
    }
}

/// Ends the grants of a peer that would not be given any more.
fn end_unsound<F: Fabric>(fabric: &mut F, home: u16, id: u16) {
    for slot in 0..GRANT_SLOTS {
        let lent = fabric.peer_mut(id).and_then(|peer| peer.lending.get(slot));
        let there = fabric.node(home);
        let ends = lent.is_some_and(|lent| !there.is_some_and(|(node, _)| node.lends(&lent)));
        if let Some(peer) = fabric.peer_mut(id).filter(|_| ends) {
            peer.end_grant(slot);
        }
    }
}

/// Waits until a peer writes with no grant that has ended. One that does not stop is refused.
fn await_writer<F: Fabric>(fabric: &mut F, home: u16, id: u16, patience: &mut u64) {
    while fabric.peer_mut(id).is_some_and(Peer::is_writing) {
        if *patience == 0 {
            if let Some(peer) = fabric.peer_mut(id) {
                peer.lending.clear();
                peer.refuse();
            }
            return;
        }
        *patience = patience.saturating_sub(PAUSE_US);
        if let Some((_, platform)) = fabric.node(home) {
            platform.pause_us(PAUSE_US);
        }
    }
}

impl<S: Storage> Node<S> {
    /// The memory of a region, if a queue pair's peer may write to it and it is in one piece.
    fn lendable(&self, qpn: u32, key: u32) -> Option<Piece> {
        let pair = self.pairs.get(qpn)?;
        if !self.is_up() || !pair.receives() {
            return None;
        }
        let region = remote_region::<S>(&self.regions, qpn, pair, key, ACCESS_REMOTE_WRITE);
        let region = region.ok().filter(|region| region.is_bound())?;
        match (region.kind, &region.backing) {
            (Kind::Memory, Backing::Own(PageMap::Direct(dma))) => Some(Piece {
                dma: *dma,
                addr: region.iova,
                len: region.len,
            }),
            _ => None,
        }
    }

    /// Whether a grant holds.
    fn lends(&self, lent: &Lent) -> bool {
        let pair = self.pairs.get(lent.qpn);
        pair.is_some_and(|pair| pair.remote == Some(lent.source))
            && self.lendable(lent.qpn, lent.key).is_some()
    }
}
