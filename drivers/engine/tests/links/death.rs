// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A host that dies at any moment, in the middle of every kind of transfer: the other is told and goes on.

use super::parts::{connect, end, pattern, post, End, FLUSHED, OK};
use nupa_engine::rings::{Data, Operation};
use nupa_proto::{admin::QpType, eqe::EventType};
use nupa_testing::World;
use proptest::prelude::*;

/// Posts one of each at one end: nine requests.
fn work(from: &mut End, to: &mut End) {
    to.receive(100, 700_000, 200_000);
    let mr = to.mr;
    from.write(0, &mr, 0, 200_000);
    from.read(1, &mr, 300_000, 200_000);
    from.send(2, 0, 150_000);
    let add = Operation::FetchAdd {
        addr: mr.iova + 600_000,
        rkey: mr.key,
        add: 5,
    };
    let sge = from.mr.sge(600_008, 8);
    post(&mut from.qp, 3, add, Data::Sges(&[sge]));
    for id in 4..8 {
        from.write(id, &mr, id * 1000, 1000);
    }
    // Finds no entry.
    from.send(8, 0, 8);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn every_request_ends_once_and_others_go_on(
        seed in any::<u32>(),
        turns in 0usize..120,
        silent in 0usize..40,
    ) {
        let mut world = World::new(*crate::MODE, 3);
        world.shuffle(seed);
        let (mut a, mut b) = (end(&mut world, 0), end(&mut world, 1));
        let mut c = end(&mut world, 2);
        connect(&mut world, (&a.host, &a.qp), (&b.host, &b.qp));
        // On a completion queue of its own, so that it is not counted.
        let cq = a.host.cq(&mut world, a.eq.eqn, 5);
        let aside = a.host.qp(&mut world, QpType::Rc, &cq, 4);
        connect(&mut world, (&a.host, &aside), (&c.host, &c.qp));
        work(&mut a, &mut b);
        work(&mut b, &mut a);
        world.turns(turns);
        // It stands still, then it is found dead.
        world.hold(Some(1));
        world.turns(silent);
        world.engine.reset(&mut world.nodes, 1);
        world.hold(None);
        world.pump();
        let events = a.eq.drain();
        prop_assert!(events.contains(&(EventType::NodeDown as u8, 1, 1)));
        let done = a.done();
        let sends: Vec<(u64, u8)> = done.iter().copied().filter(|(id, _)| *id < 100).collect();
        prop_assert!(sends.iter().map(|(id, _)| *id).eq(0..9), "{:?}", done);
        let succeeded = sends.iter().take_while(|(_, status)| *status == OK).count();
        prop_assert!(sends[succeeded..].iter().all(|(_, status)| *status == FLUSHED));
        prop_assert_eq!(done.len(), 10);
        // Others are as they were, in both directions.
        c.fill(0, &pattern(200_000, 9));
        let mr = a.mr;
        c.write(1, &mr, 0, 200_000);
        world.pump();
        prop_assert_eq!(c.done(), [(1, OK)]);
        prop_assert!(a.bytes(0, 200_000) == pattern(200_000, 9));
        // It comes back, and nothing of what was before is in its way.
        world.engine.enable(&mut world.nodes, 1);
        world.pump();
        prop_assert!(a.eq.drain().contains(&(EventType::NodeUp as u8, 1, 2)));
        let mut b = end(&mut world, 1);
        let again = a.host.qp(&mut world, QpType::Rc, &a.cq, 4);
        connect(&mut world, (&a.host, &again), (&b.host, &b.qp));
        let mr = a.mr;
        b.fill(0, &pattern(300_000, 8));
        b.write(2, &mr, 0, 300_000);
        world.pump();
        prop_assert_eq!(b.done(), [(2, OK)]);
        prop_assert!(a.bytes(0, 300_000) == pattern(300_000, 8));
    }
}
