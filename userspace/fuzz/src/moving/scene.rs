// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A node whose words move, one that it talks to, and one that talks to the latter.

use super::{Move, Mover};
use nupa_engine::rings::{Data, Operation, SendRequest};
use nupa_engine::NodeTable;
use nupa_proto::admin::{
    AllocKey, CreateMr, KeyKind, PageList, QpStateCode, QpType, SetRss, SetRxFilter, ACCESS_ALL,
    RX_BROADCAST,
};
use nupa_proto::frame::FrameMeta;
use nupa_proto::ident::node_mac;
use nupa_proto::status::WcStatus;
use nupa_proto::wqe::{DatagramSegment, FastRegSegment, WQE_SIGNALED};
use nupa_testing::{Cq, Host, Mode, Mr, Qp, World};

/// Whose words move.
const HOSTILE: u16 = 0;
const PEER: u16 = 1;
const OTHER: u16 = 2;
const QKEY: u32 = 0x1111;
/// Bytes of each region.
const REGION: u64 = 1 << 18;
/// Bytes that are nobody's.
const PRIVATE: usize = 4096;
/// Bytes that one call to the engine copies at most: a quantum for each of a turn's parts.
const TURN: usize = 5 << 16;
/// Turns of the engine in which requests of the bystander complete.
const MAX_TURNS: usize = 10_000;

/// What the hostile node does, or what happens to it.
pub enum Step {
    /// Posts a request on its connected queue pair, that for datagrams, or that for frames.
    Post {
        queue: usize,
        kind: u8,
        len: u32,
    },
    /// Posts a receive entry there.
    Receive {
        queue: usize,
        len: u32,
    },
    /// Its peer sends to it.
    Answer {
        len: u32,
    },
    /// Gives an admin command that names words in its memory.
    Command {
        kind: u8,
    },
    Turns(u8),
    Wait(u64),
    /// Sets its connected queue pair, and its peer's, up again.
    Renew,
}

/// A node's driver.
struct Side {
    host: Host,
    cq: Cq,
    /// Connected, for datagrams, for frames.
    qps: [Qp; 3],
    mr: Mr,
}

impl Side {
    fn new(world: &mut World, id: u16) -> Self {
        let mut host = world.host(id);
        let eqn = host.start(world).eqn;
        let cq = host.cq(world, eqn, 7);
        let kinds = [QpType::Rc, QpType::Ud, QpType::Raw];
        let qps = kinds.map(|kind| host.qp(world, kind, &cq, 5));
        host.ready_datagrams(world, &qps[1], QKEY);
        host.gid(world, 0, [id as u8 + 1; 16]);
        host.ready(world, &qps[2], None);
        host.receive_frames(world, &[node_mac(id)], &[qps[2].qpn]);
        let mr = host.mr(world, REGION, true);
        Self { host, cq, qps, mr }
    }

    fn connect(&self, world: &mut World, node: u16, qpn: u32) {
        let epoch = world.node(node).epoch();
        self.host
            .ready(world, &self.qps[0], Some((node, qpn, epoch)));
    }

    /// Frees what completions say is done; they say it of what was posted.
    fn drain(&mut self) -> Vec<u8> {
        let mut done = Vec::new();
        for cqe in self.cq.drain() {
            let qp = self.qps.iter_mut().find(|qp| qp.qpn == cqe.qpn.get());
            let qp = qp.expect("a queue pair of its own");
            // Where words moved, the controller may have seen more than was posted.
            let _ = match cqe.opcode & 0x80 {
                0 => qp.send.completed(cqe.queue_index.get()),
                _ => qp.recv.completed(cqe.queue_index.get()),
            };
            done.push(cqe.status);
        }
        done
    }

    fn post(&mut self, queue: usize, operation: Operation, data: Data<'_>) {
        let request = SendRequest {
            wr_id: 1,
            flags: WQE_SIGNALED,
            operation,
            data,
        };
        let send = &mut self.qps[queue].send;
        // If there is room.
        if send.post(&request).is_ok() {
            send.ring();
        }
    }
}

pub struct Scene {
    world: World,
    hostile: Side,
    peer: Side,
    other: Side,
    /// The peer's queue pair and region for the third node.
    aside: (Qp, Cq, Mr),
    /// A key of the hostile node for fast registration, and a list of pages.
    key: u32,
    list: u64,
}

impl Scene {
    pub fn new(mode: Mode, seed: u32) -> Self {
        let mut world = World::new(mode, 3);
        world.shuffle(seed);
        let [mut hostile, mut peer, other] =
            [HOSTILE, PEER, OTHER].map(|id| Side::new(&mut world, id));
        hostile.connect(&mut world, PEER, peer.qps[0].qpn);
        peer.connect(&mut world, HOSTILE, hostile.qps[0].qpn);
        let aside = {
            let host = &mut peer.host;
            let eqn = host.eq(&mut world, 1, 6).eqn;
            let cq = host.cq(&mut world, eqn, 6);
            let qp = host.qp(&mut world, QpType::Rc, &cq, 5);
            let mr = host.mr(&mut world, REGION, false);
            host.ready(&mut world, &qp, Some((OTHER, other.qps[0].qpn, 1)));
            (qp, cq, mr)
        };
        other.connect(&mut world, PEER, aside.0.qpn);
        for side in [&hostile, &peer, &other] {
            let end = side.host.machine.ram().end();
            side.host.write(end - PRIVATE as u64, &[0xa5; PRIVATE]);
        }
        let list = hostile.host.alloc(4096);
        for page in 0..8 {
            let at = hostile.mr.addr + page * 4096;
            hostile.host.write(list + page * 8, &at.to_le_bytes());
        }
        let (node, machine) = world.nodes.node_mut(HOSTILE).unwrap();
        let body = AllocKey {
            pd: hostile.host.pd.into(),
            max_pages: 8.into(),
            kind: KeyKind::FastReg.to_wire(),
            ..AllocKey::default()
        };
        let key = node.alloc_key(machine, &body).unwrap();
        world.pump();
        Self {
            world,
            hostile,
            peer,
            other,
            aside,
            key,
            list,
        }
    }

    /// From now on words of the hostile node move, and its doorbells by so much with each look.
    pub fn let_move(&self, moves: Vec<Move>, doorbells: u32) {
        let machine = &self.hostile.host.machine;
        let mut mover = Mover::new(moves);
        let look = move |_: u64, bytes: &mut [u8]| mover.look(bytes);
        machine.ram().move_bytes(Some(Box::new(look)));
        machine.move_doorbells(doorbells);
    }

    pub fn perform(&mut self, step: &Step) {
        match *step {
            Step::Post { queue, kind, len } => self.post(queue, kind, len),
            Step::Receive { queue, len } => {
                let qp = &mut self.hostile.qps[queue];
                let sges = [match queue {
                    2 => self.hostile.host.dma(self.hostile.mr.addr, len),
                    _ => self.hostile.mr.sge(64, len),
                }];
                // If there is room.
                let _ = qp.recv.post(2, &sges);
                qp.recv.ring();
            }
            Step::Answer { len } => {
                let sges = [self.peer.mr.sge(0, len)];
                let imm = None;
                self.peer
                    .post(0, Operation::Send { imm }, Data::Sges(&sges));
                let sges = [self.peer.mr.sge(0, 9000)];
                let _ = self.peer.qps[0].recv.post(3, &sges);
                self.peer.qps[0].recv.ring();
            }
            Step::Command { kind } => self.command(kind),
            Step::Turns(turns) => self.turns(turns.into()),
            Step::Wait(us) => self.world.pass(us),
            Step::Renew => self.renew(),
        }
        self.turns(2);
        self.hostile.drain();
        self.peer.drain();
    }

    fn turns(&mut self, count: usize) {
        for _ in 0..count {
            self.world.turns(1);
            for host in &mut self.world.nodes.hosts {
                let most = host.take_most_moved();
                assert!(most <= TURN, "{most} bytes at one go");
            }
        }
    }

    fn post(&mut self, queue: usize, kind: u8, len: u32) {
        let (addr, rkey, imm) = (self.peer.mr.iova, self.peer.mr.key, None);
        let own = &self.hostile;
        let sges = [own.mr.sge(0, len / 2), own.mr.sge(4000, len - len / 2)];
        let word = [own.mr.sge(64, 8)];
        let frame = [own.host.dma(own.mr.addr, len.clamp(14, 3000))];
        let (operation, data) = match (queue, kind) {
            (1, _) => {
                let to = DatagramSegment {
                    qpn: self.peer.qps[1].qpn.into(),
                    qkey: QKEY.into(),
                    node: PEER.into(),
                    ..DatagramSegment::default()
                };
                let grh = Default::default();
                (Operation::Datagram { to, grh, imm }, Data::Sges(&sges))
            }
            (2, _) => {
                let meta = FrameMeta::default();
                (Operation::Frame { node: PEER, meta }, Data::Sges(&frame))
            }
            (_, 0 | 1) => (Operation::Write { addr, rkey, imm }, Data::Sges(&sges)),
            (_, 2 | 3) => (Operation::Read { addr, rkey }, Data::Sges(&sges)),
            (_, 4 | 5) => (Operation::Send { imm }, Data::Sges(&sges)),
            (_, 6) => (
                Operation::FetchAdd { addr, rkey, add: 1 },
                Data::Sges(&word),
            ),
            (_, 7) => (
                Operation::AtomicWrite {
                    addr,
                    rkey,
                    value: 7,
                },
                Data::Sges(&[]),
            ),
            (_, 8) => (Operation::LocalInv { key: self.key }, Data::Sges(&[])),
            (_, 9 | 10) => {
                let pages = FastRegSegment {
                    iova: own.mr.iova.into(),
                    len: (8 * 4096).into(),
                    list: self.list.into(),
                    pages: 8.into(),
                    access: ACCESS_ALL.into(),
                    page_shift: 12,
                    ..FastRegSegment::default()
                };
                let key = self.key;
                (Operation::FastReg { key, pages }, Data::Sges(&[]))
            }
            _ => (Operation::Nop, Data::Inline(&[1; 60])),
        };
        self.hostile.post(queue, operation, data);
    }

    /// Whether it is accepted is all the same.
    fn command(&mut self, kind: u8) {
        let (node, machine) = self.world.nodes.node_mut(HOSTILE).unwrap();
        let list = self.list;
        let _ = match kind {
            0 | 1 => {
                let pages = PageList {
                    addr: list.into(),
                    pages: 8.into(),
                    page_shift: 12,
                    ..PageList::default()
                };
                let body = CreateMr {
                    pages,
                    iova: (1u64 << 32).into(),
                    len: (8u64 * 4096).into(),
                    pd: self.hostile.host.pd.into(),
                    access: ACCESS_ALL.into(),
                };
                node.create_mr(machine, &body).map(drop)
            }
            2 | 3 => {
                let body = SetRxFilter {
                    addresses: list.into(),
                    count: 4.into(),
                    flags: RX_BROADCAST.into(),
                };
                node.set_rx_filter(machine, &body)
            }
            _ => {
                let body = SetRss {
                    table: list.into(),
                    count: 4.into(),
                    ..SetRss::default()
                };
                node.set_rss(machine, &body)
            }
        };
    }

    fn renew(&mut self) {
        for side in [&mut self.hostile, &mut self.peer] {
            let qp = &mut side.qps[0];
            let reset = side
                .host
                .set_state(&mut self.world, qp.qpn, QpStateCode::Reset);
            reset.expect("it can always be reset");
            qp.send.reset();
            qp.recv.reset();
        }
        self.hostile
            .connect(&mut self.world, PEER, self.peer.qps[0].qpn);
        self.peer
            .connect(&mut self.world, HOSTILE, self.hostile.qps[0].qpn);
    }

    /// The others go on meanwhile, and nothing is left of the hostile node when it is reset.
    pub fn end(mut self) {
        let bytes: Vec<u8> = (0..3000u32).map(|i| (i ^ (i >> 8)) as u8).collect();
        self.other
            .host
            .write(self.other.mr.addr + REGION - 4096, &bytes);
        let mr = self.aside.2;
        let (addr, rkey, imm) = (mr.iova, mr.key, None);
        let sges = [self.other.mr.sge(0, bytes.len() as u32)];
        self.other
            .post(0, Operation::Write { addr, rkey, imm }, Data::Sges(&sges));
        let (mut done, mut turns) = (Vec::new(), 0);
        while done.is_empty() {
            assert!(
                turns < MAX_TURNS,
                "requests of the bystander do not complete within {MAX_TURNS} turns"
            );
            self.turns(1);
            turns += 1;
            done = self.other.drain();
        }
        assert_eq!(done, [WcStatus::Success.to_wire()]);
        let arrived = self.peer.host.read(mr.addr, bytes.len());
        assert!(arrived == bytes, "the bystander's data is not what it sent");
        for side in [&self.hostile, &self.peer, &self.other] {
            let end = side.host.machine.ram().end();
            let private = side.host.machine.ram();
            let mut found = [0; PRIVATE];
            private
                .own()
                .read(
                    (end - PRIVATE as u64 - nupa_testing::BASE) as usize,
                    &mut found,
                )
                .unwrap();
            assert!(found == [0xa5; PRIVATE], "private memory was overwritten");
        }
        assert_eq!(self.aside.1.drain().len(), 0);
        let machine = &self.hostile.host.machine;
        machine.ram().move_bytes(None);
        machine.move_doorbells(0);
        self.world.engine.reset(&mut self.world.nodes, HOSTILE);
        self.world.pump();
        assert_eq!(self.world.node(HOSTILE).object_counts(), [0; 6]);
    }
}
