// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A guest that performs [`Action`]s.

use guestmem::{MapRequest, Rights};
use nupa_engine::rings::{Data, Operation, SendRequest};
use nupa_proto::admin::{
    AdminOpcode, AllocKey, KeyKind, ModifyQp, QpStateCode, QpType, SetGid, ACCESS_ALL, GID_VALID,
    QP_MASK_QKEY, QP_MASK_STATE, RX_PROMISC,
};
use nupa_proto::frame::FrameMeta;
use nupa_proto::ident::{node_mac, DMA_LKEY, NODE_FLOOD};
use nupa_proto::regs;
use nupa_proto::status::AdminStatus;
use nupa_proto::wqe::{WQE_FENCE, WQE_SIGNALED, WQE_SOLICITED};
use zerocopy::IntoBytes;

use crate::actions::Action;
use crate::commands;
use crate::verbs::{Objects, QKEY};
use nupa_testguest::guest::{iova, Guest, FIRST_UNUSED, RAM_BASE, RAM_SIZE};
use nupa_testguest::queues::{frame, sge, Eq, Qp};
use nupa_testguest::World;

/// First byte of the memory that is never shown to the controller.
const PRIVATE: usize = RAM_SIZE / 2;
const PRIVATE_BYTE: u8 = 0xa5;
/// Bytes of it that are looked at: the pages behind the shared ones.
const WATCHED: usize = 64 * 4096;
/// Memory that good requests use, and where memory for rings begins.
const DATA: usize = FIRST_UNUSED;
const FIRST_FREE: usize = FIRST_UNUSED + 4096;

/// A hostile guest.
pub struct Hostile {
    guest: Guest,
    /// The fabric polls doorbells.
    polled: bool,
    /// Its event queue and queue pairs, as long as they may exist.
    eq: Option<Eq>,
    queues: Vec<Qp>,
    objects: Objects,
    /// Memory that good requests use.
    data: u64,
}

/// Places among the queues: the connected queue pairs, the second on a shared receive queue, and that for datagrams.
const RC: usize = 2;
const ON_SRQ: usize = 3;
const UD: usize = 4;
/// Kinds of the queue pairs from the first connected one on.
const VERBS: [QpType; 3] = [QpType::Rc, QpType::Rc, QpType::Ud];

/// Makes a new queue pair ready; a connected one is its own peer.
fn start(guest: &Guest, qp: &Qp, qp_type: QpType) -> Result<(), AdminStatus> {
    if qp_type == QpType::Ud {
        guest.modify(&ModifyQp {
            qpn: qp.qpn.into(),
            mask: (QP_MASK_STATE | QP_MASK_QKEY).into(),
            state: QpStateCode::Init.to_wire(),
            qkey: QKEY.into(),
            ..ModifyQp::default()
        })?;
    } else {
        guest.set_state(qp.qpn, QpStateCode::Init)?;
    }
    if qp_type == QpType::Rc {
        return guest.connect_to(qp, guest, qp.qpn, guest.epoch());
    }
    guest.set_state(qp.qpn, QpStateCode::Rtr)?;
    guest.set_state(qp.qpn, QpStateCode::Rts)
}

impl Hostile {
    pub fn new(world: &World, node: u16) -> Self {
        let mut guest = Guest::connect(world, node);
        guest.lenient = true;
        guest.ram.write(PRIVATE, &[PRIVATE_BYTE; WATCHED]).unwrap();
        let mut fabric = world.fabric.borrow_mut();
        fabric.dma_unmap_all(node);
        let shared = MapRequest {
            iova: RAM_BASE,
            len: PRIVATE as u64,
            file: Some(guest.ram.file()),
            offset: 0,
            rights: Rights::ReadWrite,
        };
        fabric.dma_map(node, &shared).unwrap();
        drop(fabric);
        let mut hostile = Self {
            guest,
            polled: false,
            eq: None,
            queues: Vec::new(),
            objects: Objects::default(),
            data: iova(DATA),
        };
        hostile.enable();
        hostile
    }

    /// Checks that memory which was not shared is as it was.
    pub fn check_private_memory(&self) {
        let bytes = self.guest.get(iova(PRIVATE), WATCHED);
        assert!(bytes.iter().all(|&byte| byte == PRIVATE_BYTE));
    }

    pub fn perform(&mut self, action: &Action) {
        let node = self.guest.node;
        let world = self.guest.world.clone();
        match action {
            Action::Register { offset, data } => {
                self.guest
                    .write_bar(regs::BAR_CONTROL, *offset as usize, data)
            }
            Action::Read { bar, offset, len } => {
                let mut data = vec![0; *len];
                world
                    .fabric
                    .borrow_mut()
                    .bar_read(node, *bar, *offset, &mut data);
            }
            Action::Enable => {
                world.fabric.borrow_mut().set_bus_master(node, true);
                world.fabric.borrow_mut().reset(node);
                self.enable();
            }
            Action::Command { opcode, changes } => self.command(*opcode, changes),
            Action::Nonsense { opcode, body } => {
                self.guest.submit(*opcode, &body[..body.len().min(56)])
            }
            Action::Post { queue, to, changes } => self.post(*queue, *to, changes),
            Action::Request {
                kind,
                seed,
                len,
                changes,
            } => self.request(*kind, *seed, *len, changes),
            Action::Descriptor {
                queue,
                control,
                rest,
            } => self.descriptor(*queue + 1, *control, rest),
            Action::Revive => self.revive(),
            Action::Receive { queue, changes } => self.receive(*queue, changes),
            Action::Poke { offset, bytes } => self.guest.ram.write(*offset, bytes).unwrap(),
            Action::Doorbell { offset, value } => {
                self.guest.doorbells.store_u32(offset & !3, *value).unwrap();
            }
            Action::Kick { offset, data } => {
                self.guest
                    .write_bar(regs::BAR_DOORBELL, *offset as usize, data)
            }
            Action::Map { page, pages, unmap } => self.map(*page, *pages, *unmap),
            Action::Reset => world.fabric.borrow_mut().reset(node),
            Action::Tamper { link, fault } => {
                let mut fabric = world.fabric.borrow_mut();
                fabric.set_link(node, *link).unwrap();
                fabric.set_fault(node, *fault).unwrap();
            }
            Action::BusMaster { on } => world.fabric.borrow_mut().set_bus_master(node, *on),
            Action::Wait { us } => world.pass(*us),
            Action::Poll { on } => {
                self.polled = *on;
                world.fabric.borrow_mut().set_polling(*on);
            }
        }
        let mut fabric = world.fabric.borrow_mut();
        if self.polled {
            fabric.poll_doorbells();
        }
        fabric.run();
        drop(fabric);
        self.reclaim();
    }

    /// Takes completions, and frees what they say is done; they may be garbage.
    fn reclaim(&mut self) {
        if let Some(eq) = &mut self.eq {
            while eq.ring.poll().is_some() {}
            eq.ring.arm();
        }
        for qp in &mut self.queues {
            while let Some(cqe) = qp.cq.ring.poll() {
                let index = cqe.queue_index.get();
                if cqe.opcode & 0x80 != 0 {
                    let _ = qp.recv.completed(index);
                } else {
                    let _ = qp.send.completed(index);
                }
            }
            qp.cq.ring.arm(false);
        }
    }

    /// Enables the function and makes some queues, as far as memory and faults allow.
    fn enable(&mut self) {
        self.eq = None;
        self.queues.clear();
        self.guest.restart(FIRST_FREE);
        let result = self.make_queues();
        if result == Ok(()) {
            let table: Vec<u32> = self.queues.iter().map(|qp| qp.qpn).collect();
            // A controller that was told to misbehave may refuse.
            let _ = self.guest.spread(&table[..2]);
            let _ = self.guest.filter(&[node_mac(self.guest.node)], RX_PROMISC);
        }
    }

    fn make_queues(&mut self) -> Result<(), AdminStatus> {
        let guest = &self.guest;
        let eq = guest.create_eq(8, 1)?;
        let eqn = eq.eqn;
        self.eq = Some(eq);
        let pd = guest.create(AdminOpcode::AllocPd, &[0u8; 0])?;
        for qp_type in [QpType::Raw, QpType::Raw, QpType::Rc, QpType::Rc, QpType::Ud] {
            let cq = guest.create_cq(6, eqn)?;
            let qp = if self.queues.len() == ON_SRQ {
                let (qp, srqn) = guest.create_qp_on_srq(pd, cq)?;
                self.objects.srqn = srqn;
                qp
            } else {
                guest.create_qp(qp_type, pd, cq)?
            };
            start(guest, &qp, qp_type)?;
            self.queues.push(qp);
        }
        self.objects = self.make_objects(pd)?;
        Ok(())
    }

    /// Makes what verbs requests name.
    fn make_objects(&self, pd: u32) -> Result<Objects, AdminStatus> {
        let guest = &self.guest;
        let list = iova(guest.alloc(4096));
        let at = usize::try_from(list - RAM_BASE).unwrap();
        // A list of one page, and behind it one whose entries lie in the page that it begins in itself.
        guest.ram.write(at, &self.data.to_le_bytes()).unwrap();
        guest.ram.write(at + 8, &list.to_le_bytes()).unwrap();
        let key = |kind: KeyKind, pages: u32| AllocKey {
            pd: pd.into(),
            max_pages: pages.into(),
            kind: kind.to_wire(),
            ..AllocKey::default()
        };
        let number = |index: usize| self.queues.get(index).map_or(0, |qp| qp.qpn);
        let gid = SetGid {
            flags: GID_VALID.into(),
            ..SetGid::default()
        };
        let set: Result<[u8; 0], _> = guest.command(AdminOpcode::SetGid, &gid);
        set?;
        Ok(Objects {
            qpn: number(0),
            pd,
            region: guest.register(pd, self.data, 4096, ACCESS_ALL)?,
            fast_reg: guest.create(AdminOpcode::AllocKey, &key(KeyKind::FastReg, 4))?,
            window: guest.create(AdminOpcode::AllocKey, &key(KeyKind::Window, 0))?,
            srqn: self.objects.srqn,
            ud: number(UD),
            page: self.data,
            list,
            node: guest.node,
        })
    }

    /// A good command with some words changed.
    fn command(&mut self, opcode: AdminOpcode, changes: &[(usize, u32)]) {
        let mut words = [0u32; 14];
        let body = commands::good_body(&self.guest, opcode, &self.objects, changes);
        words.as_mut_bytes()[..body.len()].copy_from_slice(&body);
        for (at, value) in changes {
            if let Some(word) = words.get_mut(*at) {
                *word = *value;
            }
        }
        self.guest.submit(opcode.to_wire(), words.as_bytes());
    }

    /// A verbs request, on the queue pair of its kind.
    fn request(&mut self, kind: usize, seed: u32, len: u32, changes: &[(usize, u32)]) {
        let operation = self.objects.request(kind, seed);
        let queue = match operation {
            Operation::Datagram { .. } => UD,
            _ if seed & 64 == 0 => RC,
            _ => ON_SRQ,
        };
        let entries = [sge(self.data, len, self.objects.region); 2];
        let inline = [7; 224];
        let atomic = matches!(
            operation,
            Operation::CompareSwap { .. } | Operation::FetchAdd { .. }
        );
        let takes_none = matches!(
            operation,
            Operation::AtomicWrite { .. }
                | Operation::Flush(_)
                | Operation::FastReg { .. }
                | Operation::LocalInv { .. }
                | Operation::BindMw { .. }
                | Operation::Nop
        );
        let word = [sge(self.data, 8, self.objects.region)];
        let data = match seed % 3 {
            _ if takes_none => Data::Sges(&[]),
            _ if atomic => Data::Sges(&word),
            0 if !matches!(operation, Operation::Read { .. }) => {
                Data::Inline(&inline[..(len as usize).min(224)])
            }
            1 => Data::Sges(&entries),
            _ => Data::Sges(&entries[..1]),
        };
        let request = SendRequest {
            wr_id: 2,
            flags: WQE_SIGNALED | (seed % 8) as u8 & (WQE_SOLICITED | WQE_FENCE),
            operation,
            data,
        };
        self.post_to(queue, &request, changes);
    }

    /// Bytes of any kind in a send queue.
    fn descriptor(&mut self, queue: usize, control: [u8; 4], rest: &[u8]) {
        let words = control.iter().chain(rest).copied().collect::<Vec<u8>>();
        let words = words.chunks_exact(4);
        let changes: Vec<(usize, u32)> = words
            .map(|word| u32::from_le_bytes(word.try_into().unwrap()))
            .enumerate()
            .collect();
        let blocks = usize::from(control[2]).clamp(1, 6);
        let filler = [0; 32];
        // As many blocks as the descriptor says, if they fit.
        for n in (0..blocks).rev() {
            let request = SendRequest {
                wr_id: 3,
                flags: WQE_SIGNALED,
                operation: Operation::Nop,
                data: Data::Inline(&filler),
            };
            let from = (blocks - 1 - n) * 16;
            let part = changes.iter().skip(from).take(16);
            let part: Vec<_> = part.map(|(at, word)| (at - from, *word)).collect();
            self.write_to(queue, &request, &part);
        }
        if let Some(qp) = self.queues.get_mut(queue) {
            qp.send.ring();
        }
    }

    /// Resets the verbs queue pairs and sets them up again.
    fn revive(&mut self) {
        let guest = &self.guest;
        for (qp, qp_type) in self.queues.iter_mut().skip(RC).zip(VERBS) {
            if guest.set_state(qp.qpn, QpStateCode::Reset).is_ok() {
                guest.renew(qp);
                // A queue pair that was destroyed stays so.
                let _ = start(guest, qp, qp_type);
            }
        }
    }

    fn post(&mut self, queue: usize, to: u16, changes: &[(usize, u32)]) {
        let target = if to == 3 { 0 } else { to };
        let bytes = frame(node_mac(target), node_mac(self.guest.node), 100, 9);
        let at = usize::try_from(self.data - RAM_BASE).unwrap();
        self.guest.ram.write(at, &bytes).unwrap();
        // The third queue is the connected one.
        let operation = match (queue, to) {
            (2, _) => Operation::Send { imm: Some(1) },
            (_, 3) => Operation::Frame {
                node: NODE_FLOOD,
                meta: FrameMeta::default(),
            },
            _ => Operation::Frame {
                node: to,
                meta: FrameMeta::default(),
            },
        };
        let entries = [sge(self.data, 100, DMA_LKEY)];
        let request = SendRequest {
            wr_id: 1,
            flags: WQE_SIGNALED | WQE_SOLICITED,
            operation,
            data: Data::Sges(&entries),
        };
        self.post_to(queue, &request, changes);
    }

    /// Posts a request, changed in memory before the doorbell rings.
    fn post_to(&mut self, queue: usize, request: &SendRequest<'_>, changes: &[(usize, u32)]) {
        self.write_to(queue, request, changes);
        if let Some(qp) = self.queues.get_mut(queue) {
            qp.send.ring();
        }
    }

    fn write_to(&mut self, queue: usize, request: &SendRequest<'_>, changes: &[(usize, u32)]) {
        let Some(qp) = self.queues.get_mut(queue) else {
            return;
        };
        let position = (qp.send.index() & 63) as usize;
        if qp.send.post(request).is_err() {
            return;
        }
        let block = qp.sq_base + position * 64;
        for (word, value) in changes {
            let at = block + word * 4;
            self.guest.ram.write(at, &value.to_le_bytes()).unwrap();
        }
    }

    fn receive(&mut self, queue: usize, changes: &[(usize, u32)]) {
        let Some(qp) = self.queues.get_mut(queue) else {
            return;
        };
        let entry = sge(self.data, 4096, DMA_LKEY);
        let block = qp.rq_base + (32 - qp.recv.free() as usize) % 32 * 64;
        if qp.recv.post(7, &[entry]).is_err() {
            return;
        }
        for (word, value) in changes {
            self.guest
                .ram
                .write(block + word * 4, &value.to_le_bytes())
                .unwrap();
        }
        qp.recv.ring();
    }

    /// Maps or unmaps pages behind the shared memory, or all of it.
    fn map(&self, page: u64, pages: u64, unmap: bool) {
        let mut fabric = self.guest.world.fabric.borrow_mut();
        let request = MapRequest {
            iova: RAM_BASE + PRIVATE as u64 + page * 4096,
            len: pages * 4096,
            file: (page % 3 > 0).then(|| self.guest.ram.file()),
            offset: page * 4096,
            rights: if page % 2 == 0 {
                Rights::Read
            } else {
                Rights::ReadWrite
            },
        };
        // Either may fail, as the request is random.
        if unmap {
            let _ = fabric.dma_unmap(self.guest.node, request.iova, request.len);
        } else {
            let _ = fabric.dma_map(self.guest.node, &request);
        }
        if page == 79 {
            fabric.dma_unmap_all(self.guest.node);
        }
    }
}
