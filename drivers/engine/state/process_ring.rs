// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Process rings that queue pairs receive from, as far as the engine has to do with them: it takes WRITEs out that the receiver's process leaves there
//! (`Documentation/process-rings.md`).
//!
//! The processes of both sides may store anything anywhere in a ring at any time. So what is there is read once, then checked.

use crate::{
    hal::{AccessError, Atomic, Memory, Platform},
    state::{
        bypassed::Bypassed,
        copy::{Span, Spans},
        counters::Volume,
        list::{Links, List},
    },
};
use core::{mem::offset_of, num::NonZeroU64};
use nupa_proto::{
    doorbell::PAGE_SIZE,
    process_ring::{
        lines_for, stamp, Entry, Totals, WriteTarget, CONTROL_SIZE, ENTRY_WRITE, FIRST_PAYLOAD,
        LINES, LINE_SIZE, MAX_PAYLOAD, RING_SIZE, SECRET, STATE, STATE_ARMED, STATE_WRITES, TAKEN,
        TAKER, TAKER_ENGINE, TOTALS_TAKEN,
    },
};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Bytes before the data of a WRITE in its entry.
const HEAD: usize = offset_of!(Entry, payload) + size_of::<WriteTarget>();
/// Bytes of all lines.
const LINES_SIZE: u32 = LINES * LINE_SIZE as u32;
/// Bits of an address within its page.
const PAGE_MASK: u64 = PAGE_SIZE as u64 - 1;
/// Times that the state is changed anew because somebody else has changed it meanwhile.
const STATE_TRIES: u32 = 8;

const _: () = assert!(FIRST_PAYLOAD >= size_of::<WriteTarget>() && STATE % 8 == 0);

/// What a queue pair has of the process ring that it receives from.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ProcessRing {
    /// Where it is.
    pub(crate) at: Option<RingAt>,
    /// Line of the WRITE that was the first one in it when it was last looked at.
    pub(crate) seen: Option<u32>,
    /// What its process has taken out of it.
    pub(crate) bypassed: Bypassed,
    /// Its place among those that are looked at.
    pub(crate) links: Links,
    /// Its place among those that were held when a request came behind what is in them, and how often they were looked at since.
    pub(crate) held_links: Links,
    pub(crate) held_polls: u8,
}

impl ProcessRing {
    /// One that nobody has looked at; of a queue pair that is in neither list.
    pub(crate) fn new(platform: &impl Platform, at: Option<RingAt>) -> Self {
        Self {
            at,
            bypassed: Bypassed::new(platform, at, TOTALS_TAKEN),
            ..Self::default()
        }
    }
}

/// Marks the list of queue pairs that receive from a process ring, or send to one.
#[derive(Debug)]
pub(crate) enum HasRing {}

/// Marks the list of those whose ring was held.
#[derive(Debug)]
pub(crate) enum RingHeld {}

/// The queue pairs of a node that have process rings.
#[derive(Debug, Default)]
pub(crate) struct Rings {
    /// All of them; the one that is looked at next is the first.
    pub(crate) all: List<HasRing>,
    /// How many are to be looked at this time yet, ...
    pub(crate) left: u32,
    /// ... and when that begins anew, in the clock's microseconds.
    pub(crate) poll_at: u64,
    /// Those whose ring was held when a request came behind what is in it.
    pub(crate) held: List<RingHeld>,
    /// When these are looked at.
    held_at: u64,
}

impl Rings {
    /// When the rings that were held are to be looked at, if there are any.
    #[inline]
    pub(crate) fn held_at(&self) -> Option<u64> {
        (!self.held.is_empty()).then_some(self.held_at)
    }

    /// Says when.
    pub(crate) fn set_held_at(&mut self, at_us: u64) {
        self.held_at = at_us;
    }

    /// When rings are to be looked at again, if there are any. No turn is due for that: turns that happen anyway are enough.
    #[inline]
    pub(crate) fn due(&self) -> Option<u64> {
        match (self.all.is_empty(), self.left) {
            (true, _) => None,
            (false, 0) => Some(self.poll_at),
            (false, _) => Some(0),
        }
    }
}

/// DMA address of a ring, at which nothing wraps around.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingAt(NonZeroU64);

/// A WRITE in a ring. All but where its data goes was checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingWrite {
    pub(crate) addr: u64,
    pub(crate) key: u32,
    /// Bytes of data.
    pub(crate) len: u32,
    /// Lines of its entry.
    pub(crate) lines: u32,
}

impl RingAt {
    /// `None` if there can be no ring at this address.
    pub(crate) fn new(addr: u64) -> Option<Self> {
        let fits = addr & PAGE_MASK == 0 && addr.checked_add(RING_SIZE as u64).is_some();
        NonZeroU64::new(addr).filter(|_| fits).map(Self)
    }

    #[inline]
    fn address(self, offset: usize) -> u64 {
        self.0.get().wrapping_add(offset as u64)
    }

    /// Reads 64 bits, of which somebody else may have stored a part.
    fn read_long(self, memory: &impl Memory, offset: usize) -> Result<u64, AccessError> {
        let mut word = [0; 8];
        memory.read(self.address(offset), &mut word)?;
        Ok(u64::from_le_bytes(word))
    }

    /// The totals of one of the processes, which may just be storing them.
    pub(crate) fn totals(self, memory: &impl Memory, offset: usize) -> Result<Volume, AccessError> {
        let bytes = offset.wrapping_add(offset_of!(Totals, bytes));
        Ok(Volume {
            items: self.read_long(memory, offset.wrapping_add(offset_of!(Totals, messages)))?,
            bytes: self.read_long(memory, bytes)?,
        })
    }

    /// Makes the engine the one who takes entries; false if somebody else is.
    pub(crate) fn hold(self, memory: &impl Memory) -> Result<bool, AccessError> {
        let swap = Atomic::CompareSwap {
            compare: 0,
            swap: TAKER_ENGINE,
        };
        Ok(memory.atomic(self.address(TAKER), swap)? == 0)
    }

    /// Ends that.
    pub(crate) fn let_go(self, memory: &impl Memory) {
        // If it cannot be reached any more, nobody takes anything out of it.
        let _ = memory.atomic(self.address(TAKER), Atomic::Store(0));
    }

    /// Whether somebody takes entries.
    pub(crate) fn is_held(self, memory: &impl Memory) -> Result<bool, AccessError> {
        Ok(self.read_long(memory, TAKER)? != 0)
    }

    /// The line up to which entries were taken.
    pub(crate) fn taken(self, memory: &impl Memory) -> Result<u32, AccessError> {
        let mut word = [0; 4];
        memory.read(self.address(TAKEN), &mut word)?;
        Ok(u32::from_le_bytes(word))
    }

    /// Says that entries up to this line were taken.
    pub(crate) fn set_taken(self, memory: &impl Memory, line: u32) -> Result<(), AccessError> {
        memory.store_release(self.address(TAKEN), line)
    }

    /// What stamps are made with.
    pub(crate) fn secret(self, memory: &impl Memory) -> Result<u64, AccessError> {
        self.read_long(memory, SECRET)
    }

    /// Offset of a line.
    fn line(line: u32) -> usize {
        let number = (line % LINES) as usize;
        CONTROL_SIZE.wrapping_add(number.wrapping_mul(LINE_SIZE))
    }

    /// Line of the first entry, if that is a WRITE.
    pub(crate) fn first_write(self, platform: &impl Platform) -> Result<Option<u32>, AccessError> {
        let memory = platform.memory();
        let (line, secret) = (self.taken(memory)?, self.secret(memory)?);
        Ok(self.write_at(platform, secret, line)?.map(|_| line))
    }

    /// The WRITE whose entry begins at this line; `None` if there is none that makes sense.
    pub(crate) fn write_at(
        self,
        platform: &impl Platform,
        secret: u64,
        line: u32,
    ) -> Result<Option<RingWrite>, AccessError> {
        let (memory, at) = (platform.memory(), Self::line(line));
        if self.read_long(memory, at)? != stamp(secret, line) {
            return Ok(None);
        }
        // The stamp was stored last, so it is read first.
        platform.fence();
        let mut entry = Entry::new_zeroed();
        let bytes = entry.as_mut_bytes().get_mut(size_of::<u64>()..HEAD);
        let bytes = bytes.unwrap_or_default();
        memory.read(self.address(at.wrapping_add(size_of::<u64>())), bytes)?;
        Ok(parse(&entry))
    }

    /// Whether the owner's program waits for an event although there is a message to take: while it looked, WRITEs lay before that, or the engine took
    /// those. To be called when the engine has [let go](RingAt::let_go).
    pub(crate) fn awaits_event(self, platform: &impl Platform) -> Result<bool, AccessError> {
        let memory = platform.memory();
        // The owner says that it waits before it looks once more.
        platform.fence();
        if self.read_long(memory, STATE)? & u64::from(STATE_ARMED) == 0 {
            return Ok(false);
        }
        let (line, secret) = (self.taken(memory)?, self.secret(memory)?);
        let at = Self::line(line);
        if self.read_long(memory, at)? != stamp(secret, line) {
            return Ok(false);
        }
        platform.fence();
        let mut flags = [0];
        let offset = at.wrapping_add(offset_of!(Entry, flags));
        memory.read(self.address(offset), &mut flags)?;
        Ok(flags != [ENTRY_WRITE])
    }

    /// Makes `spans` say where the data of the WRITE is whose entry begins at this line: in two parts if that goes on at the ring's front.
    pub(crate) fn data(self, line: u32, len: u32, spans: &mut Spans) {
        let start = Self::line(line).wrapping_add(HEAD);
        let behind = (RING_SIZE.saturating_sub(start)) as u32;
        let first = len.min(behind);
        spans.set(Span::direct(self.address(start), first));
        let rest = len.saturating_sub(first).min(LINES_SIZE);
        // Two fit.
        let _ = spans.push(Span::direct(self.address(CONTROL_SIZE), rest));
    }

    /// Tells the sender to put no WRITEs into the ring any more. An owner that changes the state all the time is not waited for.
    pub(crate) fn refuse_writes(self, memory: &impl Memory) -> Result<(), AccessError> {
        let mut state = self.read_long(memory, STATE)?;
        for _ in 0..STATE_TRIES {
            let swap = state & !u64::from(STATE_WRITES);
            if swap == state {
                break;
            }
            let compare = state;
            let swap = Atomic::CompareSwap { compare, swap };
            state = memory.atomic(self.address(STATE), swap)?;
            if state == compare {
                break;
            }
        }
        Ok(())
    }
}

/// What an entry, whose stamp is in order, says if it is a WRITE that makes sense.
fn parse(entry: &Entry) -> Option<RingWrite> {
    let len = entry.len.get();
    let (target, _) = WriteTarget::read_from_prefix(&entry.payload).ok()?;
    let valid = entry.flags == ENTRY_WRITE
        && entry.reserved == [0; 3]
        && target.reserved.get() == 0
        && len <= MAX_PAYLOAD;
    let data = len.checked_sub(size_of::<WriteTarget>() as u32)?;
    valid.then_some(RingWrite {
        addr: target.addr.get(),
        key: target.rkey.get(),
        len: data,
        lines: lines_for(len),
    })
}
