// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Memory of a peer's that a process of this host has mapped, see `Documentation/pool.md`: what a grant is about, for as long as that holds. The engine
//! has no part in what the process reads and writes there.

use crate::{
    link::Link,
    nodes::NodeTable,
    path::engine::Engine,
    state::{peer::Peer, qp::Remote},
};
use nupa_pool::Grant;
use nupa_proto::{
    admin::QpStateCode,
    pool::{GRANT_SLOTS, PAGE},
};

/// Grants of a peer's that processes may have mapped what they are about of: they are not ended for want of room, and others need some.
const MOST_MAPPED: u32 = GRANT_SLOTS as u32 / 2;

/// What a process has mapped.
#[derive(Clone, Copy, Debug)]
pub struct MappedGrant {
    grant: Grant,
    /// Queue pair whose process it is, and the packet sequence number that its connection begins with.
    qpn: u32,
    psn: u32,
    /// The one that it is connected to, of the node that the memory belongs to.
    remote: Remote,
    /// Epoch of this host's node.
    own_epoch: u32,
}

impl MappedGrant {
    /// Node that it belongs to.
    pub fn node(&self) -> u16 {
        self.remote.node
    }

    /// Slot of the grant.
    pub fn slot(&self) -> u16 {
        self.grant.slot
    }

    /// Offset in the pool: whole pages.
    pub fn offset(&self) -> u64 {
        self.grant.offset
    }

    /// Address of the first byte in the region.
    pub fn addr(&self) -> u64 {
        self.grant.addr
    }

    /// Bytes: whole pages.
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> u64 {
        self.grant.len
    }
}

/// Whether the process of a queue pair in this state may read and write at its peer.
fn may_copy(state: QpStateCode) -> bool {
    matches!(state, QpStateCode::Rts | QpStateCode::Sqd)
}

/// The bit of a slot.
fn bit(slot: u16) -> u32 {
    1u32.checked_shl(slot.into()).unwrap_or(0)
}

/// Whether a process may have the memory of a grant mapped: who can write there by instructions can read there, and what is mapped are pages.
fn is_mappable(grant: &Grant) -> bool {
    grant.reads && grant.offset % PAGE == 0 && grant.len % PAGE == 0
}

impl<L: Link> Peer<L> {
    /// Whether a process has mapped something of its.
    pub fn is_mapped(&self) -> bool {
        self.mapped != 0
    }

    /// Has processes give back what they have mapped of its, soon: the link is to end.
    pub fn recall(&mut self) {
        self.recalled = self.is_mapped();
    }

    /// Lets a process map what its queue pair, which writes to another, holds a grant for. `None` if there is none (yet), or it cannot be mapped.
    fn map(&mut self, qpns: (u32, u32), key: u32) -> Option<Grant> {
        let mut held = self.grants_held.iter().flatten();
        let held = held.find(|held| held.qpns == qpns && held.grant.key == key)?;
        let grant = held.grant;
        let bit = bit(grant.slot);
        let full = self.mapped.count_ones() >= MOST_MAPPED || self.recalled;
        if !is_mappable(&grant) || bit == 0 || self.mapped & bit != 0 || full {
            return None;
        }
        if !self.link_mut().direct()?.map(&grant) {
            return None;
        }
        self.mapped |= bit;
        Some(grant)
    }
}

impl Engine {
    /// Lets a process map the memory that a queue pair of a node has a grant for, by its key. `None` if there is no grant (yet), or its memory is not
    /// whole pages that may be read and written, or is mapped. The memory is mapped from then on for its owner, who waits for
    /// [`Engine::unmap_grant`] before anything else becomes of it.
    pub fn map_grant<N: NodeTable>(
        &self,
        nodes: &mut N,
        home: u16,
        qpn: u32,
        key: u32,
    ) -> Option<MappedGrant> {
        let (node, _) = nodes.node(home)?;
        let qp = node.qps.get(qpn)?;
        let reads = qp.max_rd_atomic != 0;
        let remote = qp.remote.filter(|_| may_copy(qp.state) && reads)?;
        let (psn, own_epoch) = (qp.psn, node.epoch());
        let peer = nodes.peer_mut(remote.node)?;
        if peer.home() != home || peer.epoch() != Some(remote.epoch) {
            return None;
        }
        let grant = peer.map((qpn, remote.qpn), key)?;
        Some(MappedGrant {
            grant,
            qpn,
            psn,
            remote,
            own_epoch,
        })
    }

    /// Whether the process of a queue pair may go on: neither the grant nor the connection has ended; else its mapping is to be taken away soon, and [`Engine::unmap_grant`] called.
    pub fn is_granted<N: NodeTable>(&self, nodes: &mut N, home: u16, mapped: &MappedGrant) -> bool {
        let remote = mapped.remote;
        let same = nodes.node(home).is_some_and(|(node, _)| {
            let qp = node.qps.get(mapped.qpn).filter(|qp| may_copy(qp.state));
            let same = qp.is_some_and(|qp| (qp.psn, qp.remote) == (mapped.psn, Some(remote)));
            node.is_up() && node.epoch() == mapped.own_epoch && same
        });
        let peer = nodes.peer_mut(remote.node).filter(|_| same);
        peer.filter(|peer| peer.epoch() == Some(remote.epoch) && !peer.recalled)
            .and_then(|peer| peer.link_mut().direct())
            .is_some_and(|link| link.holds(&mapped.grant))
    }

    /// No process has the memory mapped any more, and what was written there is in the pool.
    pub fn unmap_grant<N: NodeTable>(&self, nodes: &mut N, mapped: &MappedGrant) {
        let Some(peer) = nodes.peer_mut(mapped.remote.node) else {
            return;
        };
        let slot = mapped.grant.slot;
        peer.mapped &= !bit(slot);
        peer.recalled &= peer.mapped != 0;
        if let Some(link) = peer.link_mut().direct() {
            link.unmap(slot);
        }
    }
}
