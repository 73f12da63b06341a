// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Connected queue pairs: bytes, rights, waiting, errors.

use nupa_engine::rings::{Data, Operation, SendRequest};
use nupa_proto::admin::{
    AdminOpcode, QpStateCode, ACCESS_LOCAL_WRITE, ACCESS_REMOTE_READ, ACCESS_REMOTE_WRITE,
};
use nupa_proto::cqe::{CqeOpcode, CQE_IMM};
use nupa_proto::status::{AdminStatus, WcStatus};
use nupa_proto::wqe::WQE_SIGNALED;

use crate::common::guest::{iova, Guest};
use crate::common::queues::{sge, Qp};
use crate::common::World;

/// One side of a connection: a guest, its domain and queue pair, and memory with a key for everything.
pub struct Side {
    pub guest: Guest,
    pub pd: u32,
    pub qp: Qp,
    pub memory: u64,
    pub key: u32,
}

const LEN: usize = 1 << 20;

fn side(world: &World, node: u16) -> Side {
    let guest = Guest::up(world, node);
    let eqn = guest.eq(0).eqn;
    let pd = guest.pd();
    let qp = guest.rc(pd, eqn);
    let memory = iova(guest.alloc(LEN));
    let rights = ACCESS_REMOTE_READ | ACCESS_REMOTE_WRITE;
    let key = guest.register(pd, memory, LEN as u64, rights).unwrap();
    Side {
        guest,
        pd,
        qp,
        memory,
        key,
    }
}

/// Two connected sides on nodes 0 and 1.
pub fn pair() -> (World, Side, Side) {
    let world = World::new(3);
    let (a, b) = (side(&world, 0), side(&world, 1));
    join(&a, &b);
    join(&b, &a);
    (world, a, b)
}

fn join(own: &Side, peer: &Side) {
    let epoch = peer.guest.epoch();
    own.guest
        .connect_to(&own.qp, &peer.guest, peer.qp.qpn, epoch)
        .unwrap();
}

impl Side {
    pub fn fill(&self, offset: usize, bytes: &[u8]) {
        let base = usize::try_from(self.memory - iova(0)).unwrap();
        self.guest.ram.write(base + offset, bytes).unwrap();
    }

    pub fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        self.guest.get(self.memory + offset as u64, len)
    }

    /// Posts a request on `len` bytes at the start of the memory and returns how it ended.
    pub fn request(&mut self, operation: Operation, len: u32) -> WcStatus {
        self.post(operation, len);
        self.guest.world.pass(0);
        let cqe = self.qp.poll();
        self.qp.send.completed(cqe.queue_index.get()).unwrap();
        WcStatus::try_from(cqe.status).unwrap()
    }

    pub fn post(&mut self, operation: Operation, len: u32) {
        let entry = [sge(self.memory, len, self.key)];
        let request = SendRequest {
            wr_id: 77,
            flags: WQE_SIGNALED,
            operation,
            data: Data::Sges(if len == 0 { &[] } else { &entry }),
        };
        self.qp.send.post(&request).unwrap();
        self.qp.send.ring();
    }

    /// Posts a receive for `len` bytes at an offset.
    pub fn receive(&mut self, offset: u64, len: u32) {
        let entry = sge(self.memory + offset, len, self.key);
        self.qp.recv.post(offset, &[entry]).unwrap();
        self.qp.recv.ring();
    }
}

fn write_to(peer: &Side, offset: u64, imm: Option<u32>) -> Operation {
    Operation::Write {
        addr: peer.memory.wrapping_add(offset),
        rkey: peer.key,
        imm,
    }
}

fn read_from(peer: &Side, offset: u64) -> Operation {
    Operation::Read {
        addr: peer.memory.wrapping_add(offset),
        rkey: peer.key,
    }
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|i| (i / 251) as u8 ^ (i as u8).wrapping_add(seed))
        .collect()
}

#[test]
fn write_and_read_move_bytes_of_all_sizes() {
    let (world, mut a, b) = pair();
    for len in [1, 63, 64, 65, 4095, 4096, 4097, 65536, LEN as u32] {
        let bytes = pattern(len as usize, len as u8);
        a.fill(0, &bytes);
        b.fill(0, &vec![0; len as usize]);
        assert_eq!(a.request(write_to(&b, 0, None), len), WcStatus::Success);
        assert_eq!(b.bytes(0, len as usize), bytes);
        a.fill(0, &vec![0; len as usize]);
        assert_eq!(a.request(read_from(&b, 0), len), WcStatus::Success);
        assert_eq!(a.bytes(0, len as usize), bytes);
    }
    assert_eq!(world.counter(0, "tx_messages"), 18);
    assert_eq!(world.counter(1, "rx_messages"), 18);
}

#[test]
fn send_arrives_in_the_posted_buffer() {
    let (_world, mut a, mut b) = pair();
    let bytes = pattern(3000, 5);
    a.fill(0, &bytes);
    b.receive(8192, 4096);
    assert_eq!(
        a.request(Operation::Send { imm: None }, 3000),
        WcStatus::Success
    );
    let got = b.qp.poll();
    assert_eq!(got.opcode, CqeOpcode::Recv.to_wire());
    assert_eq!((got.wr_id.get(), got.byte_len.get()), (8192, 3000));
    assert_eq!(got.flags & CQE_IMM, 0);
    assert_eq!(b.bytes(8192, 3000), bytes);
}

#[test]
fn immediate_data_arrives_with_send_and_write() {
    let (_world, mut a, mut b) = pair();
    b.receive(0, 64);
    b.receive(64, 64);
    assert_eq!(
        a.request(Operation::Send { imm: Some(0xabcd) }, 0),
        WcStatus::Success
    );
    let got = b.qp.poll();
    assert_eq!(
        (got.imm_or_key.get(), got.flags & CQE_IMM),
        (0xabcd, CQE_IMM)
    );
    a.fill(0, b"written");
    assert_eq!(
        a.request(write_to(&b, 512, Some(0x1234)), 7),
        WcStatus::Success
    );
    let got = b.qp.poll();
    assert_eq!(got.opcode, CqeOpcode::RecvWriteImm.to_wire());
    assert_eq!((got.imm_or_key.get(), got.byte_len.get()), (0x1234, 7));
    assert_eq!(b.bytes(512, 7), b"written");
}

#[test]
fn a_node_can_talk_to_itself() {
    let world = World::new(2);
    let mut a = side(&world, 0);
    let eqn = a.guest.eq(1).eqn;
    let other = a.guest.rc(a.pd, eqn);
    let epoch = a.guest.epoch();
    a.guest
        .connect_to(&a.qp, &a.guest, other.qpn, epoch)
        .unwrap();
    a.guest
        .connect_to(&other, &a.guest, a.qp.qpn, epoch)
        .unwrap();
    a.fill(0, b"to myself");
    let operation = Operation::Write {
        addr: a.memory + 4096,
        rkey: a.key,
        imm: None,
    };
    assert_eq!(a.request(operation, 9), WcStatus::Success);
    assert_eq!(a.bytes(4096, 9), b"to myself");
}

#[test]
fn remote_keys_ranges_rights_and_domains_are_checked() {
    type Refused = fn(&Side) -> Operation;
    let cases: [(&str, Refused); 5] = [
        ("past the end", |b| write_to(b, LEN as u64 - 4, None)),
        ("before the start", |b| write_to(b, u64::MAX, None)),
        ("stale tag", |b| Operation::Write {
            addr: b.memory,
            rkey: b.key ^ (1 << 31),
            imm: None,
        }),
        ("no write right", |b| {
            let key = b.guest.register(b.pd, b.memory, 4096, ACCESS_REMOTE_READ);
            Operation::Write {
                addr: b.memory,
                rkey: key.unwrap(),
                imm: None,
            }
        }),
        ("other domain", |b| {
            let key = b
                .guest
                .register(b.guest.pd(), b.memory, 4096, ACCESS_REMOTE_WRITE);
            Operation::Write {
                addr: b.memory,
                rkey: key.unwrap(),
                imm: None,
            }
        }),
    ];
    for (what, operation) in cases {
        let (world, mut a, b) = pair();
        b.fill(0, &[0x55; 64]);
        let operation = operation(&b);
        assert_eq!(a.request(operation, 8), WcStatus::RemoteAccess, "{what}");
        assert_eq!(b.bytes(0, 64), [0x55; 64], "{what}");
        assert_eq!(world.counter(1, "remote_access_errors"), 1, "{what}");
        // The queue pair is in the error state now.
        assert_eq!(
            a.request(write_to(&b, 0, None), 8),
            WcStatus::WrFlush,
            "{what}"
        );
    }
}

#[test]
fn local_keys_are_checked() {
    let (_world, mut a, b) = pair();
    a.guest.by_id(AdminOpcode::DestroyMr, a.key).unwrap();
    assert_eq!(
        a.request(write_to(&b, 0, None), 8),
        WcStatus::LocalProtection
    );
}

#[test]
fn a_key_that_is_gone_never_comes_back() {
    let world = World::new(2);
    let a = side(&world, 0);
    let mut last = a.key;
    for _ in 0..100 {
        a.guest.by_id(AdminOpcode::DestroyMr, last).unwrap();
        let gone = a.guest.by_id(AdminOpcode::DestroyMr, last);
        assert_eq!(gone, Err(AdminStatus::NoSuchObject));
        let next = a
            .guest
            .register(a.pd, a.memory, 4096, ACCESS_LOCAL_WRITE)
            .unwrap();
        assert_ne!(next, last);
        last = next;
    }
}

#[test]
fn send_waits_for_a_receive_and_then_gives_up() {
    let (world, mut a, mut b) = pair();
    a.fill(0, b"patience");
    a.post(Operation::Send { imm: None }, 8);
    a.qp.assert_idle();
    world.pass(5_000);
    b.receive(0, 64);
    assert_eq!(a.qp.poll().status, WcStatus::Success.to_wire());
    assert_eq!(b.bytes(0, 8), b"patience");
    b.qp.poll();
    a.post(Operation::Send { imm: None }, 8);
    a.post(write_to(&b, 0, None), 8);
    world.pass(11_000);
    assert_eq!(a.qp.poll().status, WcStatus::RnrRetryExceeded.to_wire());
    assert_eq!(a.qp.poll().status, WcStatus::WrFlush.to_wire());
}

#[test]
fn a_message_longer_than_the_receive_fails_on_both_sides() {
    let (_world, mut a, mut b) = pair();
    b.receive(0, 16);
    assert_eq!(
        a.request(Operation::Send { imm: None }, 17),
        WcStatus::RemoteInvalidRequest
    );
    let got = b.qp.poll();
    assert_eq!(got.status, WcStatus::LocalLength.to_wire());
}

#[test]
fn error_state_flushes_everything_posted() {
    let (_world, mut a, _b) = pair();
    a.receive(0, 64);
    a.receive(64, 64);
    a.post(Operation::Send { imm: None }, 8);
    a.guest.set_state(a.qp.qpn, QpStateCode::Err).unwrap();
    a.guest.world.pass(0);
    let flushed: Vec<_> = std::iter::from_fn(|| a.qp.cq.ring.poll()).collect();
    assert_eq!(flushed.len(), 3);
    for cqe in flushed {
        assert_eq!(cqe.status, WcStatus::WrFlush.to_wire());
        assert_eq!(cqe.qpn.get(), a.qp.qpn);
    }
}

#[test]
fn a_queue_pair_starts_over_from_reset() {
    let (_world, mut a, mut b) = pair();
    for _ in 0..3 {
        a.fill(0, b"again");
        assert_eq!(a.request(write_to(&b, 0, None), 5), WcStatus::Success);
        for side in [&mut a, &mut b] {
            side.guest
                .set_state(side.qp.qpn, QpStateCode::Reset)
                .unwrap();
            side.qp.send.reset();
            side.qp.recv.reset();
            side.guest
                .set_state(side.qp.qpn, QpStateCode::Init)
                .unwrap();
        }
        join(&a, &b);
        join(&b, &a);
    }
}

#[test]
fn only_the_peer_reaches_a_queue_pair() {
    let (world, _a, b) = pair();
    let mut c = side(&world, 2);
    join(&c, &b);
    assert_ne!(c.request(write_to(&b, 0, None), 8), WcStatus::Success);
}

#[test]
fn operations_that_do_not_exist_are_refused() {
    let (world, mut a, b) = pair();
    let frame = Operation::Frame {
        node: 1,
        meta: Default::default(),
    };
    assert_eq!(a.request(frame, 64), WcStatus::LocalQpOperation);
    assert_eq!(world.counter(0, "bad_descriptors"), 1);
    drop(b);
}
