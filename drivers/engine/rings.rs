// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The owner's end of the queues: post work, ring doorbells, poll completions, arm events.
//!
//! Drivers, the user-space provider, tests and benchmarks all use these rings. They reach the ring's memory through
//! [`QueueMemory`] and its doorbell slot through [`Doorbell`]; neither allocates nor sleeps, so every call is good in any
//! context. A ring is not shared: whoever posts to or polls it holds `&mut`.
//!
//! The device is not trusted either: indices and phase bits from it are checked, statuses and opcodes are left as
//! integers for the caller to convert.

mod completion;
mod consumer;
mod event;
mod operation;
mod producer;
mod recv;
mod request;
mod send;

pub use self::{
    completion::CompletionRing,
    event::EventRing,
    operation::Operation,
    recv::RecvRing,
    request::{Data, Head, SendRequest},
    send::SendRing,
};

use crate::hal::SlotWord;
use nupa_proto::wqe::BLOCK_SIZE;

/// Memory of one ring as its owner's CPU sees it. It starts out zeroed, and is as long as the ring or longer; what lies
/// outside reads as zero and is not written.
pub trait QueueMemory {
    /// Copies out.
    fn read(&self, offset: usize, buf: &mut [u8]);

    /// Copies in. Ordered by the doorbell's release store that follows.
    fn write(&self, offset: usize, bytes: &[u8]);

    /// Loads a naturally aligned 32-bit little-endian word with acquire order towards the device's stores.
    fn load_acquire(&self, offset: usize) -> u32;

    /// Shows an entry if `is_there` says so of its last word, which is loaded before the rest. The device must not change the entry
    /// until it is told that it was taken.
    #[inline(always)]
    fn with_entry<const SIZE: usize, R>(
        &mut self,
        offset: usize,
        is_there: impl FnOnce(u32) -> bool,
        see: impl FnOnce(&[u8; SIZE]) -> R,
    ) -> Option<R> {
        if !is_there(self.load_acquire(offset.wrapping_add(SIZE).wrapping_sub(4))) {
            return None;
        }
        let mut entry = [0; SIZE];
        self.read(offset, &mut entry);
        Some(see(&entry))
    }
}

/// One doorbell slot as its owner sees it.
pub trait Doorbell {
    /// Loads a word with acquire order.
    fn load(&self, word: SlotWord) -> u32;

    /// Stores a word with release order towards the device: ring memory first, then the word.
    fn store(&self, word: SlotWord, value: u32);

    /// Stores `value` if `expected` is there, atomically also against the device, and ordered as a full fence; returns whether it was.
    fn compare_exchange(&self, word: SlotWord, expected: u32, value: u32) -> bool;

    /// Full fence between the owner's store and its next load, as the device sees them.
    fn fence(&self);

    /// Stores the producer index to the trapped page.
    fn kick(&self, index: u32);

    /// Stores a descriptor to the push slot and the producer index to the trapped page's push word. Returns false, and
    /// has done nothing, if the slot has no push slot.
    fn push(&self, block: &[u8; BLOCK_SIZE], index: u32) -> bool;
}

/// Why a request was not posted. Nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostError {
    /// No room in the ring.
    Full,
    /// More entries or inline bytes than a descriptor holds, or none where there must be one.
    Invalid,
}

/// An index from the device that does not lie within what is posted: the device is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadIndex(pub u32);
