// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The host of the engine in a model.

use std::sync::atomic::AtomicU64;
use std::sync::Mutex;

use nupa_engine::hal::{
    AccessError, Atomic, Clock, Doorbells, Interrupts, Memory, Platform, SlotWord,
};
use nupa_engine::rings::Doorbell;
use nupa_proto::doorbell::SLOT_SIZE;
use nupa_proto::process_ring::RING_SIZE;
use nupa_proto::wqe::BLOCK_SIZE;

use super::*;

/// Addresses of the ring, and of the memory that WRITEs go to.
pub(super) const RING: u64 = 0x10000;
pub(super) const TARGET: u64 = 0x40000;
/// Bytes of the node's memory below the ring.
const REST: usize = 0x4000;

/// What the engine has of the node's host.
#[derive(Debug)]
struct Host {
    ring: Arc<Words>,
    /// Doorbell slots.
    slots: Arc<Words>,
    memory: Arc<Pages>,
    rest: Mutex<Vec<u8>>,
    now_us: AtomicU64,
}

/// The host, as the engine and the tests have it.
#[derive(Clone, Debug)]
pub(super) struct Machine(Arc<Host>);

impl Machine {
    /// One with a ring, memory that WRITEs go to, and doorbell slots.
    pub(super) fn new(ring: &Arc<Words>, memory: &Arc<Pages>, slots: &[u16]) -> Self {
        let words = slots.iter().flat_map(|slot| {
            [SlotWord::Index, SlotWord::Arm, SlotWord::Event].map(|word| word_of(*slot, word))
        });
        Self(Arc::new(Host {
            ring: Arc::clone(ring),
            slots: Words::new(&words.collect::<Vec<_>>(), &[]),
            memory: Arc::clone(memory),
            rest: Mutex::new(vec![0; REST]),
            now_us: AtomicU64::new(0),
        }))
    }

    /// The words of the ring.
    pub(super) fn ring(&self) -> &Words {
        &self.0.ring
    }

    /// Lets time pass.
    pub(super) fn advance(&self, us: u64) {
        self.0.now_us.fetch_add(us, Ordering::Relaxed);
    }

    /// Whether anything but zeroes lies from an address on.
    pub(super) fn holds_any(&self, addr: u64) -> bool {
        let start = usize::try_from(addr).unwrap();
        self.0.rest.lock().unwrap()[start..]
            .iter()
            .any(|byte| *byte != 0)
    }
}

/// Offset of an address in the ring.
fn in_ring(addr: u64) -> Option<usize> {
    let offset = usize::try_from(addr.checked_sub(RING)?).unwrap();
    (offset < RING_SIZE).then_some(offset)
}

impl Memory for Machine {
    fn read(&self, addr: u64, buf: &mut [u8]) -> Result<(), AccessError> {
        use nupa_engine::rings::QueueMemory;
        if let Some(offset) = in_ring(addr) {
            self.0.ring.read(offset, buf);
        } else if let Some(offset) = addr.checked_sub(TARGET) {
            self.0.memory.read(usize::try_from(offset).unwrap(), buf);
        } else {
            let at = usize::try_from(addr).unwrap();
            buf.copy_from_slice(&self.0.rest.lock().unwrap()[at..at + buf.len()]);
        }
        Ok(())
    }

    fn write(&self, addr: u64, bytes: &[u8]) -> Result<(), AccessError> {
        use nupa_engine::rings::QueueMemory;
        assert_eq!(in_ring(addr), None, "the engine stores words there");
        if let Some(offset) = addr.checked_sub(TARGET) {
            self.0.memory.write(usize::try_from(offset).unwrap(), bytes);
        } else {
            let at = usize::try_from(addr).unwrap();
            self.0.rest.lock().unwrap()[at..at + bytes.len()].copy_from_slice(bytes);
        }
        Ok(())
    }

    fn store_release(&self, addr: u64, value: u32) -> Result<(), AccessError> {
        match in_ring(addr) {
            Some(offset) => self.0.ring.store(offset, value),
            None => self.write(addr, &value.to_le_bytes())?,
        }
        Ok(())
    }

    fn atomic(&self, addr: u64, operation: Atomic) -> Result<u64, AccessError> {
        let offset = in_ring(addr).unwrap();
        match operation {
            Atomic::CompareSwap { compare, swap } => {
                fence(Ordering::SeqCst);
                let before = self.0.ring.swap_if_wide(offset, compare, swap);
                fence(Ordering::SeqCst);
                Ok(before)
            }
            // Weaker than `Memory::atomic` says, so that the engine needs the fences that it has itself.
            Atomic::Store(value) => {
                self.0.ring.store_wide(offset, value);
                Ok(0)
            }
            Atomic::FetchAdd(_) => unreachable!("nothing adds there"),
        }
    }

    fn copy_to(&self, from: u64, to: &Self, at: u64, len: usize) -> Result<(), AccessError> {
        let mut bytes = vec![0; len];
        self.read(from, &mut bytes)?;
        to.write(at, &bytes)
    }
}

/// Offset of a word of a doorbell slot.
fn word_of(slot: u16, word: SlotWord) -> usize {
    usize::from(slot) * SLOT_SIZE + word.offset()
}

impl Doorbells for Machine {
    fn pages(&self) -> u32 {
        1
    }

    fn load(&self, _: u32, slot: u16, word: SlotWord) -> u32 {
        self.0.slots.load(word_of(slot, word))
    }

    fn store(&self, _: u32, slot: u16, word: SlotWord, value: u32) {
        self.0.slots.store(word_of(slot, word), value);
    }

    fn compare_exchange(&self, _: u32, _: u16, _: SlotWord, _: u32, _: u32) -> bool {
        unreachable!("no receive queue is shared")
    }

    fn push_block(&self, _: u32, _: u16, _: &mut [u8; BLOCK_SIZE]) -> bool {
        unreachable!("nothing is pushed")
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

impl Interrupts for Machine {
    fn vectors(&self) -> u16 {
        1
    }

    fn raise(&self, _: u16) {}
}

impl Clock for Machine {
    fn now_us(&self) -> u64 {
        self.0.now_us.load(Ordering::Relaxed)
    }

    fn random(&self) -> u32 {
        0
    }
}

impl Platform for Machine {
    type Memory = Self;

    fn memory(&self) -> &Self {
        self
    }
}

/// A doorbell slot of a completion queue, as its process has it.
#[derive(Debug)]
pub(super) struct SlotOf(pub(super) Machine, pub(super) u16);

impl Doorbell for SlotOf {
    fn load(&self, word: SlotWord) -> u32 {
        Doorbells::load(&self.0, 0, self.1, word)
    }

    fn store(&self, word: SlotWord, value: u32) {
        Doorbells::store(&self.0, 0, self.1, word, value);
    }

    fn compare_exchange(&self, _: SlotWord, _: u32, _: u32) -> bool {
        unreachable!("no receive queue is shared")
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    fn kick(&self, _: u32) {
        unreachable!("completion queues are not kicked")
    }

    fn push(&self, _: &[u8; BLOCK_SIZE], _: u32) -> bool {
        unreachable!("nothing is pushed")
    }
}
