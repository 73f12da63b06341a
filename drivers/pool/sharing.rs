// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Device memory that programs of several nodes use.
//!
//! Whose memory it is and who uses it decide by the same pattern, with a full fence on both sides: who wants to use it writes
//! its hold, then looks whether the export still stands; who gives it up clears the export, then looks for holds before
//! anybody gets the memory anew. One of the two sees the other.

mod lines;

use self::lines::Lines;
use crate::{Membership, Peer, Poisoned, Pool, Window};
use core::{borrow::BorrowMut, mem::offset_of, ops::Range};
use nupa_proto::{
    pool::{
        sharing::{DmHandle, Export, Hold, RingOwner, EXPORTS, EXPORT_TABLE, HOLDS, HOLD_TABLE},
        Claim, ClaimState, LINE, PAGE,
    },
    process_ring::{RING_SIZE, SECRET, STATE},
};
use zerocopy::transmute;

/// Why memory is not shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unshared {
    /// What is asked for cannot be: a range that is not the node's own, a handle of another fabric.
    Invalid,
    /// Nothing is exported under this handle: it never was, or the memory was freed since.
    Unknown,
    /// The node that the memory belongs to has left, died, or was reset since.
    Stale,
    /// The node's table is full, or its share of the pool has no room for one.
    Full,
    /// The node itself is no longer one of the fabric.
    Void,
    /// What the other node says of it cannot be read.
    Poisoned {
        /// Offset in the pool.
        offset: u64,
    },
}

impl From<Poisoned> for Unshared {
    fn from(Poisoned { offset }: Poisoned) -> Self {
        Self::Poisoned { offset }
    }
}

/// Memory of another program, perhaps of another node, that this node holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Import {
    /// Number of the hold; it goes back with [`Sharing::release`].
    pub line: u16,
    /// Where the memory begins, from the pool's start.
    pub offset: u64,
    /// Its bytes, as they were exported. The hold is on whole pages.
    pub len: u64,
}

/// A node's tables. One for each [`Membership`]; which lines are in use is known here, whatever others write there.
#[derive(Debug, Default)]
pub struct Sharing {
    exports: Lines,
    holds: Lines,
}

// A ring is closed by a word of its first line that has nothing but the state in it.
const _: () = assert!(STATE % size_of::<u64>() == 0 && STATE + size_of::<u64>() <= SECRET);
const _: () = assert!(SECRET < LINE as usize);

/// A field of a line.
macro_rules! field {
    ($line:expr, $layout:ident.$name:ident) => {
        $line.wrapping_add(offset_of!($layout, $name) as u64)
    };
}

impl Sharing {
    /// Nothing is shared.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets others use `len` bytes of the node's device memory at `offset` in the pool, which is at the start of a page.
    /// `secret` is random. If `ring` is not zeroes the memory is a process ring, which nobody but its sender imports.
    /// Until [`Sharing::withdraw`] with the handle's index.
    pub fn export(
        &mut self,
        window: &impl Window,
        member: &Membership<impl BorrowMut<[Peer]>>,
        (offset, len): (u64, u64),
        ring: &RingOwner,
        secret: u64,
    ) -> Result<DmHandle, Unshared> {
        let (pool, node) = (member.pool(), member.node());
        if !member.is_valid(window) {
            return Err(Unshared::Void);
        }
        pages(pool, node, offset, len).ok_or(Unshared::Invalid)?;
        if is_ring(ring) && len != RING_SIZE as u64 {
            return Err(Unshared::Invalid);
        }
        let table = table(pool, node, EXPORT_TABLE).ok_or(Unshared::Full)?;
        let index = self.exports.take(is_ring(ring)).ok_or(Unshared::Full)?;
        let handle = DmHandle {
            // 0 stands for nothing.
            secret: secret.max(1).into(),
            fabric_id: pool.fabric_id().into(),
            len: len.into(),
            epoch: member.epoch().into(),
            node: node.into(),
            index: index.into(),
        };
        let line = line(table, index);
        window.store(field!(line, Export.offset), offset);
        window.store(field!(line, Export.len), len);
        window.store(field!(line, Export.epoch), u64::from(member.epoch()));
        let [first, second] = ring_words(ring);
        window.store(field!(line, Export.ring), first);
        window.store(field!(line, Export.ring).wrapping_add(8), second);
        window.store(field!(line, Export.secret), handle.secret.get());
        window.publish(line, LINE);
        Ok(handle)
    }

    /// Takes an export back, with the index of its handle, and `offset` as it was exported. Memory of it that nobody holds then is nobody's
    /// from now on; see [`Pool::held`]. A process ring is closed first: its sender may have it mapped for longer.
    pub fn withdraw(
        &mut self,
        window: &impl Window,
        member: &Membership<impl BorrowMut<[Peer]>>,
        (index, offset): (u16, u64),
    ) {
        let Some(taken) = self.exports.give(index) else {
            return;
        };
        if !member.is_valid(window) {
            return;
        }
        if taken.is_ring {
            window.store(offset.wrapping_add(STATE as u64), 0);
            window.publish(offset, LINE);
        }
        if let Some(table) = table(member.pool(), member.node(), EXPORT_TABLE) {
            let line = line(table, index);
            window.store(field!(line, Export.secret), 0);
            window.publish(line, LINE);
            window.fence();
        }
    }

    /// Takes a hold on what is exported. It is nobody else's until [`Sharing::release`], whatever becomes of its owner. Process rings are
    /// unknown here.
    pub fn import(
        &mut self,
        window: &impl Window,
        member: &Membership<impl BorrowMut<[Peer]>>,
        handle: &DmHandle,
    ) -> Result<Import, Unshared> {
        self.hold(window, member, handle, &RingOwner::default())
    }

    /// The same with the process ring of a connection under the handle that [`Pool::find_ring`] has found.
    pub fn import_ring(
        &mut self,
        window: &impl Window,
        member: &Membership<impl BorrowMut<[Peer]>>,
        handle: &DmHandle,
        wanted: &RingOwner,
    ) -> Result<Import, Unshared> {
        match is_ring(wanted) {
            true => self.hold(window, member, handle, wanted),
            false => Err(Unshared::Invalid),
        }
    }

    /// Takes a hold on what is exported under a handle, as the ring of a connection, or as none.
    fn hold(
        &mut self,
        window: &impl Window,
        member: &Membership<impl BorrowMut<[Peer]>>,
        handle: &DmHandle,
        ring: &RingOwner,
    ) -> Result<Import, Unshared> {
        let (pool, node) = (member.pool(), handle.node.get());
        if !member.is_valid(window) {
            return Err(Unshared::Void);
        }
        if handle.fabric_id.get() != pool.fabric_id() || node >= pool.geometry().max_nodes() {
            return Err(Unshared::Invalid);
        }
        let current = || epoch_of(window, member, node) == Some(handle.epoch.get());
        if !current() {
            return Err(Unshared::Stale);
        }
        let exports = table(pool, node, EXPORT_TABLE).ok_or(Unshared::Unknown)?;
        let there = exported(window, exports, handle, ring)?;
        let (offset, len) = there.ok_or(Unshared::Unknown)?;
        // What another node has written there may be anything; nothing but its own memory is its to give.
        let held = pages(pool, node, offset, len).ok_or(Unshared::Invalid)?;
        let index = self.take_hold(window, member, held, is_ring(ring))?;
        // It stood from before the hold until after it: a secret is there once, and not again after it was cleared.
        if exported(window, exports, handle, ring) == Ok(Some((offset, len))) {
            return Ok(Import {
                line: index,
                offset,
                len,
            });
        }
        self.release(window, member, index);
        Err(match current() {
            true => Unshared::Unknown,
            false => Unshared::Stale,
        })
    }

    /// Takes a hold on `len` bytes of another node's device memory at `offset` in the pool, which a process maps by a grant. `Invalid` if they are not that.
    pub fn hold_granted(
        &mut self,
        window: &impl Window,
        member: &Membership<impl BorrowMut<[Peer]>>,
        node: u16,
        (offset, len): (u64, u64),
    ) -> Result<u16, Unshared> {
        if !member.is_valid(window) {
            return Err(Unshared::Void);
        }
        let held = pages(member.pool(), node, offset, len).ok_or(Unshared::Invalid)?;
        self.take_hold(window, member, held, false)
    }

    /// Writes a hold on whole pages, and issues a full fence. `is_ring`: it is of those that have a part of the table only.
    fn take_hold(
        &mut self,
        window: &impl Window,
        member: &Membership<impl BorrowMut<[Peer]>>,
        held: Range<u64>,
        is_ring: bool,
    ) -> Result<u16, Unshared> {
        let table = table(member.pool(), member.node(), HOLD_TABLE).ok_or(Unshared::Full)?;
        let index = self.holds.take(is_ring).ok_or(Unshared::Full)?;
        let line = line(table, index);
        window.store(field!(line, Hold.offset), held.start);
        let len = held.end.saturating_sub(held.start);
        window.store(field!(line, Hold.len), len);
        window.publish(line, LINE);
        window.fence();
        Ok(index)
    }

    /// Gives a hold back: no program of this node uses the memory any more.
    pub fn release(
        &mut self,
        window: &impl Window,
        member: &Membership<impl BorrowMut<[Peer]>>,
        index: u16,
    ) {
        if self.holds.give(index).is_none() || !member.is_valid(window) {
            return;
        }
        if let Some(table) = table(member.pool(), member.node(), HOLD_TABLE) {
            let line = line(table, index);
            // What was loaded and stored through the hold comes before.
            window.fence();
            window.store(field!(line, Hold.len), 0);
            window.publish(line, LINE);
        }
    }
}

impl Pool {
    /// Looks for the process ring of a connection among what a node exports under an epoch: a peer, or this one. The connection's ends are those that `wanted`
    /// says, or the ring is unknown. Needs nothing of the membership: it may take long to look at all that a node exports.
    pub fn find_ring(
        &self,
        window: &impl Window,
        node: u16,
        epoch: u32,
        wanted: &RingOwner,
    ) -> Result<DmHandle, Unshared> {
        if !is_ring(wanted) || node >= self.geometry().max_nodes() {
            return Err(Unshared::Invalid);
        }
        let exports = table(self, node, EXPORT_TABLE).ok_or(Unshared::Unknown)?;
        let found = find_ring(window, exports, epoch, wanted)?;
        let (index, secret) = found.ok_or(Unshared::Unknown)?;
        Ok(DmHandle {
            secret: secret.into(),
            fabric_id: self.fabric_id().into(),
            len: (RING_SIZE as u64).into(),
            epoch: epoch.into(),
            node: node.into(),
            index: index.into(),
        })
    }

    /// Tells what of a node's device memory is in use by way of holds: each range, from the pool's start, within what the
    /// node offers. Any of it may be told more than once, and that of a peer that writes nonsense is memory out of use.
    /// Begins with a full fence: what was withdrawn before and is not told here is nobody's.
    pub fn held(&self, window: &impl Window, node: u16, mut found: impl FnMut(Range<u64>)) {
        window.fence();
        let memory = self.device_memory(node);
        for holder in 0..self.geometry().max_nodes() {
            let Some(table) = table(self, holder, HOLD_TABLE) else {
                continue;
            };
            // That of a node that died is one until somebody else has its slot: it may have been asleep only. So is one of a
            // slot that cannot be read.
            let taken = self.read_claim(window, holder).map(|claim| {
                Claim::from_wire(claim).is_ok_and(|claim| claim.state != ClaimState::Free)
            });
            if taken == Ok(false) {
                continue;
            }
            window.refresh(table, LINE.saturating_mul(u64::from(HOLDS)));
            for index in 0..HOLDS {
                // What cannot be read may hold anything.
                let range = held_by(window, line(table, index));
                let range = range.unwrap_or(memory.clone());
                let (start, end) = (range.start.max(memory.start), range.end.min(memory.end));
                if start < end {
                    found(start..end);
                }
            }
        }
    }
}

/// What a hold is on; empty if it is none.
fn held_by(window: &impl Window, line: u64) -> Result<Range<u64>, Poisoned> {
    let len = window.load(field!(line, Hold.len))?;
    let start = match len {
        0 => 0,
        _ => window.load(field!(line, Hold.offset))?,
    };
    Ok(start..start.saturating_add(len))
}

/// Where a table of a node begins, if the node has a directory.
fn table(pool: &Pool, node: u16, table: u64) -> Option<u64> {
    let directory = pool.geometry().directory(node)?;
    Some(directory.start.wrapping_add(table))
}

/// Where a line of a table is.
fn line(table: u64, index: u16) -> u64 {
    table.wrapping_add(u64::from(index).wrapping_mul(LINE))
}

/// Whole pages that a range of a node's device memory has part in, if it is one.
fn pages(pool: &Pool, node: u16, offset: u64, len: u64) -> Option<Range<u64>> {
    let memory = pool.device_memory(node);
    let end = offset.checked_add(len)?.checked_next_multiple_of(PAGE)?;
    let sound = len != 0 && offset % PAGE == 0 && offset >= memory.start && end <= memory.end;
    sound.then_some(offset..end)
}

/// Whether an export for this connection is a process ring.
fn is_ring(ring: &RingOwner) -> bool {
    ring.is_ring.get() != 0
}

/// The connection of a ring as the words that the pool has of it.
fn ring_words(ring: &RingOwner) -> [u64; 2] {
    let [first, second]: [[u8; 8]; 2] = transmute!(*ring);
    [u64::from_le_bytes(first), u64::from_le_bytes(second)]
}

/// Whether the line of an export is for this connection.
fn is_for(window: &impl Window, line: u64, ring: &RingOwner) -> Result<bool, Poisoned> {
    let [first, second] = ring_words(ring);
    let at = field!(line, Export.ring);
    Ok(window.load(at)? == first && window.load(at.wrapping_add(8))? == second)
}

/// Epoch of a node that is up: this one, or a peer.
fn epoch_of(
    window: &impl Window,
    member: &Membership<impl BorrowMut<[Peer]>>,
    node: u16,
) -> Option<u32> {
    match node == member.node() {
        true => Some(member.epoch()),
        false => member.peer(window, node).map(|peer| peer.epoch),
    }
}

/// Index and secret of the export in a node's table that is the ring of a connection.
fn find_ring(
    window: &impl Window,
    table: u64,
    epoch: u32,
    wanted: &RingOwner,
) -> Result<Option<(u16, u64)>, Poisoned> {
    window.refresh(table, LINE.saturating_mul(u64::from(EXPORTS)));
    for index in 0..EXPORTS {
        let line = line(table, index);
        // The secret is written last, and cleared first.
        let secret = window.load(field!(line, Export.secret))?;
        if secret != 0
            && is_for(window, line, wanted)?
            && window.load(field!(line, Export.epoch))? == u64::from(epoch)
        {
            return Ok(Some((index, secret)));
        }
    }
    Ok(None)
}

/// What stands in a node's table for a handle, as the ring of a connection, or as none: where the memory begins, and its bytes.
fn exported(
    window: &impl Window,
    table: u64,
    handle: &DmHandle,
    ring: &RingOwner,
) -> Result<Option<(u64, u64)>, Poisoned> {
    let index = handle.index.get();
    if index >= EXPORTS || handle.secret.get() == 0 {
        return Ok(None);
    }
    let line = line(table, index);
    window.refresh(line, LINE);
    let secret = window.load(field!(line, Export.secret))?;
    let epoch = window.load(field!(line, Export.epoch))?;
    let same = secret == handle.secret.get() && epoch == u64::from(handle.epoch.get());
    let same = is_for(window, line, ring)? && same;
    let offset = window.load(field!(line, Export.offset))?;
    let len = window.load(field!(line, Export.len))?;
    Ok((same && len == handle.len.get()).then_some((offset, len)))
}
