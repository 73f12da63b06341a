// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Regions of device memory of the peer's that this process has mapped: WRITEs and READs that are plain copies (`Documentation/process-rings.md`, "Mapped regions").

use std::collections::VecDeque;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::atomic::Ordering;

use nupa_engine::rings::{Data, QueueMemory};
use nupa_proto::wqe::Sge;

use super::{Message, Sender, SharedSource};
use crate::ffi::{fence, Pages, ProcessBytes, Slot};
use crate::queue::regions::Lookup;
use crate::queue::size::MAX_SGE;

/// Most bytes that are copied while their program waits; the engine copies more in slices, and uses what helps it.
const MOST: usize = 1 << 20;
/// The same where another thread that arms the completion queue waits as well.
const MOST_WATCHED: usize = 64 << 10;
/// Bytes of a WRITE that are stored behind all others: programs may look at those to learn that it is there.
const LAST: usize = size_of::<u64>();
/// Most looks for a region that are left out after one that found none.
const MOST_PAUSES: u32 = 1 << 8;
/// Most regions of a queue pair.
const REGIONS: usize = 8;
/// Most keys that are known to be of no region. One more takes the place of the oldest, ...
const KEYS: usize = 8;
/// ... and of more only one in so many is looked for.
const SOME: u32 = 16;

/// A region that the kernel has let this process map.
#[derive(Debug)]
pub(crate) struct MappedRegion {
    pub(crate) pages: Pages,
    /// Address of its first byte, as requests name it, and its bytes.
    pub(crate) addr: u64,
    pub(crate) len: u64,
    #[expect(dead_code, reason = "keeps it")]
    pub(crate) owner: Box<dyn Keeper>,
}

/// Keeps a region; the kernel takes it away when this is dropped.
pub(crate) trait Keeper: Debug + Send + Sync {}

/// One of them.
#[derive(Debug)]
struct PeerRegion {
    key: u32,
    region: MappedRegion,
    /// [`Slot::mappings`] before it was mapped.
    mark: u32,
}

/// A key that was looked for in vain.
#[derive(Debug)]
struct Missed {
    key: u32,
    /// Looks to be left out, and how many after the next one that finds nothing.
    left: u32,
    pauses: u32,
}

/// The mapped regions of a queue pair.
#[derive(Debug)]
pub(super) struct PeerRegions {
    /// Doorbell slot of the send queue.
    slot: Slot,
    list: Vec<PeerRegion>,
    /// Keys that were looked for in vain, the oldest first.
    missed: VecDeque<Missed>,
    /// Unknown keys that were asked about.
    strangers: u32,
    /// Key of the last WRITE or READ that the engine has seen: the peer has granted what that was about, or does not.
    pub(super) seen: Option<u32>,
    /// The engine is to see the next WRITE of this key.
    owed: Option<u32>,
}

/// What a request moves.
#[derive(Clone, Copy)]
pub(super) enum Parts<'a> {
    Inline(&'a [u8]),
    Memory(&'a [ProcessBytes]),
}

impl Parts<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Inline(bytes) => bytes.len(),
            Self::Memory(parts) => parts
                .iter()
                .map(|part| part.len())
                .fold(0, usize::saturating_add),
        }
    }
}

impl PeerRegions {
    /// None yet.
    pub(super) fn new(slot: Slot) -> Self {
        Self {
            slot,
            list: Vec::new(),
            missed: VecDeque::new(),
            strangers: 0,
            seen: None,
            owed: None,
        }
    }

    /// The same for a queue pair that has gone to the reset state.
    pub(super) fn another(&self) -> Self {
        Self::new(self.slot.clone())
    }

    /// Whether there are none.
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The region that a request names all of its bytes in, and where.
    #[inline]
    fn find(&self, key: u32, addr: u64, len: usize) -> Option<(&PeerRegion, usize)> {
        let known = self.list.iter().find(|known| known.key == key)?;
        let offset = addr.checked_sub(known.region.addr)?;
        let end = offset.checked_add(len as u64)?;
        let offset = usize::try_from(offset).ok()?;
        (end <= known.region.len).then_some((known, offset))
    }

    /// Forgets those that the kernel may have taken away. The engine is to see WRITEs to them before they can be mapped again.
    #[cold]
    fn forget_ended(&mut self) {
        let mark = self.slot.mappings();
        self.list.retain(|known| known.mark == mark);
        self.seen = None;
    }

    /// Whether it is time to look for the region that a request names, of those that are asked about.
    fn is_time(&mut self, key: u32) -> bool {
        let mark = self.slot.mappings();
        if self.list.iter().any(|known| known.mark != mark) {
            self.forget_ended();
        }
        if self.list.len() >= REGIONS || self.list.iter().any(|known| known.key == key) {
            return false;
        }
        let missed = self.missed.iter_mut().find(|missed| missed.key == key);
        let Some(missed) = missed else {
            self.strangers = self.strangers.wrapping_add(1);
            return self.missed.len() < KEYS || self.strangers % SOME == 0;
        };
        let left = missed.left.checked_sub(1);
        missed.left = left.unwrap_or(0);
        left.is_none()
    }

    /// A key was looked for in vain.
    fn miss(&mut self, key: u32) {
        if let Some(missed) = self.missed.iter_mut().find(|missed| missed.key == key) {
            missed.left = missed.pauses;
            missed.pauses = missed.pauses.saturating_mul(2).min(MOST_PAUSES);
            return;
        }
        if self.missed.len() >= KEYS {
            self.missed.pop_front();
        }
        self.missed.push_back(Missed {
            key,
            left: 0,
            pauses: 1,
        });
    }

    /// Has the kernel find the region of a key. If there is none, and the engine has not seen a WRITE or READ of it, it is to see one first.
    fn look(&mut self, source: &SharedSource, key: u32) -> bool {
        let mark = self.slot.mappings();
        let Some(region) = source.map_region(key) else {
            self.miss(key);
            self.owed = Some(key).filter(|_| self.seen != Some(key));
            return false;
        };
        self.missed.retain(|missed| missed.key != key);
        self.list.push(PeerRegion { key, region, mark });
        true
    }

    /// Whether the engine is to see this WRITE. It is then handed to it.
    pub(super) fn take_owed(&mut self, key: u32) -> bool {
        self.owed.take_if(|owed| *owed == key).is_some()
    }
}

/// Writes what a request moves, `len` bytes in all, the last ones behind all others.
#[inline]
fn write(pages: &Pages, offset: usize, parts: Parts<'_>, len: usize) {
    let most = len.saturating_sub(LAST);
    write_part(pages, offset, parts, 0..most);
    fence(Ordering::Release);
    write_part(pages, offset, parts, most..len);
}

/// Writes those of its bytes.
#[inline]
fn write_part(pages: &Pages, offset: usize, parts: Parts<'_>, which: Range<usize>) {
    let at = offset.wrapping_add(which.start);
    match parts {
        Parts::Inline(bytes) => pages.write(at, bytes.get(which).unwrap_or_default()),
        Parts::Memory(parts) => {
            let mut before = 0usize;
            for part in parts {
                let end = before.saturating_add(part.len());
                let (from, to) = (which.start.max(before), which.end.min(end));
                if from < to {
                    let within = part.part(from.wrapping_sub(before), to.wrapping_sub(from));
                    pages.write_from(offset.wrapping_add(from), within);
                }
                before = end;
            }
        }
    }
}

/// Reads what a request moves.
#[inline]
fn read(pages: &Pages, offset: usize, parts: &[ProcessBytes]) {
    let mut at = offset;
    for part in parts {
        pages.read_to(at, Some(*part));
        at = at.wrapping_add(part.len());
    }
}

impl Sender {
    /// Carries a WRITE or READ out, if it is about a region that is mapped, and nothing before it is under way.
    #[inline]
    pub(super) fn copy(&mut self, message: &Message, data: Data<'_>) -> bool {
        if !self.bypass_state.is_ready() || !self.is_idle() {
            return false;
        }
        if self.draw != 0 && self.is_drawn() {
            return false;
        }
        let mut found = [ProcessBytes::default(); MAX_SGE];
        let parts = match data {
            // No READ is inline: the engine says so.
            Data::Inline(_) if message.is_read() => None,
            Data::Inline(bytes) => Some(Parts::Inline(bytes)),
            Data::Sges(sges) => {
                look_up(&mut self.lookup, sges, message.is_read(), &mut found).map(Parts::Memory)
            }
        };
        match parts.map(|parts| self.copy_parts(message, parts)) {
            None | Some(Copied::No) => false,
            Some(Copied::Yes) => true,
            Some(Copied::Over) => {
                self.peer_regions.forget_ended();
                self.note_bypasses();
                false
            }
        }
    }

    /// The same with memory of this process.
    #[inline]
    fn copy_parts(&self, message: &Message, parts: Parts<'_>) -> Copied {
        let len = parts.len();
        let target = message.target();
        let place = target.and_then(|(key, addr)| self.peer_regions.find(key, addr, len));
        let Some((known, offset)) = place.filter(|_| len != 0 && len <= MOST) else {
            return Copied::No;
        };
        let (signaled, slot) = (message.is_signaled(), &self.peer_regions.slot);
        if signaled && len > MOST_WATCHED && self.sent.is_watched() {
            return Copied::No;
        }
        let Some(_adding) = self.sent.begin_if(signaled, signaled) else {
            return Copied::No;
        };
        if !slot.begin_copy(known.mark) {
            return Copied::Over;
        }
        match parts {
            Parts::Memory(parts) if message.is_read() => read(&known.region.pages, offset, parts),
            parts => write(&known.region.pages, offset, parts, len),
        }
        if !slot.end_copy(known.mark) {
            return Copied::Over;
        }
        if signaled {
            self.sent.add_copied(message, len, self.at.signaled);
        }
        Copied::Yes
    }

    /// Now and then, whether the region that a request names can be mapped is looked at.
    #[cold]
    pub(super) fn look_for_region(&mut self, key: u32) {
        if !self.bypass_state.is_ready() || !self.peer_regions.is_time(key) {
            return;
        }
        let look = |sender: &mut Self| sender.peer_regions.look(&sender.source, key);
        if self.register(look) {
            self.note_bypasses();
        }
    }
}

/// What became of a request.
enum Copied {
    Yes,
    /// It is not for a mapped region, or not now.
    No,
    /// The region was taken away. Nothing was moved, unless the process stood still in the middle.
    Over,
}

/// The memory that entries mean, if the process has mapped all of it. `write`: it is to be written to.
#[inline(always)]
pub(super) fn look_up<'a>(
    lookup: &mut Lookup,
    sges: &[Sge],
    write: bool,
    parts: &'a mut [ProcessBytes; MAX_SGE],
) -> Option<&'a [ProcessBytes]> {
    let found = parts.get_mut(..sges.len())?;
    for (part, sge) in found.iter_mut().zip(sges) {
        *part = lookup.memory(sge, write)?;
    }
    Some(found)
}
