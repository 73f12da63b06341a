// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Doorbells and arming under every ordering that the memory model allows (loom).
//!
//! Both ends are the real thing: the client's rings in one thread, the engine in another. Doorbell words, the words
//! that hand entries over, and one word of each entry's contents are loom's atomics; the latter are accessed relaxed, so
//! that an entry which is seen before its contents shows.

#![allow(clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "as above"
)]

use loom::sync::atomic::{fence, AtomicU32, AtomicU64, Ordering};
use nupa_engine::{
    client::{
        CompletionRing, Data, Doorbell, EventRing, Operation, QueueMemory, SendRequest, SendRing,
    },
    hal::{AccessError, Clock, Doorbells, Interrupts, Memory, Platform, SlotWord},
    storage::{NoMemory, Storage, Table},
    Engine, Fabric, Node, NodeConfig,
};
use nupa_proto::{
    admin::{CreateCq, CreateEq, CreateQp, ModifyQp, PageList, QpStateCode, QpType, QP_MASK_STATE},
    doorbell::SLOT_NONE,
    wqe::{BLOCK_SIZE, WQE_SIGNALED},
};
use std::sync::{Arc, Mutex};
use zerocopy::little_endian::{U16, U32, U64};

/// log2 of the entries of all rings.
const LOG: u8 = 2;
/// Addresses of the rings.
const SEND: u64 = 0;
const COMPLETION: u64 = 4096;
const EVENT: u64 = 8192;
/// Doorbell slots of the queues.
const SEND_SLOT: u16 = 0;
const COMPLETION_SLOT: u16 = 1;
const EVENT_SLOT: u16 = 2;

struct VecStorage;

impl Storage for VecStorage {
    type Pages = Vec<u64>;
    type Table<T> = VecTable<T>;

    fn pages(len: usize) -> Result<Vec<u64>, NoMemory> {
        Ok(vec![0; len])
    }
}

struct VecTable<T>(Vec<Option<T>>);

impl<T> Default for VecTable<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Table<T> for VecTable<T> {
    fn slots(&self) -> &[Option<T>] {
        &self.0
    }

    fn slots_mut(&mut self) -> &mut [Option<T>] {
        &mut self.0
    }

    fn grow(&mut self, len: usize) -> Result<(), NoMemory> {
        self.0.resize_with(len, || None);
        Ok(())
    }
}

/// Words that both threads access: hand-over words of both consumer rings, and `wr_id` of requests and completions.
struct Shared {
    completion_valid: [AtomicU32; 1 << LOG],
    event_valid: [AtomicU32; 1 << LOG],
    request_id: [AtomicU64; 1 << LOG],
    completion_id: [AtomicU64; 1 << LOG],
    slots: [[AtomicU32; 3]; 3],
    raised: AtomicU32,
    /// All other bytes.
    rest: Mutex<Vec<u8>>,
}

/// A node's hardware, as both ends have it.
#[derive(Clone)]
struct Machine(Arc<Shared>);

impl Machine {
    fn new() -> Self {
        let word = |_| AtomicU32::new(0);
        let long = |_| AtomicU64::new(0);
        Self(Arc::new(Shared {
            completion_valid: std::array::from_fn(word),
            event_valid: std::array::from_fn(word),
            request_id: std::array::from_fn(long),
            completion_id: std::array::from_fn(long),
            slots: std::array::from_fn(|_| std::array::from_fn(word)),
            raised: AtomicU32::new(0),
            rest: Mutex::new(vec![0; 12288]),
        }))
    }

    /// The hand-over word at an address.
    fn valid(&self, addr: u64) -> &AtomicU32 {
        match addr {
            EVENT.. => &self.0.event_valid[((addr - EVENT) / 16) as usize],
            _ => &self.0.completion_valid[((addr - COMPLETION) / 64) as usize],
        }
    }

    /// The `wr_id` of the entry at an address, and its offset in the entry.
    fn id(&self, addr: u64) -> Option<(&AtomicU64, usize)> {
        let entry = |base: u64| ((addr - base) / 64) as usize;
        match addr {
            EVENT.. => None,
            COMPLETION.. => Some((&self.0.completion_id[entry(COMPLETION)], 0)),
            _ => Some((&self.0.request_id[entry(SEND)], 8)),
        }
    }

    fn read_entry(&self, addr: u64, buf: &mut [u8]) {
        let at = addr as usize;
        buf.copy_from_slice(&self.0.rest.lock().expect("no panic")[at..at + buf.len()]);
        if let Some((word, offset)) = self.id(addr) {
            let id = word.load(Ordering::Relaxed).to_le_bytes();
            buf[offset..offset + 8].copy_from_slice(&id);
        }
    }

    fn write_entry(&self, addr: u64, bytes: &[u8]) {
        let at = addr as usize;
        self.0.rest.lock().expect("no panic")[at..at + bytes.len()].copy_from_slice(bytes);
        if let Some((word, offset)) = self.id(addr) {
            let id = bytes[offset..offset + 8].try_into().expect("eight bytes");
            word.store(u64::from_le_bytes(id), Ordering::Relaxed);
        }
    }

    fn word(&self, slot: u16, word: SlotWord) -> &AtomicU32 {
        &self.0.slots[usize::from(slot)][word.offset() / 4]
    }
}

impl Memory for Machine {
    fn read(&self, addr: u64, buf: &mut [u8]) -> Result<(), AccessError> {
        self.read_entry(addr, buf);
        Ok(())
    }

    fn write(&self, addr: u64, bytes: &[u8]) -> Result<(), AccessError> {
        self.write_entry(addr, bytes);
        Ok(())
    }

    fn store_release(&self, addr: u64, value: u32) -> Result<(), AccessError> {
        self.valid(addr).store(value, Ordering::Release);
        Ok(())
    }

    fn copy_to(&self, _: u64, _: &Self, _: u64, _: usize) -> Result<(), AccessError> {
        Err(AccessError)
    }
}

impl Doorbells for Machine {
    fn pages(&self) -> u32 {
        1
    }

    fn load(&self, _page: u32, slot: u16, word: SlotWord) -> u32 {
        self.word(slot, word).load(Ordering::Acquire)
    }

    fn store(&self, _page: u32, slot: u16, word: SlotWord, value: u32) {
        self.word(slot, word).store(value, Ordering::Release);
    }

    fn push_block(&self, _page: u32, _slot: u16, _block: &mut [u8; BLOCK_SIZE]) -> bool {
        false
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

impl Interrupts for Machine {
    fn vectors(&self) -> u16 {
        1
    }

    fn raise(&self, _vector: u16) {
        self.0.raised.fetch_add(1, Ordering::Relaxed);
    }
}

impl Clock for Machine {
    fn now_us(&self) -> u64 {
        0
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

/// A slot or a ring of the owner.
struct View(Machine, u64);

impl Doorbell for View {
    fn load(&self, word: SlotWord) -> u32 {
        Doorbells::load(&self.0, 0, self.1 as u16, word)
    }

    fn store(&self, word: SlotWord, value: u32) {
        Doorbells::store(&self.0, 0, self.1 as u16, word, value);
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    fn kick(&self, _index: u32) {}

    fn push(&self, _block: &[u8; BLOCK_SIZE], _index: u32) -> bool {
        false
    }
}

impl QueueMemory for View {
    fn read(&self, offset: usize, buf: &mut [u8]) {
        self.0.read_entry(self.1 + offset as u64, buf);
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        self.0.write_entry(self.1 + offset as u64, bytes);
    }

    fn load_acquire(&self, offset: usize) -> u32 {
        self.0.valid(self.1 + offset as u64).load(Ordering::Acquire)
    }
}

/// The device: one node with one queue pair.
struct Device {
    node: Node<VecStorage>,
    machine: Machine,
}

impl Fabric for Device {
    type Storage = VecStorage;
    type Platform = Machine;

    fn max_nodes(&self) -> u16 {
        1
    }

    fn node(&self, id: u16) -> Option<(&Node<VecStorage>, &Machine)> {
        (id == 0).then_some((&self.node, &self.machine))
    }

    fn node_mut(&mut self, id: u16) -> Option<(&mut Node<VecStorage>, &Machine)> {
        (id == 0).then_some((&mut self.node, &self.machine))
    }
}

impl Device {
    /// A kick on the send queue.
    fn kick(&mut self) {
        Engine::new().kick(self, 0, 0, SEND_SLOT);
    }
}

/// The owner's rings.
struct Owner {
    machine: Machine,
    send: SendRing<View, View>,
    completions: CompletionRing<View, View>,
    events: EventRing<View, View>,
}

impl Owner {
    /// Posts one request and rings. Returns whether a kick was asked for.
    fn post(&mut self, wr_id: u64) -> bool {
        let (operation, data) = (Operation::Nop, Data::Inline(&[]));
        let request = SendRequest {
            wr_id,
            flags: WQE_SIGNALED,
            operation,
            data,
        };
        self.send.post(&request).expect("room");
        self.send.ring()
    }

    /// Identities of all completions.
    fn drain(&mut self) -> Vec<u64> {
        std::iter::from_fn(|| self.completions.poll().map(|cqe| cqe.wr_id.get())).collect()
    }
}

fn direct(addr: u64) -> PageList {
    PageList {
        addr: U64::new(addr),
        ..PageList::default()
    }
}

fn set_up() -> (Device, Owner) {
    let machine = Machine::new();
    let mut device = Device {
        node: Node::new(NodeConfig::default()),
        machine: machine.clone(),
    };
    let mut engine = Engine::new();
    engine.enable(&mut device, 0);
    let node = &mut device.node;
    let pd = node.alloc_pd().expect("domain");
    let eq = CreateEq {
        ring: direct(EVENT),
        doorbell_slot: U16::new(EVENT_SLOT),
        log_entries: LOG,
        ..CreateEq::default()
    };
    let eqn = node.create_eq(&machine, &eq).expect("event queue");
    let cq = CreateCq {
        ring: direct(COMPLETION),
        doorbell_slot: U16::new(COMPLETION_SLOT),
        log_entries: LOG,
        eqn: U32::new(eqn),
        ..CreateCq::default()
    };
    let cqn = node.create_cq(&machine, &cq).expect("completion queue");
    let qp = CreateQp {
        sq: direct(SEND),
        qp_type: QpType::Raw.to_wire(),
        log_sq: LOG,
        pd: U32::new(pd),
        send_cqn: U32::new(cqn),
        sq_slot: U16::new(SEND_SLOT),
        rq_slot: U16::new(SLOT_NONE),
        ..CreateQp::default()
    };
    let qpn = node.create_qp(&machine, &qp).expect("queue pair");
    for state in [QpStateCode::Init, QpStateCode::Rtr, QpStateCode::Rts] {
        let (mask, state) = (U32::new(QP_MASK_STATE), state.to_wire());
        let body = ModifyQp {
            qpn: U32::new(qpn),
            mask,
            state,
            ..ModifyQp::default()
        };
        engine.modify_qp(&mut device, 0, &body).expect("transition");
    }
    let view = |at: u64| View(machine.clone(), at);
    let owner = Owner {
        machine: machine.clone(),
        send: SendRing::new(view(SEND), view(SEND_SLOT.into()), LOG),
        completions: CompletionRing::new(view(COMPLETION), view(COMPLETION_SLOT.into()), LOG),
        events: EventRing::new(view(EVENT), view(EVENT_SLOT.into()), LOG),
    };
    (device, owner)
}

fn check(body: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(body);
}

/// No request is left behind: either the kick was asked for, or the device that was at work has seen it.
#[test]
fn a_request_that_asks_for_no_kick_is_served() {
    check(|| {
        let (mut device, mut owner) = set_up();
        assert!(owner.post(1));
        // The kick of the first is being served while the others are posted.
        let serving = loom::thread::spawn(move || {
            device.kick();
            device
        });
        let asked = [owner.post(2), owner.post(3)];
        let mut device = serving.join().expect("no panic");
        if asked.contains(&true) {
            device.kick();
        }
        assert_eq!(owner.drain(), [1, 2, 3]);
    });
}

/// No completion is left behind: either arming has seen it, or an event tells of it; and so on to the interrupt.
#[test]
fn a_completion_that_arming_did_not_see_raises_an_event() {
    check(|| {
        let (mut device, mut owner) = set_up();
        owner.post(1);
        let serving = loom::thread::spawn(move || device.kick());
        let seen = owner.completions.arm(false);
        let event_seen = owner.events.arm();
        serving.join().expect("no panic");
        let event = owner.events.poll().is_some();
        let raised = owner.machine.0.raised.load(Ordering::Relaxed);
        assert!(seen || event, "completion without an event");
        assert!(
            !event || event_seen || raised > 0,
            "event without an interrupt"
        );
        assert!(raised <= 1);
        assert_eq!(owner.drain(), [1]);
    });
}

/// A consumer that polls while the device writes sees whole entries in order.
#[test]
fn polling_sees_whole_entries() {
    check(|| {
        let (mut device, mut owner) = set_up();
        owner.post(1);
        owner.post(2);
        let serving = loom::thread::spawn(move || device.kick());
        let mut seen = owner.drain();
        serving.join().expect("no panic");
        seen.extend(owner.drain());
        assert_eq!(seen, [1, 2]);
    });
}
