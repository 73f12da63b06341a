// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Leave to write to each other's device memory directly, as it stands in the two nodes' directories.

use crate::{
    geometry::{Geometry, Inbox},
    window::zero,
    Poisoned, Window,
};
use core::ops::Range;
use nupa_proto::pool::{
    inbox::{INBOX_BUSY, INBOX_GRANTS},
    message::ResponseBody,
    GRANT_BUSY, GRANT_MAPPED, GRANT_READS, GRANT_SLOTS, GRANT_TABLE, LINE,
};

/// Bytes of a word.
const WORD: u64 = size_of::<u64>() as u64;
/// Bytes of the grants for one node.
const ROW: u64 = WORD * GRANT_SLOTS as u64;
const _: () = assert!(ROW % LINE == 0);

/// A grant, as a response tells of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Number of its word.
    pub slot: u16,
    /// What the word says while it holds; not 0.
    pub serial: u64,
    /// Offset in the pool of what is granted.
    pub offset: u64,
    /// Address of its first byte in the region.
    pub addr: u64,
    /// Bytes of it.
    pub len: u64,
    /// Key of the region.
    pub key: u32,
    /// Whether READs of the memory are allowed as well.
    pub reads: bool,
}

/// What another node does just now with grants that it has of this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InUse {
    /// Serial of the grant that it writes with; 0: it does not.
    pub serial: u64,
    /// Bit *n*: a process of its has mapped what the grant in slot *n* is about.
    pub mapped: u64,
}

impl InUse {
    /// Nothing.
    pub const NOTHING: Self = Self {
        serial: 0,
        mapped: 0,
    };

    /// Whether the grant with this serial, in this slot, is in use.
    pub fn has(&self, slot: u16, serial: u64) -> bool {
        self.serial == serial || self.is_mapped(slot)
    }

    /// Whether a process has mapped what the grant in a slot is about.
    pub fn is_mapped(&self, slot: u16) -> bool {
        self.mapped & bit(slot) != 0
    }
}

impl Grant {
    /// The grant in a response, if there is one. What it says is the peer's.
    pub fn read(body: &ResponseBody) -> Option<Self> {
        let serial = body.grant_serial.get();
        (serial != 0).then_some(Self {
            slot: body.grant_slot.get(),
            serial,
            offset: body.grant_offset.get(),
            addr: body.grant_addr.get(),
            len: body.grant_len.get(),
            key: body.grant_key.get(),
            reads: body.grant_flags & GRANT_READS != 0,
        })
    }

    /// Puts it into a response.
    pub fn write(&self, body: &mut ResponseBody) {
        body.grant_slot.set(self.slot);
        body.grant_serial.set(self.serial);
        body.grant_offset.set(self.offset);
        body.grant_addr.set(self.addr);
        body.grant_len.set(self.len);
        body.grant_key.set(self.key);
        body.grant_flags = if self.reads { GRANT_READS } else { 0 };
    }

    /// Where in the pool `len` bytes at `addr` of the region are, if they lie inside.
    pub fn locate(&self, addr: u64, len: u32) -> Option<u64> {
        let at = addr.checked_sub(self.addr)?;
        let fits = u64::from(len) <= self.len.checked_sub(at)?;
        self.offset.checked_add(at).filter(|_| fits)
    }
}

/// Where this node and another say what they grant each other, and what they write.
#[derive(Clone, Debug)]
pub struct Grants {
    /// This node's words for the other.
    given: u64,
    /// The other's for this node.
    taken: u64,
    /// This node's busy word.
    busy: u64,
    /// The other's.
    peer_busy: u64,
    /// What the other offers.
    peer_memory: Range<u64>,
    /// What this node offers.
    memory: Range<u64>,
}

impl Grants {
    /// None if a node has no directory, or the pool is not coherent.
    pub(crate) fn new(
        window: &impl Window,
        geometry: &Geometry,
        own: u16,
        peer: u16,
    ) -> Option<Self> {
        if !window.is_coherent() || geometry.inboxes().is_some() {
            return None;
        }
        let (here, there) = (geometry.directory(own)?, geometry.directory(peer)?);
        Some(Self {
            given: row(&here, peer),
            taken: row(&there, own),
            busy: busy(&here, peer),
            peer_busy: busy(&there, own),
            peer_memory: geometry.device_memory(peer),
            memory: geometry.device_memory(own),
        })
    }

    /// As [`Grants::new`], of nodes that write to these inboxes of each other.
    pub(crate) fn in_inboxes(
        window: &impl Window,
        geometry: &Geometry,
        own: Inbox,
        peer: Inbox,
    ) -> Option<Self> {
        if !window.is_coherent() {
            return None;
        }
        let (here, there) = (geometry.inbox(own)?, geometry.inbox(peer)?);
        Some(Self {
            given: there.wrapping_add(INBOX_GRANTS),
            taken: here.wrapping_add(INBOX_GRANTS),
            busy: there.wrapping_add(INBOX_BUSY),
            peer_busy: here.wrapping_add(INBOX_BUSY),
            peer_memory: geometry.device_memory(peer.node),
            memory: geometry.device_memory(own.node),
        })
    }

    /// What this node offers as device memory.
    pub fn memory(&self) -> Range<u64> {
        self.memory.clone()
    }

    /// Says which grant a word stands for; 0: none.
    pub fn give(&self, window: &impl Window, slot: u16, serial: u64) {
        if slot < GRANT_SLOTS {
            window.store(self.given.wrapping_add(word(slot)), serial);
        }
    }

    /// What the other node does with grants. Begins with a full fence: who took a grant back before, and does not find it here, has it back.
    pub fn in_use(&self, window: &impl Window) -> Result<InUse, Poisoned> {
        window.fence();
        Ok(InUse {
            serial: window.load(self.peer_busy)?,
            mapped: window.load(self.peer_busy.wrapping_add(GRANT_MAPPED))?,
        })
    }

    /// Whether a peer may have said this.
    pub fn is_sound(&self, grant: &Grant) -> bool {
        let memory = &self.peer_memory;
        let end = grant.offset.checked_add(grant.len);
        grant.slot < GRANT_SLOTS
            && grant.len != 0
            && grant.addr.checked_add(grant.len).is_some()
            && memory.start <= grant.offset
            && end.is_some_and(|end| end <= memory.end)
    }

    /// Says that this node writes with a sound grant from now on; false if that does not hold any more. Then [`Grants::end`] need not
    /// be called.
    pub fn begin(&self, window: &impl Window, grant: &Grant) -> Result<bool, Poisoned> {
        window.store(self.busy, grant.serial);
        // The owner takes the serial away before it looks at the busy word, so one of the two sees the other.
        window.fence();
        let holds = self.holds(window, grant);
        if holds != Ok(true) {
            window.store(self.busy, 0);
        }
        holds
    }

    /// Says that a process of this node is about to map what a sound grant is about; false if that does not hold any more, or somebody has mapped it.
    /// Then [`Grants::unmap`] need not be called.
    pub fn map(&self, window: &impl Window, grant: &Grant) -> Result<bool, Poisoned> {
        let at = self.busy.wrapping_add(GRANT_MAPPED);
        let mapped = window.load(at)?;
        if mapped & bit(grant.slot) != 0 {
            return Ok(false);
        }
        window.store(at, mapped | bit(grant.slot));
        // As in `begin`.
        window.fence();
        let holds = self.holds(window, grant);
        if holds != Ok(true) {
            window.store(at, mapped);
        }
        holds
    }

    /// Whether a sound grant holds.
    pub fn holds(&self, window: &impl Window, grant: &Grant) -> Result<bool, Poisoned> {
        let serial = window.load(self.taken.wrapping_add(word(grant.slot)))?;
        Ok(serial == grant.serial)
    }

    /// Says that no process of this node has the memory of the grant in a slot mapped any more.
    pub fn unmap(&self, window: &impl Window, slot: u16) -> Result<(), Poisoned> {
        let at = self.busy.wrapping_add(GRANT_MAPPED);
        // What was written there is in the pool before.
        window.fence();
        let mapped = window.load(at)?;
        window.store(at, mapped & !bit(slot));
        Ok(())
    }

    /// Says that this node has written all that it wanted to with a grant.
    pub fn end(&self, window: &impl Window) {
        // What was written may have gone past the caches.
        window.fence();
        window.store(self.busy, 0);
    }
}

/// The bit of a grant that is mapped.
fn bit(slot: u16) -> u64 {
    1u64.checked_shl(slot.into()).unwrap_or(0)
}

/// Offset of a grant's word in its row.
fn word(slot: u16) -> u64 {
    WORD.wrapping_mul(u64::from(slot))
}

/// Offset in the pool of a node's words for another.
fn row(directory: &Range<u64>, other: u16) -> u64 {
    let before = ROW.wrapping_mul(u64::from(other));
    directory
        .start
        .wrapping_add(GRANT_TABLE)
        .wrapping_add(before)
}

/// Offset in the pool of a node's busy word for another.
fn busy(directory: &Range<u64>, other: u16) -> u64 {
    let before = LINE.wrapping_mul(u64::from(other));
    directory
        .start
        .wrapping_add(GRANT_BUSY)
        .wrapping_add(before)
}

/// Whether a node says that it writes with a grant of another, or has memory of one mapped. If that cannot be read, it does not say so.
pub(crate) fn is_writing(window: &impl Window, geometry: &Geometry, own: u16, peer: u16) -> bool {
    let directory = geometry.directory(own).filter(|_| window.is_coherent());
    directory.is_some_and(|directory| is_busy(window, busy(&directory, peer)))
}

/// The same by the busy word's place in the pool.
pub(crate) fn is_busy(window: &impl Window, busy: u64) -> bool {
    let mut words = [busy, busy.wrapping_add(GRANT_MAPPED)].into_iter();
    words.any(|at| window.load(at).is_ok_and(|word| word != 0))
}

/// Says that no process of a node has what a grant of another in a slot is about mapped any more, also if there is no link. Inboxes are cleared with their links.
pub(crate) fn unmap(window: &impl Window, geometry: &Geometry, own: u16, peer: u16, slot: u16) {
    let directory = geometry.directory(own);
    if let Some(directory) = directory.filter(|_| geometry.inboxes().is_none()) {
        let at = busy(&directory, peer).wrapping_add(GRANT_MAPPED);
        if let Ok(mapped) = window.load(at) {
            window.store(at, mapped & !bit(slot));
        }
    }
}

/// Takes back all that a node has granted another, and says that it does not write there.
pub(crate) fn clear(window: &impl Window, geometry: &Geometry, own: u16, peer: u16) {
    // Inboxes have their own.
    let directory = geometry.directory(own);
    if let Some(directory) = directory.filter(|_| geometry.inboxes().is_none()) {
        let (row, busy) = (row(&directory, peer), busy(&directory, peer));
        zero(window, row..row.wrapping_add(ROW));
        zero(window, busy..busy.wrapping_add(LINE));
    }
}

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::arithmetic_side_effects,
    reason = "tests fail by panicking"
)]
mod tests {
    use super::*;
    use crate::geometry::Format;
    use nupa_proto::pool::{AREA_NODES, DIRECTORY_SIZE};

    /// A directory's parts, as they lie in the pool.
    fn parts(own: u16, peer: u16) -> [(u64, u64); 2] {
        let geometry = Geometry::choose(1 << 36, AREA_NODES, Format::Areas).unwrap();
        let directory = geometry.directory(own).unwrap();
        [
            (busy(&directory, peer) - directory.start, LINE),
            (row(&directory, peer) - directory.start, ROW),
        ]
    }

    #[test]
    fn a_directory_has_room_for_every_node() {
        let last = parts(3, AREA_NODES - 1);
        assert_eq!(last[0].0 + last[0].1, GRANT_TABLE);
        // The second half is not for grants.
        assert!(last[1].0 + last[1].1 <= DIRECTORY_SIZE / 2);
        for ((first, len), (second, _)) in parts(0, 0).into_iter().zip(parts(0, 1)) {
            assert_eq!(first + len, second);
        }
    }

    #[test]
    fn ranges_outside_of_a_grant_are_not_found() {
        let grant = Grant {
            slot: 0,
            serial: 1,
            offset: 0x9000,
            addr: 0x100,
            len: 0x200,
            key: 5,
            reads: true,
        };
        assert_eq!(grant.locate(0x100, 0x200), Some(0x9000));
        assert_eq!(grant.locate(0x2ff, 1), Some(0x91ff));
        for (addr, len) in [(0x100, 0x201), (0xff, 1), (0x300, 1), (u64::MAX, 2)] {
            assert_eq!(grant.locate(addr, len), None);
        }
        let mut body: ResponseBody = zerocopy::FromZeros::new_zeroed();
        assert_eq!(Grant::read(&body), None);
        grant.write(&mut body);
        assert_eq!(Grant::read(&body), Some(grant));
    }
}
