// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The engine's client rings over a test guest's memory and doorbells.

use std::rc::Rc;
use std::sync::atomic::{fence, Ordering};

use guestmem::{GuestMemory, MmapRegion};
use nupa_engine::hal::SlotWord;
use nupa_engine::rings::{Doorbell, QueueMemory};
use nupa_proto::doorbell::{kick_offset, push_offset, slot_offset, PUSH_SLOTS};
use nupa_proto::regs::BAR_DOORBELL;
use nupa_proto::wqe::BLOCK_SIZE;

use super::guest::{Bars, Guest};
use super::World;

/// Memory of one ring.
pub struct RingMemory {
    pub ram: Rc<MmapRegion>,
    pub base: usize,
}

impl QueueMemory for RingMemory {
    fn read(&self, offset: usize, buf: &mut [u8]) {
        self.ram.read(self.base + offset, buf).unwrap();
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        self.ram.write(self.base + offset, bytes).unwrap();
    }

    fn load_acquire(&self, offset: usize) -> u32 {
        self.ram.load_u32(self.base + offset).unwrap()
    }
}

/// One doorbell slot: the mapped shared page, and the trapped one behind it.
pub struct SlotDoorbell<W: Bars = World> {
    pub world: W,
    pub node: u16,
    pub doorbells: Rc<GuestMemory>,
    pub page: u32,
    pub slot: u16,
}

impl<W: Bars> SlotDoorbell<W> {
    pub fn new(guest: &Guest<W>, (page, slot): (u32, u16)) -> Self {
        Self {
            world: guest.world.clone(),
            node: guest.node,
            doorbells: guest.doorbells.clone(),
            page,
            slot,
        }
    }

    fn word(&self, word: SlotWord) -> u64 {
        (slot_offset(self.page, self.slot) + word.offset()) as u64
    }

    fn trap(&self, offset: usize, index: u32) {
        let at = (kick_offset(self.page, self.slot) + offset) as u64;
        self.world
            .write(self.node, BAR_DOORBELL, at, &index.to_le_bytes());
    }
}

impl<W: Bars> Doorbell for SlotDoorbell<W> {
    fn load(&self, word: SlotWord) -> u32 {
        self.doorbells.load_u32(self.word(word)).unwrap()
    }

    fn store(&self, word: SlotWord, value: u32) {
        self.doorbells.store_u32(self.word(word), value).unwrap();
    }

    fn compare_exchange(&self, word: SlotWord, expected: u32, value: u32) -> bool {
        let at = self.word(word);
        let old = self.doorbells.compare_exchange_u32(at, expected, value);
        old.unwrap() == expected
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    fn kick(&self, index: u32) {
        self.trap(0, index);
    }

    fn push(&self, block: &[u8; BLOCK_SIZE], index: u32) -> bool {
        if self.slot >= PUSH_SLOTS {
            return false;
        }
        let at = push_offset(self.page, self.slot) as u64;
        self.doorbells.write(at, block).unwrap();
        self.trap(4, index);
        true
    }
}
