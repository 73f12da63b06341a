// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Long and short requests go through rings of their own: short ones pass long ones of others, long ones lie between each other,
//! nobody is kept waiting for ever, and each queue pair's own stay in order.

use super::parts::{connect, end, pair, pattern, post, End, OK};
use nupa_engine::rings::{Data, Operation};
use nupa_proto::admin::QpType;
use nupa_testing::{Mr, Qp, World};

const LONG: u32 = 900_000;

fn write(mr: &Mr, at: u64) -> Operation {
    Operation::Write {
        addr: mr.iova + at,
        rkey: mr.key,
        imm: None,
    }
}

/// Another two queue pairs between the same nodes, connected: that of the first node.
fn another(world: &mut World, a: &mut End, b: &mut End) -> Qp {
    let here = a.host.qp(world, QpType::Rc, &a.cq, 5);
    let there = b.host.qp(world, QpType::Rc, &b.cq, 5);
    connect(world, (&a.host, &here), (&b.host, &there));
    here
}

#[test]
fn short_requests_pass_long_ones_of_others() {
    let (mut world, mut a, mut b) = pair();
    let mut second = another(&mut world, &mut a, &mut b);
    // All that its ring holds, and more.
    world.hold(Some(1));
    a.write(1, &b.mr, 0, LONG);
    a.read(2, &b.mr, 0, LONG);
    world.pump();
    post(&mut second, 10, write(&b.mr, 0), Data::Inline(&[1; 8]));
    let sge = [a.mr.sge(0, 200)];
    post(&mut second, 11, write(&b.mr, 0), Data::Sges(&sge));
    let read = Operation::Read {
        addr: b.mr.iova,
        rkey: b.mr.key,
    };
    post(&mut second, 12, read, Data::Sges(&sge));
    world.pump();
    assert_eq!(a.done(), []);
    world.hold(None);
    world.pump();
    assert_eq!(a.done(), [10, 11, 12, 1, 2].map(|id| (id, OK)));
}

#[test]
fn long_messages_of_two_queue_pairs_advance_together() {
    for read in [false, true] {
        let (mut world, mut a, mut b) = pair();
        let mut second = another(&mut world, &mut a, &mut b);
        let (half, len) = (1 << 19, 1u32 << 19);
        let bytes = pattern(1 << 20, 5);
        if read {
            b.fill(0, &bytes);
        } else {
            a.fill(0, &bytes);
        }
        let operation = |at| match read {
            true => Operation::Read {
                addr: b.mr.iova + at,
                rkey: b.mr.key,
            },
            false => write(&b.mr, at),
        };
        post(&mut a.qp, 1, operation(0), Data::Sges(&[a.mr.sge(0, len)]));
        let sge = [a.mr.sge(half, len)];
        post(&mut second, 2, operation(half), Data::Sges(&sge));
        let to = |a: &End, at, len| match read {
            true => a.bytes(at, len),
            false => b.bytes(at, len),
        };
        let arrived = |a: &End, at| {
            let bytes = to(a, at, len as usize);
            bytes.iter().filter(|byte| **byte != 0).count()
        };
        let (mut most, mut done) = (0, 0);
        while done < 2 {
            world.turns(1);
            let (first, second) = (arrived(&a, 0), arrived(&a, half));
            most = most.max(first.abs_diff(second));
            done += a.done().len();
        }
        assert!(most <= 3 << 16, "one is {most} bytes ahead");
        assert!(to(&a, 0, 1 << 20) == bytes);
    }
}

/// Messages and WRITEs of all lengths, of one queue pair: what is sent last is there in the end, and messages arrive in order.
#[test]
fn requests_of_a_queue_pair_stay_in_order() {
    for seed in 0..60u32 {
        let (mut world, mut a, mut b) = pair();
        world.shuffle(seed);
        let mut lot = seed.wrapping_mul(2_654_435_761);
        let mut draw = |below: u32| {
            lot = lot.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (lot >> 8) % below
        };
        let lens = [0, 8, 200, 256, 257, 5000, 70_000, 200_000];
        let mut expected = Vec::new();
        for id in 0..12u64 {
            let len = lens[draw(8) as usize];
            a.fill(
                id * 1000,
                &pattern(len as usize, id as u8)[..len.min(1000) as usize],
            );
            match draw(4) {
                0 => {
                    let mr = b.mr;
                    a.read(id, &mr, 400_000, len);
                }
                1 => a.write(id, &b.mr, 0, len),
                _ => {
                    b.receive(100 + id, 500_000, 200_000);
                    a.send(id, 0, len);
                    expected.push((100 + id, len));
                }
            }
            if draw(3) == 0 {
                world.turns(draw(20) as usize);
            }
        }
        world.pump();
        let ids: Vec<_> = (0..12).map(|id| (id, OK)).collect();
        assert_eq!(a.done(), ids, "{seed}");
        let got = b.cq.drain();
        let got: Vec<_> = got
            .iter()
            .map(|cqe| (cqe.wr_id.get(), cqe.byte_len.get()))
            .collect();
        assert_eq!(got, expected, "{seed}");
    }
}

#[test]
fn what_is_written_last_is_there_in_the_end() {
    for seed in 0..40 {
        let (mut world, mut a, b) = pair();
        world.shuffle(seed);
        for id in 0..20u64 {
            let len = if (id ^ u64::from(seed)) % 3 == 0 {
                100_000
            } else {
                8
            };
            a.fill(id * 8, &[id as u8 + 1; 8]);
            let sge = [a.mr.sge(id * 8, len)];
            post(&mut a.qp, id, write(&b.mr, 0), Data::Sges(&sge));
        }
        world.pump();
        assert_eq!(a.done().len(), 20);
        assert_eq!(b.bytes(0, 8), [20; 8], "{seed}");
    }
}

/// One that always has short requests does not keep a long one of another queue pair from its end, nor the other way around.
#[test]
fn long_requests_end_though_short_ones_go_on() {
    let (mut world, mut a, mut b) = pair();
    let mut second = another(&mut world, &mut a, &mut b);
    a.fill(0, &pattern(LONG as usize, 3));
    a.write(1, &b.mr, 0, LONG);
    let (mut short, mut id) = (0u32, 10);
    for _ in 0..20_000 {
        while second.send.free_blocks() > 2 {
            post(
                &mut second,
                id,
                write(&b.mr, 1_000_000),
                Data::Inline(&[1; 8]),
            );
            id += 1;
        }
        world.turns(3);
        let done = a.cq.drain();
        for cqe in &done {
            if cqe.wr_id.get() != 1 {
                let index = cqe.queue_index.get();
                second.send.completed(index).expect("it was posted");
            }
        }
        short += done.len() as u32;
        if done.iter().any(|cqe| cqe.wr_id.get() == 1) {
            assert!(b.bytes(0, LONG as usize) == pattern(LONG as usize, 3));
            assert!(short < 20_000, "{short} short ones passed it");
            return;
        }
    }
    panic!("it has not ended, and {short} short ones have");
}

/// Where each turn is over by time, however little was done in it.
#[test]
fn slow_machines_serve_all_peers() {
    let mut world = World::new(*crate::MODE, 4);
    let mut ends: Vec<_> = (0..4).map(|id| end(&mut world, id)).collect();
    let mut here = ends.remove(0);
    let mut qps = Vec::new();
    for peer in &mut ends {
        let qp = here.host.qp(&mut world, QpType::Rc, &here.cq, 4);
        connect(&mut world, (&here.host, &qp), (&peer.host, &peer.qp));
        qps.push(qp);
    }
    world.now.step.set(100);
    let mut done = [0u32; 3];
    for turn in 0..3000 {
        for peer in &mut ends {
            while peer.qp.send.free_blocks() > 4 {
                peer.write(turn, &here.mr, 0, 20_000);
            }
        }
        world.turns(1);
        for (peer, done) in ends.iter_mut().zip(&mut done) {
            for cqe in peer.cq.drain() {
                assert_eq!(cqe.status, OK);
                let index = cqe.queue_index.get();
                peer.qp.send.completed(index).expect("it was posted");
                *done += 1;
            }
        }
    }
    let (least, most) = (done.iter().min(), done.iter().max());
    assert!(least > Some(&200), "{done:?}");
    assert!(most < least.map(|least| least * 5 / 4).as_ref(), "{done:?}");
}

/// Messages for which there are no receive entries are not sent again and again.
#[test]
fn few_messages_are_sent_in_vain() {
    const LEN: u32 = 1000;
    let (mut world, mut a, mut b) = pair();
    for id in 0..60 {
        a.send(id, 0, LEN);
    }
    for id in 0..60 {
        world.pump();
        b.receive(id, 0, LEN);
    }
    world.pump();
    let expected: Vec<_> = (0..60).map(|id| (id, OK)).collect();
    assert_eq!((a.done(), b.done()), (expected.clone(), expected));
    // Each once in vain at most.
    let naks = world.node(1).counters().rx_rnr_naks.get();
    assert!(naks <= 61, "{naks}");
    let copied = world.machine(0).ram().copied();
    assert!(copied <= 2 * 60 * LEN as usize, "{copied} bytes");
    // With entries for all, all are under way at once.
    let (mut world, mut a, mut b) = pair();
    for id in 0..60 {
        b.receive(id, 0, LEN);
    }
    a.send(100, 0, LEN);
    world.pump();
    world.hold(Some(1));
    for id in 0..59 {
        a.send(id, 0, LEN);
    }
    let before = world.machine(0).ram().copied();
    world.pump();
    let sent = world.machine(0).ram().copied() - before;
    // As many as its ring has room for.
    assert!(sent >= 4 * LEN as usize, "{sent} bytes");
    world.hold(None);
    world.pump();
    assert_eq!((a.done().len(), b.done().len()), (60, 60));
}

/// Five peers, with which everything is asked for in both directions: whatever uses up a turn, the rest has the next ones.
#[test]
fn all_rings_of_all_peers_have_their_turn() {
    let mut world = World::new(*crate::MODE, 6);
    let mut ends: Vec<_> = (0..6).map(|id| end(&mut world, id)).collect();
    let mut here = ends.remove(0);
    let (mut readers, mut writers) = (Vec::new(), Vec::new());
    for peer in &mut ends {
        for qps in [&mut readers, &mut writers] {
            let qp = here.host.qp(&mut world, QpType::Rc, &here.cq, 3);
            let cq = peer.host.cq(&mut world, peer.eq.eqn, 3);
            let there = peer.host.qp(&mut world, QpType::Rc, &cq, 3);
            connect(&mut world, (&here.host, &qp), (&peer.host, &there));
            qps.push(qp);
        }
        let qp = here.host.qp(&mut world, QpType::Rc, &here.cq, 3);
        connect(&mut world, (&here.host, &qp), (&peer.host, &peer.qp));
    }
    let sge = [here.mr.sge(0, 64_000)];
    // Of each peer: READs and WRITEs that it was asked for, and its own WRITEs.
    let mut done = [[0u32; 3]; 5];
    for _ in 0..20_000 {
        for (number, peer) in ends.iter_mut().enumerate() {
            let post_some = |qp: &mut Qp, id, operation| {
                while qp.send.free_blocks() > 2 {
                    post(qp, id, operation, Data::Sges(&sge));
                }
            };
            let read = Operation::Read {
                addr: peer.mr.iova,
                rkey: peer.mr.key,
            };
            let id = number as u64;
            post_some(&mut readers[number], id, read);
            post_some(&mut writers[number], 10 + id, write(&peer.mr, 0));
            while peer.qp.send.free_blocks() > 58 {
                peer.write(0, &here.mr, 0, 64_000);
            }
        }
        world.turns(1);
        for cqe in here.cq.drain() {
            let id = cqe.wr_id.get() as usize;
            let (qps, kind) = match id < 10 {
                true => (&mut readers, 0),
                false => (&mut writers, 1),
            };
            let index = cqe.queue_index.get();
            qps[id % 10].send.completed(index).expect("it was posted");
            done[id % 10][kind] += 1;
        }
        for (peer, done) in ends.iter_mut().zip(&mut done) {
            for cqe in peer.cq.drain() {
                let index = cqe.queue_index.get();
                peer.qp.send.completed(index).expect("it was posted");
                done[2] += 1;
            }
        }
    }
    assert!(
        done.as_flattened().iter().all(|count| *count > 40),
        "{done:?}"
    );
}

/// Room in a full ring goes around queue pairs, however much of it each of them finds when its turn comes.
#[test]
fn waiters_for_room_are_served_in_order() {
    (0..50).for_each(room_goes_around);
}

fn room_goes_around(seed: u32) {
    let (mut world, mut a, mut b) = pair();
    world.shuffle(seed);
    // The first one has the ring for itself until it is full.
    let mut all: Vec<_> = (0..7)
        .map(|_| another(&mut world, &mut a, &mut b))
        .collect();
    for (id, qp) in (0..).zip(&mut all) {
        for _ in 0..20 {
            let sge = [a.mr.sge(0, 60_000)];
            post(qp, id, write(&b.mr, 0), Data::Sges(&sge));
        }
    }
    let mut done = [0u32; 7];
    for _ in 0..100_000 {
        world.turns(1);
        for cqe in a.cq.drain() {
            done[cqe.wr_id.get() as usize] += 1;
        }
        let (least, most) = (done[1..].iter().min(), done[1..].iter().max());
        let apart = most.unwrap_or(&0) - least.unwrap_or(&0);
        // One may be ahead by what it had begun and was no more of its share, and another behind by what it found no room for.
        assert!(apart <= 4, "seed {seed}: {done:?}");
        if done == [20; 7] {
            return;
        }
    }
    panic!("seed {seed}: {done:?}");
}

/// Room in a full ring goes around processes: many queue pairs of one get no more of it than the one of another.
#[test]
fn many_queue_pairs_get_no_more_room_than_one() {
    let (mut world, mut a, mut b) = pair();
    let mut many: Vec<_> = (0..8)
        .map(|_| another(&mut world, &mut a, &mut b))
        .collect();
    a.host.page = 1;
    let mut one = another(&mut world, &mut a, &mut b);
    let sge = [a.mr.sge(0, 60_000)];
    let mut done = [0u32; 2];
    while done[0] < 60 && done[1] < 60 {
        for (id, qp) in many.iter_mut().map(|qp| (0, qp)).chain([(1, &mut one)]) {
            while qp.send.free_blocks() > 24 {
                post(qp, id, write(&b.mr, 0), Data::Sges(&sge));
            }
        }
        world.turns(1);
        for cqe in a.cq.drain() {
            let of = |qp: &&mut Qp| qp.qpn == cqe.qpn.get();
            let mut all = many.iter_mut().chain([&mut one]);
            let qp = all.find(of).expect("one of these");
            let index = cqe.queue_index.get();
            qp.send.completed(index).expect("it was posted");
            done[cqe.wr_id.get() as usize] += 1;
        }
    }
    // Around queue pairs it would have a ninth. Now and then it has none in the line, just when it is its turn.
    assert!(done[1] * 3 >= done[0] * 2, "{done:?}");
}
