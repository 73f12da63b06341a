// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the process of a node does.

use std::thread;
use std::time::{Duration, Instant};

use crate::board::{NodeWord, Phase};
use crate::connection::Peer;
use crate::host::Host;
use crate::memory::counter_of_all;

/// Turns in a row that find nothing, in which the processor is left to others, before it sleeps.
const YIELDS: u32 = 16;
/// How long it sleeps at first, and at most.
const FIRST_PAUSE: Duration = Duration::from_micros(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(2);
/// Between two looks at whether the node has its place.
const LOOK: Duration = Duration::from_millis(100);

/// Makes room for other processes, of which there are more than processors.
#[derive(Default)]
struct Idle(u32);

impl Idle {
    fn rest(&mut self, busy: bool) {
        self.0 = if busy { 0 } else { self.0.saturating_add(1) };
        match self.0.checked_sub(YIELDS) {
            None if busy => {}
            None => thread::yield_now(),
            Some(more) => thread::sleep((FIRST_PAUSE * 2_u32.pow(more.min(8))).min(LONGEST_PAUSE)),
        }
    }
}

/// Takes part until the end of the run.
pub(crate) fn run(host: &Host) {
    let others = (0..host.nodes).filter(|peer| *peer != host.id);
    let mut peers: Vec<Peer> = others.map(Peer::new).collect();
    let (mut idle, mut looked, mut reached) = (Idle::default(), Instant::now(), Phase::Run);
    loop {
        let mut busy = host.fabric.poll();
        // After the poll: who leaves has waited for this, and is not missed.
        let phase = host.board.phase();
        if phase == Phase::Leave {
            return;
        }
        for peer in &mut peers {
            busy |= peer.step(host, phase);
        }
        let drained = phase >= Phase::Drain && peers.iter().all(Peer::is_idle);
        if drained && reached < phase {
            reached = phase;
            if phase == Phase::Check {
                check(host, &mut peers);
            }
            host.board.put(host.id, NodeWord::Reached, phase as u64);
        }
        if looked.elapsed() > LOOK {
            looked = Instant::now();
            host.check_alive();
        }
        idle.rest(busy);
    }
}

/// Nothing is under way in the whole pool: compares what has come with what was sent.
fn check(host: &Host, peers: &mut [Peer]) {
    let [mut least, mut most] = [0; 2];
    for peer in peers {
        let [low, high] = peer.check(host);
        (least, most) = (least + low, most + high);
    }
    let found = host.exposed.private.load(counter_of_all());
    assert!(
        (least..=most).contains(&found),
        "node {}: the counter of all nodes is {found}, must be from {least} to {most}",
        host.id
    );
    let counters = host.counters();
    host.board.add(
        host.id,
        NodeWord::DirectWrites,
        counters.tx_direct_writes.get(),
    );
    host.board
        .add(host.id, NodeWord::Waits, counters.tx_rnr_waits.get());
}
