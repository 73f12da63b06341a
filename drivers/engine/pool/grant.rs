// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What this host's node lets others write to directly: the grants that it has given, see `Documentation/pool.md`.
//!
//! A grant holds for as long as a WRITE through the rings would be carried out. Whatever may have changed that is followed by
//! [`Engine::revoke_grants`], which looks at each grant anew. A peer may be in the middle of a WRITE with a grant that has just ended:
//! [`Engine::writers_gone`] says when none is.

use crate::{
    hal::{Clock, Storage},
    link::Link,
    node::Node,
    nodes::NodeTable,
    path::engine::Engine,
    state::{
        access::remote_mr,
        grant::{GrantGiven, GrantRange, Writers},
        mr::{Backing, Kind},
        pages::PageMap,
        peer::Peer,
    },
};
use nupa_pool::{Grant, InUse};
use nupa_proto::{
    admin::{ACCESS_REMOTE_READ, ACCESS_REMOTE_WRITE},
    pool::{GRANT_SLOTS, GRANT_TIMEOUT_US},
    wqe::Opcode,
};

/// Microseconds between two polls of the peers' busy words. A word is set for as long as `GRANT_STEP` bytes are copied (6 us at 10 GB/s).
pub const WRITERS_PAUSE_US: u64 = 20;

impl<L: Link> Peer<L> {
    /// Grants a region to the sender of a request, or finds the grant that it has. For a READ no other grant is ended, because the requester's engine reads nothing
    /// with one; and one that it has is not sent again, because each READ would be answered with it.
    fn grant_for_response(
        &mut self,
        opcode: Opcode,
        given: GrantGiven,
        epoch: u32,
        piece: GrantRange,
        now: u64,
    ) -> Option<Grant> {
        let offset = self.link_mut().direct()?.offset_of(piece.dma, piece.len)?;
        let same = |other: &Option<GrantGiven>| {
            other.is_some_and(|other| {
                let who = (other.qpn, other.source, other.key);
                other.ended_us.is_none() && who == (given.qpn, given.source, given.key)
            })
        };
        let given = GrantGiven {
            reads: piece.reads,
            ..given
        };
        let is_read = opcode == Opcode::Read;
        let slot = match self.grants_given.find(same) {
            Some(_) if is_read => return None,
            Some(slot) => {
                let known = self.grants_given.get(slot)?;
                let reads = known.reads || given.reads;
                self.grants_given
                    .set(slot, Some(GrantGiven { reads, ..known }));
                slot
            }
            None => {
                let slot = match is_read {
                    true => self.grants_given.find(Option::is_none)?,
                    false => self.free_slot(now)?,
                };
                let serial = self.grants_given.serial(epoch)?;
                self.grants_given
                    .set(slot, Some(GrantGiven { serial, ..given }));
                self.link_mut().direct()?.give(slot, serial);
                slot
            }
        };
        let given = self.grants_given.get(slot)?;
        Some(Grant {
            slot,
            serial: given.serial,
            offset,
            addr: piece.addr,
            len: piece.len,
            key: given.key,
            reads: given.reads,
        })
    }

    /// A slot that is free, or is made so: not that of a grant whose memory a process has mapped, and none while one that was made free is still in use.
    fn free_slot(&mut self, now: u64) -> Option<u16> {
        if let Some(slot) = self.grants_given.find(Option::is_none) {
            return Some(slot);
        }
        self.is_writing(now);
        if let Some(slot) = self.grants_given.find(Option::is_none) {
            return Some(slot);
        }
        let ended =
            |given: &Option<GrantGiven>| given.is_some_and(|given| given.ended_us.is_some());
        if self.grants_given.find(ended).is_some() {
            return None;
        }
        let used = self.link_mut().direct()?.in_use();
        let first = self.grants_given.next;
        let slots = (0..GRANT_SLOTS).map(|ahead| first.wrapping_add(ahead) % GRANT_SLOTS);
        let slot = slots.into_iter().find(|slot| !used.is_mapped(*slot))?;
        self.grants_given.next = slot.wrapping_add(1) % GRANT_SLOTS;
        self.end_grant(slot, now);
        self.is_writing(now);
        self.grants_given.get(slot).is_none().then_some(slot)
    }

    /// A grant holds no more.
    fn end_grant(&mut self, slot: u16, now: u64) {
        let given = self.grants_given.get(slot);
        if let Some(given) = given.filter(|given| given.ended_us.is_none()) {
            let ended_us = Some(now);
            let given = GrantGiven { ended_us, ..given };
            self.grants_given.set(slot, Some(given));
            if let Some(link) = self.link_mut().direct() {
                link.give(slot, 0);
            }
        }
    }

    /// Whether the peer writes with a grant that had ended by then, or a process of its has mapped what that was about. Those that ended and that it does not use
    /// are forgotten.
    fn is_writing(&mut self, by_us: u64) -> bool {
        self.uses(by_us, |used| used)
    }

    /// The same, as far as what it does with grants counts.
    fn uses(&mut self, by_us: u64, counts: impl FnOnce(InUse) -> InUse) -> bool {
        let used = self.link_mut().direct().map(|link| link.in_use());
        let Some(used) = used.map(counts) else {
            // Who has no link was told that nothing holds.
            self.grants_given.clear();
            return false;
        };
        let mut writing = false;
        for (slot, place) in (0..).zip(&mut self.grants_given.slots) {
            let ended = place.and_then(|given| Some((given.serial, given.ended_us?)));
            let Some((serial, ended_us)) = ended else {
                continue;
            };
            if used.has(slot, serial) {
                writing |= ended_us <= by_us;
            } else {
                *place = None;
            }
        }
        writing
    }
}

impl Engine {
    /// The grant that goes with the answer to the current request, which was done, if there is to be one.
    #[inline]
    pub(crate) fn grant_for_response<N: NodeTable>(&self, nodes: &mut N, id: u16) -> Option<Grant> {
        let request = &self.request;
        let may_be_direct = matches!(request.opcode, Opcode::Write | Opcode::Read);
        if !may_be_direct || request.len == 0 {
            return None;
        }
        nodes.peer_mut(id)?.link_mut().direct()?;
        let (node, platform) = nodes.node(request.home)?;
        let (qpn, key, opcode) = (request.destination.qpn, request.remote_key, request.opcode);
        let (piece, epoch) = (node.grantable(qpn, key)?, node.epoch());
        let now = platform.now_us();
        let given = GrantGiven {
            qpn,
            source: request.source,
            key,
            reads: false,
            serial: 0,
            ended_us: None,
        };
        nodes
            .peer_mut(id)?
            .grant_for_response(opcode, given, epoch, piece, now)
    }

    /// Ends all grants of a node that would not be given any more.
    pub(crate) fn revoke_grants<N: NodeTable>(&self, nodes: &mut N, home: u16, writers: Writers) {
        let Some((node, platform)) = nodes.node_mut(home) else {
            return;
        };
        node.grants_stale = false;
        let now = platform.now_us();
        let mut writing = false;
        for id in 0..nodes.max_nodes() {
            if has_grants(nodes, home, id) {
                revoke_unsound(nodes, home, id, now);
                let peer = nodes.peer_mut(id);
                writing |= peer.is_some_and(|peer| peer.is_writing(now));
            }
        }
        let awaited = writing && writers == Writers::Await;
        if let Some((node, _)) = nodes.node_mut(home).filter(|_| awaited) {
            node.awaits_since = Some(now);
        }
    }

    /// Whether no peer writes to memory of a node that its driver was told, or is about to be told, to be out of use: deregistered,
    /// with other pages or fewer rights, or of a queue pair that receives no more. If one does, ask again [`WRITERS_PAUSE_US`] later.
    /// A peer that goes on for `GRANT_TIMEOUT_US` is refused. Any context.
    pub fn writers_gone<N: NodeTable>(&self, nodes: &mut N, home: u16) -> bool {
        self.gone(nodes, home, |used| used)
    }

    /// The same of peers that write themselves. What their processes have mapped of a node that is reset is nobody else's before it is not mapped any more, because
    /// they hold it.
    pub(crate) fn direct_writers_gone<N: NodeTable>(&self, nodes: &mut N, home: u16) -> bool {
        self.gone(nodes, home, |used| InUse { mapped: 0, ..used })
    }

    fn gone<N: NodeTable>(
        &self,
        nodes: &mut N,
        home: u16,
        counts: impl Fn(InUse) -> InUse,
    ) -> bool {
        let there = nodes.node(home);
        let Some((since, now)) =
            there.and_then(|(node, platform)| Some((node.awaits_since?, platform.now_us())))
        else {
            return true;
        };
        let is_over = now.saturating_sub(since) >= GRANT_TIMEOUT_US;
        let mut writing = false;
        for id in 0..nodes.max_nodes() {
            if !has_grants(nodes, home, id) {
                continue;
            }
            let Some(peer) = nodes.peer_mut(id) else {
                continue;
            };
            if !peer.uses(since, &counts) {
                continue;
            }
            if is_over {
                peer.grants_given.clear();
                peer.refuse();
            } else {
                writing = true;
            }
        }
        if let Some((node, _)) = nodes.node_mut(home).filter(|_| !writing) {
            node.awaits_since = None;
        }
        !writing
    }
}

/// Whether a peer has grants of a node, or had some and may be writing.
fn has_grants<N: NodeTable>(nodes: &mut N, home: u16, id: u16) -> bool {
    let peer = nodes.peer_mut(id);
    peer.is_some_and(|peer| peer.home() == home && !peer.grants_given.is_empty())
}

/// Ends the grants of a peer that would not be given any more.
fn revoke_unsound<N: NodeTable>(nodes: &mut N, home: u16, id: u16, now: u64) {
    for slot in 0..GRANT_SLOTS {
        let given = nodes
            .peer_mut(id)
            .and_then(|peer| peer.grants_given.get(slot));
        let there = nodes.node(home);
        let ends =
            given.is_some_and(|given| !there.is_some_and(|(node, _)| node.is_grant_sound(&given)));
        if let Some(peer) = nodes.peer_mut(id).filter(|_| ends) {
            peer.end_grant(slot, now);
        }
    }
}

impl<S: Storage> Node<S> {
    /// The memory of a region, if a queue pair's peer may write to it and it is in one piece.
    fn grantable(&self, qpn: u32, key: u32) -> Option<GrantRange> {
        let qp = self.qps.get(qpn)?;
        if !self.is_up() || !qp.receives() {
            return None;
        }
        let mr = remote_mr::<S>(&self.mrs, qpn, qp, key, ACCESS_REMOTE_WRITE);
        let mr = mr.ok().filter(|mr| mr.is_bound())?;
        match (mr.kind, &mr.backing) {
            (Kind::Memory, Backing::Own(PageMap::Direct(dma))) => Some(GrantRange {
                dma: *dma,
                addr: mr.iova,
                len: mr.len,
                reads: qp.access & mr.access & ACCESS_REMOTE_READ != 0
                    && qp.max_dest_rd_atomic != 0,
            }),
            _ => None,
        }
    }

    /// Whether a grant holds.
    fn is_grant_sound(&self, given: &GrantGiven) -> bool {
        let qp = self.qps.get(given.qpn);
        let same = qp.is_some_and(|qp| qp.remote == Some(given.source));
        let range = self.grantable(given.qpn, given.key);
        same && range.is_some_and(|range| range.reads || !given.reads)
    }
}
