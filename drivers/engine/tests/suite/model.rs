// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Random work against a simple model: what must be where, and who must be told.

use nupa_engine::rings::{Data, Operation, PostError, SendRequest};
use nupa_proto::{
    admin::QpType,
    frame::{FrameMeta, MIN_FRAME},
    ident::node_mac,
    status::WcStatus,
    wqe::{Sge, MAX_INLINE, WQE_FENCE, WQE_SIGNALED},
};
use nupa_testing::{Cq, Host, Mr, Qp, World};
use proptest::{collection::vec, prelude::*};
use std::collections::VecDeque;

/// Bytes of each region.
const REGION: usize = 3 * 4096;

/// A piece of memory, cut to fit into the region.
#[derive(Clone, Copy, Debug)]
struct Piece {
    at: usize,
    len: usize,
}

fn piece() -> impl Strategy<Value = Piece> {
    (0..REGION, 0..REGION).prop_map(|(at, len)| Piece {
        at,
        len: len.min(REGION - at),
    })
}

#[derive(Clone, Debug)]
enum Step {
    Write {
        from: Piece,
        to: usize,
        inline: bool,
        imm: Option<u32>,
    },
    Read {
        from: usize,
        to: Piece,
    },
    Send {
        from: Piece,
        inline: bool,
        imm: Option<u32>,
    },
    /// Adds to the word at an offset, which need not be aligned nor within the region; what was there goes to another.
    FetchAdd {
        from: usize,
        to: usize,
        add: u64,
    },
    Receive(Piece),
    Serve,
}

/// The offset of a word, mostly.
fn word() -> impl Strategy<Value = usize> {
    prop_oneof![
        9 => (0..REGION / 8).prop_map(|word| word * 8),
        1 => 0..REGION + 8,
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let imm = || prop::option::of(any::<u32>());
    prop_oneof![
        2 => (piece(), 0..REGION, any::<bool>(), imm())
            .prop_map(|(from, to, inline, imm)| Step::Write { from, to, inline, imm }),
        2 => (0..REGION, piece()).prop_map(|(from, to)| Step::Read { from, to }),
        2 => (piece(), any::<bool>(), imm())
            .prop_map(|(from, inline, imm)| Step::Send { from, inline, imm }),
        1 => (word(), 0..REGION - 8, any::<u64>())
            .prop_map(|(from, to, add)| Step::FetchAdd { from, to, add }),
        3 => piece().prop_map(Step::Receive),
        3 => Just(Step::Serve),
    ]
}

/// One end: the real thing, and the bytes that its region must have.
struct End {
    host: Host,
    cq: Cq,
    qp: Qp,
    mr: Mr,
    device: bool,
    bytes: Vec<u8>,
}

impl End {
    /// `device`: with a region of device memory, else in pages.
    fn new(world: &mut World, id: u16, device: bool) -> Self {
        let mut host = world.host(id);
        let eq = host.start(world);
        let cq = host.cq(world, eq.eqn, 7);
        let qp = host.qp(world, QpType::Rc, &cq, 5);
        let mr = match device {
            true => host.device_mr(world, REGION as u64),
            false => host.mr(world, REGION as u64, true),
        };
        let mut end = Self {
            device,
            host,
            cq,
            qp,
            mr,
            bytes: Vec::new(),
        };
        end.fill(id as u8);
        end
    }

    fn fill(&mut self, seed: u8) {
        self.bytes = (0..REGION)
            .map(|i| (i as u8).wrapping_mul(13) ^ (i >> 8) as u8 ^ seed)
            .collect();
        if self.device {
            self.host.write(self.mr.addr, &self.bytes);
            return;
        }
        for (page, bytes) in self.bytes.chunks(4096).rev().enumerate() {
            self.host.write(self.mr.addr + page as u64 * 4096, bytes);
        }
    }

    fn region(&self) -> Vec<u8> {
        let bytes = self.host.read(self.mr.addr, REGION);
        if self.device {
            return bytes;
        }
        bytes.chunks(4096).rev().flatten().copied().collect()
    }

    fn sges(&self, piece: Piece) -> Vec<Sge> {
        // Two entries where there is enough, so that pieces of both sides do not match.
        let first = piece.len / 3;
        let (at, len) = (piece.at as u64, piece.len as u32);
        vec![
            self.mr.sge(at, first as u32),
            self.mr.sge(at + first as u64, len - first as u32),
        ]
    }

    /// `wr_id` and status of all completions, of sends and of receives.
    fn completions(&mut self) -> [Vec<(u64, u8)>; 2] {
        let mut done = [Vec::new(), Vec::new()];
        for cqe in self.cq.drain() {
            let receive = cqe.opcode & 0x80 != 0;
            let freed = match receive {
                true => self.qp.recv.completed(cqe.queue_index.get()),
                false => self.qp.send.completed(cqe.queue_index.get()),
            };
            freed.expect("index of what is posted");
            done[usize::from(receive)].push((cqe.wr_id.get(), cqe.status));
        }
        done
    }
}

/// What the model says of requests that are posted at one end.
#[derive(Default)]
struct Model {
    sends: VecDeque<(u64, Step)>,
    receives: VecDeque<(u64, Piece)>,
    failed: bool,
    /// Expected completions: of sends at the requester, of receives at the responder.
    done: [Vec<(u64, u8)>; 2],
}

impl Model {
    fn finish(&mut self, side: usize, id: u64, status: WcStatus) {
        self.done[side].push((id, status.to_wire()));
    }

    /// Carries out what can be.
    fn serve(&mut self, a: &mut [u8], b: &mut [u8]) {
        while let Some((id, step)) = self.sends.front().cloned() {
            if self.failed {
                self.sends.pop_front();
                self.finish(0, id, WcStatus::WrFlush);
                continue;
            }
            let takes = matches!(step, Step::Send { .. } | Step::Write { imm: Some(_), .. });
            let receive = self.receives.front().copied();
            if takes && receive.is_none() {
                break;
            }
            self.sends.pop_front();
            let mut status = WcStatus::Success;
            let mut outcome = WcStatus::Success;
            match step {
                Step::Write { from, to, .. } if to + from.len <= REGION => {
                    b[to..to + from.len].copy_from_slice(&a[from.at..from.at + from.len]);
                }
                Step::Read { from, to } if from + to.len <= REGION => {
                    a[to.at..to.at + to.len].copy_from_slice(&b[from..from + to.len]);
                }
                Step::Send { from, .. } => {
                    let Some((_, to)) = receive else {
                        unreachable!("checked above")
                    };
                    if from.len <= to.len {
                        let bytes = &a[from.at..from.at + from.len];
                        b[to.at..to.at + from.len].copy_from_slice(bytes);
                    } else {
                        (status, outcome) = (WcStatus::RemoteInvalidRequest, WcStatus::LocalLength);
                    }
                }
                Step::FetchAdd { from, .. } if from % 8 != 0 => {
                    status = WcStatus::RemoteInvalidRequest;
                }
                Step::FetchAdd { from, to, add } if from + 8 <= REGION => {
                    let old: [u8; 8] = b[from..from + 8].try_into().expect("eight bytes");
                    let new = u64::from_le_bytes(old).wrapping_add(add);
                    b[from..from + 8].copy_from_slice(&new.to_le_bytes());
                    a[to..to + 8].copy_from_slice(&old);
                }
                _ => status = WcStatus::RemoteAccess,
            }
            self.finish(0, id, status);
            let consumed = takes && status != WcStatus::RemoteAccess;
            if let Some((id, _)) = receive.filter(|_| consumed) {
                self.receives.pop_front();
                self.finish(1, id, outcome);
            }
            self.failed |= status != WcStatus::Success;
        }
        while let Some((id, _)) = self.receives.front().copied().filter(|_| self.failed) {
            self.receives.pop_front();
            self.finish(1, id, WcStatus::WrFlush);
        }
    }
}

fn inline_fits(inline: bool, piece: Piece) -> bool {
    inline && piece.len <= MAX_INLINE
}

/// Posts the request that a step stands for. False if there is no room.
fn post(a: &mut End, b: &End, id: u64, step: &Step) -> bool {
    let rkey = b.mr.key;
    let at = |offset: usize| b.mr.iova + offset as u64;
    let (operation, local, inline) = match *step {
        Step::Write {
            from,
            to,
            inline,
            imm,
        } => (
            Operation::Write {
                addr: at(to),
                rkey,
                imm,
            },
            from,
            inline_fits(inline, from),
        ),
        Step::Read { from, to } => (
            Operation::Read {
                addr: at(from),
                rkey,
            },
            to,
            false,
        ),
        Step::Send { from, inline, imm } => {
            (Operation::Send { imm }, from, inline_fits(inline, from))
        }
        Step::FetchAdd { from, to, add } => (
            Operation::FetchAdd {
                addr: at(from),
                rkey,
                add,
            },
            Piece { at: to, len: 8 },
            false,
        ),
        _ => return true,
    };
    let sges = a.sges(local);
    let bytes = a.bytes[local.at..local.at + local.len].to_vec();
    let data = if inline {
        Data::Inline(&bytes)
    } else {
        Data::Sges(&sges)
    };
    let request = SendRequest {
        wr_id: id,
        // What a READ has brought may be sent on.
        flags: WQE_SIGNALED | WQE_FENCE,
        operation,
        data,
    };
    match a.qp.send.post(&request) {
        Ok(_) => true,
        Err(PostError::Full) => false,
        Err(PostError::Invalid) => panic!("every step is a valid request"),
    }
}

/// Inline data is taken when it is posted, so nothing that it is taken from may still change.
fn settles_first(step: &Step, model: &Model) -> bool {
    let inline = match *step {
        Step::Write { from, inline, .. } | Step::Send { from, inline, .. } => {
            inline_fits(inline, from)
        }
        _ => false,
    };
    inline
        && model
            .sends
            .iter()
            .any(|(_, step)| matches!(step, Step::Read { .. } | Step::FetchAdd { .. }))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn connected_pairs_do_what_the_model_does(
        steps in vec(step(), 1..60),
        seed in any::<u32>(),
        device in any::<bool>(),
    ) {
        let mut world = World::new(crate::MODE, 2);
        world.shuffle(seed);
        let (mut a, mut b) = (End::new(&mut world, 0, device), End::new(&mut world, 1, device));
        a.host.ready(&mut world, &a.qp, Some((1, b.qp.qpn, 1)));
        b.host.ready(&mut world, &b.qp, Some((0, a.qp.qpn, 1)));
        let mut model = Model::default();
        for (id, step) in (0u64..).zip(&steps) {
            match step {
                Step::Receive(piece) => {
                    let sges = b.sges(*piece);
                    if b.qp.recv.post(id, &sges).is_ok() {
                        b.qp.recv.ring();
                        model.receives.push_back((id, *piece));
                    }
                }
                Step::Serve => {}
                step if settles_first(step, &model) => {}
                step => {
                    if post(&mut a, &b, id, step) {
                        a.qp.send.ring();
                        model.sends.push_back((id, step.clone()));
                    }
                }
            }
            if matches!(step, Step::Serve) || model.sends.len() > 3 {
                world.pump();
                let mut bytes = (std::mem::take(&mut a.bytes), std::mem::take(&mut b.bytes));
                model.serve(&mut bytes.0, &mut bytes.1);
                (a.bytes, b.bytes) = bytes;
                prop_assert!(a.region() == a.bytes && b.region() == b.bytes);
                let [sends, none] = a.completions();
                prop_assert_eq!(none, []);
                prop_assert_eq!(&sends, &std::mem::take(&mut model.done[0]));
                let [none, receives] = b.completions();
                prop_assert_eq!(none, []);
                prop_assert_eq!(&receives, &std::mem::take(&mut model.done[1]));
            }
        }
    }

    #[test]
    fn frames_arrive_whole_in_order_or_wait(
        steps in vec(prop_oneof![
            (MIN_FRAME as usize..3000).prop_map(Ok),
            (1u32..2049).prop_map(Err),
        ], 1..80),
        seed in any::<u32>(),
    ) {
        let mut world = World::new(crate::MODE, 2);
        world.shuffle(seed);
        let (mut a, mut b) = (raw(&mut world, 0), raw(&mut world, 1));
        let (mut frames, mut buffers) = (VecDeque::new(), VecDeque::new());
        let (mut arrived, mut told) = (0, 0);
        for (seed, step) in (0u8..).zip(steps) {
            match step {
                Ok(len) => {
                    let mut bytes: Vec<u8> = (0..len).map(|i| i as u8 ^ seed).collect();
                    bytes[..6].copy_from_slice(&node_mac(1));
                    if a.send(&bytes) {
                        frames.push_back(bytes);
                    }
                }
                Err(len) => {
                    let addr = b.host.alloc(u64::from(len));
                    if b.qp.recv.post(addr, &[b.host.dma(addr, len)]).is_ok() {
                        b.qp.recv.ring();
                        buffers.push_back((addr, len as usize));
                    }
                }
            }
            world.pump();
            // The model: the first frame goes as soon as the buffers hold it.
            while let Some(frame) = frames.front() {
                let mut left = frame.len();
                let mut used = 0;
                for (_, len) in &buffers {
                    left = left.saturating_sub(*len);
                    used += 1;
                    if left == 0 {
                        break;
                    }
                }
                if left > 0 {
                    break;
                }
                let cqe = b.cq.ring.poll().expect("frame has arrived");
                prop_assert_eq!(usize::from(cqe.buffers.get()), used);
                prop_assert_eq!(cqe.byte_len.get() as usize, frame.len());
                prop_assert_eq!(cqe.wr_id.get(), buffers[0].0);
                let mut bytes = Vec::new();
                for (addr, len) in buffers.drain(..used) {
                    bytes.extend(b.host.read(addr, len.min(frame.len() - bytes.len())));
                }
                prop_assert!(&bytes == frame);
                b.qp.recv.completed(cqe.queue_index.get()).expect("posted");
                frames.pop_front();
                arrived += 1;
            }
            prop_assert!(b.cq.ring.poll().is_none());
            for cqe in a.cq.drain() {
                prop_assert_eq!(cqe.status, WcStatus::Success.to_wire());
                a.qp.send.completed(cqe.queue_index.get()).expect("posted");
                told += 1;
            }
            // A frame for another host is done for its sender before it arrives.
            prop_assert!(told == arrived || crate::MODE.is_linked() && told > arrived);
        }
    }
}

struct Raw {
    host: Host,
    cq: Cq,
    qp: Qp,
}

fn raw(world: &mut World, id: u16) -> Raw {
    let mut host = world.host(id);
    let eq = host.start(world);
    let cq = host.cq(world, eq.eqn, 7);
    let qp = host.qp(world, QpType::Raw, &cq, 5);
    host.ready(world, &qp, None);
    host.receive_frames(world, &[node_mac(id)], &[qp.qpn]);
    Raw { host, cq, qp }
}

impl Raw {
    fn send(&mut self, bytes: &[u8]) -> bool {
        let addr = self.host.alloc(bytes.len() as u64);
        self.host.write(addr, bytes);
        let operation = Operation::Frame {
            node: 1,
            meta: FrameMeta::default(),
        };
        let sges = [self.host.dma(addr, bytes.len() as u32)];
        let data = Data::Sges(&sges);
        let request = SendRequest {
            wr_id: 0,
            flags: WQE_SIGNALED,
            operation,
            data,
        };
        let posted = self.qp.send.post(&request).is_ok();
        self.qp.send.ring();
        posted
    }
}
