// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A hostile guest among others.

use nupa_control::Fault;
use nupa_proto::cqe::{Cqe, CqeOpcode};
use nupa_proto::frame::FrameMeta;
use nupa_proto::ident::node_mac;
use nupa_proto::status::WcStatus;
use nupa_testguest::guest::Guest;
use nupa_testguest::queues::{frame, Qp};
use nupa_testguest::World;

use crate::actions::Action;
use crate::hostile::Hostile;

/// Node of the hostile guest; 0 and 1 are its neighbours.
const HOSTILE: u16 = 2;

/// A well-behaved guest.
struct Neighbour {
    guest: Guest,
    qp: Qp,
    posted: u32,
}

impl Neighbour {
    fn new(world: &World, node: u16) -> Self {
        let guest = Guest::up(world, node);
        // Room for all that the hostile node's comings and goings report.
        let eqn = guest.create_eq(12, 0).unwrap().eqn;
        let qp = guest.raw(eqn);
        guest.filter(&[node_mac(node)], 0).unwrap();
        Self {
            guest,
            qp,
            posted: 0,
        }
    }

    /// Takes the next completion, and frees what it says is done.
    fn poll(&mut self) -> Option<Cqe> {
        let cqe = self.qp.cq.ring.poll()?;
        let index = cqe.queue_index.get();
        if cqe.opcode == CqeOpcode::Frame.to_wire() {
            self.qp.send.completed(index).unwrap();
        } else {
            self.qp.recv.completed(index).unwrap();
            self.posted -= u32::from(cqe.buffers.get());
        }
        Some(cqe)
    }

    /// Throws away what the hostile node sent, and how frames to it ended.
    fn drain(&mut self) {
        while let Some(cqe) = self.poll() {
            let own = cqe.opcode == CqeOpcode::Frame.to_wire();
            assert!(own || cqe.src_node.get() == HOSTILE, "{cqe:?}");
        }
    }

    /// Takes completions up to one of this kind that has nothing to do with the hostile node.
    fn expect(&mut self, opcode: CqeOpcode) -> Cqe {
        let wanted = |cqe: &Cqe| cqe.opcode == opcode.to_wire() && cqe.src_node.get() != HOSTILE;
        let cqe = std::iter::from_fn(|| self.poll()).find(wanted);
        cqe.expect("a completion")
    }

    /// Sends a frame to the hostile node, which takes it or not.
    fn tease(&mut self) {
        let bytes = frame(node_mac(HOSTILE), node_mac(self.guest.node), 300, 5);
        let guest = &self.guest;
        if self.qp.send.free_blocks() > 0 {
            guest.send_frame(&mut self.qp, HOSTILE, &bytes, FrameMeta::default());
        }
        self.drain();
    }

    /// Sends a frame to the other one and checks that it arrives.
    fn send(&mut self, other: &mut Self, seed: u8) {
        self.drain();
        let to = other.guest.node;
        let bytes = frame(node_mac(to), node_mac(self.guest.node), 700, seed);
        // Frames of the hostile node may wait for buffers, and take theirs first.
        other.drain();
        while other.posted < 4 {
            other.bait();
            other.drain();
        }
        self.transmit(to, &bytes);
        let got = other.expect(CqeOpcode::RecvFrame);
        assert_eq!(got.src_node.get(), self.guest.node);
        assert_eq!(got.byte_len.get(), 700);
        assert_eq!(other.guest.get(got.wr_id.get(), bytes.len()), bytes);
    }

    fn transmit(&mut self, to: u16, bytes: &[u8]) {
        let guest = &self.guest;
        guest.send_frame(&mut self.qp, to, bytes, FrameMeta::default());
        let sent = self.expect(CqeOpcode::Frame);
        assert_eq!(sent.status, WcStatus::Success.to_wire());
    }

    /// Leaves a buffer for the hostile node to use up.
    fn bait(&mut self) {
        if self.posted < 4 {
            self.guest.post_buffer(&mut self.qp, 1024);
            self.posted += 1;
        }
    }
}

/// Lets a hostile guest do its worst between two neighbours. Panics if it hurts any of them, or the controller.
pub fn storm(actions: &[Action]) {
    let world = World::new(4);
    let mut neighbours = [Neighbour::new(&world, 0), Neighbour::new(&world, 1)];
    let mut hostile = Hostile::new(&world, HOSTILE);
    for (step, action) in actions.iter().enumerate() {
        hostile.perform(action);
        neighbours[0].bait();
        if step % 4 == 0 {
            neighbours[1].tease();
        }
    }
    hostile.check_private_memory();
    if world.fabric.borrow_mut().set_polling(false) {
        world.fabric.borrow_mut().poll_doorbells();
    }
    // Frames to the hostile node are given up by now.
    world.pass(1_000_000);
    world
        .fabric
        .borrow_mut()
        .set_fault(HOSTILE, Fault::None)
        .unwrap();
    let [a, b] = &mut neighbours;
    a.send(b, 1);
    b.send(a, 2);
    // A new guest takes over from the hostile one.
    drop(hostile);
    world.pass(1_000_000);
    world.fabric.borrow_mut().set_link(HOSTILE, true).unwrap();
    let mut next = Neighbour::new(&world, HOSTILE);
    a.send(&mut next, 3);
}
