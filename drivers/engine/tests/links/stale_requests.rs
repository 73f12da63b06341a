// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Two queue pairs that are connected to each other a second time: what is left in the rings of the first time does not count.

use super::parts::{end, pattern, End, OK};
use nupa_proto::{admin::QpStateCode, status::WcStatus};
use nupa_testing::{Host, Qp, World};

/// Bytes of a WRITE.
const LEN: u32 = 3000;

/// Connects two queue pairs; each end's requests begin with a packet sequence number of its own, which the other is told, or
/// another one.
fn connect(world: &mut World, a: (&Host, &Qp), b: (&Host, &Qp), psns: [u32; 2], told: [u32; 2]) {
    let [first, second] = psns;
    for ((host, qp), (peer, remote), numbers) in
        [(a, b, (first, told[1])), (b, a, (second, told[0]))]
    {
        let epoch = world.node(peer.id).epoch();
        let to = Some((peer.id, remote.qpn, epoch));
        host.ready_at(world, qp, to, numbers);
    }
}

fn reset(world: &mut World, end: &End) {
    let state = QpStateCode::Reset;
    let done = end.host.set_state(world, end.qp.qpn, state);
    done.expect("any state may be left for this one");
}

/// A WRITE lies in the ring while both ends are reset and connected again, with such packet sequence numbers the second time.
/// Returns whether it was carried out after that.
fn is_stale_write_done(again: [u32; 2]) -> bool {
    let mut world = World::new(*crate::MODE, 2);
    let (mut a, mut b) = (end(&mut world, 0), end(&mut world, 1));
    let psns = [100, 200];
    connect(&mut world, (&a.host, &a.qp), (&b.host, &b.qp), psns, psns);
    let bytes = pattern(LEN as usize, 3);
    a.fill(0, &bytes);
    world.hold(Some(1));
    a.write(1, &b.mr, 0, LEN);
    world.turns(60);
    reset(&mut world, &a);
    reset(&mut world, &b);
    connect(&mut world, (&a.host, &a.qp), (&b.host, &b.qp), again, again);
    world.hold(None);
    world.pump();
    assert_eq!((a.done(), b.done()), (vec![], vec![]));
    let done = b.bytes(0, LEN as usize) == bytes;
    assert!(done || b.bytes(0, LEN as usize) == [0; LEN as usize]);
    // What is asked for on the new connection is done either way.
    a.qp.send.reset();
    a.fill(10_000, &bytes);
    a.write(2, &b.mr, 10_000, LEN);
    world.pump();
    assert_eq!(a.done(), [(2, OK)]);
    assert!(b.bytes(10_000, LEN as usize) == bytes);
    done
}

#[test]
fn what_is_left_of_a_connection_is_not_carried_out_on_the_next() {
    assert!(!is_stale_write_done([101, 201]));
    // As on any network: who begins with the same numbers gets what is left.
    assert!(is_stale_write_done([100, 200]));
}

#[test]
fn a_connection_whose_ends_disagree_does_not_work() {
    let mut world = World::new(*crate::MODE, 2);
    let (mut a, b) = (end(&mut world, 0), end(&mut world, 1));
    let (here, there) = ((&a.host, &a.qp), (&b.host, &b.qp));
    connect(&mut world, here, there, [7, 9], [8, 9]);
    a.write(1, &b.mr, 0, LEN);
    world.pump();
    assert_eq!(a.done(), [(1, WcStatus::RetryExceeded as u8)]);
    let (mut world, mut a, b) = {
        let mut world = World::new(*crate::MODE, 2);
        let (a, b) = (end(&mut world, 0), end(&mut world, 1));
        connect(
            &mut world,
            (&a.host, &a.qp),
            (&b.host, &b.qp),
            [7, 9],
            [7, 9],
        );
        (world, a, b)
    };
    a.write(1, &b.mr, 0, LEN);
    a.read(2, &b.mr, 0, LEN);
    world.pump();
    assert_eq!(a.done(), [(1, OK), (2, OK)]);
}
