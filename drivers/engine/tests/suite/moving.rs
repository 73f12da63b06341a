// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Doorbells and rings that change while the engine looks at them: its turns stay short, and others have theirs.

use super::bounded::{End, Hosts, LEN, OK, TURN};
use nupa_engine::rings::{Doorbell, Operation};
use nupa_proto::{admin::QpStateCode, doorbell::slot_offset};
use nupa_testing::{GuestMemory, World, BASE, DOORBELLS};
use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

/// Queue pairs of the process that changes what it likes.
const QUEUES: usize = 4;
/// Requests that each has in its ring.
const REQUESTS: u64 = 8;
/// Bytes of its memory that change, of which its rings are a part.
const CHANGED: u32 = 256 << 10;

/// Queue pairs of node 0 whose process changes what it likes, connected to node 1, and two of node 1 that are connected to each other.
struct Scene {
    world: World,
    hosts: Hosts,
    pairs: Vec<[End; 2]>,
    bystanders: [End; 2],
}

impl Scene {
    fn new() -> Self {
        let mut world = World::new(*crate::MODE, 2);
        let mut hosts = Hosts::new(&mut world);
        let mut pairs: Vec<_> = (0..QUEUES).map(|_| hosts.connected(&mut world)).collect();
        for [a, b] in &mut pairs {
            let (addr, rkey) = (b.mr.iova, b.mr.key);
            for id in 0..REQUESTS {
                let operation = match id % 3 {
                    0 => Operation::Send { imm: None },
                    1 => Operation::Read { addr, rkey },
                    _ => Operation::Write {
                        addr,
                        rkey,
                        imm: None,
                    },
                };
                a.post(id, operation, LEN);
            }
        }
        let (host, eqn) = (&mut hosts.hosts[1], hosts.eqns[1]);
        let bystanders = [(); 2].map(|()| End::new(&mut world, host, eqn));
        for (end, other) in [(0, 1), (1, 0)] {
            let remote = Some((1, bystanders[other].qp.qpn, 1));
            host.ready(&mut world, &bystanders[end].qp, remote);
        }
        Self {
            world,
            hosts,
            pairs,
            bystanders,
        }
    }

    /// Connects all pairs anew and has the engine look at node 0's doorbells; a WRITE of a bystander must be done in the turns that follow.
    fn round(&mut self, number: u64) {
        for [a, b] in &self.pairs {
            for (at, end, peer) in [(0usize, a, b), (1, b, a)] {
                let (host, there) = (&self.hosts.hosts[at], 1 - at as u16);
                let reset = host.set_state(&mut self.world, end.qp.qpn, QpStateCode::Reset);
                reset.expect("it can always be reset");
                host.ready(&mut self.world, &end.qp, Some((there, peer.qp.qpn, 1)));
            }
            for slot in [a.qp.slots.0, a.qp.slots.1] {
                self.world.machine(0).doorbell(0, slot).kick(0);
            }
        }
        let [from, to] = &mut self.bystanders;
        let (addr, rkey, imm) = (to.mr.iova, to.mr.key, None);
        from.post(number, Operation::Write { addr, rkey, imm }, 64);
        let (mut turns, mut done) = (0, Vec::new());
        while turns < 50 || done.is_empty() {
            assert!(turns < 10_000, "round {number}: a bystander waits for ever");
            self.world.turns(1);
            for host in &mut self.world.nodes.hosts {
                let most = host.take_most_moved();
                assert!(most <= TURN, "round {number}: {most} bytes at one go");
            }
            turns += 1;
            done.extend(self.bystanders[0].done());
        }
        let [from, _] = &mut self.bystanders;
        from.qp.send.completed(number as u32).ok();
        assert_eq!(done, [(number, OK)]);
    }
}

#[test]
fn doorbells_that_move_with_each_look() {
    for by in [1, 7, u32::MAX] {
        let mut scene = Scene::new();
        scene.world.machine(0).move_doorbells(by);
        for number in 0..60 {
            scene.round(number);
        }
    }
}

#[test]
fn doorbells_and_rings_that_other_threads_change() {
    let mut scene = Scene::new();
    let over = AtomicBool::new(false);
    let mapped = [1u32, 2].map(|seed| (seed, scene.world.machine(0).mapped()));
    thread::scope(|scope| {
        // Also if a round fails, or nobody would end them.
        let _over = Over(&over);
        for (seed, memory) in mapped {
            let over = &over;
            scope.spawn(move || scribble(seed, &memory, over));
        }
        for number in 0..200 {
            scene.round(number);
        }
    });
}

/// Sets this when it goes.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Writes to doorbells and to rings until it is over: numbers of all magnitudes.
fn scribble(seed: u32, memory: &GuestMemory, over: &AtomicBool) {
    let mut lot = seed;
    while !over.load(Ordering::Relaxed) {
        lot = lot.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let value = lot >> (lot >> 27);
        let slot = slot_offset(0, (lot >> 8) as u16 % 64) + 4 * ((lot >> 16) % 3) as usize;
        memory
            .store_u32(DOORBELLS + slot as u64, value)
            .expect("it is mapped");
        let at = (lot >> 4) % (CHANGED / 4) * 4;
        if lot % 5 == 0 {
            memory
                .store_u32(BASE + u64::from(at), value)
                .expect("it is mapped");
        }
    }
}
