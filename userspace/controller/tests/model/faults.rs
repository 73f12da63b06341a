// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Controllers that are told to misbehave.

use nupa_control::Fault;
use nupa_proto::admin::AdminOpcode;
use nupa_proto::eqe::EventType;
use nupa_proto::frame::FrameMeta;
use nupa_proto::ident::node_mac;
use nupa_proto::regs;
use nupa_proto::status::AdminStatus;

use crate::common::guest::Guest;
use crate::common::queues::frame;
use crate::common::World;

/// Submits a command, which completes a fifth of a second later.
fn submit_late(world: &World, guest: &Guest) {
    guest.submit(AdminOpcode::AllocPd.to_wire(), &[]);
    world.pass(150_000);
    assert!(guest.completion().is_none());
    world.pass(100_000);
    let status = guest.completion().unwrap().status.get();
    assert_eq!(status, AdminStatus::Success.to_wire());
}

fn set(world: &World, node: u16, fault: Fault) {
    world.fabric.borrow_mut().set_fault(node, fault).unwrap();
}

#[test]
fn version_and_magic_are_wrong_until_cured() {
    let world = World::new(2);
    let guest = Guest::connect(&world, 0);
    set(&world, 0, Fault::Version);
    assert_eq!(
        guest.read32(regs::REG_VERSION) >> 16,
        u32::from(regs::VERSION_MAJOR) + 1
    );
    set(&world, 0, Fault::Magic);
    assert_ne!(guest.read32(regs::REG_MAGIC), regs::MAGIC);
    assert_eq!(guest.read32(regs::REG_VERSION), regs::VERSION);
    set(&world, 0, Fault::None);
    guest.enable();
}

#[test]
fn a_function_that_hangs_is_never_ready() {
    let world = World::new(2);
    let guest = Guest::connect(&world, 0);
    set(&world, 0, Fault::Hang);
    guest.write64(regs::REG_ADMIN_SQ, 0x1_0000_1000);
    guest.write64(regs::REG_ADMIN_CQ, 0x1_0000_2000);
    guest.write32(regs::REG_CONTROL, regs::CONTROL_ENABLE);
    assert_eq!(guest.status(), regs::STATUS_LINK_UP);
    guest.write32(regs::REG_CONTROL, regs::CONTROL_RESET);
    set(&world, 0, Fault::None);
    guest.enable();
}

#[test]
fn a_mute_admin_queue_takes_and_never_answers() {
    let world = World::new(2);
    let guest = Guest::up(&world, 0);
    set(&world, 0, Fault::Mute);
    for _ in 0..12 {
        guest.submit(AdminOpcode::AllocPd.to_wire(), &[]);
        assert!(guest.completion().is_none());
    }
    assert_eq!(guest.status(), regs::STATUS_LINK_UP | regs::STATUS_READY);
    assert_eq!(world.fabric.borrow().stats()[0].objects.pd, 0);
}

#[test]
fn bad_statuses_and_garbage_are_completed_in_time() {
    let world = World::new(2);
    let guest = Guest::up(&world, 0);
    set(&world, 0, Fault::BadStatus);
    guest.submit(AdminOpcode::AllocPd.to_wire(), &[]);
    let status = guest.completion().unwrap().status.get();
    assert!(AdminStatus::try_from(status).is_err());
    set(&world, 0, Fault::Garbage);
    guest.submit(AdminOpcode::AllocPd.to_wire(), &[]);
    assert_ne!(guest.completion().unwrap().body, [0; 56]);
}

#[test]
fn garbage_reaches_rings_with_the_right_phase() {
    let world = World::new(2);
    let a = Guest::up(&world, 0);
    let mut a_qp = a.raw(a.eq(0).eqn);
    let b = Guest::up(&world, 1);
    let mut events = b.eq(0);
    let mut b_qp = b.raw(events.eqn);
    while events.ring.poll().is_some() {}
    set(&world, 1, Fault::Garbage);
    let buffer = b.post_buffer(&mut b_qp, 128);
    b_qp.cq.ring.arm(false);
    let bytes = frame(node_mac(1), node_mac(0), 64, 4);
    a.send_frame(&mut a_qp, 1, &bytes, FrameMeta::default());
    let junk = b_qp.poll();
    assert_ne!((junk.wr_id.get(), junk.qpn.get()), (buffer, b_qp.qpn));
    let event = events.ring.poll().unwrap();
    let told = (event.event_type, event.object.get());
    assert_ne!(told, (EventType::Completion.to_wire(), b_qp.cq.cqn));
    // Data is no ring: it arrives as sent, and so does everything of the healthy node.
    assert_eq!(b.get(buffer, 64), bytes);
    assert_eq!(a_qp.poll().wr_id.get(), 0xf00d);
    set(&world, 1, Fault::None);
    let buffer = b.post_buffer(&mut b_qp, 128);
    a.send_frame(&mut a_qp, 1, &bytes, FrameMeta::default());
    assert_eq!(b_qp.poll().wr_id.get(), buffer);
}

#[test]
fn a_function_that_was_pulled_out_is_dead_and_gone_for_its_peers() {
    let world = World::new(2);
    let watcher = Guest::up(&world, 0);
    let mut events = watcher.eq(0);
    let guest = Guest::up(&world, 1);
    while events.ring.poll().is_some() {}
    set(&world, 1, Fault::AllOnes);
    assert_eq!(guest.read32(regs::REG_STATUS), u32::MAX);
    assert_eq!(guest.read64(regs::REG_CAPS), u64::MAX);
    guest.submit(AdminOpcode::AllocPd.to_wire(), &[]);
    assert!(guest.completion().is_none());
    let event = events.ring.poll().unwrap();
    assert_eq!(event.event_type, EventType::NodeDown.to_wire());
    set(&world, 1, Fault::None);
    assert_eq!(guest.status(), regs::STATUS_LINK_UP);
    guest.enable();
}

#[test]
fn commands_that_are_late_complete_all_the_same() {
    let world = World::new(2);
    let guest = Guest::up(&world, 0);
    set(&world, 0, Fault::Delay);
    submit_late(&world, &guest);
}

#[test]
fn a_late_command_is_as_late_as_its_doorbell() {
    let world = World::new(2);
    let guest = Guest::up(&world, 0);
    set(&world, 0, Fault::Delay);
    guest.write32(regs::REG_CONTROL, regs::CONTROL_ENABLE);
    world.pass(150_000);
    submit_late(&world, &guest);
}

#[test]
fn a_reset_forgets_what_is_late() {
    let world = World::new(2);
    let guest = Guest::up(&world, 0);
    set(&world, 0, Fault::Delay);
    for by_register in [true, false] {
        guest.submit(AdminOpcode::AllocPd.to_wire(), &[]);
        world.pass(150_000);
        if by_register {
            guest.write32(regs::REG_CONTROL, regs::CONTROL_RESET);
        } else {
            world.fabric.borrow_mut().reset(0);
        }
        guest.enable();
        submit_late(&world, &guest);
    }
}

#[test]
fn a_stall_ends_with_doorbells_polled_as_before() {
    let world = World::new(2);
    let a = Guest::up(&world, 0);
    let mut a_qp = a.raw(a.eq(0).eqn);
    let b = Guest::up(&world, 1);
    let mut b_qp = b.raw(b.eq(0).eqn);
    let bytes = frame(node_mac(1), node_mac(0), 64, 4);
    world.fabric.borrow_mut().set_polling(true);
    set(&world, 1, Fault::Stall);
    set(&world, 1, Fault::None);
    // A queue is polled once it has had work.
    for _ in 0..2 {
        b.post_buffer(&mut b_qp, 128);
        a.send_frame(&mut a_qp, 1, &bytes, FrameMeta::default());
        world.fabric.borrow_mut().poll_doorbells();
        assert!(a_qp.cq.ring.poll().is_some());
    }
    let kicks = world.counter(0, "kicks");
    b.post_buffer(&mut b_qp, 128);
    a.send_frame(&mut a_qp, 1, &bytes, FrameMeta::default());
    assert!(world.fabric.borrow_mut().poll_doorbells());
    assert!(a_qp.cq.ring.poll().is_some());
    assert_eq!(world.counter(0, "kicks"), kicks);
}

#[test]
fn a_stalled_controller_looks_at_its_queues_when_it_hears_again() {
    let world = World::new(2);
    let a = Guest::up(&world, 0);
    let mut a_qp = a.raw(a.eq(0).eqn);
    let b = Guest::up(&world, 1);
    let mut b_qp = b.raw(b.eq(0).eqn);
    let buffer = b.post_buffer(&mut b_qp, 128);
    set(&world, 0, Fault::Stall);
    let bytes = frame(node_mac(1), node_mac(0), 64, 4);
    a.send_frame(&mut a_qp, 1, &bytes, FrameMeta::default());
    world.fabric.borrow_mut().run();
    assert!(b_qp.cq.ring.poll().is_none());
    set(&world, 0, Fault::None);
    world.fabric.borrow_mut().run();
    assert_eq!(b_qp.poll().wr_id.get(), buffer);
    assert_eq!(b.get(buffer, 64), bytes);
}

#[test]
fn one_that_dies_works_again_after_a_reset() {
    let world = World::new(2);
    let guest = Guest::up(&world, 0);
    set(&world, 0, Fault::Die);
    assert_eq!(guest.status(), regs::STATUS_LINK_UP | regs::STATUS_FATAL);
    assert_eq!(guest.read32(regs::REG_FAULT), regs::FAULT_EVENT_QUEUE);
    guest.write32(regs::REG_CONTROL, regs::CONTROL_RESET);
    guest.enable();
    guest.submit(AdminOpcode::AllocPd.to_wire(), &[]);
    assert!(guest.completion().is_some());
}
