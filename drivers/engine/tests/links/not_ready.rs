// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A peer that does not receive yet: what is sent to it meanwhile.

use super::parts::{end, pattern, End, OK};
use nupa_testing::World;

/// Requests that are posted.
const COUNT: u64 = 8;
/// Bytes of each.
const LEN: u32 = 512;
/// Time after which a request is tried again if nobody tells.
const RETRY_US: u64 = 10_000;

/// Requests that the sender's engine has taken and not taken back.
fn taken(world: &World, a: &End) -> u32 {
    let state = world.node(0).query_qp(a.qp.qpn);
    state.expect("exists").sq_index.get()
}

/// All of them would be copied for nothing each time.
#[test]
fn requests_go_one_at_a_time() {
    let mut world = World::new(*crate::MODE, 2);
    let (mut a, mut b) = (end(&mut world, 0), end(&mut world, 1));
    let epoch = world.node(1).epoch();
    a.host.ready(&mut world, &a.qp, Some((1, b.qp.qpn, epoch)));
    let bytes = pattern(COUNT as usize * LEN as usize, 1);
    a.fill(0, &bytes);
    // While the peer's host looks at nothing, what was sent stays under way.
    world.hold(Some(1));
    for number in 0..COUNT {
        a.write(number, &b.mr, number * u64::from(LEN), LEN);
    }
    world.pump();
    // As many as fit into the ring.
    assert!(taken(&world, &a) > 1, "nobody has refused any");
    for _ in 0..3 {
        world.hold(None);
        world.pump();
        assert_eq!(taken(&world, &a), 0);
        world.hold(Some(1));
        world.advance(RETRY_US);
        assert_eq!(taken(&world, &a), 1);
    }
    world.hold(None);
    world.pump();
    assert_eq!(a.done(), []);
    let epoch = world.node(0).epoch();
    b.host.ready(&mut world, &b.qp, Some((0, a.qp.qpn, epoch)));
    world.advance(RETRY_US);
    let done: Vec<_> = (0..COUNT).map(|number| (number, OK)).collect();
    assert_eq!(a.done(), done);
    assert_eq!(b.done(), []);
    assert!(b.bytes(0, bytes.len()) == bytes);
}
