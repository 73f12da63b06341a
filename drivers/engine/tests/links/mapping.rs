// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Device memory of another node that a process has mapped: who may map it, and that its owner gets it back.

use super::parts::{connect, pair, post, End, OK};
use nupa_engine::{
    rings::{Data, Operation},
    MappedGrant,
};
use nupa_proto::{
    admin::*,
    pool::{GRANT_SLOTS, GRANT_TIMEOUT_US, PAGE},
};
use nupa_testing::{Host, Qp, World};
use zerocopy::little_endian::U32;

/// Bytes of a region.
const LEN: u64 = 8 * PAGE;

/// Two ends, of which the second has device memory that the first one has written to.
fn granted(len: u64) -> (World, End, End) {
    let (mut world, mut a, mut b) = pair();
    b.mr = b.host.device_mr(&mut world, len);
    write(&mut world, &mut a, &b);
    (world, a, b)
}

/// A WRITE to all of that memory; whether it was done.
fn write(world: &mut World, a: &mut End, b: &End) -> bool {
    a.write(1, &b.mr, 0, 100);
    world.pump();
    a.done() == [(1, OK)]
}

fn map(world: &mut World, a: &End, key: u32) -> Option<MappedGrant> {
    world.engine.map_grant(&mut world.nodes, 0, a.qp.qpn, key)
}

fn is_granted(world: &mut World, mapped: &MappedGrant) -> bool {
    world.engine.is_granted(&mut world.nodes, 0, mapped)
}

/// Whether the owner's commands are done.
fn is_back(world: &mut World) -> bool {
    world.engine.writers_gone(&mut world.nodes, 1)
}

#[test]
fn what_was_granted_is_mapped_once() {
    let (mut world, a, b) = granted(LEN);
    let Some(mapped) = map(&mut world, &a, b.mr.key) else {
        return assert!(!crate::MODE.is_direct());
    };
    assert!(crate::MODE.is_direct());
    assert_eq!((mapped.addr(), mapped.len()), (b.mr.iova, LEN));
    let memory = world.engine.device_memory(1).expect("is a pool");
    assert!(memory.start <= mapped.offset() && mapped.offset() + LEN <= memory.end);
    assert!(is_granted(&mut world, &mapped));
    assert!(map(&mut world, &a, b.mr.key).is_none());
    world.engine.unmap_grant(&mut world.nodes, 0, &mapped);
    assert!(map(&mut world, &a, b.mr.key).is_some());
}

/// A program that only reads maps memory, too, but none that it may not write to.
#[test]
fn what_was_read_is_mapped_as_well() {
    for len in [8, LEN as u32] {
        let (mut world, mut a, mut b) = pair();
        b.mr = b.host.device_mr(&mut world, LEN);
        a.read(1, &b.mr, 0, len);
        world.pump();
        assert_eq!(a.done(), [(1, OK)]);
        let mapped = map(&mut world, &a, b.mr.key);
        assert_eq!(mapped.is_some(), crate::MODE.is_direct(), "{len}");
        b.mr = b.host.device_mr(&mut world, LEN);
        set_access(&mut world, &b, ACCESS_ALL & !ACCESS_REMOTE_WRITE);
        a.read(2, &b.mr, 0, len);
        world.pump();
        assert_eq!(a.done(), [(2, OK)]);
        assert!(map(&mut world, &a, b.mr.key).is_none());
    }
}

#[test]
fn nothing_else_is_mapped() {
    let (mut world, mut a, mut b) = granted(LEN);
    assert!(map(&mut world, &a, b.mr.key ^ 1).is_none());
    // A queue pair that has no grant.
    let other = a.host.qp(&mut world, QpType::Rc, &a.cq, 4);
    let mapped = world
        .engine
        .map_grant(&mut world.nodes, 0, other.qpn, b.mr.key);
    assert!(mapped.is_none());
    // Memory that the peer may not read.
    b.mr = b.host.device_mr(&mut world, LEN);
    take_reads(&mut world, &b);
    assert!(write(&mut world, &mut a, &b));
    assert!(map(&mut world, &a, b.mr.key).is_none());
    // No whole pages.
    b.mr = b.host.device_mr(&mut world, PAGE + 64);
    assert!(write(&mut world, &mut a, &b));
    assert!(map(&mut world, &a, b.mr.key).is_none());
}

/// The peer may not read the memory any more.
fn take_reads(world: &mut World, b: &End) {
    set_access(world, b, ACCESS_ALL & !ACCESS_REMOTE_READ);
}

fn set_access(world: &mut World, b: &End, access: u32) {
    let body = ModifyMr {
        key: b.mr.key.into(),
        mask: MR_MASK_ACCESS.into(),
        mr: CreateMr {
            access: access.into(),
            ..CreateMr::default()
        },
    };
    let done = world.engine.modify_mr(&mut world.nodes, 1, &body);
    done.expect("is there");
}

/// Whatever takes the grant away waits for the one who has mapped the memory, however long its queue pair is idle.
#[test]
fn the_owner_waits_until_it_is_unmapped() {
    if !crate::MODE.is_direct() {
        return;
    }
    let ends: [fn(&mut World, &End); 4] = [
        |world, b| {
            let done = world.engine.destroy_mr(&mut world.nodes, 1, b.mr.key);
            done.expect("is there");
        },
        take_reads,
        |world, b| {
            let body = ModifyQp {
                qpn: b.qp.qpn.into(),
                mask: QP_MASK_ACCESS.into(),
                access: U32::new(ACCESS_REMOTE_WRITE),
                ..ModifyQp::default()
            };
            let done = world.engine.modify_qp(&mut world.nodes, 1, &body);
            done.expect("is there");
        },
        |world, b| {
            let done = world.engine.destroy_qp(&mut world.nodes, 1, b.qp.qpn);
            done.expect("is there");
        },
    ];
    for end in ends {
        for stops in [true, false] {
            let (mut world, a, b) = granted(LEN);
            let mapped = map(&mut world, &a, b.mr.key).expect("is granted");
            end(&mut world, &b);
            assert!(!is_granted(&mut world, &mapped));
            assert!(!is_back(&mut world));
            world.pass(GRANT_TIMEOUT_US - 1);
            assert!(!is_back(&mut world));
            match stops {
                true => world.engine.unmap_grant(&mut world.nodes, 0, &mapped),
                // It is refused.
                false => world.pass(1),
            }
            assert!(is_back(&mut world));
        }
    }
}

/// Who has mapped memory of a node that is reset finds that out, and may unmap it late. The node does not wait for that.
#[test]
fn a_mapping_ends_with_its_owner() {
    if !crate::MODE.is_direct() {
        return;
    }
    let (mut world, a, b) = granted(LEN);
    let mapped = map(&mut world, &a, b.mr.key).expect("is granted");
    let before = world.now.get();
    world.engine.reset(&mut world.nodes, 1);
    assert_eq!(world.now.get(), before);
    world.pump();
    assert!(!is_granted(&mut world, &mapped));
    assert!(is_back(&mut world));
    world.engine.unmap_grant(&mut world.nodes, 0, &mapped);
}

/// The epoch of a mapping is that of both ends.
#[test]
fn a_mapping_ends_with_whoever_has_it() {
    if !crate::MODE.is_direct() {
        return;
    }
    let (mut world, a, b) = granted(LEN);
    let mapped = map(&mut world, &a, b.mr.key).expect("is granted");
    world.engine.reset(&mut world.nodes, 0);
    world.pump();
    assert!(!is_granted(&mut world, &mapped));
    world.engine.enable(&mut world.nodes, 0);
    world.pump();
    assert!(!is_granted(&mut world, &mapped));
    world.engine.unmap_grant(&mut world.nodes, 0, &mapped);
    let destroyed = world.engine.destroy_mr(&mut world.nodes, 1, b.mr.key);
    assert_eq!((destroyed, is_back(&mut world)), (Ok(()), true));
}

/// So many others write to regions of their own that there is no slot for each of them.
#[test]
fn what_is_mapped_is_not_taken_away_for_want_of_room() {
    if !crate::MODE.is_direct() {
        return;
    }
    let (mut world, mut a, mut b) = granted(LEN);
    let mapped = map(&mut world, &a, b.mr.key).expect("is granted");
    let mut others = others(&mut world, &mut a, &mut b);
    for _ in 0..3 {
        for here in &mut others {
            let write = Operation::Write {
                addr: b.mr.iova,
                rkey: b.mr.key,
                imm: None,
            };
            post(here, 1, write, Data::Inline(&[1; 8]));
        }
        world.pump();
        assert_eq!(a.done().len(), others.len());
    }
    assert!(is_granted(&mut world, &mapped));
    world.engine.unmap_grant(&mut world.nodes, 0, &mapped);
}

/// Connections of the same two hosts, more than there are slots for.
fn others(world: &mut World, a: &mut End, b: &mut End) -> Vec<Qp> {
    let connected = (0..2 * GRANT_SLOTS).map(|_| {
        let here = a.host.qp(world, QpType::Rc, &a.cq, 4);
        let there = b.host.qp(world, QpType::Rc, &b.cq, 4);
        connect(world, (&a.host, &here), (&b.host, &there));
        here
    });
    connected.collect()
}

/// A grant that is written with is of more use than one for a READ.
#[test]
fn reads_end_no_grants() {
    if !crate::MODE.is_direct() {
        return;
    }
    let (mut world, mut a, mut b) = granted(LEN);
    let mut others = others(&mut world, &mut a, &mut b);
    for _ in 0..3 {
        for here in &mut others {
            let (addr, rkey) = (b.mr.iova, b.mr.key);
            let sge = a.mr.sge(0, 8);
            post(here, 1, Operation::Read { addr, rkey }, Data::Sges(&[sge]));
        }
        world.pump();
        assert_eq!(a.done().len(), others.len());
    }
    let direct = |world: &World| world.node(0).counters().tx_direct_writes.get();
    let before = direct(&world);
    assert!(write(&mut world, &mut a, &b));
    assert_eq!(direct(&world), before + 1);
}

/// A queue pair that does not send any more has nothing mapped.
#[test]
fn a_mapping_ends_with_its_queue_pair() {
    if !crate::MODE.is_direct() {
        return;
    }
    for state in [QpStateCode::Err, QpStateCode::Reset] {
        let (mut world, a, b) = granted(LEN);
        let mapped = map(&mut world, &a, b.mr.key).expect("is granted");
        a.host
            .set_state(&mut world, a.qp.qpn, state)
            .expect("may be");
        assert!(!is_granted(&mut world, &mapped));
        world.engine.unmap_grant(&mut world.nodes, 0, &mapped);
    }
}

/// The next connection of a queue pair number has no grants of the one before: neither that of another program, nor that of the same one.
#[test]
fn the_next_connection_has_no_grants() {
    let again: [fn(&mut World, &mut End); 2] = [
        |world, a| {
            let reset = a.host.set_state(world, a.qp.qpn, QpStateCode::Reset);
            reset.expect("may be");
        },
        |world, a| {
            let qpn = a.qp.qpn;
            let destroyed = world.engine.destroy_qp(&mut world.nodes, 0, qpn);
            destroyed.expect("is there");
            // Numbers come back late.
            loop {
                let qp = |host: &mut Host| host.qp(world, QpType::Rc, &a.cq, 4);
                a.qp = a.host.scratch(qp);
                if a.qp.qpn == qpn {
                    break;
                }
                let destroyed = world.engine.destroy_qp(&mut world.nodes, 0, a.qp.qpn);
                destroyed.expect("is there");
            }
        },
    ];
    let epoch_of = |world: &World| world.node(1).epoch();
    for (again, maps) in again
        .into_iter()
        .flat_map(|again| [(again, false), (again, true)])
    {
        let (mut world, mut a, b) = granted(LEN);
        let key = b.mr.key;
        let mapped = maps.then(|| map(&mut world, &a, key)).flatten();
        again(&mut world, &mut a);
        let peer = Some((1, b.qp.qpn, epoch_of(&world)));
        a.host.ready_at(&mut world, &a.qp, peer, (5, 0));
        if let Some(mapped) = mapped {
            assert!(!is_granted(&mut world, &mapped));
            world.engine.unmap_grant(&mut world.nodes, 0, &mapped);
        }
        assert!(map(&mut world, &a, key).is_none());
        assert!(
            !write(&mut world, &mut a, &b),
            "the peer is connected to another one"
        );
    }
}
