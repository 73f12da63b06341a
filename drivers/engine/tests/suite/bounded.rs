// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Turns are short, whatever is posted: who calls the engine gets the processor back, and others have their turns.

use nupa_engine::rings::{Data, Operation, SendRequest};
use nupa_proto::{
    admin::*, cqe::Cqe, frame::FrameMeta, ident::node_mac, status::WcStatus, wqe::WQE_SIGNALED,
};
use nupa_testing::{Cq, Host, Mr, Qp, World};

/// Bytes of a turn, and of the slice that it may be exceeded by.
pub(super) const TURN: usize = 5 << 16;
pub(super) const LEN: usize = 3 << 20;
pub(super) const OK: u8 = WcStatus::Success as u8;

/// A queue pair with all that it needs.
pub(super) struct End {
    cq: Cq,
    pub(super) qp: Qp,
    pub(super) mr: Mr,
}

impl End {
    /// One on a host that was started, with this event queue.
    pub(super) fn new(world: &mut World, host: &mut Host, eqn: u32) -> Self {
        let mr = host.mr(world, LEN as u64, false);
        let end = Self::without_memory(world, host, eqn);
        Self { mr, ..end }
    }

    /// The same, but for the memory.
    fn without_memory(world: &mut World, host: &mut Host, eqn: u32) -> Self {
        let cq = host.cq(world, eqn, 6);
        let qp = host.qp(world, QpType::Rc, &cq, 4);
        let mr = Mr::default();
        Self { cq, qp, mr }
    }

    pub(super) fn post(&mut self, wr_id: u64, operation: Operation, len: usize) {
        let sges = [self.mr.sge(0, len as u32)];
        self.qp
            .submit(wr_id, WQE_SIGNALED, operation, Data::Sges(&sges));
    }

    pub(super) fn done(&mut self) -> Vec<(u64, u8)> {
        let told = |cqe: &Cqe| (cqe.wr_id.get(), cqe.status);
        self.cq.drain().iter().map(told).collect()
    }
}

/// Two nodes with their drivers.
pub(super) struct Hosts {
    pub(super) hosts: [Host; 2],
    pub(super) eqns: [u32; 2],
}

impl Hosts {
    pub(super) fn new(world: &mut World) -> Self {
        let mut hosts = [world.host(0), world.host(1)];
        let eqns = [0, 1].map(|id: usize| hosts[id].start(world).eqn);
        Self { hosts, eqns }
    }

    /// Connected queue pairs of one node each.
    pub(super) fn connected(&mut self, world: &mut World) -> [End; 2] {
        let ends = [0, 1].map(|id| End::new(world, &mut self.hosts[id], self.eqns[id]));
        for (id, there) in [(0, 1), (1, 0)] {
            let remote = Some((there as u16, ends[there].qp.qpn, 1));
            self.hosts[id].ready(world, &ends[id].qp, remote);
        }
        ends
    }
}

/// Lets turns pass until so many requests of `a` are done. No call copies more than a turn may.
fn in_turns(world: &mut World, a: &mut End, requests: usize) -> usize {
    let (mut done, mut turns) = (Vec::new(), 0);
    while done.len() < requests {
        assert!(turns < 10_000, "{done:?}");
        world.turns(1);
        for host in &mut world.nodes.hosts {
            let most = host.take_most_moved();
            assert!(most <= TURN, "{most} bytes in one turn");
        }
        turns += 1;
        done.extend(a.done());
    }
    assert!(done.iter().all(|(_, status)| *status == OK), "{done:?}");
    turns
}

fn pattern(seed: u8) -> Vec<u8> {
    (0..LEN).map(|at| (at / 7) as u8 ^ seed).collect()
}

#[test]
fn long_messages_take_turns() {
    let mut world = World::new(*crate::MODE, 2);
    let mut hosts = Hosts::new(&mut world);
    let [mut a, mut b] = hosts.connected(&mut world);
    for (seed, name) in (1..).zip(["write", "read", "send", "write with immediate"]) {
        let bytes = pattern(seed);
        let (key, addr) = (b.mr.key, b.mr.iova);
        let operation = match name {
            "write" => Operation::Write {
                addr,
                rkey: key,
                imm: None,
            },
            "read" => Operation::Read { addr, rkey: key },
            "send" => Operation::Send { imm: None },
            _ => Operation::Write {
                addr,
                rkey: key,
                imm: Some(seed.into()),
            },
        };
        let [from, to] = match name {
            "read" => [(&hosts.hosts[1], b.mr.addr), (&hosts.hosts[0], a.mr.addr)],
            _ => [(&hosts.hosts[0], a.mr.addr), (&hosts.hosts[1], b.mr.addr)],
        };
        from.0.write(from.1, &bytes);
        to.0.write(to.1, &vec![0; LEN]);
        let sge = b.mr.sge(0, LEN as u32);
        b.qp.recv.post(u64::from(seed), &[sge]).expect("room");
        b.qp.recv.ring();
        a.post(7, operation, LEN);
        let turns = in_turns(&mut world, &mut a, 1);
        assert!(turns >= LEN / TURN, "{name}: {turns} turns");
        assert!(to.0.read(to.1, LEN) == bytes, "{name}");
    }
    world.pump();
    let received: Vec<_> =
        b.cq.drain()
            .iter()
            .map(|cqe| (cqe.wr_id.get(), cqe.byte_len.get()))
            .collect();
    assert_eq!(received, [(1, LEN as u32), (2, LEN as u32)]);
}

/// A short request of another queue pair is done before a long one that was there first.
#[test]
fn short_requests_pass_long_ones() {
    if crate::MODE.is_linked() {
        return;
    }
    let mut world = World::new(*crate::MODE, 2);
    let mut hosts = Hosts::new(&mut world);
    let [mut a, b] = hosts.connected(&mut world);
    let [mut other, there] = hosts.connected(&mut world);
    let write = |mr: &Mr| Operation::Write {
        addr: mr.iova,
        rkey: mr.key,
        imm: None,
    };
    a.post(1, write(&b.mr), LEN);
    other.post(2, write(&there.mr), 8);
    world.turns(3);
    assert_eq!((a.done(), other.done()), (vec![], vec![(2, OK)]));
    world.pump();
    assert_eq!(a.done(), [(1, OK)]);
}

/// Many queue pairs with much to do get as much together as one of another process.
#[test]
fn many_queue_pairs_get_no_more_than_one() {
    const MANY: usize = 30;
    if crate::MODE.is_linked() {
        return;
    }
    let mut world = World::new(*crate::MODE, 1);
    let mut host = world.host(0);
    let eqn = host.start(&mut world).eqn;
    let mut ends: Vec<_> = (0..=MANY)
        .map(|at| {
            host.page = u32::from(at == MANY);
            let end = match at {
                0 => End::new(&mut world, &mut host, eqn),
                _ => End::without_memory(&mut world, &mut host, eqn),
            };
            host.ready(&mut world, &end.qp, Some((0, end.qp.qpn, 1)));
            end
        })
        .collect();
    let memory = ends[0].mr;
    for end in &mut ends {
        end.mr = memory;
        let write = Operation::Write {
            addr: memory.iova,
            rkey: memory.key,
            imm: None,
        };
        end.post(1, write, LEN);
    }
    let turns = in_turns(&mut world, &mut ends[MANY], 1);
    // One for each kick; then every second slice is its own, and four of them are a turn.
    let expected = MANY + 1 + LEN / (2 << 16);
    assert!(turns <= expected, "{turns} turns, not {expected}");
    assert_eq!(ends[0].done(), []);
    world.pump();
    assert!(ends[..MANY].iter_mut().all(|end| end.done() == [(1, OK)]));
}

/// A frame does not wait until all requests between the same two nodes are done.
#[test]
fn frames_come_between_requests() {
    let mut world = World::new(*crate::MODE, 2);
    let mut hosts = Hosts::new(&mut world);
    let [mut a, b] = hosts.connected(&mut world);
    let mut frames = [0, 1].map(|id| {
        let host = &mut hosts.hosts[id];
        let cq = host.cq(&mut world, hosts.eqns[id], 6);
        let qp = host.qp(&mut world, QpType::Raw, &cq, 4);
        host.ready(&mut world, &qp, None);
        host.receive_frames(&mut world, &[node_mac(id as u16)], &[qp.qpn]);
        (cq, qp)
    });
    let memory = hosts.hosts.each_mut().map(|host| {
        let addr = host.alloc(2048);
        host.dma(addr, 64)
    });
    hosts.hosts[0].write(memory[0].addr.get(), &node_mac(1));
    let (_, receiver) = &mut frames[1];
    receiver.recv.post(9, &[memory[1]]).expect("room");
    receiver.recv.ring();
    let write = Operation::Write {
        addr: b.mr.iova,
        rkey: b.mr.key,
        imm: None,
    };
    for id in 0..3 {
        a.post(id, write, LEN);
    }
    world.turns(10);
    let request = SendRequest {
        wr_id: 1,
        flags: WQE_SIGNALED,
        operation: Operation::Frame {
            node: 1,
            meta: FrameMeta::default(),
        },
        data: Data::Sges(&memory[..1]),
    };
    let (_, sender) = &mut frames[0];
    sender.send.post(&request).expect("room");
    sender.send.ring();
    let arrives = |_: &usize| {
        world.turns(1);
        !frames[1].0.drain().is_empty()
    };
    (0..60).find(arrives).expect("it arrives");
    assert!(a.done().len() < 3, "it came after all else");
}

/// A peer that sends much through two rings does not keep another one waiting, though there are others between them that send nothing.
#[test]
fn peers_take_turns_whatever_their_numbers() {
    const HERE: u16 = 7;
    if !crate::MODE.is_linked() {
        return;
    }
    let mut world = World::new(*crate::MODE, HERE + 1);
    let mut here = world.host(HERE);
    let eqn = here.start(&mut world).eqn;
    let mut connect = |id: u16| {
        let mut host = world.host(id);
        let eqn_there = host.start(&mut world).eqn;
        let there = End::new(&mut world, &mut host, eqn_there);
        let end = End::new(&mut world, &mut here, eqn);
        host.ready(&mut world, &there.qp, Some((HERE, end.qp.qpn, 1)));
        here.ready(&mut world, &end.qp, Some((id, there.qp.qpn, 1)));
        (there, end)
    };
    let ((mut busy, mut end), (mut other, target)) = (connect(0), connect(1));
    let write = |mr: &Mr| Operation::Write {
        addr: mr.iova,
        rkey: mr.key,
        imm: None,
    };
    let (to, from) = (end.mr, busy.mr);
    for id in 0..3 {
        busy.post(id, write(&to), LEN);
        let read = Operation::Read {
            addr: from.iova,
            rkey: from.key,
        };
        end.post(id, read, LEN);
    }
    other.post(9, write(&target.mr), LEN);
    let (mut done, mut count) = (Vec::new(), 0);
    for _ in 0..20_000 {
        world.turns(1);
        done.extend(other.done());
        count += busy.done().len() + end.done().len();
        if !done.is_empty() {
            break;
        }
    }
    assert_eq!(done, [(9, OK)]);
    assert!(count <= 4, "{count} of 6 long ones were done before");
}
