// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Event queues that are full: events come later, all of them, and nothing stops.

use nupa_engine::{
    hal::{Doorbells, SlotWord},
    rings::{Data, Operation, SendRequest},
    NodeTable,
};
use nupa_proto::{
    admin::{ModifySrq, QpStateCode, QpType},
    eqe::EventType,
    regs::FAULT_NONE,
    wqe::WQE_SIGNALED,
};
use nupa_testing::{Cq, Eq, Host, Qp, World};
use proptest::{collection::vec, prelude::*};
use zerocopy::little_endian::U32;

/// log2 of the entries of event queues here.
const LOG: u8 = 2;
/// Time after which the device looks for room again.
const RETRY_US: u64 = 1000;

/// A node with two event queues, number 0 and one for completions, and queue pairs with a completion queue each.
struct Node {
    world: World,
    host: Host,
    news: Eq,
    eq: Eq,
    queues: Vec<(Cq, Qp)>,
}

fn node(nodes: u16, pairs: usize, kind: QpType) -> Node {
    let mut world = World::new(*crate::MODE, nodes);
    let mut host = world.host(0);
    let (node, _) = world.nodes.node_mut(0).expect("exists");
    host.pd = node.alloc_pd().expect("domain");
    let (news, eq) = (host.eq(&mut world, 0, LOG), host.eq(&mut world, 1, LOG));
    let queues = (0..pairs).map(|_| {
        let cq = host.cq(&mut world, eq.eqn, 5);
        let qp = host.qp(&mut world, kind, &cq, 4);
        let peer = (kind == QpType::Rc).then_some((1, 2, 1));
        host.ready(&mut world, &qp, peer);
        (cq, qp)
    });
    let queues = queues.collect();
    Node {
        world,
        host,
        news,
        eq,
        queues,
    }
}

impl Node {
    /// Has a queue pair's completion queue get an entry.
    fn complete(&mut self, at: usize) {
        let request = SendRequest {
            wr_id: 0,
            flags: WQE_SIGNALED,
            operation: Operation::Nop,
            data: Data::Inline(&[]),
        };
        let send = &mut self.queues[at].1.send;
        send.post(&request).expect("room");
        send.ring();
        self.world.pump();
        let send = &mut self.queues[at].1.send;
        send.completed(send.index()).expect("posted");
    }

    /// All events of the completion queues' event queue, as far as they come without further ado.
    fn completions(&mut self) -> Vec<u32> {
        let events = all(&mut self.world, &mut self.eq);
        let completion = |(kind, _, cqn)| (kind == EventType::Completion as u8).then_some(cqn);
        let cqns: Option<Vec<_>> = events.into_iter().map(completion).collect();
        cqns.expect("nothing else")
    }

    fn is_well(&self) -> bool {
        self.world.node(0).fault() == FAULT_NONE && self.world.node(0).is_up()
    }
}

/// Takes events until no more come, however long it takes.
fn all(world: &mut World, eq: &mut Eq) -> Vec<(u8, u16, u32)> {
    let mut events = Vec::new();
    loop {
        let some = eq.drain();
        if some.is_empty() {
            return events;
        }
        events.extend(some);
        world.advance(RETRY_US);
    }
}

#[test]
fn completion_events_wait_for_room() {
    let mut n = node(1, 11, QpType::Raw);
    for at in 0..11 {
        assert!(!n.queues[at].0.ring.arm(false));
        n.complete(at);
    }
    assert!(n.is_well());
    // One whose entries are taken meanwhile has nothing to tell.
    n.queues[8].0.drain();
    let mut cqns = n.completions();
    cqns.sort_unstable();
    let all: Vec<_> = (0..11)
        .filter(|at| *at != 8)
        .map(|at| n.queues[at].0.cqn)
        .collect();
    assert_eq!(cqns, all);
    assert_eq!(n.world.next, None);
    // It stayed armed; the others are not.
    n.complete(8);
    n.complete(9);
    assert_eq!(n.completions(), [n.queues[8].0.cqn]);
}

#[test]
fn nothing_is_written_before_there_is_room() {
    let mut n = node(1, 5, QpType::Raw);
    for at in 0..5 {
        n.queues[at].0.ring.arm(false);
        n.complete(at);
    }
    n.world.advance(10 * RETRY_US);
    let next = 10 * RETRY_US..=11 * RETRY_US;
    assert!(n.world.next.is_some_and(|at| next.contains(&at)));
    // Those that are there are the first four still.
    let first: Vec<_> = (0..4).map(|at| n.queues[at].0.cqn).collect();
    let there: Vec<_> = n.eq.drain().iter().map(|event| event.2).collect();
    assert_eq!(there, first);
    n.world.advance(RETRY_US);
    assert_eq!(n.completions(), [n.queues[4].0.cqn]);
}

#[test]
fn a_peer_that_goes_is_told_of_to_every_queue_pair() {
    let mut n = node(2, 30, QpType::Rc);
    n.news.drain();
    n.world.engine.reset(&mut n.world.nodes, 1);
    n.world.engine.enable(&mut n.world.nodes, 1);
    n.world.engine.set_link(&mut n.world.nodes, 0, false);
    n.world.pump();
    assert!(n.world.node(0).fault() == FAULT_NONE);
    let events = all(&mut n.world, &mut n.news);
    let fatal = EventType::QpFatal as u8;
    let mut told: Vec<_> = events.iter().filter(|event| event.0 == fatal).collect();
    told.sort_unstable();
    let pairs: Vec<_> = n.queues.iter().map(|queue| queue.1.qpn).collect();
    assert_eq!(told.iter().map(|event| event.2).collect::<Vec<_>>(), pairs);
    // Of nodes and the link it was told that there is something to look at, once.
    let rest: Vec<_> = events.iter().filter(|event| event.0 != fatal).collect();
    assert_eq!(rest, [&(EventType::EventsLost as u8, 0, 0)]);
    assert_eq!(n.world.next, None);
}

#[test]
fn overflows_and_limits_are_told_of_later() {
    let mut n = node(1, 5, QpType::Raw);
    let srq = n.host.srq(&mut n.world, 4);
    for at in 0..4 {
        n.queues[at].0.ring.arm(false);
        n.complete(at);
    }
    let (overflowing, qpn) = (n.queues[4].0.cqn, n.queues[4].1.qpn);
    for _ in 0..33 {
        n.complete(4);
    }
    let (node, machine) = n.world.nodes.node_mut(0).expect("exists");
    for _ in 0..5 {
        node.admin_event(machine);
    }
    let body = ModifySrq {
        srqn: U32::new(srq.srqn),
        limit: U32::new(1),
    };
    node.modify_srq(machine, &body).expect("exists");
    assert!(n.is_well());
    let events = all(&mut n.world, &mut n.eq);
    let overflow = (EventType::CqError as u8, 0, overflowing);
    assert_eq!(events.iter().filter(|event| **event == overflow).count(), 1);
    assert_eq!(events.len(), 5);
    let news = all(&mut n.world, &mut n.news);
    let expected = [
        (EventType::QpFatal as u8, 0, qpn),
        (EventType::SrqLimit as u8, 0, srq.srqn),
        (EventType::EventsLost as u8, 0, 0),
    ];
    for event in expected {
        assert_eq!(news.iter().filter(|told| **told == event).count(), 1);
    }
}

#[test]
fn what_is_gone_is_not_told_of() {
    let mut n = node(1, 6, QpType::Raw);
    for at in 0..6 {
        n.queues[at].0.ring.arm(false);
        n.complete(at);
    }
    let (node, machine) = n.world.nodes.node_mut(0).expect("exists");
    for _ in 0..5 {
        node.admin_event(machine);
    }
    let (cqn, qpn, slot) = {
        let (cq, qp) = &n.queues[5];
        (cq.cqn, qp.qpn, qp.slots.0)
    };
    n.host.machine.store(0, slot, SlotWord::Index, 1000);
    n.world.engine.kick(&mut n.world.nodes, 0, 0, slot);
    n.world.pump();
    let gone = n.world.engine.destroy_qp(&mut n.world.nodes, 0, qpn);
    assert_eq!(gone, Ok(()));
    let (node, _) = n.world.nodes.node_mut(0).expect("exists");
    assert_eq!(node.destroy_cq(cqn), Ok(()));
    assert!(!n.completions().contains(&cqn));
    let news = all(&mut n.world, &mut n.news);
    assert!(news.iter().all(|event| event.0 != EventType::QpFatal as u8));
    assert_eq!(n.world.next, None);
}

/// What happens while event queues are full or not.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A completion queue gets an entry.
    Complete(usize),
    /// A completion queue's entries are taken, and it is armed.
    Arm(usize),
    /// A queue pair fails.
    Fail(usize),
    /// The driver takes some events of one of the two event queues.
    Take(bool, usize),
    Wait(u64),
}

fn step(queues: usize) -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..queues).prop_map(Step::Complete),
        4 => (0..queues).prop_map(Step::Arm),
        1 => (0..queues).prop_map(Step::Fail),
        3 => (any::<bool>(), 1usize..6).prop_map(|(news, count)| Step::Take(news, count)),
        2 => (1..2 * RETRY_US).prop_map(Step::Wait),
    ]
}

/// What is known of one queue pair and its completion queue.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    armed: bool,
    /// Entries that were not taken.
    entries: usize,
    /// Events that were raised or held back, how many of those need not come any more, and how many came.
    due: usize,
    optional: usize,
    told: usize,
    failed: bool,
    /// Times that its failure was told of.
    fatal: usize,
}

impl Known {
    fn complete(&mut self) {
        self.entries += 1;
        self.due += usize::from(std::mem::take(&mut self.armed));
    }

    fn arm(&mut self) {
        // An event that is still held back has nothing to tell now; one that was written comes.
        self.optional = self.due - self.told;
        (self.armed, self.entries) = (true, 0);
    }
}

impl Node {
    fn step(&mut self, known: &mut [Known], step: Step) {
        match step {
            // There is room for 32 entries.
            Step::Complete(at) if !known[at].failed && known[at].entries < 32 => {
                self.complete(at);
                known[at].complete();
            }
            Step::Arm(at) => {
                self.queues[at].0.drain();
                self.queues[at].0.ring.arm(false);
                known[at].arm();
            }
            Step::Fail(at) if !known[at].failed => {
                known[at].failed = true;
                let slot = self.queues[at].1.slots.0;
                self.host.machine.store(0, slot, SlotWord::Index, 1 << 20);
                self.world.engine.kick(&mut self.world.nodes, 0, 0, slot);
                self.world.pump();
            }
            Step::Complete(_) | Step::Fail(_) => {}
            Step::Take(true, count) => {
                for event in (0..count).map_while(|_| self.news.ring.poll()) {
                    let qpn = event.object.get();
                    let at = self.queues.iter().position(|queue| queue.1.qpn == qpn);
                    assert_eq!(event.event_type, EventType::QpFatal as u8);
                    known[at.expect("one of ours")].fatal += 1;
                }
            }
            Step::Take(false, count) => {
                for event in (0..count).map_while(|_| self.eq.ring.poll()) {
                    let cqn = event.object.get();
                    let at = self.queues.iter().position(|queue| queue.0.cqn == cqn);
                    assert_eq!(event.event_type, EventType::Completion as u8);
                    known[at.expect("one of ours")].told += 1;
                }
            }
            Step::Wait(us) => self.world.advance(us),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn every_event_comes_once(steps in vec(step(7), 1..150)) {
        let mut n = node(1, 7, QpType::Raw);
        let mut known = [Known::default(); 7];
        let rest = [Step::Wait(RETRY_US), Step::Take(true, 9), Step::Take(false, 9)];
        for step in steps.iter().chain(rest.iter().cycle().take(60)) {
            n.step(&mut known, *step);
            prop_assert!(n.is_well());
        }
        for (at, known) in known.iter().enumerate() {
            prop_assert_eq!(known.fatal, usize::from(known.failed), "queue pair {}", at);
            prop_assert!(known.told <= known.due, "queue {at}: {known:?}");
            prop_assert!(known.told + known.optional >= known.due, "queue {at}: {known:?}");
            let state = n.world.node(0).query_qp(n.queues[at].1.qpn).expect("exists").state;
            let expected = if known.failed { QpStateCode::Err } else { QpStateCode::Rts };
            prop_assert_eq!(state, expected.to_wire());
        }
        prop_assert_eq!(n.world.next, None);
    }
}
