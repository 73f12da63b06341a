// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the engine needs of the machine that it runs on.
//!
//! One [`Platform`] stands for one node's hardware: its memory as the DMA engine sees it, its doorbell pages, its
//! interrupt vectors, a clock. Every method takes `&self`, so that a transfer can hold the platforms of two nodes, or
//! of one node twice. Nothing here may sleep or allocate: the engine runs inside a trapped register write, or in
//! softirq context.

#[cfg(any(test, feature = "std"))]
mod vec;

#[cfg(any(test, feature = "std"))]
pub use vec::{VecStorage, VecTable};

/// A DMA address that cannot be reached: unmapped, misaligned, or without the right asked for; or memory that has lost what was
/// stored there. Of a copy that fails for the latter a part may have been done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessError;

/// Why copies that were submitted are not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undone {
    /// One of them failed, and nothing is stored by any of them any more. They are to be made again with [`Memory::copy_to`].
    Failed,
    /// They never will be, and something may still be stored where they go.
    Unfinished,
}

/// An atomic operation on 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomic {
    /// Stores `swap` if `compare` is there.
    CompareSwap {
        /// What must be there.
        compare: u64,
        /// What to store.
        swap: u64,
    },
    /// Adds, wrapping around.
    FetchAdd(u64),
    /// Stores.
    Store(u64),
}

/// A node's memory, addressed by DMA address.
///
/// The node may change any byte at any time, so the engine copies out once, validates, then uses its copy. An access
/// that fails has had no effect, but for copies from memory that has lost its contents.
pub trait Memory {
    /// Copies `buf.len()` bytes out.
    fn read(&self, addr: u64, buf: &mut [u8]) -> Result<(), AccessError>;

    /// Copies `bytes` in.
    fn write(&self, addr: u64, bytes: &[u8]) -> Result<(), AccessError>;

    /// Stores a naturally aligned 32-bit little-endian word with release order.
    fn store_release(&self, addr: u64, value: u32) -> Result<(), AccessError>;

    /// Does an atomic operation on a naturally aligned 64-bit little-endian word and returns what was there before (of a
    /// store: anything). Atomic also against the node's own processors; ordered as a full fence.
    fn atomic(&self, addr: u64, operation: Atomic) -> Result<u64, AccessError>;

    /// Whether [`Memory::write_back`] does anything for what is at this address.
    fn needs_write_back(&self, _addr: u64) -> bool {
        false
    }

    /// Brings what was stored in a range to where all who share the memory see it, and to where it is as lasting as the memory
    /// is. Nothing where that is so anyway.
    fn write_back(&self, _addr: u64, _len: usize) -> Result<(), AccessError> {
        Ok(())
    }

    /// Copies `len` bytes at `from` to `to` in `destination`, which may be the same memory.
    fn copy_to(
        &self,
        from: u64,
        destination: &Self,
        to: u64,
        len: usize,
    ) -> Result<(), AccessError>;

    /// As [`Memory::copy_to`], with non-temporal stores where the processor has them: what nobody on this host reads soon leaves its caches
    /// alone. Hosts whose caches are not coherent with this one's see all of it before anything that is stored later, without a write-back.
    fn copy_nontemporal(
        &self,
        from: u64,
        destination: &Self,
        to: u64,
        len: usize,
    ) -> Result<(), AccessError> {
        self.copy_to(from, destination, to, len)?;
        destination.write_back(to, len)
    }

    /// Length from which on copies to memory that hosts share are better [submitted](Memory::submit_copy) than made by the processor; `u32::MAX`:
    /// none.
    #[inline]
    fn submits_from(&self) -> u32 {
        u32::MAX
    }

    /// The same of copies from memory that hosts share. They are never [unfinished](Undone::Unfinished).
    #[inline]
    fn submits_shared_from(&self) -> u32 {
        u32::MAX
    }

    /// As [`Memory::copy_to`], but the bytes may be stored later, until [`Memory::finish_copies`] returns, and in any order.
    fn submit_copy(
        &self,
        from: u64,
        destination: &Self,
        to: u64,
        len: usize,
    ) -> Result<(), AccessError> {
        self.copy_to(from, destination, to, len)
    }

    /// Waits until the copies that were submitted are done: they come before anything that is stored later. After [`Undone::Unfinished`] the
    /// host calls the engine again only once nothing is stored by them any more; until its turn is over it submits no others, and uses no room that they
    /// go to.
    fn finish_copies(&self) -> Result<(), Undone> {
        Ok(())
    }
}

/// The three words of a doorbell slot, see [`nupa_proto::doorbell::Slot`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotWord {
    /// Producer index of send and receive queues, consumer index of completion and event queues. Owner to device.
    Index,
    /// Arm word of completion and event queues. Owner to device.
    Arm,
    /// Event index of send and receive queues. Device to owner.
    Event,
}

impl SlotWord {
    /// Offset of the word within its slot.
    #[inline]
    pub const fn offset(self) -> usize {
        match self {
            Self::Index => nupa_proto::doorbell::SLOT_INDEX,
            Self::Arm => nupa_proto::doorbell::SLOT_ARM,
            Self::Event => nupa_proto::doorbell::SLOT_EVENT,
        }
    }
}

/// Shared doorbell pages of a node. The engine asks only for pages below [`Doorbells::pages`].
pub trait Doorbells {
    /// Number of doorbell page pairs.
    fn pages(&self) -> u32;

    /// Loads a word with acquire order. A slot that does not exist reads 0.
    fn load(&self, page: u32, slot: u16, word: SlotWord) -> u32;

    /// Stores a word with release order. A slot that does not exist ignores it.
    fn store(&self, page: u32, slot: u16, word: SlotWord, value: u32);

    /// Stores `value` if `expected` is there, atomically also against the node's own processors, and ordered as a full fence; returns whether it
    /// was. False for a slot that does not exist.
    fn compare_exchange(
        &self,
        page: u32,
        slot: u16,
        word: SlotWord,
        expected: u32,
        value: u32,
    ) -> bool;

    /// Copies out the push slot that belongs to a doorbell slot; false if there is none.
    fn push_block(
        &self,
        page: u32,
        slot: u16,
        block: &mut [u8; nupa_proto::wqe::BLOCK_SIZE],
    ) -> bool;

    /// Full fence: orders every earlier access to memory and doorbells before every later one.
    fn fence(&self);
}

/// Interrupts of a node.
pub trait Interrupts {
    /// Number of vectors.
    fn vectors(&self) -> u16;

    /// Raises a vector (an edge; masking and pending bits are below this).
    fn raise(&self, vector: u16);
}

/// Time and random numbers.
pub trait Clock {
    /// Microseconds since some start; never goes back.
    fn now_us(&self) -> u64;

    /// The function's clock, which timestamps of completions are taken from: nanoseconds since some start; never goes back.
    fn now_ns(&self) -> u64 {
        self.now_us().saturating_mul(1000)
    }

    /// Waits about so long. Only for what may sleep.
    fn pause_us(&self, us: u64) {
        let start = self.now_us();
        while self.now_us().saturating_sub(start) < us {
            core::hint::spin_loop();
        }
    }

    /// A random number that peers cannot guess (tags of memory keys).
    fn random(&self) -> u32;
}

/// One node's hardware.
pub trait Platform: Doorbells + Interrupts + Clock {
    /// The node's memory.
    type Memory: Memory;

    /// The node's memory.
    fn memory(&self) -> &Self::Memory;
}

/// No memory is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoMemory;

/// Kinds of containers.
pub trait Storage {
    /// A list of page addresses, of fixed length.
    type Pages: AsRef<[u64]> + AsMut<[u64]>;

    /// A table of objects.
    type Table<T>: Table<T>;

    /// Makes a list of `len` zeroes. May allocate, may sleep.
    fn pages(len: usize) -> Result<Self::Pages, NoMemory>;
}

/// A table of object slots that can grow. A new one is empty.
pub trait Table<T>: Default {
    /// All slots.
    fn slots(&self) -> &[Option<T>];

    /// All slots.
    fn slots_mut(&mut self) -> &mut [Option<T>];

    /// Makes the table at least `len` slots long; new slots are `None`. May allocate, may sleep.
    fn grow(&mut self, len: usize) -> Result<(), NoMemory>;
}
