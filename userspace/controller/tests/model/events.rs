// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Events, interrupts, moderation, overflow.

use nupa_proto::admin::{AdminOpcode, ModifyCq};
use nupa_proto::eqe::EventType;
use nupa_proto::frame::FrameMeta;
use nupa_proto::ident::node_mac;
use nupa_proto::regs;
use nupa_proto::status::WcStatus;

use crate::common::guest::Guest;
use crate::common::queues::{frame, Eq, Qp};
use crate::common::World;

/// Vector of the completion events in these tests; the async queue has 0.
const VECTOR: u16 = 3;

/// A sender on node 0 and a receiver on node 1 that has its completions on an event queue of its own.
struct Stage {
    world: World,
    a: Guest,
    a_qp: Qp,
    b: Guest,
    b_async: Eq,
    b_eq: Eq,
    b_qp: Qp,
}

fn stage() -> Stage {
    let world = World::new(2);
    let a = Guest::up(&world, 0);
    let a_qp = a.raw(a.eq(0).eqn);
    let b = Guest::up(&world, 1);
    let (b_async, b_eq) = (b.eq(0), b.eq(VECTOR));
    let b_qp = b.raw(b_eq.eqn);
    Stage {
        world,
        a,
        a_qp,
        b,
        b_async,
        b_eq,
        b_qp,
    }
}

impl Stage {
    /// Sends frames that arrive at once; buffers included.
    fn frames(&mut self, count: usize) {
        for _ in 0..count {
            self.b.post_buffer(&mut self.b_qp, 128);
            let bytes = frame(node_mac(1), node_mac(0), 64, 0);
            self.a
                .send_frame(&mut self.a_qp, 1, &bytes, FrameMeta::default());
            let cqe = self.a_qp.poll();
            assert_eq!(cqe.status, WcStatus::Success.to_wire());
            self.a_qp.send.completed(cqe.queue_index.get()).unwrap();
        }
    }

    fn drain(&mut self) -> usize {
        let mut count = 0;
        while let Some(cqe) = self.b_qp.cq.ring.poll() {
            self.b_qp.recv.completed(cqe.queue_index.get()).unwrap();
            count += 1;
        }
        count
    }

    fn moderate(&self, usecs: u16, max_count: u16) {
        let command = ModifyCq {
            cqn: self.b_qp.cq.cqn.into(),
            usecs: usecs.into(),
            max_count: max_count.into(),
        };
        let set: Result<[u8; 0], _> = self.b.command(AdminOpcode::ModifyCq, &command);
        set.unwrap();
    }
}

#[test]
fn one_event_and_one_interrupt_per_arming() {
    let mut stage = stage();
    stage.frames(1);
    assert!(stage.b_eq.ring.poll().is_none(), "not armed");
    assert_eq!(stage.drain(), 1);
    for _ in 0..3 {
        assert!(!stage.b_eq.ring.arm());
        assert!(!stage.b_qp.cq.ring.arm(false));
        stage.frames(3);
        let event = stage.b_eq.ring.poll().unwrap();
        assert_eq!(event.event_type, EventType::Completion.to_wire());
        assert_eq!(event.object.get(), stage.b_qp.cq.cqn);
        assert!(stage.b_eq.ring.poll().is_none());
        assert_eq!(stage.b.irqs.take(VECTOR), 1);
        assert_eq!(stage.drain(), 3);
    }
}

#[test]
fn arming_tells_of_what_is_there_already() {
    let mut stage = stage();
    stage.frames(1);
    assert!(stage.b_qp.cq.ring.arm(false));
    assert_eq!(stage.drain(), 1);
}

#[test]
fn an_event_queue_that_is_not_armed_collects_silently() {
    let mut stage = stage();
    stage.b_qp.cq.ring.arm(false);
    stage.frames(1);
    assert_eq!(stage.b.irqs.take(VECTOR), 0);
    assert!(stage.b_eq.ring.arm());
    assert!(stage.b_eq.ring.poll().is_some());
}

#[test]
fn solicited_arming_ignores_plain_completions() {
    let mut stage = stage();
    stage.b_eq.ring.arm();
    stage.b_qp.cq.ring.arm(true);
    stage.frames(1);
    assert!(stage.b_eq.ring.poll().is_none());
    assert_eq!(stage.b.irqs.take(VECTOR), 0);
}

#[test]
fn moderation_waits_for_time() {
    let mut stage = stage();
    stage.moderate(50, 100);
    stage.b_eq.ring.arm();
    stage.b_qp.cq.ring.arm(false);
    stage.frames(3);
    stage.world.pass(40);
    assert_eq!(stage.b.irqs.take(VECTOR), 0);
    stage.world.pass(20);
    assert_eq!(stage.b.irqs.take(VECTOR), 1);
    assert!(stage.b_eq.ring.poll().is_some());
    assert_eq!(stage.drain(), 3);
    stage.world.pass(1000);
    assert!(stage.b_eq.ring.poll().is_none());
}

#[test]
fn moderation_ends_with_enough_entries() {
    let mut stage = stage();
    stage.moderate(1000, 4);
    stage.b_eq.ring.arm();
    stage.b_qp.cq.ring.arm(false);
    stage.frames(3);
    assert_eq!(stage.b.irqs.take(VECTOR), 0);
    stage.frames(1);
    assert_eq!(stage.b.irqs.take(VECTOR), 1);
}

#[test]
fn moderation_forgets_what_was_polled_meanwhile() {
    let mut stage = stage();
    stage.moderate(50, 100);
    stage.b_eq.ring.arm();
    stage.b_qp.cq.ring.arm(false);
    stage.frames(2);
    assert_eq!(stage.drain(), 2);
    stage.world.pass(100);
    assert_eq!(stage.b.irqs.take(VECTOR), 0, "nothing is left to tell of");
    // It is still armed: the next entry counts.
    stage.frames(1);
    stage.world.pass(100);
    assert_eq!(stage.b.irqs.take(VECTOR), 1);
}

#[test]
fn a_completion_queue_that_overflows_dies_with_its_queue_pairs() {
    let mut stage = stage();
    // 64 entries fit, and nobody polls; the receive ring has 32, so the test frees them by hand.
    for used in 1..=64 {
        stage.frames(1);
        stage.b_qp.recv.completed(used).unwrap();
    }
    stage.b.post_buffer(&mut stage.b_qp, 128);
    let bytes = frame(node_mac(1), node_mac(0), 64, 0);
    stage
        .a
        .send_frame(&mut stage.a_qp, 1, &bytes, FrameMeta::default());
    stage.world.pass(0);
    let own = std::iter::from_fn(|| stage.b_eq.ring.poll());
    let overflow = (EventType::CqError.to_wire(), stage.b_qp.cq.cqn);
    let told: Vec<_> = own
        .map(|event| (event.event_type, event.object.get()))
        .collect();
    assert!(told.contains(&overflow), "on the event queue of its own");
    let kinds: Vec<_> = std::iter::from_fn(|| stage.b_async.ring.poll())
        .map(|event| (event.event_type, event.object.get()))
        .collect();
    assert!(kinds.contains(&(EventType::QpFatal.to_wire(), stage.b_qp.qpn)));
    // A queue that frames are spread to is in use.
    stage.b.spread(&[]).unwrap();
    let destroyed = stage.b.by_id(AdminOpcode::DestroyQp, stage.b_qp.qpn);
    assert_eq!(destroyed, Ok(()));
}

#[test]
fn admin_completions_raise_an_event() {
    let world = World::new(2);
    let guest = Guest::up(&world, 0);
    let mut events = guest.eq(0);
    while events.ring.poll().is_some() {}
    assert!(!events.ring.arm());
    guest.irqs.take(0);
    guest.pd();
    assert_eq!(guest.irqs.take(0), 1);
    let event = events.ring.poll().unwrap();
    assert_eq!(event.event_type, EventType::Admin.to_wire());
}

#[test]
fn an_async_queue_that_is_full_delays_news() {
    let world = World::new(2);
    let guest = Guest::up(&world, 0);
    let mut events = guest.create_eq(2, 0).unwrap();
    for _ in 0..9 {
        guest.submit(AdminOpcode::AllocPd.to_wire(), &[]);
    }
    assert_eq!(guest.read32(regs::REG_FAULT), regs::FAULT_NONE);
    let kinds = |events: &mut Eq| -> Vec<_> {
        std::iter::from_fn(|| events.ring.poll())
            .map(|event| event.event_type)
            .collect()
    };
    assert_eq!(kinds(&mut events), [EventType::Admin.to_wire(); 4]);
    guest.irqs.take(0);
    assert!(!events.ring.arm());
    world.pass(1000);
    assert_eq!(guest.irqs.take(0), 1);
    assert_eq!(kinds(&mut events), [EventType::EventsLost.to_wire()]);
}
