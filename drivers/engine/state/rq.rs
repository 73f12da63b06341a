// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Queues of receive entries: a queue pair's own, or a shared one.

mod shared;

use crate::{
    hal::{AccessError, Memory, Platform, SlotWord, Storage},
    state::{
        access::{local, KeyHolder, Purpose},
        check::{Check, WcError},
        copy::Spans,
        kept::KeptWqe,
        mr::Mrs,
        ring::Ring,
    },
};
use nupa_proto::{
    status::WcStatus,
    wqe::{RecvHeader, Sge, MIN_RECV_STRIDE},
};
use zerocopy::{little_endian::U64, FromBytes};

/// Why no entry could be used.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RqError {
    /// None is posted.
    Empty,
    /// The owner's producer index is out of bounds.
    Doorbell,
    /// The message skips entries that are not posted, or goes back.
    Bypassed,
    /// There may be one, but the queue's owner has always been quicker to take it.
    Overtaken,
    /// The entry is bad; its owner is to blame.
    Entry { wr_id: u64, error: WcError },
}

/// How many receive entries a message may fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fill {
    /// Exactly one (messages).
    One,
    /// Exactly one, which more parts of the message are to go into after this one.
    Part,
    /// Exactly one, whose memory is not used, so its keys are not looked at (a WRITE with immediate data).
    Unused,
    /// As many as it needs (frames).
    Many,
}

/// A queue of receive entries.
#[derive(Debug)]
pub(crate) struct RecvQueue<P> {
    ring: Ring<P>,
    pub(crate) page: u32,
    pub(crate) slot: u16,
    /// Entry that is filled next.
    pub(crate) index: u32,
    /// Producer index as last seen.
    posted: u32,
    /// Someone's send queue waits for entries here.
    pub(crate) wanted: bool,
    /// Of the entries before `index`, those that messages took which went past the engines.
    bypassed: u32,
    takers: Takers,
}

/// Who fills entries of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Takers {
    /// The engine alone.
    Engine,
    /// The owner of a queue pair, too. It has filled entries itself up to this one, as taken into account last.
    Filled(u32),
    /// The owner of a shared queue, too. Who takes an entry moves the arm word of the queue's doorbell slot on, which is the index of the next one.
    Both,
}

impl<P> RecvQueue<P> {
    /// Forgets everything posted.
    pub(crate) fn clear(&mut self) {
        (self.index, self.posted, self.wanted) = (0, 0, false);
        self.bypassed = 0;
        self.takers = Takers::Engine;
    }
}

impl<P: AsRef<[u64]> + AsMut<[u64]>> RecvQueue<P> {
    /// An empty queue.
    pub(crate) fn new(ring: Ring<P>, page: u32, slot: u16) -> Self {
        Self {
            ring,
            page,
            slot,
            index: 0,
            posted: 0,
            wanted: false,
            bypassed: 0,
            takers: Takers::Engine,
        }
    }

    /// Its owner may fill entries itself from now on: that of a connected queue pair.
    pub(crate) fn set_bypassed(&mut self) {
        if self.takers == Takers::Engine {
            self.takers = Takers::Filled(0);
        }
    }

    /// Its ring, which is not used any more.
    pub(crate) fn into_ring(self) -> Ring<P> {
        self.ring
    }

    /// Page addresses that it keeps.
    pub(crate) fn stored_pages(&self) -> u64 {
        self.ring.stored_pages()
    }

    /// Entries of the ring.
    pub(crate) fn entries(&self) -> u32 {
        self.ring.entries()
    }

    /// Bytes of an entry.
    pub(crate) fn entry_size(&self) -> usize {
        self.ring.entry_size()
    }

    /// Looks how far the owner has posted.
    #[inline]
    fn refresh(&mut self, platform: &impl Platform) -> Result<u32, RqError> {
        let mut posted = platform.load(self.page, self.slot, SlotWord::Index);
        match self.takers {
            Takers::Engine => {}
            Takers::Filled(seen) => {
                let filled = platform.load(self.page, self.slot, SlotWord::Arm);
                if filled != seen {
                    posted = self.pass_filled(platform, posted, filled);
                }
            }
            Takers::Both => posted = self.pass_taken(platform, posted),
        }
        if posted.wrapping_sub(self.index) > self.ring.entries() {
            return Err(RqError::Doorbell);
        }
        self.posted = posted;
        Ok(posted)
    }

    /// Goes past entries that the owner has filled itself. Returns how far it has posted.
    ///
    /// Nothing else depends on when this is done: messages that went past the engines are counted here or when the next one says how many
    /// there were, whichever is first.
    #[cold]
    fn pass_filled(&mut self, platform: &impl Platform, posted: u32, filled: u32) -> u32 {
        let ahead = filled.wrapping_sub(self.index);
        let mut posted = posted;
        if ahead > posted.wrapping_sub(self.index) {
            // It was loaded behind `posted`, and the owner may have gone on in between; then no more is known to be posted.
            let later = platform.load(self.page, self.slot, SlotWord::Index);
            if ahead > later.wrapping_sub(self.index) {
                // The owner has not seen all yet that the engine has filled.
                return posted;
            }
            posted = filled;
        }
        (self.index, self.posted) = (filled, filled);
        self.takers = Takers::Filled(filled);
        self.bypassed = self.bypassed.wrapping_add(ahead);
        posted
    }

    /// Index of the entry that a message takes of which so many went past the engines before.
    #[inline]
    pub(crate) fn entry_behind(&self, bypassed: u32) -> u32 {
        self.index
            .wrapping_add(bypassed.wrapping_sub(self.bypassed))
    }

    /// As [`RecvQueue::entry_behind`]; fails if the message skips entries that are not posted, or goes back: what its owner has filled, and its
    /// program has seen perhaps, is not written again.
    #[inline]
    pub(crate) fn skip(&mut self, platform: &impl Platform, bypassed: u32) -> Result<u32, RqError> {
        if self.takers != Takers::Engine {
            let posted = self.refresh(platform)?;
            if bypassed.wrapping_sub(self.bypassed) > posted.wrapping_sub(self.index) {
                return Err(RqError::Bypassed);
            }
        } else if bypassed != 0 {
            return Err(RqError::Bypassed);
        }
        Ok(self.entry_behind(bypassed))
    }

    /// Goes past entries that were filled, and those before them that were skipped. Returns the index behind.
    #[inline]
    pub(crate) fn take(&mut self, first: u32, entries: u16) -> u32 {
        let skipped = first.wrapping_sub(self.index);
        self.bypassed = self.bypassed.wrapping_add(skipped);
        self.index = first.wrapping_add(u32::from(entries));
        self.index
    }

    /// Whether the next entry is posted, of those that the owner has not filled itself by now.
    pub(crate) fn has_next(&mut self, platform: &impl Platform) -> Result<bool, RqError> {
        let looked = self.refresh(platform);
        if self.index == self.posted {
            looked?;
        }
        Ok(self.index != self.posted)
    }

    /// Whether entry `index` is posted, which lies at or behind the next one to be filled.
    #[inline]
    pub(crate) fn is_posted(
        &mut self,
        platform: &impl Platform,
        index: u32,
    ) -> Result<bool, RqError> {
        let ahead = index.wrapping_sub(self.index);
        if ahead < self.posted.wrapping_sub(self.index) {
            return Ok(true);
        }
        // The owner may have filled more meanwhile.
        let posted = self.refresh(platform)?;
        match index.wrapping_sub(self.index) {
            ahead if ahead > self.ring.entries() => Err(RqError::Bypassed),
            ahead => Ok(ahead < posted.wrapping_sub(self.index)),
        }
    }

    /// Entries that are posted and not filled.
    pub(crate) fn left(&mut self, platform: &impl Platform) -> Result<u32, RqError> {
        let posted = self.refresh(platform)?;
        Ok(posted.wrapping_sub(self.index))
    }

    /// Asks the owner to kick when it posts more, and looks once more: true if it has done so meanwhile.
    pub(crate) fn want_entries(&mut self, platform: &impl Platform) -> bool {
        self.wanted = true;
        platform.store(self.page, self.slot, SlotWord::Event, self.posted);
        platform.fence();
        platform.load(self.page, self.slot, SlotWord::Index) != self.posted
    }

    /// `wr_id` of an entry, whose memory is not looked at; 0 if it is out of reach.
    pub(crate) fn wr_id(&self, memory: &impl Memory, index: u32) -> U64 {
        let mut id = [0; 8];
        if let Some(addr) = self.ring.addr(index) {
            // Out of reach leaves it zero.
            let _ = memory.read(addr, &mut id);
        }
        U64::from_bytes(id)
    }

    /// Copies all of the next entry out, in place of one that is not held.
    pub(crate) fn fetch(
        &mut self,
        platform: &impl Platform,
        kept: &mut KeptWqe<P>,
    ) -> Result<(), RqError> {
        if !self.is_posted(platform, self.index)? {
            return Err(RqError::Empty);
        }
        let addr = self.ring.addr(self.index).ok_or(UNREADABLE)?;
        let read = platform.memory().read(addr, kept.bytes_mut());
        read.map_err(|AccessError| UNREADABLE)
    }

    /// Copies what is used of an entry out and checks it; adds its memory to `spans`. Returns its `wr_id`.
    #[inline]
    pub(crate) fn read_entry<S: Storage<Pages = P>>(
        &self,
        memory: &impl Memory,
        mrs: &Mrs<S>,
        holder: KeyHolder,
        index: u32,
        fill: Fill,
        spans: &mut Spans,
    ) -> Result<u64, RqError> {
        let addr = self.ring.addr(index).ok_or(UNREADABLE)?;
        let read =
            |offset: usize, buf: &mut [u8]| memory.read(addr.wrapping_add(offset as u64), buf);
        check_wqe::<S>(read, self.ring.entry_size(), mrs, holder, fill, spans)
    }
}

/// An entry that the device cannot reach.
pub(crate) const UNREADABLE: RqError = RqError::Entry {
    wr_id: 0,
    error: WcError::new(WcStatus::LocalQpOperation, Check::DescriptorMemory),
};

/// Checks an entry that was fetched, and adds its memory to `spans`: for each part of a message again, since keys may be gone by then.
/// Returns its `wr_id`.
pub(crate) fn check_kept<S: Storage>(
    kept: &KeptWqe<S::Pages>,
    mrs: &Mrs<S>,
    holder: KeyHolder,
    fill: Fill,
    spans: &mut Spans,
) -> Result<u64, RqError> {
    let bytes = kept.bytes();
    let read = |offset: usize, buf: &mut [u8]| {
        let wanted = offset..offset.saturating_add(buf.len());
        buf.copy_from_slice(bytes.get(wanted).ok_or(AccessError)?);
        Ok(())
    };
    check_wqe::<S>(read, bytes.len(), mrs, holder, fill, spans)
}

/// Checks a receive WQE of `size` bytes, which `read` copies out of: each byte that is used once. Adds its memory to `spans`; returns its
/// `wr_id`.
#[inline(always)]
fn check_wqe<S: Storage>(
    read: impl Fn(usize, &mut [u8]) -> Result<(), AccessError>,
    size: usize,
    mrs: &Mrs<S>,
    holder: KeyHolder,
    fill: Fill,
    spans: &mut Spans,
) -> Result<u64, RqError> {
    let mut bytes = [0; MIN_RECV_STRIDE];
    read(0, &mut bytes).map_err(|AccessError| UNREADABLE)?;
    let (header, rest) = RecvHeader::ref_from_prefix(&bytes).map_err(|_| UNREADABLE)?;
    let (wr_id, count) = (header.wr_id.get(), header.sge_count.get() as usize);
    let bad = |status, check| RqError::Entry {
        wr_id,
        error: WcError::new(status, check),
    };
    let room = size.saturating_sub(size_of::<RecvHeader>());
    if header.reserved.get() != 0 || count.saturating_mul(size_of::<Sge>()) > room {
        return Err(bad(WcStatus::LocalQpOperation, Check::BufferDescriptor));
    }
    if fill == Fill::Unused {
        return Ok(wr_id);
    }
    let mut sge = Sge::read_from_bytes(rest).map_err(|_| UNREADABLE)?;
    let mut at = MIN_RECV_STRIDE;
    for left in (0..count).rev() {
        let span = local::<S>(mrs, holder, &sge, Purpose::Destination)
            .map_err(|error| RqError::Entry { wr_id, error })?;
        let pushed = spans.push(span);
        pushed.map_err(|_| bad(WcStatus::LocalLength, Check::BufferLength))?;
        if left > 0 {
            let mut bytes = [0; size_of::<Sge>()];
            read(at, &mut bytes).map_err(|AccessError| UNREADABLE)?;
            sge = Sge::read_from_bytes(&bytes).map_err(|_| UNREADABLE)?;
            at = at.wrapping_add(bytes.len());
        }
    }
    Ok(wr_id)
}
