// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Nodes that come and go: reset, death, link, epochs.

use nupa_engine::rings::Operation;
use nupa_proto::admin::{AdminOpcode, ById, NodeInfo};
use nupa_proto::eqe::{Eqe, EventType};
use nupa_proto::frame::FrameMeta;
use nupa_proto::ident::node_mac;
use nupa_proto::regs;
use nupa_proto::status::{AdminStatus, WcStatus};

use crate::common::guest::{Guest, RAM_BASE, RAM_SIZE};
use crate::common::queues::{frame, Eq};
use crate::common::World;
use crate::connections::pair;

/// Events on a queue, without those about admin commands.
fn events(eq: &mut Eq) -> Vec<Eqe> {
    let all = std::iter::from_fn(|| eq.ring.poll());
    all.filter(|event| event.event_type != EventType::Admin.to_wire())
        .collect()
}

fn is(event: &Eqe, kind: EventType, node: u16, object: u32) -> bool {
    event.event_type == kind.to_wire() && event.node.get() == node && event.object.get() == object
}

fn info(guest: &Guest, node: u32) -> Result<NodeInfo, AdminStatus> {
    let body = ById {
        id: node.into(),
        ..ById::default()
    };
    guest.command(AdminOpcode::QueryNode, &body)
}

#[test]
fn peers_hear_of_nodes_that_come_and_go() {
    let world = World::new(3);
    let watcher = Guest::up(&world, 0);
    let mut async_eq = watcher.eq(0);
    assert_eq!(info(&watcher, 1).unwrap().up.get(), 0);

    let guest = Guest::connect(&world, 1);
    assert!(events(&mut async_eq).is_empty());
    guest.enable();
    let epoch = guest.epoch();
    let seen = events(&mut async_eq);
    assert!(
        seen.len() == 1 && is(&seen[0], EventType::NodeUp, 1, epoch),
        "{seen:?}"
    );
    let about = info(&watcher, 1).unwrap();
    assert_eq!((about.up.get(), about.epoch.get()), (1, epoch));

    guest.write32(regs::REG_CONTROL, regs::CONTROL_RESET);
    let seen = events(&mut async_eq);
    assert!(
        seen.len() == 1 && is(&seen[0], EventType::NodeDown, 1, epoch),
        "{seen:?}"
    );
    guest.enable();
    assert_eq!(guest.epoch(), epoch + 1);
    let seen = events(&mut async_eq);
    assert!(is(&seen[0], EventType::NodeUp, 1, epoch + 1), "{seen:?}");

    // The guest is killed.
    drop(guest);
    let seen = events(&mut async_eq);
    assert!(
        seen.len() == 1 && is(&seen[0], EventType::NodeDown, 1, epoch + 1),
        "{seen:?}"
    );
    assert_eq!(info(&watcher, 1).unwrap().up.get(), 0);
}

#[test]
fn the_list_of_nodes_follows() {
    let world = World::new(10);
    let watcher = Guest::up(&world, 0);
    let list = || {
        let buffer = watcher.buffer(&[0xee; 2]);
        let written: Result<[u8; 0], _> = watcher.command(AdminOpcode::ListNodes, &buffer);
        written.unwrap();
        watcher.get(buffer.addr.get(), 2)
    };
    assert_eq!(list(), [1, 0]);
    let _nine = Guest::up(&world, 9);
    let three = Guest::up(&world, 3);
    assert_eq!(list(), [0b1001, 0b10]);
    drop(three);
    assert_eq!(list(), [1, 0b10]);
    let short = watcher.buffer(&[0]);
    let refused: Result<[u8; 0], _> = watcher.command(AdminOpcode::ListNodes, &short);
    assert_eq!(refused, Err(AdminStatus::InvalidField));
    assert_eq!(info(&watcher, 10).err(), Some(AdminStatus::NoSuchObject));
    assert_eq!(
        info(&watcher, 1 << 16).err(),
        Some(AdminStatus::NoSuchObject)
    );
}

#[test]
fn a_peer_that_dies_takes_its_connections_along() {
    let (world, mut a, b) = pair();
    let (memory, key) = (b.memory, b.key);
    // One that waits for buffers, and one behind it.
    a.post(Operation::Send { imm: None }, 8);
    a.post(Operation::Send { imm: None }, 8);
    drop(b);
    world.pass(0);
    let statuses: Vec<_> = std::iter::from_fn(|| a.qp.cq.ring.poll())
        .map(|cqe| cqe.status)
        .collect();
    let (gone, flush) = (
        WcStatus::RetryExceeded.to_wire(),
        WcStatus::WrFlush.to_wire(),
    );
    assert_eq!(statuses.len(), 2);
    assert!(statuses.iter().all(|status| [gone, flush].contains(status)));
    // More work flushes too.
    let write = Operation::Write {
        addr: memory,
        rkey: key,
        imm: None,
    };
    assert_eq!(a.request(write, 8), WcStatus::WrFlush);
}

#[test]
fn a_connection_does_not_survive_a_reset_of_the_peer() {
    let (_world, mut a, b) = pair();
    let epoch = b.guest.epoch();
    b.guest.write32(regs::REG_CONTROL, regs::CONTROL_RESET);
    b.guest.enable();
    let write = Operation::Write {
        addr: b.memory,
        rkey: b.key,
        imm: None,
    };
    assert_eq!(a.request(write, 8), WcStatus::WrFlush);
    // A new connection that names the old epoch gets nowhere.
    let c = a.guest.rc(a.pd, 0);
    let stale = a.guest.connect_to(&c, &b.guest, 2, epoch);
    if stale.is_ok() {
        a.qp = c;
        assert_ne!(a.request(write, 8), WcStatus::Success);
    }
}

#[test]
fn link_down_cuts_a_node_off_and_link_up_brings_it_back() {
    let world = World::new(2);
    let a = Guest::up(&world, 0);
    let mut a_async = a.eq(0);
    let mut a_qp = a.raw(a_async.eqn);
    let b = Guest::up(&world, 1);
    let mut b_async = b.eq(0);
    let mut b_qp = b.raw(b_async.eqn);
    events(&mut a_async);
    let bytes = frame(node_mac(1), node_mac(0), 64, 0);

    world.fabric.borrow_mut().set_link(1, false).unwrap();
    assert_eq!(b.status() & regs::STATUS_LINK_UP, 0);
    assert_eq!(b.status() & regs::STATUS_READY, regs::STATUS_READY);
    assert!(events(&mut b_async)
        .iter()
        .any(|event| event.event_type == EventType::LinkDown.to_wire()));
    assert!(events(&mut a_async)
        .iter()
        .any(|event| is(event, EventType::NodeDown, 1, b.epoch())));
    b.post_buffer(&mut b_qp, 128);
    a.send_frame(&mut a_qp, 1, &bytes, FrameMeta::default());
    assert_eq!(a_qp.poll().status, WcStatus::RetryExceeded.to_wire());
    b.send_frame(&mut b_qp, 0, &bytes, FrameMeta::default());
    assert_eq!(b_qp.poll().status, WcStatus::RetryExceeded.to_wire());

    world.fabric.borrow_mut().set_link(1, true).unwrap();
    assert!(events(&mut b_async)
        .iter()
        .any(|event| event.event_type == EventType::LinkUp.to_wire()));
    assert!(events(&mut a_async)
        .iter()
        .any(|event| is(event, EventType::NodeUp, 1, b.epoch())));
    a.send_frame(&mut a_qp, 1, &bytes, FrameMeta::default());
    assert_eq!(a_qp.poll().status, WcStatus::Success.to_wire());
    assert_eq!(b_qp.poll().byte_len.get(), 64);
}

#[test]
fn a_sender_that_waits_for_a_dying_node_is_released() {
    let world = World::new(2);
    let a = Guest::up(&world, 0);
    let mut a_qp = a.raw(a.eq(0).eqn);
    let b = Guest::up(&world, 1);
    let _b_qp = b.raw(b.eq(0).eqn);
    let bytes = frame(node_mac(1), node_mac(0), 64, 0);
    a.send_frame(&mut a_qp, 1, &bytes, FrameMeta::default());
    a_qp.assert_idle();
    drop(b);
    world.pass(30_000);
    assert_ne!(a_qp.poll().status, WcStatus::Success.to_wire());
    let b = Guest::up(&world, 1);
    let mut b_qp = b.raw(b.eq(0).eqn);
    b.post_buffer(&mut b_qp, 128);
    a.send_frame(&mut a_qp, 1, &bytes, FrameMeta::default());
    assert_eq!(a_qp.poll().status, WcStatus::Success.to_wire());
}

#[test]
fn a_function_that_stops_tells_its_driver_and_its_peers() {
    let world = World::new(2);
    let watcher = Guest::up(&world, 0);
    let mut watched = watcher.eq(0);
    let mut watcher_qp = watcher.raw(watched.eqn);
    let guest = Guest::up(&world, 1);
    let mut async_eq = guest.eq(0);
    let mut qp = guest.raw(async_eq.eqn);
    guest.post_buffer(&mut qp, 128);
    events(&mut watched);
    events(&mut async_eq);
    async_eq.ring.arm();
    guest.irqs.take(0);

    guest.write32(regs::REG_ADMIN_DOORBELL, u32::MAX);
    assert_eq!(guest.status(), regs::STATUS_LINK_UP | regs::STATUS_FATAL);
    let seen = events(&mut async_eq);
    assert!(
        is(&seen[0], EventType::Fatal, 1, regs::FAULT_ADMIN_INDEX),
        "{seen:?}"
    );
    assert_eq!(guest.irqs.take(0), 1);
    let seen = events(&mut watched);
    assert!(
        is(&seen[0], EventType::NodeDown, 1, guest.epoch()),
        "{seen:?}"
    );
    let bytes = frame(node_mac(1), node_mac(0), 64, 0);
    watcher.send_frame(&mut watcher_qp, 1, &bytes, FrameMeta::default());
    assert_eq!(watcher_qp.poll().status, WcStatus::RetryExceeded.to_wire());
    // It does nothing more, and enabling it is not enough.
    guest.send_frame(&mut qp, 0, &bytes, FrameMeta::default());
    qp.assert_idle();
    guest.write32(regs::REG_CONTROL, regs::CONTROL_ENABLE);
    assert_eq!(guest.status() & regs::STATUS_READY, 0);
    guest.write32(regs::REG_CONTROL, regs::CONTROL_RESET);
    guest.enable();
    assert!(events(&mut watched).iter().any(|event| is(
        event,
        EventType::NodeUp,
        1,
        guest.epoch()
    )));
}

#[test]
fn polled_doorbells_need_no_kicks() {
    let world = World::new(2);
    let a = Guest::up(&world, 0);
    let mut a_qp = a.raw(a.eq(0).eqn);
    let b = Guest::up(&world, 1);
    let mut b_qp = b.raw(b.eq(0).eqn);
    b.post_buffer(&mut b_qp, 128);
    b.post_buffer(&mut b_qp, 128);
    assert!(!world.fabric.borrow_mut().set_polling(true));
    let bytes = frame(node_mac(1), node_mac(0), 64, 0);
    // A queue is polled once it has had work.
    b.post_buffer(&mut b_qp, 128);
    a.send_frame(&mut a_qp, 1, &bytes, FrameMeta::default());
    assert_eq!(a_qp.poll().status, WcStatus::Success.to_wire());
    let kicks = world.counter(0, "kicks");
    a.send_frame(&mut a_qp, 1, &bytes, FrameMeta::default());
    a_qp.assert_idle();
    assert!(world.fabric.borrow_mut().poll_doorbells());
    assert_eq!(a_qp.poll().status, WcStatus::Success.to_wire());
    assert!(!world.fabric.borrow_mut().poll_doorbells());
    // One that is rung while polling ends is not lost.
    a.send_frame(&mut a_qp, 1, &bytes, FrameMeta::default());
    assert!(world.fabric.borrow_mut().set_polling(false));
    world.pass(0);
    assert_eq!(a_qp.poll().status, WcStatus::Success.to_wire());
    assert_eq!(world.counter(0, "kicks"), kicks);
    a.send_frame(&mut a_qp, 1, &bytes, FrameMeta::default());
    assert_eq!(world.counter(0, "kicks"), kicks + 1);
    // A queue that is made while polling goes on is polled too, after a reset as well.
    world.fabric.borrow_mut().set_polling(true);
    world.fabric.borrow_mut().reset(0);
    a.enable();
    let mut a_qp = a.raw(a.eq(0).eqn);
    b.post_buffer(&mut b_qp, 128);
    let kicks = world.counter(0, "kicks");
    a.send_frame(&mut a_qp, 1, &bytes, FrameMeta::default());
    world.fabric.borrow_mut().poll_doorbells();
    assert_eq!(a_qp.poll().status, WcStatus::Success.to_wire());
    assert!(world.counter(0, "kicks") <= kicks + 1);
}

#[test]
fn reset_forgets_objects_and_the_next_driver_starts_clean() {
    let (world, a, b) = pair();
    for side in [&a, &b] {
        world.fabric.borrow_mut().reset(side.guest.node);
        let stats = world.fabric.borrow().stats();
        let objects = stats[usize::from(side.guest.node)].objects;
        assert_eq!(
            (objects.qp, objects.cq, objects.eq, objects.mr, objects.pd),
            (0, 0, 0, 0, 0)
        );
        side.guest.enable();
        assert_eq!(side.guest.eq(0).eqn, 0);
    }
}

#[test]
fn memory_that_is_unmapped_under_the_rings_hurts_nobody_else() {
    let world = World::new(2);
    let a = Guest::up(&world, 0);
    let mut a_qp = a.raw(a.eq(0).eqn);
    let b = Guest::up(&world, 1);
    let mut b_qp = b.raw(b.eq(0).eqn);
    b.post_buffer(&mut b_qp, 128);
    world
        .fabric
        .borrow_mut()
        .dma_unmap(1, RAM_BASE, RAM_SIZE as u64)
        .unwrap();
    let bytes = frame(node_mac(1), node_mac(0), 64, 0);
    a.send_frame(&mut a_qp, 1, &bytes, FrameMeta::default());
    world.pass(100_000);
    let cqe = a_qp.poll();
    assert_eq!(cqe.wr_id.get(), 0xf00d);
    let stats = world.fabric.borrow().stats();
    assert_eq!(stats[1].dma_bytes_mapped, 0);
    assert!(stats[0].enabled);
}
