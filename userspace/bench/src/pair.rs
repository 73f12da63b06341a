// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Two connected nodes with one queue pair each.

use nupa_engine::rings::{CompletionRing, RecvRing, SendRequest, SendRing};
use nupa_engine::{Engine, Node, NodeConfig, NodeTable};
use nupa_proto::admin::{
    CreateCq, CreateEq, CreateMr, CreateQp, ModifyQp, PageList, QpStateCode, QpType, SetRss,
    SetRxFilter, ACCESS_ALL, QP_FLAG_PRIVILEGED, QP_MASK_ACCESS, QP_MASK_REMOTE, QP_MASK_STATE,
    RX_BROADCAST, RX_PROMISC,
};
use nupa_proto::ident::DMA_LKEY;
use nupa_proto::wqe::Sge;
use zerocopy::little_endian::{U16, U32, U64};

use crate::machine::{Machine, Slot, VecStorage, View, BUFFERS};

/// log2 of the entries of all rings.
const LOG: u8 = 8;
/// Stride of receive queues.
const LOG_STRIDE: u8 = 5;
/// Bytes of a posted receive buffer.
pub const RECV_BUFFER: u32 = 4096;
/// Bytes of the region that starts at [`BUFFERS`].
const REGION: u64 = 8 << 20;

const SLOTS: [u16; 4] = [0, 1, 2, 3];

struct Nodes([(Node<VecStorage>, Machine); 2]);

impl NodeTable for Nodes {
    type Storage = VecStorage;
    type Platform = Machine;
    type Link = nupa_engine::NoLink;

    fn max_nodes(&self) -> u16 {
        2
    }

    #[inline]
    fn node(&self, id: u16) -> Option<(&Node<VecStorage>, &Machine)> {
        let (node, machine) = self.0.get(usize::from(id))?;
        Some((node, machine))
    }

    #[inline]
    fn node_mut(&mut self, id: u16) -> Option<(&mut Node<VecStorage>, &Machine)> {
        let (node, machine) = self.0.get_mut(usize::from(id))?;
        Some((node, machine))
    }
}

/// One node's end: its queues as their owner has them.
#[derive(Debug)]
pub struct Endpoint {
    /// Hardware of the node.
    pub machine: Machine,
    /// Send queue.
    pub send: SendRing<View, Slot>,
    /// Receive queue.
    pub recv: RecvRing<View, Slot>,
    /// Completions of both.
    pub cq: CompletionRing<View, Slot>,
    /// Key of the region at [`BUFFERS`].
    pub key: u32,
    id: u16,
    qpn: u32,
    doorbell: Slot,
}

/// Two nodes and the engine between them.
pub struct Pair {
    nodes: Nodes,
    engine: Engine,
    /// Their ends.
    pub ends: [Endpoint; 2],
}

impl Pair {
    /// Two queue pairs of a kind that is ready to send; RC ones are connected to each other.
    pub fn new(kind: QpType) -> Self {
        let node = |id| NodeConfig {
            id,
            ..NodeConfig::default()
        };
        let machines = [Machine::new(), Machine::new()];
        let [a, b] = machines.clone();
        let mut nodes = Nodes([(Node::new(node(0)), a), (Node::new(node(1)), b)]);
        let mut engine = Engine::new();
        engine.enable(&mut nodes, 0);
        engine.enable(&mut nodes, 1);
        let [a, b] = machines;
        let ends = [
            endpoint(&mut nodes, 0, a, kind),
            endpoint(&mut nodes, 1, b, kind),
        ];
        for (end, peer) in [(0, 1), (1, 0)] {
            connect(&mut nodes, &mut engine, &ends[end], &ends[peer], kind);
        }
        Self {
            nodes,
            engine,
            ends,
        }
    }

    /// Posts a request at node 0, rings, serves the kick and takes the completion: its status.
    #[inline]
    pub fn round(&mut self, request: &SendRequest<'_>, push: bool) -> Option<u8> {
        let [end, _] = &mut self.ends;
        if push {
            let head = request.head();
            end.send.post_and(&head, request.data, true).expect("room");
        } else {
            end.send.post(request).expect("room");
            end.send.ring();
        }
        self.serve();
        self.take()
    }

    /// Serves the kick that node 0's send queue has asked for, if it has, and ends the engine's turn.
    #[inline]
    pub fn serve(&mut self) {
        let [end, _] = &self.ends;
        let [slot, ..] = SLOTS;
        match end.doorbell.take_kick() {
            Some(None) => self.engine.kick(&mut self.nodes, 0, 0, slot),
            Some(Some(index)) => self.engine.push_kick(&mut self.nodes, 0, 0, slot, index),
            None => {}
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
            end.recv
                .post(0, &[dma(BUFFERS + at, RECV_BUFFER)])
                .expect("room");
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
            let sge = dma(BUFFERS + i * u64::from(RECV_BUFFER), RECV_BUFFER);
            end.recv.post(0, &[sge]).expect("room");
        }
        end.recv.ring();
        Some(cqe.byte_len.get())
    }
}

/// A scatter/gather entry by DMA address.
fn dma(addr: u64, len: u32) -> Sge {
    Sge {
        addr: U64::new(addr),
        len: U32::new(len),
        lkey: U32::new(DMA_LKEY),
    }
}

fn direct(machine: &Machine, len: u64) -> PageList {
    PageList {
        addr: U64::new(machine.alloc(len)),
        ..PageList::default()
    }
}

fn endpoint(nodes: &mut Nodes, id: u16, machine: Machine, kind: QpType) -> Endpoint {
    let [send_slot, recv_slot, cq_slot, eq_slot] = SLOTS;
    let (node, _) = nodes.node_mut(id).expect("node");
    let pd = node.alloc_pd().expect("domain");
    let eq = CreateEq {
        ring: direct(&machine, 16 << LOG),
        doorbell_slot: U16::new(eq_slot),
        log_entries: LOG,
        ..CreateEq::default()
    };
    let eqn = node.create_eq(&machine, &eq).expect("event queue");
    let cq = CreateCq {
        ring: direct(&machine, 64 << (LOG + 1)),
        doorbell_slot: U16::new(cq_slot),
        log_entries: LOG + 1,
        eqn: U32::new(eqn),
        ..CreateCq::default()
    };
    let cqn = node.create_cq(&machine, &cq).expect("completion queue");
    let mr = CreateMr {
        pages: PageList {
            addr: U64::new(BUFFERS),
            ..PageList::default()
        },
        iova: U64::new(BUFFERS),
        len: U64::new(REGION),
        pd: U32::new(pd),
        access: U32::new(ACCESS_ALL),
    };
    let key = node.create_mr(&machine, &mr).expect("region");
    let qp = CreateQp {
        sq: direct(&machine, 64 << LOG),
        rq: direct(&machine, 1 << LOG_STRIDE << LOG),
        qp_type: kind.to_wire(),
        flags: QP_FLAG_PRIVILEGED,
        log_sq: LOG,
        log_rq: LOG,
        log_rq_stride: LOG_STRIDE,
        pd: U32::new(pd),
        send_cqn: U32::new(cqn),
        recv_cqn: U32::new(cqn),
        sq_slot: U16::new(send_slot),
        rq_slot: U16::new(recv_slot),
        ..CreateQp::default()
    };
    let qpn = node.create_qp(&machine, &qp).expect("queue pair");
    let (doorbell, view) = (machine.slot(send_slot), |list: &PageList| {
        machine.view(list.addr.get())
    });
    Endpoint {
        send: SendRing::new(view(&qp.sq), doorbell.clone(), LOG),
        recv: RecvRing::new(view(&qp.rq), machine.slot(recv_slot), LOG, LOG_STRIDE),
        cq: CompletionRing::new(view(&cq.ring), machine.slot(cq_slot), LOG + 1),
        key,
        id,
        qpn,
        doorbell,
        machine,
    }
}

fn connect(nodes: &mut Nodes, engine: &mut Engine, end: &Endpoint, peer: &Endpoint, kind: QpType) {
    let remote = if kind == QpType::Rc {
        QP_MASK_REMOTE
    } else {
        0
    };
    let steps = [
        (QpStateCode::Init, 0),
        (QpStateCode::Rtr, remote | QP_MASK_ACCESS),
        (QpStateCode::Rts, 0),
    ];
    for (state, mask) in steps {
        let body = ModifyQp {
            qpn: U32::new(end.qpn),
            mask: U32::new(QP_MASK_STATE | mask),
            state: state.to_wire(),
            remote_node: U16::new(peer.id),
            remote_qpn: U32::new(peer.qpn),
            remote_epoch: U32::new(1),
            access: U32::new(ACCESS_ALL),
            ..ModifyQp::default()
        };
        engine.modify_qp(nodes, end.id, &body).expect("transition");
    }
    if kind == QpType::Raw {
        receive_frames(nodes, end);
    }
}

fn receive_frames(nodes: &mut Nodes, end: &Endpoint) {
    let table = end.machine.alloc(4);
    let qpn = end.qpn.to_le_bytes();
    end.machine.guest().write(table, &qpn).expect("mapped");
    let filter = SetRxFilter {
        flags: U32::new(RX_PROMISC | RX_BROADCAST),
        ..SetRxFilter::default()
    };
    let rss = SetRss {
        table: U64::new(table),
        count: U32::new(1),
        reserved: U32::new(0),
    };
    let (node, machine) = nodes.node_mut(end.id).expect("node");
    node.set_rx_filter(machine, &filter).expect("filter");
    node.set_rss(machine, &rss).expect("table");
}
