// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Where hosts' caches are not coherent, payload goes past this host's: its peer finds it without a write-back.

use super::parts::{pair, pattern, OK};
use nupa_testing::World;

/// Bytes of a request, and of one that is put in as ever.
const LEN: usize = 40_001;
const SMALL: usize = 255;

/// Bytes that each of two nodes has put into rings so.
fn nontemporal(world: &World) -> [usize; 2] {
    [0, 1].map(|id| world.machine(id).ram().nontemporal())
}

#[test]
fn payload_goes_past_caches_that_are_not_coherent() {
    let (mut world, mut a, mut b) = pair();
    let many = |len: usize| if crate::MODE.is_coherent() { 0 } else { len };
    for round in 0..10 {
        let [sent, read] = [2 * round, 2 * round + 1].map(|seed| pattern(LEN, seed));
        a.fill(0, &sent);
        b.fill(100_000, &read);
        let before = nontemporal(&world);
        // At places that are no multiples of anything.
        a.write(1, &b.mr, 0, LEN as u32);
        a.read(2, &b.mr, 100_000, LEN as u32);
        b.receive(7, 300_001, LEN as u32);
        world.pump();
        assert_eq!(a.done(), [(1, OK), (2, OK)]);
        assert!(b.bytes(0, LEN) == sent);
        assert!(a.bytes(100_000, LEN) == read);
        a.send(3, 11, LEN as u32);
        world.pump();
        assert_eq!((a.done(), b.done()), (vec![(3, OK)], vec![(7, OK)]));
        assert!(b.bytes(300_001, LEN) == a.bytes(11, LEN));
        let now = nontemporal(&world);
        assert_eq!(now[0] - before[0], many(2 * LEN));
        assert_eq!(now[1] - before[1], many(LEN));
        a.write(4, &b.mr, 50_003, SMALL as u32);
        world.pump();
        assert_eq!(a.done(), [(4, OK)]);
        assert!(b.bytes(50_003, SMALL) == a.bytes(50_003, SMALL));
        assert_eq!(nontemporal(&world), now);
    }
}
