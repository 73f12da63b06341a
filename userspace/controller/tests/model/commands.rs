// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Admin commands: limits, references between objects, malformed bodies.

use nupa_proto::admin::{
    AdminOpcode, BufferRef, ById, DeviceLimits, PortCounters, QpState, QpStateCode, QpType, SetRss,
    ACCESS_LOCAL_WRITE,
};
use nupa_proto::status::AdminStatus;
use zerocopy::FromBytes;

use crate::common::guest::{iova, Guest, RAM_BASE};
use crate::common::World;

/// Bytes of the counters.
const COUNTERS: u32 = size_of::<PortCounters>() as u32;

fn guest() -> Guest {
    Guest::up(&World::new(2), 0)
}

fn limits(guest: &Guest) -> DeviceLimits {
    guest.command(AdminOpcode::QueryDevice, &[0u8; 0]).unwrap()
}

#[test]
fn limits_are_reported_and_kept() {
    let guest = guest();
    let limits = limits(&guest);
    let wanted: Vec<u32> = (0..limits.max_pd.get()).map(|_| guest.pd()).collect();
    let one_more = guest.create(AdminOpcode::AllocPd, &[0u8; 0]);
    assert_eq!(one_more, Err(AdminStatus::NoResources));
    guest.by_id(AdminOpcode::DeallocPd, wanted[7]).unwrap();
    guest.pd();
    let too_long = guest.create_eq(limits.max_log_eq + 1, 0).map(|eq| eq.eqn);
    assert_eq!(too_long, Err(AdminStatus::InvalidField));
    let no_vector = guest.create_eq(4, 65).map(|eq| eq.eqn);
    assert_eq!(no_vector, Err(AdminStatus::InvalidField));
}

#[test]
fn objects_in_use_stay() {
    let guest = guest();
    let eq = guest.eq(0);
    let pd = guest.pd();
    let cq = guest.cq(eq.eqn);
    let cqn = cq.cqn;
    let qp = guest.create_qp(QpType::Raw, pd, cq).unwrap();
    let key = guest
        .register(pd, RAM_BASE, 4096, ACCESS_LOCAL_WRITE)
        .unwrap();
    let busy = Err(AdminStatus::Busy);
    assert_eq!(guest.by_id(AdminOpcode::DestroyEq, eq.eqn), busy);
    assert_eq!(guest.by_id(AdminOpcode::DestroyCq, cqn), busy);
    assert_eq!(guest.by_id(AdminOpcode::DeallocPd, pd), busy);
    guest.by_id(AdminOpcode::DestroyQp, qp.qpn).unwrap();
    assert_eq!(guest.by_id(AdminOpcode::DeallocPd, pd), busy);
    guest.by_id(AdminOpcode::DestroyMr, key).unwrap();
    guest.by_id(AdminOpcode::DeallocPd, pd).unwrap();
    guest.by_id(AdminOpcode::DestroyCq, cqn).unwrap();
    guest.by_id(AdminOpcode::DestroyEq, eq.eqn).unwrap();
    let objects = guest.world.fabric.borrow().stats()[0].objects;
    assert_eq!(
        (objects.qp, objects.cq, objects.eq, objects.mr, objects.pd),
        (0, 0, 0, 0, 0)
    );
}

#[test]
fn doorbell_slots_come_back_when_queues_go() {
    let guest = guest();
    let eqn = guest.eq(0).eqn;
    for _ in 0..300 {
        let cq = guest.cq(eqn);
        guest.by_id(AdminOpcode::DestroyCq, cq.cqn).unwrap();
        guest.release_slot();
    }
}

#[test]
fn what_does_not_exist_is_named_so() {
    let guest = guest();
    let missing = Err(AdminStatus::NoSuchObject);
    for opcode in [
        AdminOpcode::DestroyEq,
        AdminOpcode::DestroyCq,
        AdminOpcode::DeallocPd,
        AdminOpcode::DestroyMr,
        AdminOpcode::DestroyQp,
    ] {
        for id in [0, 1, 77, u32::MAX] {
            assert_eq!(guest.by_id(opcode, id), missing, "{opcode:?} {id}");
        }
    }
    assert_eq!(guest.create_cq(4, 0).map(|_| ()), missing);
    let spread = SetRss {
        table: guest.put(&5u32.to_le_bytes()).into(),
        count: 1.into(),
        ..SetRss::default()
    };
    let set: Result<[u8; 0], _> = guest.command(AdminOpcode::SetRss, &spread);
    assert_eq!(set, Err(AdminStatus::NoSuchObject));
}

#[test]
fn unknown_commands_and_reserved_fields_are_refused() {
    let guest = guest();
    for opcode in [0, 7, 22, 99, u16::MAX] {
        let refused = guest.raw_command(opcode, &[]);
        assert_eq!(refused, Err(AdminStatus::Unsupported), "{opcode}");
    }
    for opcode in AdminOpcode::ALL {
        let refused = guest.raw_command(opcode.to_wire(), &[0xff; 56]);
        let status = refused.unwrap_err();
        let fits = [AdminStatus::InvalidField, AdminStatus::NoSuchObject];
        assert!(fits.contains(&status), "{opcode:?}: {status:?}");
    }
    let reserved = ById {
        id: 0.into(),
        reserved: 1.into(),
    };
    let refused: Result<[u8; 0], _> = guest.command(AdminOpcode::DeallocPd, &reserved);
    assert_eq!(refused, Err(AdminStatus::InvalidField));
}

#[test]
fn buffers_out_of_reach_are_named_so() {
    let guest = guest();
    let nowhere = |len: u32| BufferRef {
        addr: (RAM_BASE - 4096).into(),
        len: len.into(),
        ..BufferRef::default()
    };
    let bad = Err(AdminStatus::BadAddress);
    let answer: Result<[u8; 0], _> = guest.command(AdminOpcode::QueryCounters, &nowhere(COUNTERS));
    assert_eq!(answer, bad);
    let answer: Result<[u8; 0], _> = guest.command(AdminOpcode::ListNodes, &nowhere(8));
    assert_eq!(answer, bad);
    let answer: Result<[u8; 0], _> = guest.command(AdminOpcode::CreateQp, &nowhere(64));
    assert_eq!(answer, bad);
    let short: Result<[u8; 0], _> = guest.command(AdminOpcode::CreateQp, &nowhere(63));
    assert_eq!(short, Err(AdminStatus::InvalidField));
}

#[test]
fn counters_are_written_to_memory() {
    let guest = guest();
    let eqn = guest.eq(0).eqn;
    let mut qp = guest.raw(eqn);
    guest.post_buffer(&mut qp, 64);
    let buffer = guest.buffer(&[0xff; COUNTERS as usize]);
    let written: Result<[u8; 0], _> = guest.command(AdminOpcode::QueryCounters, &buffer);
    written.unwrap();
    let bytes = guest.get(buffer.addr.get(), COUNTERS as usize);
    let counters = PortCounters::read_from_bytes(&bytes).unwrap();
    assert_eq!(counters.tx_frames.get(), 0);
    assert_eq!(counters.kicks.get(), guest.world.counter(0, "kicks"));
}

#[test]
fn states_follow_the_diagram() {
    let guest = guest();
    let eqn = guest.eq(0).eqn;
    let pd = guest.pd();
    let cq = guest.cq(eqn);
    let qp = guest.create_qp(QpType::Raw, pd, cq).unwrap();
    let state = || {
        let body = ById {
            id: qp.qpn.into(),
            ..ById::default()
        };
        let state: QpState = guest.command(AdminOpcode::QueryQp, &body).unwrap();
        QpStateCode::try_from(state.state).unwrap()
    };
    assert_eq!(state(), QpStateCode::Reset);
    for (to, allowed) in [
        (QpStateCode::Rts, false),
        (QpStateCode::Rtr, false),
        (QpStateCode::Init, true),
        (QpStateCode::Rts, false),
        (QpStateCode::Rtr, true),
        (QpStateCode::Rts, true),
        (QpStateCode::Init, false),
        (QpStateCode::Err, true),
        (QpStateCode::Rts, false),
        (QpStateCode::Reset, true),
    ] {
        let before = state();
        let result = guest.set_state(qp.qpn, to);
        assert_eq!(result.is_ok(), allowed, "{before:?} to {to:?}");
        assert_eq!(state(), if allowed { to } else { before });
    }
}

#[test]
fn page_lists_reach_scattered_memory() {
    use nupa_proto::admin::{CreateMr, PageList};
    let guest = guest();
    let pd = guest.pd();
    let pages = [3usize, 1, 2].map(|i| iova(i * 4096).to_le_bytes());
    let list = guest.put(pages.as_flattened());
    let command = |count: u32, len: u64, shift: u8| CreateMr {
        pages: PageList {
            addr: list.into(),
            pages: count.into(),
            page_shift: shift,
            ..PageList::default()
        },
        iova: 0x1000.into(),
        len: len.into(),
        pd: pd.into(),
        access: ACCESS_LOCAL_WRITE.into(),
    };
    guest
        .create(AdminOpcode::CreateMr, &command(3, 3 * 4096, 12))
        .unwrap();
    for (count, len, shift) in [
        (3, 3 * 4096 + 1, 12),
        (3, 0, 12),
        (3, 4096, 12),
        (3, 12288, 11),
        (3, 12288, 31),
    ] {
        let refused = guest.create(AdminOpcode::CreateMr, &command(count, len, shift));
        assert_eq!(
            refused,
            Err(AdminStatus::InvalidField),
            "{count} {len} {shift}"
        );
    }
}
