// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A connected pair of queue pairs beside a simple model of it: what must be where, and who must be told.

mod trouble;

use crate::{Cq, Host, Mr, Qp, World};
use nupa_engine::rings::{Data, Operation, PostError, SendRequest};
use nupa_proto::{
    admin::{ModifyQp, QpType, QP_MASK_RNR, RNR_FOREVER},
    status::WcStatus,
    wqe::{Sge, MAX_INLINE, WQE_FENCE, WQE_SIGNALED},
};
use std::{collections::VecDeque, mem::take, ops::Range};

/// Bytes of each region.
pub const REGION: usize = 3 * 4096;

/// A piece of memory, cut to fit into the region.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    at: usize,
    len: usize,
}

impl Piece {
    pub fn new(at: usize, len: usize) -> Self {
        let at = at % REGION;
        Self {
            at,
            len: len.min(REGION - at),
        }
    }

    fn range(self) -> Range<usize> {
        self.at..self.at + self.len
    }
}

/// What is done to a pair.
#[derive(Clone, Debug)]
pub enum Step {
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
    /// Lets all be done that can be, and compares.
    Serve,
    /// Lets as many turns pass.
    Turns(u8),
    /// Holds an end's host still for as many turns, while the other goes on.
    Hold {
        end: usize,
        turns: u8,
    },
    /// Lets time pass.
    Wait(u64),
    /// Goes wrong at an end in the midst of what is under way; both start again afterwards.
    Fault {
        end: usize,
        fault: Fault,
    },
}

/// What can go wrong at an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Its driver has its queue pair give up.
    QueuePair,
    /// Its driver takes its region away.
    Region,
    /// Its link is unplugged for a while; in a pool, which has no plugs, nothing happens to it.
    Link,
    /// It is reset.
    Reset,
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

    /// Connects it to a queue pair (node, number, epoch), for whose receives it waits as long as it takes.
    fn connect(&self, world: &mut World, peer: (u16, u32, u32)) {
        self.host.ready(world, &self.qp, Some(peer));
        let patient = ModifyQp {
            mask: QP_MASK_RNR.into(),
            rnr_timeout_us: RNR_FOREVER.into(),
            ..ModifyQp::default()
        };
        let set = self.host.modify(world, self.qp.qpn, patient);
        set.expect("it can always be patient");
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

/// Two connected ends, and the model of what the first one asks for.
pub struct Pair {
    world: World,
    ends: [End; 2],
    model: Model,
    /// Number of the next request.
    id: u64,
}

impl Pair {
    /// Between nodes 0 and 1 of a fabric. `device`: with regions of device memory, else in pages.
    pub fn new(mut world: World, device: bool) -> Self {
        let ends = [0, 1].map(|id| End::new(&mut world, id, device));
        for (id, other) in [(0, 1), (1, 0)] {
            let peer = (other as u16, ends[other].qp.qpn, 1);
            ends[id].connect(&mut world, peer);
        }
        Self {
            world,
            ends,
            model: Model::default(),
            id: 0,
        }
    }

    /// Does a step. Panics if the fabric does not do what the model does.
    pub fn perform(&mut self, step: &Step) {
        let [a, b] = &mut self.ends;
        let id = self.id;
        self.id += 1;
        match step {
            Step::Receive(piece) => {
                if b.qp.recv.post(id, &b.sges(*piece)).is_ok() {
                    b.qp.recv.ring();
                    self.model.receives.push_back((id, *piece));
                }
            }
            Step::Serve => self.settle(),
            Step::Turns(turns) => self.world.turns((*turns).into()),
            Step::Hold { end, turns } => {
                self.world.hold(Some(*end % self.world.nodes.hosts.len()));
                self.world.turns((*turns).into());
                self.world.hold(None);
            }
            Step::Wait(us) => self.world.advance(*us),
            Step::Fault { end, fault } => self.fail(*end % 2, *fault),
            step if settles_first(step, &self.model) => {}
            step => {
                if post(a, b, id, step) {
                    a.qp.send.ring();
                    self.model.sends.push_back((id, step.clone()));
                }
            }
        }
        if self.model.sends.len() > 3 {
            self.settle();
        }
    }

    /// Lets all be done that can be, and compares.
    pub fn settle(&mut self) {
        self.world.pump();
        let [a, b] = &mut self.ends;
        self.model.serve(&mut a.bytes, &mut b.bytes);
        for (side, end) in self.ends.iter_mut().enumerate() {
            assert!(end.region() == end.bytes, "bytes of end {side}");
            let mut wanted = [Vec::new(), Vec::new()];
            wanted[side] = take(&mut self.model.done[side]);
            assert_eq!(end.completions(), wanted, "completions of end {side}");
        }
    }
}
