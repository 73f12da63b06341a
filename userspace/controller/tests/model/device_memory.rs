// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The function's own memory: seen through BAR 2, and by the DMA engine.

use guestmem::{MapRequest, Rights};
use nupa_engine::rings::Operation;
use nupa_proto::admin::{ACCESS_REMOTE_READ, ACCESS_REMOTE_WRITE};
use nupa_proto::doorbell::device_memory_offset;
use nupa_proto::regs;
use nupa_proto::status::{AdminStatus, WcStatus};

use crate::common::guest::Guest;
use crate::common::{World, DOORBELL_PAGES};
use crate::connections::pair;

fn window(offset: u64) -> u64 {
    device_memory_offset(DOORBELL_PAGES) as u64 + offset
}

fn load(guest: &Guest, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xee; len];
    let mut fabric = guest.world.fabric.borrow_mut();
    fabric.bar_read(guest.node, regs::BAR_DOORBELL, window(offset), &mut bytes);
    bytes
}

fn store(guest: &Guest, offset: u64, bytes: &[u8]) {
    guest.write_bar(regs::BAR_DOORBELL, window(offset) as usize, bytes);
}

#[test]
fn a_peer_writes_and_reads_what_the_host_sees_in_the_bar() {
    let (_world, mut a, b) = pair();
    let len = b.guest.read64(regs::REG_DEVICE_MEMORY);
    assert_eq!(len, 1 << 20);
    let rights = ACCESS_REMOTE_READ | ACCESS_REMOTE_WRITE;
    let (addr, last) = (regs::DEVICE_MEMORY_BASE, len - 8);
    let key = b.guest.register(b.pd, addr, len, rights).unwrap();
    a.fill(0, b"device memory");
    let write = Operation::Write {
        addr: addr + 40,
        rkey: key,
        imm: None,
    };
    assert_eq!(a.request(write, 13), WcStatus::Success);
    assert_eq!(load(&b.guest, 40, 13), b"device memory");
    for (at, bytes) in [(last, &[7; 8][..]), (100, &[1, 2, 3]), (200, &[4; 4])] {
        store(&b.guest, at, bytes);
        let read = Operation::Read {
            addr: addr + at,
            rkey: key,
        };
        assert_eq!(a.request(read, bytes.len() as u32), WcStatus::Success);
        assert_eq!(a.bytes(0, bytes.len()), bytes);
    }
    // It outlives a reset, as its owner may have to be asked what is in it.
    b.guest.write32(regs::REG_CONTROL, regs::CONTROL_RESET);
    assert_eq!(load(&b.guest, 40, 13), b"device memory");
}

#[test]
fn what_lies_behind_it_is_nothing() {
    let world = World::new(2);
    let guest = Guest::up(&world, 0);
    let len = guest.read64(regs::REG_DEVICE_MEMORY);
    let size = world.fabric.borrow().bar_size(regs::BAR_DOORBELL);
    assert!(size >= window(len) && size.is_power_of_two());
    store(&guest, len - 2, &[9; 4]);
    assert_eq!(load(&guest, len - 2, 2), [0; 2]);
    assert_eq!(load(&guest, len, 4), [0; 4]);
    // A region may end with the memory, but not reach beyond: that fails when it is accessed.
    let base = regs::DEVICE_MEMORY_BASE;
    let pd = guest.pd();
    assert!(guest.register(pd, base, len, 0).is_ok());
    let wraps = guest.register(pd, u64::MAX - 4095, 8192, 0);
    assert_eq!(wraps, Err(AdminStatus::InvalidField));
}

#[test]
fn no_vmm_maps_or_unmaps_its_addresses() {
    let world = World::new(2);
    let guest = Guest::up(&world, 0);
    let len = guest.read64(regs::REG_DEVICE_MEMORY);
    let mut fabric = world.fabric.borrow_mut();
    for iova in [
        regs::DEVICE_MEMORY_BASE,
        regs::DEVICE_MEMORY_BASE - 4096,
        regs::DEVICE_MEMORY_BASE + len,
    ] {
        let request = MapRequest {
            iova,
            len: 8192,
            file: Some(guest.ram.file()),
            offset: 0,
            rights: Rights::ReadWrite,
        };
        assert!(fabric.dma_map(0, &request).is_err(), "{iova:#x}");
    }
    assert!(fabric.dma_unmap(0, regs::DEVICE_MEMORY_BASE, len).is_err());
}

#[test]
fn a_new_guest_finds_it_empty() {
    let (world, _a, b) = pair();
    store(&b.guest, 0, &[1; 8]);
    let node = b.guest.node;
    world.fabric.borrow_mut().disconnect(node);
    world
        .fabric
        .borrow_mut()
        .connect(node, Box::new(b.guest.irqs.clone()))
        .unwrap();
    assert_eq!(load(&b.guest, 0, 8), [0; 8]);
}

#[test]
fn it_stays_within_reach_when_the_vmm_unmaps_everything_else() {
    let world = World::new(2);
    let guest = Guest::up(&world, 0);
    world.fabric.borrow_mut().dma_unmap_all(0);
    assert_eq!(world.fabric.borrow().stats()[0].dma_bytes_mapped, 0);
    // Admin rings in it: whoever executes a command there reaches it.
    let (sq, cq) = (regs::DEVICE_MEMORY_BASE, regs::DEVICE_MEMORY_BASE + 4096);
    guest.write32(regs::REG_CONTROL, regs::CONTROL_RESET);
    guest.write64(regs::REG_ADMIN_SQ, sq);
    guest.write64(regs::REG_ADMIN_CQ, cq);
    guest.write32(regs::REG_ADMIN_SIZE, 4);
    guest.write32(regs::REG_CONTROL, regs::CONTROL_ENABLE);
    assert_eq!(guest.status(), regs::STATUS_LINK_UP | regs::STATUS_READY);
}
