// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Registers, the admin doorbell, doorbell pages.

use nupa_controller::{DoorbellPlace, Fabric, FabricConfig, FabricError};
use nupa_proto::admin::{AdminOpcode, Created};
use nupa_proto::doorbell::{kick_offset, slot_offset};
use nupa_proto::frame::FrameMeta;
use nupa_proto::ident::{node_mac, NODE_FLOOD, PCI_DEVICE_ID};
use nupa_proto::regs;
use nupa_proto::status::WcStatus;

use crate::common::guest::{Guest, Irqs, RAM_BASE, RAM_SIZE};
use crate::common::queues::frame;
use crate::common::{World, DOORBELL_PAGES};

#[test]
fn identity_registers_describe_node_and_fabric() {
    let world = World::new(3);
    let guest = Guest::connect(&world, 2);
    assert_eq!(guest.read32(regs::REG_MAGIC), regs::MAGIC);
    assert_eq!(guest.read32(regs::REG_VERSION), regs::VERSION);
    assert_eq!(guest.read32(regs::REG_NODE_ID), 2);
    assert_eq!(guest.read32(regs::REG_MAX_NODES), 3);
    assert_eq!(guest.read32(regs::REG_DOORBELL_PAGES), 2);
    assert_eq!(guest.read64(regs::REG_NODE_GUID), 0x024e_55ff_fe50_0002);
    assert_eq!(guest.status(), regs::STATUS_LINK_UP);
    let caps = guest.read64(regs::REG_CAPS);
    assert_eq!(u64::from(guest.read32(regs::REG_CAPS)), caps & 0xffff_ffff);
    assert_ne!(caps & regs::CAP_RAW, 0);
    assert_ne!(PCI_DEVICE_ID, NODE_FLOOD);
}

#[test]
fn wide_registers_take_halves_and_others_take_nothing_odd() {
    let world = World::new(2);
    let guest = Guest::connect(&world, 0);
    guest.write32(regs::REG_ADMIN_SQ, 0x1000);
    guest.write32(regs::REG_ADMIN_SQ + 4, 7);
    assert_eq!(guest.read64(regs::REG_ADMIN_SQ), 0x7_0000_1000);
    assert_eq!(guest.read32(regs::REG_ADMIN_SQ + 4), 7);
    // Narrow, misaligned and unknown accesses read as zero and are ignored.
    guest.write_bar(regs::BAR_CONTROL, regs::REG_ADMIN_SQ, &[1, 2]);
    guest.write_bar(regs::BAR_CONTROL, regs::REG_ADMIN_SQ + 2, &[1; 4]);
    guest.write_bar(regs::BAR_CONTROL, regs::REG_MAGIC, &[0; 4]);
    guest.write_bar(regs::BAR_CONTROL, 0xffc, &[1; 4]);
    assert_eq!(guest.read64(regs::REG_ADMIN_SQ), 0x7_0000_1000);
    assert_eq!(guest.read32(regs::REG_MAGIC), regs::MAGIC);
    let mut bytes = [7; 2];
    let mut fabric = world.fabric.borrow_mut();
    fabric.bar_read(0, regs::BAR_CONTROL, 0, &mut bytes);
    assert_eq!(bytes, [0; 2]);
    let mut word = [7; 4];
    for offset in [2, 0x58, 0xffc, 0x1000, u64::MAX] {
        fabric.bar_read(0, regs::BAR_CONTROL, offset, &mut word);
        assert_eq!(word, [0; 4]);
    }
}

#[test]
fn the_clock_counts_on_through_resets() {
    let world = World::new(2);
    let guest = Guest::up(&world, 0);
    assert_ne!(guest.read64(regs::REG_CAPS) & regs::CAP_TIMESTAMP, 0);
    assert_eq!(guest.read32(regs::REG_CLOCK_KHZ), 1_000_000);
    world.clock.advance(1 << 40);
    let first = guest.read64(regs::REG_CLOCK);
    assert_eq!(u64::from(guest.read32(regs::REG_CLOCK + 4)), first >> 32);
    world.clock.advance(1500);
    guest.write64(regs::REG_CLOCK, 0);
    assert_eq!(guest.read64(regs::REG_CLOCK), first + 1_500_000);
    guest.write32(regs::REG_CONTROL, regs::CONTROL_RESET);
    assert_eq!(guest.read64(regs::REG_CLOCK), first + 1_500_000);
}

#[test]
fn unusable_admin_rings_stop_the_function_until_reset() {
    let world = World::new(2);
    let guest = Guest::connect(&world, 0);
    let good = RAM_BASE + 0x1000;
    let end = RAM_BASE + RAM_SIZE as u64;
    let cases = [
        (good + 64, good, 4),
        (good, good + 8, 4),
        (good, good, regs::ADMIN_MAX_LOG_ENTRIES + 1),
        (0, good, 4),
        (good, end, 4),
        (end - 4096, good, 8),
        (u64::MAX - 4095, good, 8),
    ];
    for (sq, cq, log) in cases {
        guest.write64(regs::REG_ADMIN_SQ, sq);
        guest.write64(regs::REG_ADMIN_CQ, cq);
        guest.write32(regs::REG_ADMIN_SIZE, log);
        guest.write32(regs::REG_CONTROL, regs::CONTROL_ENABLE);
        assert_eq!(
            guest.status(),
            regs::STATUS_LINK_UP | regs::STATUS_FATAL,
            "{sq:#x} {cq:#x} {log}"
        );
        assert_eq!(guest.read32(regs::REG_FAULT), regs::FAULT_ADMIN_RING);
        let epoch = guest.epoch();
        guest.write32(regs::REG_CONTROL, regs::CONTROL_RESET);
        assert_eq!(guest.status(), regs::STATUS_LINK_UP);
        assert_eq!(guest.read32(regs::REG_FAULT), regs::FAULT_NONE);
        assert_eq!(guest.epoch(), epoch + 1);
    }
    guest.enable();
}

#[test]
fn an_admin_index_that_runs_ahead_stops_the_function() {
    let world = World::new(2);
    let guest = Guest::up(&world, 0);
    guest.pd();
    guest.write32(regs::REG_ADMIN_DOORBELL, 1 + 17);
    assert_eq!(guest.read32(regs::REG_FAULT), regs::FAULT_ADMIN_INDEX);
    assert_eq!(guest.status() & regs::STATUS_READY, 0);
    // Nothing is executed any more.
    guest.submit(AdminOpcode::AllocPd.to_wire(), &[]);
    assert!(guest.completion().is_none());
}

#[test]
fn an_admin_ring_that_is_unmapped_stops_the_function() {
    let world = World::new(2);
    let guest = Guest::up(&world, 0);
    let mut fabric = world.fabric.borrow_mut();
    fabric.dma_unmap(0, RAM_BASE, RAM_SIZE as u64).unwrap();
    drop(fabric);
    guest.submit(AdminOpcode::AllocPd.to_wire(), &[]);
    assert_eq!(guest.read32(regs::REG_FAULT), regs::FAULT_ADMIN_RING);
}

#[test]
fn admin_rings_wrap() {
    let world = World::new(2);
    let guest = Guest::up(&world, 0);
    for _ in 0..100 {
        let pd: Created = guest.command(AdminOpcode::AllocPd, &[0u8; 0]).unwrap();
        guest.by_id(AdminOpcode::DeallocPd, pd.id.get()).unwrap();
    }
}

#[test]
fn clearing_enable_resets() {
    let world = World::new(2);
    let guest = Guest::up(&world, 0);
    let epoch = guest.epoch();
    assert_eq!(guest.read32(regs::REG_CONTROL), regs::CONTROL_ENABLE);
    guest.write32(regs::REG_CONTROL, regs::CONTROL_ENABLE);
    assert_eq!(guest.epoch(), epoch);
    guest.write32(regs::REG_CONTROL, 0);
    assert_eq!(guest.epoch(), epoch + 1);
    assert_eq!(guest.status() & regs::STATUS_READY, 0);
    assert_eq!(guest.read64(regs::REG_ADMIN_SQ), 0);
}

#[test]
fn shared_pages_are_one_memory_mapped_or_not() {
    let world = World::with_doorbells(2, DoorbellPlace::Bar);
    let guest = Guest::connect(&world, 0);
    let at = slot_offset(1, 5);
    guest.write_bar(regs::BAR_DOORBELL, at, &9u32.to_le_bytes());
    assert_eq!(guest.doorbells.load_u32(at as u64), Ok(9));
    guest.doorbells.store_u32(at as u64, 10).unwrap();
    let mut word = [0; 4];
    let mut fabric = world.fabric.borrow_mut();
    fabric.bar_read(0, regs::BAR_DOORBELL, at as u64, &mut word);
    assert_eq!(u32::from_le_bytes(word), 10);
    // Kicks for slots that nobody has are not an error of the function.
    for slot in [0, 127] {
        fabric.bar_write(0, regs::BAR_DOORBELL, kick_offset(1, slot) as u64, &word);
        fabric.bar_write(
            0,
            regs::BAR_DOORBELL,
            kick_offset(1, slot) as u64 + 4,
            &word,
        );
    }
    let areas: Vec<_> = fabric.doorbell_mmap_areas().collect();
    assert_eq!(areas.len(), DOORBELL_PAGES as usize);
    assert!(areas
        .iter()
        .all(|area| area.end <= fabric.bar_size(regs::BAR_DOORBELL)));
}

/// A guest that has sent a frame to itself.
fn send_to_itself(world: &World) -> Guest {
    let guest = Guest::up(world, 0);
    let eqn = guest.eq(0).eqn;
    let mut qp = guest.raw(eqn);
    guest.post_buffer(&mut qp, 2048);
    let bytes = frame(node_mac(0), node_mac(0), 100, 1);
    guest.send_frame(&mut qp, 0, &bytes, FrameMeta::default());
    assert_eq!(qp.poll().status, WcStatus::Success.to_wire());
    guest
}

#[test]
fn doorbells_work_in_the_bar_and_in_memory() {
    for place in [DoorbellPlace::Bar, DoorbellPlace::Guest] {
        let world = World::with_doorbells(2, place);
        let guest = send_to_itself(&world);
        let in_memory = place == DoorbellPlace::Guest;
        let told = guest.read64(regs::REG_DOORBELL_MEMORY);
        assert_eq!(told != 0, in_memory);
        let mapped = world.fabric.borrow().doorbell_mmap_areas().count();
        assert_eq!(mapped == 0, in_memory);
        world.fabric.borrow_mut().reset(0);
        assert_eq!(guest.read64(regs::REG_DOORBELL_MEMORY), 0);
    }
}

#[test]
fn doorbell_memory_has_to_be_there() {
    let world = World::new(2);
    for base in [RAM_BASE + 8, RAM_BASE + RAM_SIZE as u64 - 4096, 4096, !4095] {
        let guest = Guest::connect(&world, 0);
        guest.start_with_doorbells(base);
        assert_eq!(guest.read32(regs::REG_FAULT), regs::FAULT_DOORBELL_MEMORY);
        assert_eq!(guest.status() & regs::STATUS_READY, 0);
        guest.write32(regs::REG_CONTROL, regs::CONTROL_RESET);
        guest.enable();
    }
}

#[test]
fn doorbell_memory_that_goes_away_is_survived() {
    let world = World::new(2);
    let guest = send_to_itself(&world);
    world.fabric.borrow_mut().dma_unmap_all(0);
    for slot in 0..8 {
        let kick = kick_offset(0, slot);
        guest.write_bar(regs::BAR_DOORBELL, kick, &[0; 4]);
        guest.write_bar(regs::BAR_DOORBELL, kick + 4, &[1; 4]);
    }
    world.pass(100_000);
}

#[test]
fn without_bus_master_nothing_is_accessed() {
    let world = World::new(2);
    let guest = Guest::up(&world, 0);
    let allow = |on| world.fabric.borrow_mut().set_bus_master(0, on);
    allow(false);
    guest.submit(AdminOpcode::QueryDevice.to_wire(), &[]);
    assert!(guest.completion().is_none());
    allow(true);
    assert!(guest.completion().is_none(), "what was lost stays lost");
    guest.write32(regs::REG_CONTROL, regs::CONTROL_RESET);
    guest.enable();
    guest.pd();
}

#[test]
fn without_a_guest_there_is_no_function() {
    let world = World::new(2);
    let mut fabric = world.fabric.borrow_mut();
    let mut word = [0; 4];
    for node in [1, 2] {
        fabric.bar_read(node, regs::BAR_CONTROL, 0, &mut word);
        assert_eq!(word, [0xff; 4]);
        fabric.bar_write(node, regs::BAR_CONTROL, 0x14, &[1, 0, 0, 0]);
        assert!(fabric.doorbell_file(node).is_none());
        fabric.disconnect(node);
    }
}

#[test]
fn the_owner_is_told_of_its_own_mistakes() {
    let world = World::new(2);
    let mut fabric = world.fabric.borrow_mut();
    fabric.connect(0, Box::new(Irqs::default())).unwrap();
    let twice = fabric.connect(0, Box::new(Irqs::default()));
    assert_eq!(twice, Err(FabricError::Connected(0)));
    let nobody = fabric.connect(2, Box::new(Irqs::default()));
    assert_eq!(nobody, Err(FabricError::NoSuchNode(2)));
    assert_eq!(fabric.set_link(9, true), Err(FabricError::NoSuchNode(9)));
    let clock: std::rc::Rc<dyn nupa_controller::Clock> = world.clock.clone();
    for max_nodes in [0, 1, 66] {
        let config = FabricConfig {
            max_nodes,
            ..FabricConfig::default()
        };
        let error = Fabric::new(&config, &clock).err();
        assert_eq!(error, Some(FabricError::NodeCount(max_nodes)));
    }
}
