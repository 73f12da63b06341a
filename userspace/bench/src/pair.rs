// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Two connected nodes with one queue pair each.

use nupa_engine::rings::{CompletionRing, Data, Operation, RecvRing, SendRequest, SendRing};
use nupa_engine::Engine;
use nupa_proto::admin::{QpType, QP_FLAG_PRIVILEGED};
use nupa_testing::{
    Host, Kicks, LocalNodes, Machine, Mode, Mr, Qp, RingView, Size, SlotView, World,
};

/// log2 of the entries of send and receive rings.
const LOG: u8 = 8;
/// Bytes of a posted receive buffer.
pub const RECV_BUFFER: u32 = 4096;
/// Bytes of a node's region.
const REGION: u64 = 8 << 20;
/// What a node needs for its rings, its region, and 10,000 queue pairs.
const SIZE: Size = Size {
    memory: 128 << 20,
    pages: 160,
};
/// Queue pairs whose doorbells are on one page.
const PER_PAGE: u32 = 64;

/// One node's end: its queues as their owner has them.
pub struct Endpoint {
    /// Hardware of the node.
    pub machine: Machine,
    /// Send queue.
    pub send: SendRing<RingView, SlotView>,
    /// Receive queue.
    pub recv: RecvRing<RingView, SlotView>,
    /// Completions of both.
    pub cq: CompletionRing<RingView, SlotView>,
    /// Memory that is registered for everything.
    pub mr: Mr,
}

/// Two nodes and the engine between them.
pub struct Pair {
    nodes: LocalNodes,
    engine: Box<Engine>,
    kicks: Kicks,
    /// Their ends.
    pub ends: [Endpoint; 2],
}

impl Pair {
    /// Two queue pairs of a kind that is ready to send; RC ones are connected to each other.
    pub fn new(kind: QpType) -> Self {
        Self::beside(kind, 0)
    }

    /// The same, where so many further queue pairs of node 0 wait for receive buffers that never come.
    pub fn beside(kind: QpType, waiting: u32) -> Self {
        let mut world = World::sized(Mode::Local, 2, SIZE);
        let mut made = [0, 1].map(|id| endpoint(&mut world, id, kind));
        let [(host, ..), _] = &mut made;
        park(&mut world, host, waiting);
        for ((host, qp, _), (peer, other, _)) in [(&made[0], &made[1]), (&made[1], &made[0])] {
            let remote = (peer.id, other.qpn, world.node(peer.id).epoch());
            host.ready(&mut world, qp, (kind == QpType::Rc).then_some(remote));
        }
        let ends = made.map(|(mut host, qp, (cq, mr))| {
            if kind == QpType::Raw {
                host.receive_all_frames(&mut world, qp.qpn);
            }
            Endpoint {
                machine: host.machine,
                send: qp.send,
                recv: qp.recv,
                cq,
                mr,
            }
        });
        let (mut hosts, kicks) = world.into_hosts();
        let (engine, nodes) = hosts.remove(0);
        Self {
            nodes: LocalNodes(nodes),
            engine,
            kicks,
            ends,
        }
    }

    /// Posts a request at node 0, rings, serves the kick and takes the completion: its status.
    #[inline]
    pub fn round(&mut self, request: &SendRequest<'_>, push: bool) -> Option<u8> {
        let [end, _] = &mut self.ends;
        if push {
            let mut head = request.head();
            end.send
                .post_and(&mut head, request.data, true)
                .expect("room");
        } else {
            end.send.post(request).expect("room");
            end.send.ring();
        }
        self.serve();
        self.take()
    }

    /// Serves the kicks that were asked for, and ends the engine's turn.
    #[inline]
    pub fn serve(&mut self) {
        while let Some(kick) = self.kicks.take() {
            let (page, slot) = (kick.page, kick.slot);
            match kick.pushed {
                None => self.engine.kick(&mut self.nodes, kick.node, page, slot),
                Some(index) => {
                    self.engine
                        .push_kick(&mut self.nodes, kick.node, page, slot, index);
                }
            }
        }
        while self.engine.run(&mut self.nodes) == Some(0) {}
    }

    /// Takes one completion of node 0 and the send blocks that it frees. Returns its status.
    #[inline]
    pub fn take(&mut self) -> Option<u8> {
        let [end, _] = &mut self.ends;
        let cqe = end.cq.poll()?;
        end.send.completed(cqe.queue_index.get()).expect("posted");
        Some(cqe.status)
    }

    /// Posts receive buffers at node 1 until the ring is full.
    pub fn fill_receive(&mut self) {
        let [_, end] = &mut self.ends;
        while end.recv.free() > 0 {
            let at = u64::from(end.recv.free()) * u64::from(RECV_BUFFER);
            let buffer = end.mr.dma(at, RECV_BUFFER);
            end.recv.post(0, &[buffer]).expect("room");
        }
        end.recv.ring();
    }

    /// Takes one completion of node 1 and posts as many buffers as it used. Returns
    /// its length.
    #[inline]
    pub fn receive(&mut self) -> Option<u32> {
        let [_, end] = &mut self.ends;
        let cqe = end.cq.poll()?;
        end.recv.completed(cqe.queue_index.get()).expect("posted");
        for i in 0..u64::from(cqe.buffers.get()) {
            let buffer = end.mr.dma(i * u64::from(RECV_BUFFER), RECV_BUFFER);
            end.recv.post(0, &[buffer]).expect("room");
        }
        end.recv.ring();
        Some(cqe.byte_len.get())
    }
}

/// A node's driver with what it made: a queue pair, the completion queue of both its sides, and a region.
type Made = (Host, Qp, (CompletionRing<RingView, SlotView>, Mr));

fn endpoint(world: &mut World, id: u16, kind: QpType) -> Made {
    let mut host = world.host(id);
    let eq = host.start(world);
    let cq = host.cq(world, eq.eqn, LOG + 1);
    let qp = host.qp_with(world, kind, QP_FLAG_PRIVILEGED, &cq, LOG);
    let mr = host.mr(world, REGION, false);
    (host, qp, (cq.ring, mr))
}

/// Makes queue pairs that send themselves a message each for which there is no receive buffer.
fn park(world: &mut World, host: &mut Host, count: u32) {
    let eq = host.eq(world, 0, 6);
    let cq = host.cq(world, eq.eqn, 4);
    let epoch = world.node(host.id).epoch();
    for number in 0..count {
        if number % PER_PAGE == 0 {
            host.turn_page();
        }
        let mut qp = host.qp(world, QpType::Rc, &cq, 0);
        host.ready(world, &qp, Some((host.id, qp.qpn, epoch)));
        let message = SendRequest {
            wr_id: 0,
            flags: 0,
            operation: Operation::Send { imm: None },
            data: Data::Inline(&[0; 8]),
        };
        qp.send.post(&message).expect("room");
        qp.send.ring();
    }
    world.pump();
}
