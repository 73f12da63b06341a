// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Regions of the peer's that this process has mapped: WRITEs and READs that no engine has a part in.

use nupa_engine::hal::SlotWord;
use nupa_engine::rings::Doorbell;
use nupa_poolnode::MappedRegion;
use nupa_proto::admin::{AdminOpcode, ACCESS_ALL, ACCESS_REMOTE_READ};
use nupa_proto::regs::DEVICE_MEMORY_BASE;

use super::super::super::node::LEN;
use super::super::SIGNALED;
use super::hosts::Hosts;
use crate::ffi::testing::{send, sys, SendExt};

/// Where READs put what they read, in the memory of the first host.
const READ_TO: usize = 256 << 10;
/// Requests after which a region is mapped, if it was granted before.
const ENOUGH: u64 = 200;

/// Two hosts, of which the first one writes to device memory of the second.
struct Mapped {
    hosts: Hosts,
    key: u32,
    region: Option<MappedRegion>,
}

impl Mapped {
    /// With a region of these rights, that the first host may map if that can be.
    fn with(hosts: Hosts, rights: u32) -> Self {
        let write = |mapped: &Self, number| mapped.write(number, 0, 8, SIGNALED);
        Self::after(hosts, rights, write)
    }

    /// As [`Mapped::with`], after such requests.
    fn after(hosts: Hosts, rights: u32, request: impl Fn(&Self, u64)) -> Self {
        let node = &hosts.b.node;
        let key = node
            .guest
            .register(node.pd, DEVICE_MEMORY_BASE, LEN as u64, rights);
        let mut mapped = Self {
            hosts,
            key: key.unwrap(),
            region: None,
        };
        for number in 0..ENOUGH {
            request(&mapped, number);
            mapped.hosts.b.poll();
            assert_eq!(mapped.hosts.completions(1).len(), 1);
            mapped.grant();
        }
        mapped
    }

    fn new() -> Self {
        Self::with(Hosts::new(false), ACCESS_ALL)
    }

    /// What the kernel does that is asked for the region.
    fn grant(&mut self) {
        let Hosts { a, memory, .. } = &self.hosts;
        if self.region.is_none() {
            self.region = a.pool.map_grant(a.qp.qpn, self.key);
            if let Some(region) = &self.region {
                let (offset, place) = (region.offset(), region.place());
                a.rings.grant(self.key, memory, offset, place);
            }
        }
    }

    /// What the kernel does that takes the region away. The mapping is another page's then; here it stays, and what is copied is there.
    fn revoke(&mut self) {
        let Hosts { a, .. } = &self.hosts;
        a.qp.send_slot.change_mappings(false);
        a.rings.revoke();
        if let Some(region) = self.region.take() {
            a.pool.unmap_grant(&region);
        }
    }

    fn post(&self, opcode: sys::ibv_wr_opcode, local: usize, to: (u64, usize, usize), flags: u32) {
        let (wr_id, at, len) = to;
        let Hosts { a, .. } = &self.hosts;
        let mut sges = [a.node.sge(local, len as u32)];
        let request = send(wr_id, opcode, flags).with(&mut sges);
        let request = request.remote(DEVICE_MEMORY_BASE + at as u64, self.key);
        a.qp.qp.post_send(&mut [request]).unwrap();
    }

    /// Writes bytes that depend on the number.
    fn write(&self, wr_id: u64, at: usize, len: usize, flags: u32) {
        self.hosts.a.node.fill(0, &Hosts::bytes(wr_id, len));
        self.post(sys::IBV_WR_RDMA_WRITE, 0, (wr_id, at, len), flags);
    }

    /// Reads them to [`READ_TO`].
    fn read(&self, wr_id: u64, at: usize, len: usize, flags: u32) {
        self.post(sys::IBV_WR_RDMA_READ, READ_TO, (wr_id, at, len), flags);
    }

    /// Whether what was written by a number is there.
    fn is_written(&self, wr_id: u64, at: usize, len: usize) -> bool {
        let mut found = vec![0; len];
        let start = self.hosts.b.pool.device_memory();
        self.hosts.memory.read(start + at, &mut found).unwrap();
        found == Hosts::bytes(wr_id, len)
    }

    /// Whether a WRITE is there, and complete, although no engine works.
    fn is_copied(&self, wr_id: u64, at: usize, len: usize) -> bool {
        self.write(wr_id, at, len, SIGNALED);
        let there = self.is_written(wr_id, at, len);
        let posted = self.posted();
        let [(number, status, opcode)] = self.hosts.completions(1)[..] else {
            panic!("more than one completion");
        };
        let expected = (wr_id, sys::IBV_WC_SUCCESS, sys::IBV_WC_RDMA_WRITE);
        assert_eq!((number, status, opcode), expected);
        assert!(self.is_written(wr_id, at, len), "{len} bytes");
        assert_eq!(self.posted(), posted);
        there
    }

    /// Index of the send queue.
    fn posted(&self) -> u32 {
        self.hosts.a.qp.send_slot.load(SlotWord::Index)
    }
}

#[test]
fn writes_of_all_lengths_are_there_when_they_are_posted() {
    let mapped = Mapped::new();
    for (number, len) in (1000..).zip([1, 7, 8, 9, 4096, 65_536]) {
        assert!(mapped.is_copied(number, 24, len), "{len} bytes");
    }
    mapped.write(2000, 0, 0, SIGNALED);
    assert_eq!(mapped.hosts.completions(1)[0].0, 2000, "of no bytes");
    assert!(mapped.is_copied(2001, LEN - 8, 8));
}

/// A thread that arms the completion queue would wait for it.
#[test]
fn long_ones_are_copied_if_nobody_asks_for_their_completion() {
    let mapped = Mapped::new();
    mapped.write(1000, 0, 65_537, SIGNALED);
    assert!(!mapped.is_written(1000, 0, 65_537));
    assert_eq!(mapped.hosts.completions(1)[0].0, 1000);
    mapped.write(1001, 0, LEN, 0);
    assert!(mapped.is_written(1001, 0, LEN));
    assert!(mapped.hosts.a.spin().is_empty());
}

#[test]
fn pieces_are_put_together() {
    let mapped = Mapped::new();
    for lens in [vec![4, 4], vec![100, 3, 0], vec![5000, 1, 1, 6], vec![0, 9]] {
        let (node, qp) = (&mapped.hosts.a.node, &mapped.hosts.a.qp);
        let len: u32 = lens.iter().sum();
        let bytes = Hosts::bytes(len.into(), len as usize);
        node.fill(0, &bytes);
        let mut at = 0;
        let mut sges = Vec::new();
        for piece in &lens {
            sges.push(node.sge(at, *piece));
            at += *piece as usize;
        }
        let request = send(1, sys::IBV_WR_RDMA_WRITE, 0).with(&mut sges);
        let request = request.remote(DEVICE_MEMORY_BASE, mapped.key);
        qp.qp.post_send(&mut [request]).unwrap();
        assert!(mapped.is_written(len.into(), 0, len as usize), "{lens:?}");
    }
}

#[test]
fn reads_see_what_was_written() {
    let mapped = Mapped::new();
    for (number, len) in (1000..).zip([1, 8, 5000, 65_536]) {
        mapped.write(number, 64, len, 0);
        mapped.read(number, 64, len, SIGNALED);
        let read = mapped.hosts.a.node.bytes(READ_TO, len);
        assert_eq!(read, Hosts::bytes(number, len), "at once");
        let [wc] = mapped.hosts.a.spin()[..] else {
            panic!("one completion");
        };
        let found = (wc.wr_id, wc.status, wc.opcode, wc.byte_len as usize);
        let expected = (number, sys::IBV_WC_SUCCESS, sys::IBV_WC_RDMA_READ, len);
        assert_eq!(found, expected);
    }
    // The engine says what is wrong with that.
    let Hosts { a, .. } = &mapped.hosts;
    let bytes = [0u8; 8];
    let mut sges = [a.node.sge(0, 8)];
    sges[0].addr = bytes.as_ptr() as u64;
    let flags = SIGNALED | sys::IBV_SEND_INLINE;
    let request = send(2000, sys::IBV_WR_RDMA_READ, flags).with(&mut sges);
    let request = request.remote(DEVICE_MEMORY_BASE, mapped.key);
    a.qp.qp.post_send(&mut [request]).unwrap();
    let [(2000, status, _)] = mapped.hosts.completions(1)[..] else {
        panic!("one completion");
    };
    assert_ne!(status, sys::IBV_WC_SUCCESS);
}

#[test]
fn what_is_only_read_is_mapped_too() {
    let read = |mapped: &Mapped, number| mapped.read(number, 0, 8, SIGNALED);
    let mapped = Mapped::after(Hosts::new(false), ACCESS_ALL, read);
    assert!(mapped.region.is_some());
    let posted = mapped.posted();
    mapped.read(1000, 0, 64, SIGNALED);
    assert_eq!(mapped.hosts.completions(1)[0].0, 1000);
    assert_eq!(mapped.posted(), posted, "the engine has had it");
}

#[test]
fn there_is_no_need_for_a_process_ring_nor_for_none() {
    let hosts = Hosts::with_rings();
    let mapped = Mapped::with(hosts, ACCESS_ALL);
    for number in 1000..1100 {
        assert!(mapped.is_copied(number, 0, 64));
        mapped.hosts.message(number, 8);
        // Behind a message that was not received yet.
        mapped.write(number + 1000, 64, 64, SIGNALED);
        mapped.hosts.b.poll();
        let found = mapped.hosts.completions(2);
        assert_eq!((found[0].0, found[1].0), (number, number + 1000));
        assert!(mapped.is_written(number + 1000, 64, 64));
        mapped.hosts.b.poll();
    }
}

#[test]
fn what_is_behind_a_request_of_the_engines_goes_there_too() {
    let mapped = Mapped::new();
    mapped.write(1000, 0, 0, 0);
    let posted = mapped.posted();
    mapped.write(1001, 0, 8, SIGNALED);
    assert!(!mapped.is_written(1001, 0, 8));
    assert_ne!(mapped.posted(), posted);
    assert_eq!(mapped.hosts.completions(1)[0].0, 1001);
    assert!(mapped.is_written(1001, 0, 8));
    assert!(mapped.is_copied(1002, 0, 8));
}

#[test]
fn after_its_end_requests_go_to_the_engine_until_it_is_mapped_anew() {
    let mut mapped = Mapped::new();
    for round in 0..3 {
        assert!(mapped.is_copied(1000, 0, 64));
        mapped.revoke();
        assert!(mapped.hosts.a.qp.send_slot.is_live());
        mapped.write(1001, 0, 64, SIGNALED);
        assert!(!mapped.is_written(1001, 0, 64), "it was copied as well");
        assert_eq!(mapped.hosts.completions(1)[0].0, 1001);
        assert!(mapped.is_written(1001, 0, 64));
        mapped.read(1002, 0, 64, SIGNALED);
        assert_eq!(mapped.hosts.completions(1)[0].0, 1002);
        let read = mapped.hosts.a.node.bytes(READ_TO, 64);
        assert_eq!(read, Hosts::bytes(1001, 64));
        for number in 0..ENOUGH {
            mapped.write(number, 0, 8, SIGNALED);
            mapped.hosts.completions(1);
            mapped.grant();
        }
        assert!(mapped.region.is_some(), "round {round}");
    }
}

/// The kernel waits for a copy that was begun, and says so if it did not.
#[test]
fn a_copy_counts_unless_the_region_was_taken_away_in_the_middle() {
    let mapped = Mapped::new();
    let slot = &mapped.hosts.a.qp.send_slot;
    let mark = slot.mappings();
    assert!(slot.begin_copy(mark) && slot.end_copy(mark));
    assert_eq!(slot.mappings(), mark);
    assert!(slot.begin_copy(mark));
    slot.change_mappings(false);
    assert!(slot.end_copy(mark) && slot.is_live());
    assert!(!slot.begin_copy(mark), "it was taken away since");
    let mark = slot.mappings();
    assert!(slot.begin_copy(mark));
    slot.change_mappings(false);
    slot.change_mappings(true);
    assert!(!slot.end_copy(mark) && slot.is_live());
}

#[test]
fn a_region_that_was_deregistered_is_refused_as_ever() {
    let mut mapped = Mapped::new();
    let region = mapped.region.as_ref().unwrap();
    assert!(mapped.hosts.a.pool.is_granted(region));
    mapped.revoke();
    let guest = &mapped.hosts.b.node.guest;
    guest.by_id(AdminOpcode::DestroyMr, mapped.key).unwrap();
    mapped.write(1000, 0, 8, SIGNALED);
    let [(_, status, _)] = mapped.hosts.completions(1)[..] else {
        panic!("one completion");
    };
    assert_eq!(status, sys::IBV_WC_REM_ACCESS_ERR);
    assert!(mapped.hosts.a.qp.send_slot.is_live());
}

#[test]
fn what_may_not_be_read_is_not_mapped() {
    let mapped = Mapped::with(Hosts::new(false), ACCESS_ALL & !ACCESS_REMOTE_READ);
    assert!(mapped.region.is_none());
    assert!(!mapped.is_copied(1000, 0, 8));
}
