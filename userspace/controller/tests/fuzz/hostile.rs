// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A guest that performs [`Action`]s.

use guestmem::{MapRequest, Rights};
use nupa_engine::client::{Data, Operation, SendRequest};
use nupa_proto::admin::{AdminOpcode, QpStateCode, QpType, RX_PROMISC};
use nupa_proto::frame::FrameMeta;
use nupa_proto::ident::{node_mac, DMA_LKEY, NODE_FLOOD};
use nupa_proto::regs;
use nupa_proto::status::AdminStatus;
use nupa_proto::wqe::{WQE_SIGNALED, WQE_SOLICITED};
use zerocopy::IntoBytes;

use crate::actions::Action;
use crate::commands;
use crate::common::guest::{iova, Guest, FIRST_UNUSED, RAM_BASE, RAM_SIZE};
use crate::common::queues::{frame, sge, Eq, Qp};
use crate::common::World;

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
    /// Memory that good requests use.
    data: u64,
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
        for qp_type in [QpType::Raw, QpType::Raw, QpType::Rc] {
            let cq = guest.create_cq(6, eqn)?;
            let qp = guest.create_qp(qp_type, pd, cq)?;
            guest.set_state(qp.qpn, QpStateCode::Init)?;
            if qp_type == QpType::Rc {
                guest.connect_to(&qp, guest, qp.qpn, guest.epoch())?;
            } else {
                guest.set_state(qp.qpn, QpStateCode::Rtr)?;
                guest.set_state(qp.qpn, QpStateCode::Rts)?;
            }
            self.queues.push(qp);
        }
        Ok(())
    }

    /// A good command with some words changed.
    fn command(&mut self, opcode: AdminOpcode, changes: &[(usize, u32)]) {
        let mut words = [0u32; 14];
        let body = commands::good_body(&self.guest, opcode, self.first_qpn(), changes);
        words.as_mut_bytes()[..body.len()].copy_from_slice(&body);
        for (at, value) in changes {
            if let Some(word) = words.get_mut(*at) {
                *word = *value;
            }
        }
        self.guest.submit(opcode.to_wire(), words.as_bytes());
    }

    /// A queue pair that exists, if one does.
    fn first_qpn(&self) -> u32 {
        self.queues.first().map_or(2, |qp| qp.qpn)
    }

    fn post(&mut self, queue: usize, to: u16, changes: &[(usize, u32)]) {
        let target = if to == 3 { 0 } else { to };
        let bytes = frame(node_mac(target), node_mac(self.guest.node), 100, 9);
        let at = usize::try_from(self.data - RAM_BASE).unwrap();
        self.guest.ram.write(at, &bytes).unwrap();
        let Some(qp) = self.queues.get_mut(queue) else {
            return;
        };
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
        let position = (qp.send.index() & 63) as usize;
        let entries = [sge(self.data, 100, DMA_LKEY)];
        let request = SendRequest {
            wr_id: 1,
            flags: WQE_SIGNALED | WQE_SOLICITED,
            operation,
            data: Data::Sges(&entries),
        };
        if qp.send.post(&request).is_err() {
            return;
        }
        let block = qp.sq_base + position * 64;
        for (word, value) in changes {
            self.guest
                .ram
                .write(block + word * 4, &value.to_le_bytes())
                .unwrap();
        }
        qp.send.ring();
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
