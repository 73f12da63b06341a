// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A victim, the hostile host, and one that has nothing to do with it.

use super::{
    forge::{Forge, Names},
    steps::Step,
};
use nupa_engine::rings::{Data, Operation, SendRequest};
use nupa_engine::NodeTable;
use nupa_proto::admin::{QpStateCode, QpType};
use nupa_proto::frame::FrameMeta;
use nupa_proto::ident::{node_mac, NODE_FLOOD};
use nupa_proto::status::WcStatus;
use nupa_proto::wqe::{DatagramSegment, GrhSegment, WQE_SIGNALED};
use nupa_testing::{Cq, Host, Mode, Mr, Qp, World};

const VICTIM: u16 = 0;
const HOSTILE: u16 = 1;
const OTHER: u16 = 2;
const QKEY: u32 = 0x1111;
/// Bytes of each region.
const REGION: u64 = 1 << 18;
/// Bytes that are nobody's.
const PRIVATE: usize = 4096;

/// A queue pair with a completion queue of its own.
struct Pair {
    qp: Qp,
    cq: Cq,
    done: Vec<u8>,
}

impl Pair {
    fn new(host: &mut Host, world: &mut World, eqn: u32, kind: QpType) -> Self {
        let cq = host.cq(world, eqn, 7);
        let qp = host.qp(world, kind, &cq, 5);
        let done = Vec::new();
        Self { qp, cq, done }
    }

    /// Takes completions, which must be of what was posted.
    fn drain(&mut self) {
        self.done.clear();
        for cqe in self.cq.drain() {
            let index = cqe.queue_index.get();
            if cqe.opcode & 0x80 == 0 {
                self.qp.send.completed(index).unwrap();
            } else {
                self.qp.recv.completed(index).unwrap();
            }
            self.done.push(cqe.status);
        }
    }

    fn post(&mut self, operation: Operation, data: Data<'_>) {
        if self.qp.send.free_blocks() > 8 {
            let request = SendRequest {
                wr_id: 1,
                flags: WQE_SIGNALED,
                operation,
                data,
            };
            self.qp.send.post(&request).unwrap();
            self.qp.send.ring();
        }
    }
}

/// A node with a connected queue pair.
struct Side {
    host: Host,
    eqn: u32,
    rc: Pair,
    mr: Mr,
}

impl Side {
    fn new(world: &mut World, id: u16) -> Self {
        let mut host = world.host(id);
        // Nobody takes events.
        let eqn = host.start(world).eqn;
        let rc = Pair::new(&mut host, world, eqn, QpType::Rc);
        let mr = host.device_mr(world, REGION);
        Self { host, eqn, rc, mr }
    }
}

pub struct Scene {
    world: World,
    victim: Side,
    /// Where the hostile node's memory is, and its queue pair.
    target: (Mr, u32),
    other: Side,
    /// The victim's queue pairs that are not connected to the hostile node.
    aside: Pair,
    datagrams: Pair,
    frames: Pair,
    /// Address of a frame.
    frame: u64,
    forge: Forge,
    names: Names,
    /// It has written to what is not its own.
    wild: bool,
}

impl Scene {
    pub fn new(mode: Mode) -> Self {
        let mut world = World::new(mode, 3);
        let [mut victim, hostile, other] =
            [VICTIM, HOSTILE, OTHER].map(|id| Side::new(&mut world, id));
        let eqn = victim.eqn;
        let host = &mut victim.host;
        let aside = Pair::new(host, &mut world, eqn, QpType::Rc);
        let datagrams = Pair::new(host, &mut world, eqn, QpType::Ud);
        let frames = Pair::new(host, &mut world, eqn, QpType::Raw);
        host.ready_datagrams(&mut world, &datagrams.qp, QKEY);
        host.gid_in(&mut world, 0, [0xfe; 16], Some(7));
        host.ready(&mut world, &frames.qp, None);
        host.receive_frames(&mut world, &[node_mac(VICTIM)], &[frames.qp.qpn]);
        let connect = |world: &mut World, host: &Host, qp: &Qp, node, qpn| {
            host.ready(world, qp, Some((node, qpn, 1)));
        };
        connect(&mut world, host, &victim.rc.qp, HOSTILE, hostile.rc.qp.qpn);
        connect(&mut world, host, &aside.qp, OTHER, other.rc.qp.qpn);
        connect(
            &mut world,
            &hostile.host,
            &hostile.rc.qp,
            VICTIM,
            victim.rc.qp.qpn,
        );
        connect(&mut world, &other.host, &other.rc.qp, VICTIM, aside.qp.qpn);
        let frame = host.alloc(4096);
        host.write(frame, &node_mac(HOSTILE));
        host.write(host.machine.ram().end() - PRIVATE as u64, &[0xa5; PRIVATE]);
        let names = Names {
            pairs: [
                victim.rc.qp.qpn,
                hostile.rc.qp.qpn,
                aside.qp.qpn,
                datagrams.qp.qpn,
                frames.qp.qpn,
                other.rc.qp.qpn,
            ],
            keys: [victim.mr.key, QKEY],
        };
        world.pump();
        world.hold(Some(usize::from(HOSTILE)));
        world.engine.members().set_hostile(HOSTILE);
        Self {
            forge: Forge::new(&world, HOSTILE, VICTIM, mode.is_in_lines()),
            world,
            target: (hostile.mr, hostile.rc.qp.qpn),
            victim,
            other,
            aside,
            datagrams,
            frames,
            frame,
            names,
            wild: false,
        }
    }

    pub fn perform(&mut self, step: &Step) {
        let world = &mut self.world;
        match step {
            Step::Link {
                class,
                word,
                tags,
                index,
            } => self.forge.link(world, *class, *word, *tags, *index),
            Step::Forge(forged) => self.forge.entry(world, &self.names, forged),
            Step::Payload { class, at, bytes } => self.forge.payload(world, *class, *at, bytes),
            Step::Slot { at, value } => self.forge.slot(world, *at, *value),
            Step::Wild { at, bytes } => {
                let at = u64::from(*at) % world.shared.size() as u64;
                world.shared.poke(at, bytes);
                world.engine.members().set_lawless();
                self.wild = true;
            }
            Step::Behave { turns } => {
                world.hold(None);
                world.turns(usize::from(*turns));
                world.hold(Some(usize::from(HOSTILE)));
            }
            Step::Renew => self.renew(),
            Step::Post { kind, len } => self.post(*kind, *len),
            Step::Receive { len } => self.receive(*len),
            Step::Run { turns } => world.turns(usize::from(*turns)),
            Step::Wait { us } => world.advance(u64::from(*us)),
            Step::LookAround => world.engine.tick_all(&mut world.nodes),
        }
        for pair in [
            &mut self.victim.rc,
            &mut self.aside,
            &mut self.datagrams,
            &mut self.frames,
        ] {
            pair.drain();
        }
    }

    fn renew(&mut self) {
        let world = &mut self.world;
        world.engine.reset(&mut world.nodes, HOSTILE);
        world.engine.enable(&mut world.nodes, HOSTILE);
        self.forge.renew();
        world.pump();
        let (host, pair) = (&self.victim.host, &mut self.victim.rc);
        pair.drain();
        let (qpn, epoch) = (pair.qp.qpn, world.node(HOSTILE).epoch());
        host.set_state(world, qpn, QpStateCode::Reset).unwrap();
        pair.qp.send.reset();
        pair.qp.recv.reset();
        host.ready(world, &pair.qp, Some((HOSTILE, self.target.1, epoch)));
    }

    fn post(&mut self, kind: u8, len: u32) {
        let len = len % 100_000;
        let sges = [self.victim.mr.sge(0, len)];
        let (addr, rkey) = (self.target.0.iova, self.target.0.key);
        let rc = &mut self.victim.rc;
        let imm = None;
        match kind {
            0 | 1 => rc.post(Operation::Write { addr, rkey, imm }, Data::Sges(&sges)),
            2 | 3 => rc.post(Operation::Read { addr, rkey }, Data::Sges(&sges)),
            4 => rc.post(Operation::Send { imm }, Data::Sges(&sges)),
            5 => {
                let sges = [self.victim.mr.sge(64, 8)];
                let add = u64::from(len);
                rc.post(Operation::FetchAdd { addr, rkey, add }, Data::Sges(&sges));
            }
            6 => {
                let sges = [self.victim.mr.sge(0, len % 4000)];
                let to = DatagramSegment {
                    qpn: len.into(),
                    qkey: QKEY.into(),
                    node: HOSTILE.into(),
                    ..DatagramSegment::default()
                };
                let grh = GrhSegment::default();
                let operation = Operation::Datagram { to, grh, imm };
                self.datagrams.post(operation, Data::Sges(&sges));
            }
            _ => {
                let node = if kind == 7 { HOSTILE } else { NODE_FLOOD };
                let meta = FrameMeta::default();
                let sges = [self.victim.host.dma(self.frame, 60 + len % 4000)];
                let operation = Operation::Frame { node, meta };
                self.frames.post(operation, Data::Sges(&sges));
            }
        }
    }

    fn receive(&mut self, len: u32) {
        let sges = [self.victim.mr.sge(1000, len)];
        for pair in [&mut self.victim.rc, &mut self.datagrams] {
            // If there is room.
            let _ = pair.qp.recv.post(1, &sges);
            pair.qp.recv.ring();
        }
        let sges = [self.victim.host.dma(self.frame + 2048, len % 2048 + 1)];
        let _ = self.frames.qp.recv.post(1, &sges);
        self.frames.qp.recv.ring();
    }

    /// The others are as they were, and go on.
    pub fn end(mut self) {
        self.world.pump();
        let host = &self.victim.host;
        let private = host.read(host.machine.ram().end() - PRIVATE as u64, PRIVATE);
        assert!(private == [0xa5; PRIVATE], "private memory was overwritten");
        if self.wild {
            return;
        }
        self.aside.drain();
        let (fabric, other) = (&mut self.world, &mut self.other);
        let bytes: Vec<u8> = (0..200_000u32).map(|i| (i ^ (i >> 8)) as u8).collect();
        other.host.write(other.mr.addr, &bytes);
        let (addr, rkey) = (self.victim.mr.iova, self.victim.mr.key);
        let operation = Operation::Write {
            addr,
            rkey,
            imm: None,
        };
        let sges = [other.mr.sge(0, bytes.len() as u32)];
        other.rc.post(operation, Data::Sges(&sges));
        fabric.pump();
        other.rc.drain();
        assert_eq!(other.rc.done, [WcStatus::Success.to_wire()]);
        let arrived = self.victim.host.read(self.victim.mr.addr, bytes.len());
        assert!(arrived == bytes, "the other's data is not what it sent");
        let operation = Operation::Read {
            addr: other.mr.iova,
            rkey: other.mr.key,
        };
        let sges = [self.victim.mr.sge(0, 100)];
        self.aside.post(operation, Data::Sges(&sges));
        fabric.pump();
        self.aside.drain();
        assert_eq!(self.aside.done, [WcStatus::Success.to_wire()]);
        // Who was found to break rules is gone.
        let (node, map) = fabric.engine.members().of(VICTIM);
        let there = node.peer(map, HOSTILE).map(|peer| peer.epoch);
        let peer = fabric.nodes.hosts[usize::from(VICTIM)].peer_mut(HOSTILE);
        assert_eq!(peer.and_then(|peer| peer.epoch()), there);
    }
}
