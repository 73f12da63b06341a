// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Sender and receiver of a ring as in the parent module, with the receiver's engine, which takes WRITEs that the process leaves in the ring. It is the real one, of one node,
//! whose queue pair is connected to itself: that is enough for it to take WRITEs. Its accesses to the ring and to doorbell slots are to loom's atomics as well. Its other memory and its
//! clock are the standard library's, because nobody else uses them while both threads run; and so is the memory that WRITEs go to: what is stored there is seen at once.

use nupa_engine::hal::VecStorage;
use nupa_engine::rings::CompletionRing;
use nupa_engine::{Engine, NoLink, Node, NodeConfig, NodeTable};
use nupa_proto::admin::{
    CreateCq, CreateEq, CreateMr, CreateQp, ModifyQp, PageList, QpStateCode, QpType, ACCESS_ALL,
    QP_MASK_ACCESS, QP_MASK_PROCESS_RINGS, QP_MASK_REMOTE, QP_MASK_RING, QP_MASK_STATE,
};
use nupa_proto::process_ring::{STATE_OPEN, STATE_WRITES};

use super::machine::{Machine, SlotOf, RING, TARGET};
use super::*;

/// Addresses of the node's queues.
const SEND: u64 = 0;
const RECEIVE: u64 = 0x1000;
const COMPLETION: u64 = 0x2000;
const EVENT: u64 = 0x3000;
/// log2 of the entries of all queues.
const LOG: u8 = 2;
/// Doorbell slots of the queues.
const SEND_SLOT: u16 = 0;
const COMPLETION_SLOT: u16 = 1;
const EVENT_SLOT: u16 = 2;
const RECEIVE_SLOT: u16 = 3;
/// Time between two looks at a ring, in microseconds.
const POLL_US: u64 = 10_000;

/// The receiver's node.
struct Device {
    node: Node<VecStorage>,
    machine: Machine,
}

impl NodeTable for Device {
    type Storage = VecStorage;
    type Platform = Machine;
    type Link = NoLink;

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

fn direct(addr: u64) -> PageList {
    PageList {
        addr: addr.into(),
        ..PageList::default()
    }
}

impl Device {
    /// A node whose queue pair receives from a ring, and the key of the memory that WRITEs may go to.
    fn new(ring: &Arc<Words>, memory: &Arc<Pages>) -> (Self, u32) {
        let slots = [SEND_SLOT, COMPLETION_SLOT, EVENT_SLOT, RECEIVE_SLOT];
        let machine = Machine::new(ring, memory, &slots);
        let mut device = Self {
            node: Node::new(NodeConfig::default()),
            machine,
        };
        let key = device.set_up();
        (device, key)
    }

    fn set_up(&mut self) -> u32 {
        let mut engine = Engine::new();
        engine.enable(self, 0);
        let (node, machine) = (&mut self.node, &self.machine);
        let pd = node.alloc_pd().unwrap();
        let eq = CreateEq {
            ring: direct(EVENT),
            doorbell_slot: EVENT_SLOT.into(),
            log_entries: LOG,
            ..CreateEq::default()
        };
        let eqn = node.create_eq(machine, &eq).unwrap();
        let cq = CreateCq {
            ring: direct(COMPLETION),
            doorbell_slot: COMPLETION_SLOT.into(),
            log_entries: LOG,
            eqn: eqn.into(),
            ..CreateCq::default()
        };
        let cqn = node.create_cq(machine, &cq).unwrap();
        let qp = CreateQp {
            sq: direct(SEND),
            rq: direct(RECEIVE),
            qp_type: QpType::Rc.to_wire(),
            log_sq: LOG,
            log_rq: LOG,
            log_rq_stride: 5,
            pd: pd.into(),
            send_cqn: cqn.into(),
            recv_cqn: cqn.into(),
            sq_slot: SEND_SLOT.into(),
            rq_slot: RECEIVE_SLOT.into(),
            ..CreateQp::default()
        };
        let qpn = node.create_qp(machine, &qp).unwrap();
        let mr = CreateMr {
            pages: direct(TARGET),
            iova: START.into(),
            len: (PAGE_SIZE as u64).into(),
            pd: pd.into(),
            access: ACCESS_ALL.into(),
        };
        let key = node.create_mr(machine, &mr).unwrap();
        let epoch = node.epoch();
        let steps = [
            (QpStateCode::Init, QP_MASK_ACCESS),
            (QpStateCode::Rtr, QP_MASK_REMOTE),
            (QpStateCode::Rts, QP_MASK_PROCESS_RINGS | QP_MASK_RING),
        ];
        for (state, mask) in steps {
            let body = ModifyQp {
                qpn: qpn.into(),
                mask: (QP_MASK_STATE | mask).into(),
                state: state.to_wire(),
                access: ACCESS_ALL.into(),
                remote_qpn: qpn.into(),
                remote_epoch: epoch.into(),
                ring: RING.into(),
                ..ModifyQp::default()
            };
            engine.modify_qp(self, 0, &body).unwrap();
        }
        self.run(&mut engine);
        key
    }

    fn run(&mut self, engine: &mut Engine) {
        while engine.run(self) == Some(0) {}
    }

    /// Looks at the ring.
    fn look(&mut self) {
        self.machine.advance(POLL_US);
        self.run(&mut Engine::new());
    }

    /// Looks at it twice: what was there at both looks it takes.
    fn look_twice(&mut self) {
        self.look();
        self.look();
    }

    fn ring(&self) -> &Words {
        self.machine.ring()
    }

    /// Whether it has made an event.
    fn has_made_event(&self) -> bool {
        self.machine.holds_any(EVENT)
    }
}

/// Both ends with the receiver's engine, and the key for WRITEs. The receiver has said that there may be some.
fn ends(entries: u32) -> (Ends, Device, u32) {
    let parts = Parts::new();
    let (device, key) = Device::new(&parts.words, &parts.memory);
    let mut ends = Ends::with(entries, Parts { key, ..parts });
    ends.receiver.offer_writes();
    (ends, device, key)
}

/// Writes that data to the start of the receiver's memory.
fn write(sender: &mut Sender, wr_id: u64, rkey: u32, data: &[u8]) -> bool {
    let message = Message {
        wr_id,
        flags: WQE_SIGNALED,
        body: Body::Write { addr: START, rkey },
    };
    sender.send(message, Data::Inline(data), false) == Put::Yes
}

fn value(memory: &Pages) -> [u8; LEN as usize] {
    memory.load_wide(0).to_le_bytes()
}

#[test]
fn each_write_is_carried_out_once_whoever_takes_it() {
    static BY_PROCESS: [Seen; 3] = [const { Seen::new() }; 3];
    explore(PREEMPTIONS, || {
        let (ends, mut device, key) = ends(0);
        let (mut sender, mut receiver) = (ends.sender, ends.receiver);
        let twice = [data(1), data(1)].concat();
        assert!(write(&mut sender, 1, key, &twice));
        let receives = spawn(move || {
            receiver.take(&mut Cqe::default());
            // The engine says that there are to be no more, once it has taken one.
            let second = write(&mut sender, 2, key, &data(2));
            receiver.take(&mut Cqe::default());
            (sender, receiver, second)
        });
        device.look_twice();
        // A sender that ends takes back what was not taken.
        let (_sender, mut receiver, second) = receives.join().unwrap();
        device.look_twice();
        receiver.take(&mut Cqe::default());
        assert!(!receiver.has_entry(), "one was left");
        let last = if second { data(2) } else { data(1) };
        assert_eq!(value(&ends.memory), last, "the second one came first");
        let behind = ends.memory.load_wide(LEN as usize).to_le_bytes();
        assert_eq!(behind, data(1), "the first one is not there");
        let by_process = device.ring().load_wide(TOTALS_TAKEN);
        let by_engine = device.node.counters().rx_messages.get();
        assert_eq!(
            by_process + by_engine,
            1 + u64::from(second),
            "one was carried out again"
        );
        let number = usize::try_from(by_process).unwrap();
        BY_PROCESS[number].note(number == 0 || second);
    });
    for (seen, what) in BY_PROCESS
        .iter()
        .zip(["by the engine", "by both", "by the process"])
    {
        seen.check(what);
    }
}

#[test]
fn the_engine_sees_whole_writes() {
    static SECOND: Seen = Seen::new();
    explore(PREEMPTIONS, || {
        let (ends, mut device, key) = ends(0);
        let mut sender = ends.sender;
        assert!(write(&mut sender, 1, key, &data(1)));
        device.look_twice();
        assert_eq!(device.ring().load(TAKEN), 1);
        // The line of the first one is the next one again.
        sender.skip_lines(LINES - 1);
        device.ring().store(TAKEN, LINES);
        device.ring().store(STATE, STATE_OPEN | STATE_WRITES);
        let takes = spawn(move || {
            device.look_twice();
            device
        });
        assert!(write(&mut sender, 2, key, &data(2)));
        let device = takes.join().unwrap();
        let is_taken = device.ring().load(TAKEN) != LINES;
        let expected = if is_taken { data(2) } else { data(1) };
        assert_eq!(value(&ends.memory), expected);
        SECOND.note(is_taken);
    });
    SECOND.check("the second one is taken");
}

#[test]
fn what_was_taken_back_the_engine_does_not_write_later() {
    static TAKEN_BACK: [Seen; 2] = [const { Seen::new() }; 2];
    explore(PREEMPTIONS, || {
        let (ends, mut device, key) = ends(0);
        let mut sender = ends.sender;
        assert!(write(&mut sender, 1, key, &data(1)));
        let takes = spawn(move || {
            device.look_twice();
            device
        });
        drop(sender);
        let before = value(&ends.memory);
        let mut device = takes.join().unwrap();
        device.look_twice();
        assert_eq!(value(&ends.memory), before, "its queue pair is no more");
        TAKEN_BACK[usize::from(before == data(1))].note(true);
    });
    for (seen, what) in TAKEN_BACK
        .iter()
        .zip(["it is taken back", "it is too late"])
    {
        seen.check(what);
    }
}

#[test]
fn nobody_sleeps_through_a_message_behind_a_write_that_the_engine_takes() {
    static EVENTS: Seen = Seen::new();
    explore(PREEMPTIONS, || {
        let (ends, mut device, key) = ends(1);
        let (mut sender, mut receiver, memory) = (ends.sender, ends.receiver, ends.memory);
        assert!(write(&mut sender, 2, key, &data(2)));
        let slot = SlotOf(device.machine.clone(), COMPLETION_SLOT);
        let receives = spawn(move || {
            let pages = Pages::anonymous(PAGE_SIZE).unwrap();
            let mut completions = CompletionRing::new(pages, slot, LOG);
            receiver.set_armed(true);
            // As in the parent's model.
            fence(Ordering::SeqCst);
            completions.arm(false);
            take(&mut receiver, &memory, 1)
        });
        device.look();
        let sent = send(&mut sender, 1);
        device.look();
        let found = receives.join().unwrap();
        // A process that sleeps takes nothing: the next looks are the engine's.
        device.look_twice();
        let woken = ends.source.kicks.load(Ordering::Relaxed) != 0;
        let by_engine = device.has_made_event();
        assert!(
            found || woken || by_engine || !sent,
            "it sleeps, and nobody wakes it"
        );
        EVENTS.note(sent && !found && !woken);
    });
    EVENTS.check("the engine alone wakes it");
}
