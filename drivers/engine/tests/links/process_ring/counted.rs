// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What processes say that they have moved through rings is in the counters of the port and of queue pairs.

use super::*;
use nupa_engine::NodeTable;

const LONGEST_MESSAGE: u64 = MAX_PAYLOAD as u64;
/// As many as are believed at once.
const AT_ONCE: u64 = LINES as u64;

/// Messages and bytes that a process has put into the ring that it sends to, and that it has taken out of the one that it receives from.
type Said = [(u64, u64); 2];

/// The ends of a connection of which the second one's queue pair has a ring in both directions. Both are in its memory: that of the peer's node is there for
/// the process, and here the engine reads nothing but totals there.
struct Counted {
    world: World,
    a: End,
    b: End,
    /// Where it sends to, and where it receives from.
    rings: [Ring; 2],
}

impl Counted {
    fn new() -> Self {
        let (world, a, mut b, from) = pair();
        let to = Ring::new(&mut b.host, 0);
        let mut counted = Self {
            world,
            a,
            b,
            rings: [to, from],
        };
        counted.know(QP_MASK_PEER_RING, to.at);
        counted
    }

    fn know(&mut self, which: u32, ring: u64) {
        let told = tell(&mut self.world, &self.b.host, self.b.qp.qpn, which, ring);
        assert_eq!(told, Ok(()));
    }

    /// The process says so.
    fn say(&self, said: Said) {
        let totals = [TOTALS_PUT, TOTALS_TAKEN];
        for ((ring, at), (messages, bytes)) in self.rings.iter().zip(totals).zip(said) {
            let totals = [messages.to_le_bytes(), bytes.to_le_bytes()].concat();
            self.b.host.write(ring.at + at as u64, &totals);
        }
    }

    /// What the port has counted, without looking whether that is all.
    fn port(&self) -> Said {
        let counters = self.world.node(1).counters();
        [
            (counters.tx_messages.get(), counters.tx_message_bytes.get()),
            (counters.rx_messages.get(), counters.rx_message_bytes.get()),
        ]
    }

    /// The same of the queue pair.
    fn of_pair(&self) -> Said {
        let state = self.world.node(1).query_qp(self.b.qp.qpn);
        let traffic = state.expect("exists").traffic;
        [
            (traffic.requests.get(), traffic.sent_bytes.get()),
            (traffic.served.get(), traffic.received_bytes.get()),
        ]
    }

    /// Has the engine look, as commands to read counters do, and compares what both say.
    fn look(&mut self) -> Said {
        let (node, machine) = self.world.nodes.node_mut(1).expect("exists");
        node.count_bypassed(machine);
        assert_eq!(self.port(), self.of_pair());
        self.port()
    }
}

#[test]
fn what_processes_say_is_counted_once() {
    let mut counted = Counted::new();
    assert_eq!(counted.look(), [(0, 0); 2]);
    for said in [[(1, 10), (0, 0)], [(1, 10), (3, 0)], [(99, 700), (100, 5)]] {
        counted.say(said);
        assert_eq!(counted.look(), said);
        assert_eq!(counted.look(), said);
    }
    // The other end says nothing.
    let counters = counted.world.node(0).counters();
    let others = [counters.tx_messages.get(), counters.rx_messages.get()];
    assert_eq!(others, [0; 2]);
}

#[test]
fn it_is_added_to_what_the_engine_sees() {
    let mut counted = Counted::new();
    counted.say([(7, 70), (9, 90)]);
    for number in 0..2 {
        counted.a.write(number, &counted.b.mr, 0, 1000);
        counted.b.write(number, &counted.a.mr, 4096, 100);
        counted.world.pump();
    }
    let mut ring = counted.rings[1];
    ring.write(&counted.b.host, &counted.b.mr, 64, &[1; 30]);
    ask(&mut counted.a, 3, ring.line);
    counted.world.pump();
    // Two requests, one that the engine took out of the ring, and the one that has asked for that.
    assert_eq!(counted.port(), [(2, 200), (4, 2030)]);
    assert_eq!(counted.look(), [(9, 270), (13, 2120)]);
}

#[test]
fn one_queue_pair_is_looked_at_alone() {
    let mut counted = Counted::new();
    let said = [(5, 50), (6, 60)];
    counted.say(said);
    let qpn = counted.b.qp.qpn;
    let (node, machine) = counted.world.nodes.node_mut(1).expect("exists");
    node.count_bypassed_of(machine, qpn ^ 1);
    node.count_bypassed_of(machine, u32::MAX);
    assert_eq!(counted.of_pair(), [(0, 0); 2]);
    let (node, machine) = counted.world.nodes.node_mut(1).expect("exists");
    node.count_bypassed_of(machine, qpn);
    assert_eq!((counted.of_pair(), counted.port()), (said, said));
    assert_eq!(counted.look(), said);
}

/// Whatever ends them: the queue pair, which the kernel destroys also for a process that was killed, or the memory.
#[test]
fn what_was_moved_before_a_ring_is_forgotten_is_counted() {
    for end in 0..4 {
        let mut counted = Counted::new();
        let said = [(5, 50), (6, 60)];
        counted.say(said);
        let qpn = counted.b.qp.qpn;
        let (world, host) = (&mut counted.world, &counted.b.host);
        match end {
            0 => {
                let destroyed = world.engine.destroy_qp(&mut world.nodes, 1, qpn);
                assert_eq!(destroyed, Ok(()));
            }
            1 => {
                let reset = QpStateCode::Reset;
                assert_eq!(host.set_state(world, qpn, reset), Ok(()));
            }
            2 => {
                for which in [QP_MASK_RING, QP_MASK_PEER_RING] {
                    counted.know(which, 0);
                }
            }
            _ => {
                // Others take their place.
                counted.rings = [0; 2].map(|line| Ring::new(&mut counted.b.host, line));
                counted.say([(u64::MAX, 1000), (77, 7777)]);
                let [to, from] = counted.rings;
                counted.know(QP_MASK_PEER_RING, to.at);
                counted.know(QP_MASK_RING, from.at);
            }
        }
        assert_eq!(counted.port(), said, "{end}");
        if end != 0 {
            assert_eq!(counted.of_pair(), said, "{end}");
        }
        if end == 3 {
            // What was there before is not their doing.
            assert_eq!(counted.look(), said);
            counted.say([(u64::MAX, 1000), (78, 7779)]);
            assert_eq!(counted.look(), [(5, 50), (7, 62)]);
            continue;
        }
        counted.say([(50, 500), (60, 600)]);
        let (node, machine) = counted.world.nodes.node_mut(1).expect("exists");
        node.count_bypassed(machine);
        assert_eq!(counted.port(), said, "{end}: it is over");
    }
}

/// The program polls what is in the ring when it has told its queue pair to go to the error state.
#[test]
fn a_queue_pair_that_has_failed_still_counts() {
    let mut counted = Counted::new();
    let failed = QpStateCode::Err;
    let (host, qpn) = (&counted.b.host, counted.b.qp.qpn);
    assert_eq!(host.set_state(&mut counted.world, qpn, failed), Ok(()));
    counted.say([(1, 2), (3, 4)]);
    assert_eq!(counted.look(), [(1, 2), (3, 4)]);
}

#[test]
fn a_process_that_lies_takes_nothing_back_and_adds_no_more_than_it_could_move() {
    let mut counted = Counted::new();
    counted.say([(10, 100), (20, 200)]);
    assert_eq!(counted.look(), [(10, 100), (20, 200)]);
    for lie in [[(0, 99), (19, 0)], [(u64::MAX, u64::MAX); 2]] {
        counted.say(lie);
        assert_eq!(counted.look(), [(10, 100), (20, 200)]);
    }
    counted.say([(u64::MAX / 2, u64::MAX / 2); 2]);
    let most = (AT_ONCE, AT_ONCE * LONGEST_MESSAGE);
    assert_eq!(counted.look(), [most; 2]);
    counted.world.pass(3);
    let believed = AT_ONCE + 3 * MOST_PER_US;
    let most = (believed, believed * LONGEST_MESSAGE);
    assert_eq!(counted.look(), [most; 2]);
    // Bytes without messages.
    let mut counted = Counted::new();
    counted.say([(0, 1 << 40), (1, 1 << 40)]);
    assert_eq!(counted.look(), [(0, 0), (1, LONGEST_MESSAGE)]);
}

#[test]
fn a_ring_that_cannot_be_reached_counts_nothing() {
    let mut counted = Counted::new();
    let nowhere = counted.b.host.machine.ram().end();
    for which in [QP_MASK_RING, QP_MASK_PEER_RING] {
        counted.know(which, nowhere);
    }
    assert_eq!(counted.look(), [(0, 0); 2]);
}

/// A look at all of them changes neither their order nor whose turn it is.
#[test]
fn many_rings_are_counted() {
    let (mut world, _, mut b, _) = pair();
    let mut at = Vec::new();
    for number in 1..50u64 {
        let ring = Ring::new(&mut b.host, 0).at;
        let qpn = b.host.qp(&mut world, QpType::Rc, &b.cq, 2).qpn;
        for which in [QP_MASK_RING, QP_MASK_PEER_RING] {
            assert_eq!(tell(&mut world, &b.host, qpn, which, ring), Ok(()));
        }
        for totals in [TOTALS_PUT, TOTALS_TAKEN] {
            b.host.write(ring + totals as u64, &number.to_le_bytes());
        }
        at.push(qpn);
    }
    for _ in 0..2 {
        let (node, machine) = world.nodes.node_mut(1).expect("exists");
        node.count_bypassed(machine);
        for (number, &qpn) in (1..).zip(&at) {
            let traffic = world.node(1).query_qp(qpn).expect("exists").traffic;
            let counted = (traffic.requests.get(), traffic.served.get());
            assert_eq!(counted, (number, number));
        }
    }
    let sum = (1..50).sum::<u64>();
    let counters = world.node(1).counters();
    let counted = (counters.tx_messages.get(), counters.rx_messages.get());
    assert_eq!(counted, (sum, sum));
}
