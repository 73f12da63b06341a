// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Memory windows: what they show, and how long.

use super::*;

#[test]
fn a_window_shows_its_range_with_its_rights() {
    let mut pair = Pair::new();
    let key = pair.window(ACCESS_REMOTE_WRITE);
    let start = pair.b.mr.iova + PAGE;
    pair.a.host.write(pair.a.mr.addr + 15 * PAGE, b"abcdefgh");
    assert_eq!(pair.write(key, start + PAGE - 8), SUCCESS);
    assert_eq!(
        pair.b.host.read(pair.b.mr.addr + 15 * PAGE - 8, 8),
        b"abcdefgh"
    );
    let mut before = Pair::new();
    let key = before.window(ACCESS_REMOTE_WRITE);
    assert_eq!(before.write(key, start - 1), DENIED);
    let mut behind = Pair::new();
    let key = behind.window(ACCESS_REMOTE_WRITE);
    assert_eq!(behind.write(key, start + PAGE - 7), DENIED);
    let rkey = pair.window(ACCESS_REMOTE_WRITE);
    let read = Operation::Read { addr: start, rkey };
    assert_eq!(pair.peer(read, 8), DENIED);
}

#[test]
fn a_zero_based_window_begins_at_zero() {
    let mut pair = Pair::new();
    let key = pair.window(ACCESS_REMOTE_WRITE | ACCESS_ZERO_BASED);
    pair.a.host.write(pair.a.mr.addr + 15 * PAGE, b"abcdefgh");
    assert_eq!(pair.write(key, 5), SUCCESS);
    let at = pair.b.mr.addr + 14 * PAGE + 5;
    assert_eq!(pair.b.host.read(at, 8), b"abcdefgh");
    assert_eq!(pair.write(key, PAGE - 7), DENIED);
}

#[test]
fn windows_that_show_too_much_are_refused() {
    type Spoil = fn(&mut Pair, &mut BindSegment);
    let cases: [(&str, Spoil); 6] = [
        ("beyond the region", |p, s| {
            s.addr = (p.b.mr.iova + 15 * PAGE + 1).into()
        }),
        ("before the region", |p, s| {
            s.addr = (p.b.mr.iova - 1).into()
        }),
        ("local rights", |_, s| s.access = ACCESS_LOCAL_WRITE.into()),
        ("unknown rights", |_, s| s.access = (1 << 20).into()),
        ("no such region", |_, s| s.mr_key = 77.into()),
        ("a window of a window", |p, s| {
            s.mr_key = p.window(REMOTE).into()
        }),
    ];
    for (what, spoil) in cases {
        let mut pair = Pair::new();
        let mut bind = pair.second_page(REMOTE);
        spoil(&mut pair, &mut bind);
        let key = pair.alloc(KeyKind::Window, 0).expect("a window");
        assert_eq!(pair.own(Operation::BindMw { key, bind }), REFUSED, "{what}");
        assert_eq!(pair.destroy(key), Ok(()), "{what}");
    }
}

#[test]
fn a_region_must_allow_windows_and_what_they_may_do() {
    for (access, window) in [
        (ACCESS_ALL & !ACCESS_MW_BIND, ACCESS_REMOTE_READ),
        (ACCESS_ALL & !ACCESS_LOCAL_WRITE, ACCESS_REMOTE_WRITE),
        (ACCESS_ALL & !ACCESS_LOCAL_WRITE, ACCESS_REMOTE_ATOMIC),
        (ACCESS_ALL & !ACCESS_FLUSH_GLOBAL, ACCESS_FLUSH_GLOBAL),
    ] {
        let mut pair = Pair::new();
        let region = CreateMr {
            access: access.into(),
            ..CreateMr::default()
        };
        let key = pair.b.mr.key;
        pair.b.mr.key = pair.modify(key, MR_MASK_ACCESS, region).expect("changed");
        let key = pair.alloc(KeyKind::Window, 0).expect("a window");
        let bind = pair.second_page(window);
        let status = pair.own(Operation::BindMw { key, bind });
        assert_eq!(status, REFUSED, "{access:#x} {window:#x}");
    }
}

#[test]
fn a_window_holds_its_region_until_it_ends() {
    let mut pair = Pair::new();
    let (key, region) = (pair.window(REMOTE), pair.b.mr.key);
    let same = CreateMr {
        access: ACCESS_ALL.into(),
        ..CreateMr::default()
    };
    assert_eq!(pair.destroy(region), Err(AdminStatus::Busy));
    let changed = pair.modify(region, MR_MASK_ACCESS, same);
    assert_eq!(changed, Err(AdminStatus::Busy));
    // Invalidated, bound anew, unbound by an empty range, bound anew, destroyed.
    assert_eq!(pair.own(Operation::LocalInv { key }), SUCCESS);
    let bind = pair.second_page(REMOTE);
    let next = key ^ 1;
    assert_eq!(pair.own(Operation::BindMw { key: next, bind }), SUCCESS);
    assert_eq!(pair.destroy(region), Err(AdminStatus::Busy));
    let nothing = BindSegment::default();
    let unbind = Operation::BindMw {
        key: next,
        bind: nothing,
    };
    assert_eq!(pair.own(unbind), SUCCESS);
    assert_eq!(pair.own(Operation::BindMw { key, bind }), SUCCESS);
    assert_eq!(pair.destroy(key), Ok(()));
    assert_eq!(pair.destroy(region), Ok(()));
}

#[test]
fn a_key_is_freed_by_any_variant_of_it() {
    let mut pair = Pair::new();
    let key = pair.alloc(KeyKind::Window, 0).expect("a window");
    let bind = pair.second_page(REMOTE);
    assert_eq!(pair.own(Operation::BindMw { key: key ^ 1, bind }), SUCCESS);
    assert_eq!(pair.destroy(key ^ 0x100), Err(AdminStatus::NoSuchObject));
    assert_eq!(pair.destroy(key), Ok(()));
    assert_eq!(pair.destroy(key), Err(AdminStatus::NoSuchObject));
    let region = pair.b.mr.key;
    assert_eq!(pair.destroy(region ^ 1), Err(AdminStatus::NoSuchObject));
    assert_eq!(pair.destroy(region), Ok(()));
}

#[test]
fn a_window_ends_with_its_queue_pair() {
    let mut pair = Pair::new();
    let key = pair.window(REMOTE);
    let qpn = pair.b.qp.qpn;
    let World { engine, nodes, .. } = &mut pair.world;
    engine.destroy_qp(nodes, 1, qpn).expect("destroyed");
    // In the end another queue pair gets the number; the key shows it nothing.
    let other = CreateQp {
        rq: PageList {
            addr: U64::new(BASE),
            ..PageList::default()
        },
        log_rq_stride: 5,
        pd: U32::new(pair.b.host.pd),
        recv_cqn: U32::new(pair.b.cq.cqn),
        sq_slot: U16::new(SLOT_NONE),
        rq_slot: U16::new(SLOTS - 1),
        ..CreateQp::default()
    };
    loop {
        let (node, machine) = nodes.node_mut(1).expect("node exists");
        let number = node.create_qp(machine, &other).expect("queue pair");
        engine.destroy_qp(nodes, 1, number).expect("destroyed");
        if number == LAST_NUMBER {
            break;
        }
    }
    let Side { host, cq, .. } = &mut pair.b;
    let again = host.qp(&mut pair.world, QpType::Rc, cq, 4);
    assert_eq!(again.qpn, qpn);
    let (a, b) = (&mut pair.a, &pair.b);
    let reset = a
        .host
        .set_state(&mut pair.world, a.qp.qpn, QpStateCode::Reset);
    reset.expect("reset");
    let qp = a.host.qp(&mut pair.world, QpType::Rc, &a.cq, 4);
    a.qp = qp;
    a.host.ready(&mut pair.world, &a.qp, Some((1, qpn, 1)));
    b.host
        .ready(&mut pair.world, &again, Some((0, a.qp.qpn, 1)));
    assert_eq!(pair.write(key, pair.b.mr.iova + PAGE), DENIED);
    assert_eq!(pair.destroy(pair.b.mr.key), Ok(()));
    assert_eq!(pair.destroy(key), Ok(()));
}

#[test]
fn only_the_queue_pair_that_bound_a_window_serves_it() {
    let mut pair = Pair::new();
    let key = pair.window(REMOTE);
    let Pair { world, a, b } = &mut pair;
    let (one, other) = (
        a.host.qp(world, QpType::Rc, &a.cq, 4),
        b.host.qp(world, QpType::Rc, &b.cq, 4),
    );
    a.host.ready(world, &one, Some((1, other.qpn, 1)));
    b.host.ready(world, &other, Some((0, one.qpn, 1)));
    let (first, _) = (core::mem::replace(&mut a.qp, one), other);
    let start = pair.b.mr.iova + PAGE;
    assert_eq!(pair.write(key, start), DENIED);
    pair.a.qp = first;
    assert_eq!(pair.write(key, start), SUCCESS);
}
