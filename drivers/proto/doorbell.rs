// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Doorbell pages of BAR 2 and the rule that makes kicks rare.
//!
//! Page pair `i` has its shared page at `2 * i * PAGE_SIZE` and its trapped page right behind. A shared page is plain
//! memory that both sides map: [`SLOTS`] doorbell slots, then [`PUSH_SLOTS`] push slots. A queue is given one slot when
//! it is created, and only kicks on the trapped page of the same pair reach it, so a user context that maps one pair
//! can ring nothing but its own queues.
//!
//! A driver may keep the shared pages in its own memory instead ([`crate::regs::REG_DOORBELL_MEMORY`]): those of the
//! BAR are then not used, page `i` is at `i * PAGE_SIZE` from the address that the driver gave, and everything else
//! stays as it is. The owner's accesses are then plain memory accesses, which no bus and no hypervisor sees.
//!
//! Ringing (send and receive queues): write descriptors; store the producer index into the slot's `index` with release
//! order; full fence; load `event`; if [`need_kick`] says so, store the index to the trapped page at the slot's offset.
//! The device drains the queue, stores to `event` the index past which it wants to be told, fences, and looks at
//! `index` once more before it stops. Either side alone may be late; both cannot miss each other.
//!
//! Completion and event queues: `index` is the consumer index and `arm` the arm word, see [`arm_word`]. To arm: store
//! `index`, then `arm`, full fence, look at the queue once more. The device writes an entry, fences, then loads `arm`.
//! Arming never needs a kick.

use zerocopy::little_endian::U32;
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a doorbell page.
pub const PAGE_SIZE: usize = 4096;
/// Bytes of a pair: shared page, then trapped page.
pub const PAIR_SIZE: usize = 2 * PAGE_SIZE;
/// Bytes of a doorbell slot.
pub const SLOT_SIZE: usize = 16;
/// Doorbell slots of a page.
pub const SLOTS: u16 = 128;
/// Offset of the first push slot of a page.
pub const PUSH_OFFSET: usize = SLOTS as usize * SLOT_SIZE;
/// Bytes of a push slot: one descriptor block.
pub const PUSH_SLOT_SIZE: usize = 64;
/// Push slots of a page.
pub const PUSH_SLOTS: u16 = ((PAGE_SIZE - PUSH_OFFSET) / PUSH_SLOT_SIZE) as u16;
/// Slot number of a queue that has no doorbell.
pub const SLOT_NONE: u16 = 0xffff;

/// Offset of the word the queue's owner stores its index to.
pub const SLOT_INDEX: usize = 0;
/// Offset of the arm word (completion and event queues).
pub const SLOT_ARM: usize = 4;
/// Offset of the event index that the device publishes (send and receive queues).
pub const SLOT_EVENT: usize = 8;
/// Offset of the word that is the driver's.
pub const SLOT_DRIVER: usize = 12;

/// One doorbell slot, as it lies in the shared page.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct Slot {
    /// Producer index (send, receive) or consumer index (completion, event); free-running; written by the owner.
    pub index: U32,
    /// Arm word; written by the owner. For process rings (`Documentation/process-rings.md`) also, and 0 for who has none: of a receive queue, index up to
    /// which its owner has filled entries itself, in the order of messages; of a shared one, index of the next entry that is taken, which the device
    /// writes too; of a send queue, how many messages of process rings its owner has taken entries of a shared receive queue for.
    pub arm: U32,
    /// Event index; written by the device.
    pub event: U32,
    /// The driver's: the device neither reads nor writes it.
    pub driver: U32,
}
assert_size!(Slot, SLOT_SIZE);
const _: () = assert!(core::mem::offset_of!(Slot, driver) == SLOT_DRIVER);

/// Whether moving the producer index from `old` to `new` passed the index at which the device wants a kick.
///
/// Same rule as `vring_need_event()` (include/uapi/linux/virtio_ring.h), on 32-bit free-running indices.
#[inline]
pub const fn need_kick(event: u32, new: u32, old: u32) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

/// Event index that asks for no kick as long as the owner only moves forward from `seen`.
#[inline]
pub const fn event_quiet(seen: u32) -> u32 {
    seen.wrapping_sub(1)
}

/// Arm word bit: only completions of solicited messages and errors count.
pub const ARM_SOLICITED: u32 = 1 << 31;

/// Composes an arm word. The queue is armed while the sequence differs from that of the last event or interrupt;
/// the owner takes the next sequence each time it arms.
#[inline]
pub const fn arm_word(sequence: u32, solicited_only: bool) -> u32 {
    (sequence & !ARM_SOLICITED) | if solicited_only { ARM_SOLICITED } else { 0 }
}

/// Sequence of an arm word.
#[inline]
pub const fn arm_sequence(word: u32) -> u32 {
    word & !ARM_SOLICITED
}

/// Offset in BAR 2 of a slot in the shared page of a pair.
#[inline]
pub const fn slot_offset(page: u32, slot: u16) -> usize {
    page as usize * PAIR_SIZE + slot as usize * SLOT_SIZE
}

/// Offset of a slot in doorbell pages that lie in the host's memory.
#[inline]
pub const fn host_slot_offset(page: u32, slot: u16) -> usize {
    page as usize * PAGE_SIZE + slot as usize * SLOT_SIZE
}

/// Offset in BAR 2 of the kick word of a slot, in the trapped page of a pair.
#[inline]
pub const fn kick_offset(page: u32, slot: u16) -> usize {
    slot_offset(page, slot) + PAGE_SIZE
}

/// Offset in BAR 2 of the function's memory ([`crate::regs::REG_DEVICE_MEMORY`]) behind `pages` doorbell page pairs.
#[inline]
pub const fn device_memory_offset(pages: u32) -> usize {
    pages as usize * PAIR_SIZE
}

/// Offset in BAR 2 of a push slot in the shared page of a pair. Push slot `k` belongs to the send queue whose doorbell
/// slot is `k`; doorbell slots from [`PUSH_SLOTS`] up have no push slot.
#[inline]
pub const fn push_offset(page: u32, slot: u16) -> usize {
    page as usize * PAIR_SIZE + PUSH_OFFSET + slot as usize * PUSH_SLOT_SIZE
}

/// Offset of a push slot in doorbell pages that lie in the host's memory.
#[inline]
pub const fn host_push_offset(page: u32, slot: u16) -> usize {
    page as usize * PAGE_SIZE + PUSH_OFFSET + slot as usize * PUSH_SLOT_SIZE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kick_exactly_when_event_is_passed() {
        for base in [0u32, 7, u32::MAX - 2, u32::MAX] {
            let at = |n: u32| base.wrapping_add(n);
            assert!(need_kick(at(0), at(1), at(0)));
            assert!(need_kick(at(2), at(5), at(0)));
            assert!(!need_kick(at(5), at(5), at(0)));
            assert!(!need_kick(at(0), at(5), at(1)));
            assert!(!need_kick(event_quiet(at(0)), at(9), at(0)));
            assert!(!need_kick(at(0), at(0), at(0)));
        }
    }

    #[test]
    fn pages_do_not_overlap() {
        assert_eq!(
            PUSH_OFFSET + usize::from(PUSH_SLOTS) * PUSH_SLOT_SIZE,
            PAGE_SIZE
        );
        assert_eq!(kick_offset(0, 0), PAGE_SIZE);
        assert_eq!(slot_offset(1, 0), PAIR_SIZE);
        assert!(kick_offset(0, SLOTS - 1) < PAIR_SIZE);
        assert_eq!(host_slot_offset(1, 0), PAGE_SIZE);
        assert_eq!(host_push_offset(0, PUSH_SLOTS), PAGE_SIZE);
    }

    #[test]
    fn arm_word_keeps_sequence() {
        assert_eq!(arm_sequence(arm_word(5, true)), 5);
        assert_ne!(arm_word(5, true), arm_word(5, false));
    }
}
