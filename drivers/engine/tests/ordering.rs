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
    hal::{
        AccessError, Atomic, Clock, Doorbells, Interrupts, Memory, Platform, SlotWord, VecStorage,
    },
    rings::{
        CompletionRing, Data, Doorbell, EventRing, Operation, QueueMemory, RecvRing, SendRequest,
        SendRing,
    },
    Engine, Node, NodeConfig, NodeTable,
};
use nupa_proto::{
    admin::{
        CreateCq, CreateEq, CreateQp, ModifyQp, PageList, QpStateCode, QpType, SetRss, SetRxFilter,
        QP_FLAG_PRIVILEGED, QP_MASK_STATE, RX_PROMISC,
    },
    frame::FrameMeta,
    ident::DMA_LKEY,
    wqe::{Sge, BLOCK_SIZE, WQE_SIGNALED},
};
use std::sync::{Arc, Mutex};
use zerocopy::little_endian::{U16, U32, U64};

/// log2 of the entries of all rings.
const LOG: u8 = 2;
/// Addresses of the rings.
const SEND: u64 = 0;
const COMPLETION: u64 = 4096;
const EVENT: u64 = 8192;
const RECEIVE: u64 = 12288;
/// Addresses of a frame, of the buffers for it, and of the spreading table.
const FRAME: u64 = 16384;
const BUFFERS: u64 = 16448;
const TABLE: u64 = 16512;
/// Doorbell slots of the queues.
const SEND_SLOT: u16 = 0;
const COMPLETION_SLOT: u16 = 1;
const EVENT_SLOT: u16 = 2;
const RECEIVE_SLOT: u16 = 3;
/// Bytes of a frame: two buffers full.
const FRAME_LEN: u32 = 16;

/// Words that both threads access: hand-over words of both consumer rings, and `wr_id` of requests and completions.
struct Shared {
    completion_valid: [AtomicU32; 1 << LOG],
    event_valid: [AtomicU32; 1 << LOG],
    request_id: [AtomicU64; 1 << LOG],
    receive_id: [AtomicU64; 1 << LOG],
    completion_id: [AtomicU64; 1 << LOG],
    slots: [[AtomicU32; 3]; 4],
    raised: AtomicU32,
    /// Stored to before each access to those, and before fences: loom remembers only the last access to a word, and would not try a load of one thread behind a store of
    /// the other one that has loaded the word itself before; and it does not switch threads at a fence.
    steps: AtomicU32,
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
            receive_id: std::array::from_fn(long),
            completion_id: std::array::from_fn(long),
            slots: std::array::from_fn(|_| std::array::from_fn(word)),
            raised: AtomicU32::new(0),
            steps: AtomicU32::new(0),
            rest: Mutex::new(vec![0; 16640]),
        }))
    }

    /// A word is about to be accessed, or a fence comes.
    fn step(&self) {
        self.0.steps.store(0, Ordering::Relaxed);
    }

    /// The hand-over word at an address.
    fn valid(&self, addr: u64) -> &AtomicU32 {
        self.step();
        match addr {
            EVENT.. => &self.0.event_valid[((addr - EVENT) / 16) as usize],
            _ => &self.0.completion_valid[((addr - COMPLETION) / 64) as usize],
        }
    }

    /// The `wr_id` of the entry that begins at an address, and its offset in the entry.
    fn id(&self, addr: u64) -> Option<(&AtomicU64, usize)> {
        let entry = |base: u64, size: u64| {
            let offset = addr - base;
            (offset % size == 0).then_some((offset / size) as usize)
        };
        Some(match addr {
            FRAME.. => return None,
            RECEIVE.. => (&self.0.receive_id[entry(RECEIVE, 32)?], 0),
            EVENT.. => return None,
            COMPLETION.. => (&self.0.completion_id[entry(COMPLETION, 64)?], 0),
            _ => (&self.0.request_id[entry(SEND, 64)?], 8),
        })
    }

    fn read_entry(&self, addr: u64, buf: &mut [u8]) {
        let at = addr as usize;
        buf.copy_from_slice(&self.0.rest.lock().expect("no panic")[at..at + buf.len()]);
        if let Some((word, offset)) = self.id(addr) {
            self.step();
            let id = word.load(Ordering::Relaxed).to_le_bytes();
            buf[offset..offset + 8].copy_from_slice(&id);
        }
    }

    fn write_entry(&self, addr: u64, bytes: &[u8]) {
        let at = addr as usize;
        self.0.rest.lock().expect("no panic")[at..at + bytes.len()].copy_from_slice(bytes);
        if let Some((word, offset)) = self.id(addr) {
            self.step();
            let id = bytes[offset..offset + 8].try_into().expect("eight bytes");
            word.store(u64::from_le_bytes(id), Ordering::Relaxed);
        }
    }

    fn word(&self, slot: u16, word: SlotWord) -> &AtomicU32 {
        self.step();
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

    fn atomic(&self, _: u64, _: Atomic) -> Result<u64, AccessError> {
        // Nobody asks for it here.
        Err(AccessError)
    }

    fn copy_to(&self, from: u64, _: &Self, to: u64, len: usize) -> Result<(), AccessError> {
        let mut rest = self.0.rest.lock().expect("no panic");
        rest.copy_within(from as usize..from as usize + len, to as usize);
        Ok(())
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

    fn compare_exchange(
        &self,
        _page: u32,
        slot: u16,
        word: SlotWord,
        expected: u32,
        value: u32,
    ) -> bool {
        let (done, seen) = (Ordering::SeqCst, Ordering::SeqCst);
        let word = self.word(slot, word);
        word.compare_exchange(expected, value, done, seen).is_ok()
    }

    fn push_block(&self, _page: u32, _slot: u16, _block: &mut [u8; BLOCK_SIZE]) -> bool {
        false
    }

    fn fence(&self) {
        self.step();
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

    fn compare_exchange(&self, word: SlotWord, expected: u32, value: u32) -> bool {
        Doorbells::compare_exchange(&self.0, 0, self.1 as u16, word, expected, value)
    }

    fn fence(&self) {
        Doorbells::fence(&self.0);
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

impl NodeTable for Device {
    type Storage = VecStorage;
    type Platform = Machine;
    type Link = nupa_engine::NoLink;

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
    /// A kick on a queue, and what follows from it at once.
    fn kick(&mut self, slot: u16) {
        let mut engine = Engine::new();
        engine.kick(self, 0, 0, slot);
        while engine.run(self) == Some(0) {}
    }
}

/// The owner's rings.
struct Owner {
    machine: Machine,
    send: SendRing<View, View>,
    receive: RecvRing<View, View>,
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

    /// Sends a frame to itself. Returns whether a kick was asked for.
    fn send_frame(&mut self, wr_id: u64) -> bool {
        let operation = Operation::Frame {
            node: 0,
            meta: FrameMeta::default(),
        };
        let sges = [sge(FRAME, FRAME_LEN)];
        let data = Data::Sges(&sges);
        let request = SendRequest {
            wr_id,
            flags: WQE_SIGNALED,
            operation,
            data,
        };
        self.send.post(&request).expect("room");
        self.send.ring()
    }

    /// Posts a buffer for half a frame. Returns whether a kick was asked for.
    fn post_buffer(&mut self, wr_id: u64) -> bool {
        let at = BUFFERS + wr_id * u64::from(FRAME_LEN / 2);
        self.receive
            .post(wr_id, &[sge(at, FRAME_LEN / 2)])
            .expect("room");
        self.receive.ring()
    }

    /// Identities of all completions.
    fn drain(&mut self) -> Vec<u64> {
        std::iter::from_fn(|| self.completions.poll().map(|cqe| cqe.wr_id.get())).collect()
    }
}

fn sge(addr: u64, len: u32) -> Sge {
    Sge {
        addr: U64::new(addr),
        len: U32::new(len),
        lkey: U32::new(DMA_LKEY),
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
        rq: direct(RECEIVE),
        flags: QP_FLAG_PRIVILEGED,
        log_rq: LOG,
        log_rq_stride: 5,
        recv_cqn: U32::new(cqn),
        rq_slot: U16::new(RECEIVE_SLOT),
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
    machine.write_entry(TABLE, &qpn.to_le_bytes());
    let filter = SetRxFilter {
        flags: U32::new(RX_PROMISC),
        ..SetRxFilter::default()
    };
    let rss = SetRss {
        table: U64::new(TABLE),
        count: U32::new(1),
        ..SetRss::default()
    };
    device
        .node
        .set_rx_filter(&machine, &filter)
        .expect("filter");
    device.node.set_rss(&machine, &rss).expect("table");
    let view = |at: u64| View(machine.clone(), at);
    let owner = Owner {
        machine: machine.clone(),
        send: SendRing::new(view(SEND), view(SEND_SLOT.into()), LOG),
        receive: RecvRing::new(view(RECEIVE), view(RECEIVE_SLOT.into()), LOG, 5),
        completions: CompletionRing::new(view(COMPLETION), view(COMPLETION_SLOT.into()), LOG),
        events: EventRing::new(view(EVENT), view(EVENT_SLOT.into()), LOG),
    };
    (device, owner)
}

/// Words of a coroutine's stack: the engine's frames are large where nothing is optimised.
const STACK: usize = 0x8000;

fn spawn<T: Send + 'static>(
    body: impl FnOnce() -> T + Send + 'static,
) -> loom::thread::JoinHandle<T> {
    let builder = loom::thread::Builder::new().stack_size(STACK);
    builder.spawn(body).expect("model thread")
}

fn check(body: fn()) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || spawn(body).join().expect("no panic"));
}

/// No request is left behind: either the kick was asked for, or the device that was at work has seen it.
#[test]
fn a_request_that_asks_for_no_kick_is_served() {
    check(|| {
        let (mut device, mut owner) = set_up();
        assert!(owner.post(1));
        // The kick of the first is being served while the others are posted.
        let serving = spawn(move || {
            device.kick(SEND_SLOT);
            device
        });
        let asked = [owner.post(2), owner.post(3)];
        let mut device = serving.join().expect("no panic");
        if asked.contains(&true) {
            device.kick(SEND_SLOT);
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
        let serving = spawn(move || device.kick(SEND_SLOT));
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
        let serving = spawn(move || device.kick(SEND_SLOT));
        let mut seen = owner.drain();
        serving.join().expect("no panic");
        seen.extend(owner.drain());
        assert_eq!(seen, [1, 2]);
    });
}

/// A frame that has to wait for buffers is not forgotten: either it finds those that are posted meanwhile, or the owner
/// is asked to kick.
#[test]
fn a_frame_that_waits_for_buffers_arrives() {
    check(|| {
        let (mut device, mut owner) = set_up();
        // A first frame, so that the event index of the receive queue lies behind.
        owner.post_buffer(0);
        owner.post_buffer(1);
        owner.send_frame(6);
        device.kick(SEND_SLOT);
        assert_eq!(owner.drain(), [0, 6]);
        owner.receive.completed(2).expect("posted");
        owner.send_frame(7);
        let serving = spawn(move || {
            device.kick(SEND_SLOT);
            device
        });
        let asked = [owner.post_buffer(0), owner.post_buffer(1)];
        let mut device = serving.join().expect("no panic");
        if asked.contains(&true) {
            device.kick(RECEIVE_SLOT);
        }
        assert_eq!(owner.drain(), [0, 7]);
    });
}
