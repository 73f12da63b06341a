// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A node's driver, as far as tests need one.

use crate::{
    machine::Machine,
    memory::{BASE, POOL},
    objects::{sge, Cq, Eq, Mr, Qp, Srq},
    World,
};
use nupa_engine::{
    hal::Memory,
    rings::{CompletionRing, EventRing, RecvRing, SendRing},
    NodeTable, Resources,
};
use nupa_proto::{
    admin::*,
    cqe::CQE_SIZE,
    doorbell::SLOT_NONE,
    eqe::EQE_SIZE,
    ident::DMA_LKEY,
    status::AdminStatus,
    wqe::{Sge, BLOCK_SIZE},
};
use zerocopy::little_endian::{U16, U32, U64};

/// log2 of the stride of receive queues.
pub(crate) const RECV_STRIDE: u8 = 6;

/// A node's driver.
pub struct Host {
    pub id: u16,
    pub machine: Machine,
    brk: u64,
    /// Bytes of device memory that are in use.
    device: u64,
    slot: u16,
    /// Doorbell page of queue pairs, as another process has another one.
    pub page: u32,
    pub pd: u32,
}

impl Host {
    pub fn new(id: u16, machine: Machine) -> Self {
        Self {
            id,
            machine,
            brk: BASE,
            device: 0,
            slot: 0,
            page: 0,
            pd: 0,
        }
    }

    /// The memory and the doorbells that this takes are free again behind it.
    pub fn scratch<T>(&mut self, take: impl FnOnce(&mut Self) -> T) -> T {
        let kept = (self.brk, self.slot);
        let taken = take(self);
        (self.brk, self.slot) = kept;
        taken
    }

    /// Memory that is not in use, zeroed.
    pub fn alloc(&mut self, len: u64) -> u64 {
        let addr = self.brk.next_multiple_of(4096);
        self.brk = addr + len;
        assert!(self.brk <= self.machine.ram().end(), "out of memory");
        // A host that comes back finds what it had before.
        self.write(addr, &vec![0; len as usize]);
        addr
    }

    /// Privileged entry over memory at a DMA address.
    pub fn dma(&self, addr: u64, len: u32) -> Sge {
        sge(addr, len, DMA_LKEY)
    }

    pub fn write(&self, addr: u64, bytes: &[u8]) {
        self.machine.ram().write(addr, bytes).expect("is memory");
    }

    pub fn read(&self, addr: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.machine
            .ram()
            .read(addr, &mut bytes)
            .expect("is memory");
        bytes
    }

    fn slot(&mut self) -> u16 {
        self.slot += 1;
        self.slot - 1
    }

    /// Has further doorbells of queue pairs on a page of their own.
    pub fn turn_page(&mut self) {
        (self.page, self.slot) = (self.page + 1, 0);
    }

    fn direct(&mut self, len: u64) -> PageList {
        PageList {
            addr: U64::new(self.alloc(len)),
            ..PageList::default()
        }
    }

    /// An event queue and a protection domain: what every driver starts with.
    pub fn start(&mut self, world: &mut World) -> Eq {
        let (node, _) = world.nodes.node_mut(self.id).expect("node exists");
        self.pd = node.alloc_pd().expect("domain");
        self.eq(world, 0, 6)
    }

    pub fn eq(&mut self, world: &mut World, vector: u16, log: u8) -> Eq {
        let (ring, slot) = (self.direct((EQE_SIZE as u64) << log), self.slot());
        self.eq_in(world, vector, log, ring, slot)
    }

    fn eq_in(&mut self, world: &mut World, vector: u16, log: u8, ring: PageList, slot: u16) -> Eq {
        let body = CreateEq {
            ring,
            doorbell_slot: U16::new(slot),
            vector: U16::new(vector),
            log_entries: log,
            ..CreateEq::default()
        };
        let (node, machine) = world.nodes.node_mut(self.id).expect("node exists");
        let eqn = node.create_eq(machine, &body).expect("event queue");
        let memory = self.machine.ring(ring.addr.get());
        Eq {
            eqn,
            ring: EventRing::new(memory, self.machine.doorbell(0, slot), log),
        }
    }

    /// An event queue whose memory the device cannot reach.
    pub fn lost_eq(&mut self, world: &mut World, vector: u16) -> Eq {
        let end = self.machine.ram().end();
        let brk = std::mem::replace(&mut self.brk, end);
        let (ring, slot) = (self.direct(0), self.slot());
        self.brk = brk;
        self.eq_in(world, vector, 2, ring, slot)
    }

    pub fn cq(&mut self, world: &mut World, eqn: u32, log: u8) -> Cq {
        self.cq_with(world, eqn, log, 0)
    }

    /// As [`Host::cq`], with flags.
    pub fn cq_with(&mut self, world: &mut World, eqn: u32, log: u8, flags: u8) -> Cq {
        let (ring, slot) = (self.direct((CQE_SIZE as u64) << log), self.slot());
        let body = CreateCq {
            ring,
            doorbell_slot: U16::new(slot),
            log_entries: log,
            flags,
            eqn: U32::new(eqn),
            ..CreateCq::default()
        };
        let (node, machine) = world.nodes.node_mut(self.id).expect("node exists");
        let cqn = node.create_cq(machine, &body).expect("completion queue");
        let memory = self.machine.ring(ring.addr.get());
        Cq {
            cqn,
            ring: CompletionRing::new(memory, self.machine.doorbell(0, slot), log),
        }
    }

    /// Gives a completion queue another ring.
    pub fn resize(&mut self, world: &mut World, cq: &mut Cq, log: u8) -> Result<(), AdminStatus> {
        self.resize_and(world, cq, log, |_| {})
    }

    /// The same; between parts of it something else happens.
    pub fn resize_and(
        &mut self,
        world: &mut World,
        cq: &mut Cq,
        log: u8,
        mut meanwhile: impl FnMut(&mut World),
    ) -> Result<(), AdminStatus> {
        let ring = self.direct((CQE_SIZE as u64) << log);
        let body = ResizeCq {
            ring,
            cqn: U32::new(cq.cqn),
            log_entries: log,
            ..ResizeCq::default()
        };
        cq.ring.publish();
        let mut resources = Resources::default();
        loop {
            let (node, machine) = world.nodes.node_mut(self.id).expect("node exists");
            node.swap_resources(&mut resources);
            let resized = node.resize_cq(machine, &body);
            node.swap_resources(&mut resources);
            let goes_on = resized.is_ok() && resources.is_in_part();
            assert_eq!(resources.is_in_part(), goes_on, "one that failed is over");
            resized?;
            if !goes_on {
                break;
            }
            meanwhile(world);
        }
        cq.ring.resize(self.machine.ring(ring.addr.get()), log);
        Ok(())
    }

    /// A shared receive queue.
    pub fn srq(&mut self, world: &mut World, log: u8) -> Srq {
        let (ring, slot) = (self.direct(1 << RECV_STRIDE << log), self.slot());
        let body = CreateSrq {
            ring,
            pd: U32::new(self.pd),
            doorbell_slot: U16::new(slot),
            log_entries: log,
            log_stride: RECV_STRIDE,
            ..CreateSrq::default()
        };
        let (node, machine) = world.nodes.node_mut(self.id).expect("node exists");
        let srqn = node.create_srq(machine, &body).expect("shared queue");
        let memory = self.machine.ring(ring.addr.get());
        let doorbell = self.machine.doorbell(0, slot);
        Srq {
            srqn,
            slot,
            addr: ring.addr.get(),
            ring: RecvRing::new(memory, doorbell, log, RECV_STRIDE),
        }
    }

    /// A queue pair in the reset state, both sides on one completion queue.
    pub fn qp(&mut self, world: &mut World, kind: QpType, cq: &Cq, log: u8) -> Qp {
        let flags = match kind {
            QpType::Raw => QP_FLAG_PRIVILEGED,
            _ => 0,
        };
        self.qp_with(world, kind, flags, cq, log)
    }

    /// As [`Host::qp`], with other flags.
    pub fn qp_with(&mut self, world: &mut World, kind: QpType, flags: u8, cq: &Cq, log: u8) -> Qp {
        self.qp_on(world, kind, flags, None, cq, log)
    }

    /// As [`Host::qp_with`], perhaps on a shared receive queue.
    pub fn qp_on(
        &mut self,
        world: &mut World,
        kind: QpType,
        flags: u8,
        srq: Option<&Srq>,
        cq: &Cq,
        log: u8,
    ) -> Qp {
        let sq = self.direct((BLOCK_SIZE as u64) << log);
        let rq = self.direct(1 << RECV_STRIDE << log);
        let slots = (self.slot(), self.slot());
        let body = CreateQp {
            sq,
            rq,
            qp_type: kind.to_wire(),
            flags: flags | srq.map_or(0, |_| QP_FLAG_SRQ),
            log_sq: log,
            log_rq: log,
            log_rq_stride: RECV_STRIDE,
            pd: U32::new(self.pd),
            send_cqn: U32::new(cq.cqn),
            recv_cqn: U32::new(cq.cqn),
            sq_slot: U16::new(slots.0),
            rq_slot: U16::new(srq.map_or(slots.1, |_| SLOT_NONE)),
            srqn: U32::new(srq.map_or(0, |srq| srq.srqn)),
            doorbell_page: U32::new(self.page),
            ..CreateQp::default()
        };
        let (node, machine) = world.nodes.node_mut(self.id).expect("node exists");
        let qpn = node.create_qp(machine, &body).expect("queue pair");
        let machine = &self.machine;
        let page = self.page;
        let (send, recv) = (
            machine.doorbell(page, slots.0),
            machine.doorbell(page, slots.1),
        );
        let send_addr = sq.addr.get();
        let (sq, rq) = (machine.ring(send_addr), machine.ring(rq.addr.get()));
        Qp {
            qpn,
            slots,
            send_addr,
            send: SendRing::new(sq, send, log),
            recv: RecvRing::new(rq, recv, log, RECV_STRIDE),
        }
    }

    /// Registers `len` new bytes for everything. `paged`: in pages that lie in reverse order.
    pub fn mr(&mut self, world: &mut World, len: u64, paged: bool) -> Mr {
        let count = len.div_ceil(4096);
        let addr = self.alloc(count * 4096);
        let mut pages = PageList {
            addr: U64::new(addr),
            ..PageList::default()
        };
        if paged {
            let list = self.alloc(count * 8);
            for page in 0..count {
                let at = addr + (count - 1 - page) * 4096;
                self.write(list + page * 8, &at.to_le_bytes());
            }
            pages.addr = U64::new(list);
            (pages.pages, pages.page_shift) = (U32::new(count as u32), 12);
        }
        self.register(world, pages, addr, len)
    }

    /// Registers `len` bytes for everything, more than the node has: they are the same 2 MiB again and again.
    pub fn repeated_mr(&mut self, world: &mut World, len: u64) -> Mr {
        const LOG: u8 = 21;
        let count = len.div_ceil(1 << LOG);
        let list = self.alloc(count * 8);
        let addr = self.alloc(2 << LOG).next_multiple_of(1 << LOG);
        for page in 0..count {
            self.write(list + page * 8, &addr.to_le_bytes());
        }
        let pages = PageList {
            addr: U64::new(list),
            pages: U32::new(count as u32),
            page_shift: LOG,
            ..PageList::default()
        };
        self.register(world, pages, addr, len)
    }

    /// Registers `len` new bytes of device memory, zeroed, for everything; of others where there is none.
    pub fn device_mr(&mut self, world: &mut World, len: u64) -> Mr {
        let Some(memory) = world.engine.device_memory(self.id) else {
            return self.mr(world, len, false);
        };
        let at = memory.start + self.device;
        self.device += len.next_multiple_of(64);
        assert!(at + len <= memory.end, "out of device memory");
        let addr = POOL + at;
        self.write(addr, &vec![0; len as usize]);
        let pages = PageList {
            addr: U64::new(addr),
            ..PageList::default()
        };
        self.register(world, pages, addr, len)
    }

    pub(crate) fn register(
        &mut self,
        world: &mut World,
        pages: PageList,
        addr: u64,
        len: u64,
    ) -> Mr {
        let iova = 0x7000_0000_0000;
        let body = CreateMr {
            pages,
            iova: U64::new(iova),
            len: U64::new(len),
            pd: U32::new(self.pd),
            access: U32::new(ACCESS_ALL),
        };
        let (node, machine) = world.nodes.node_mut(self.id).expect("node exists");
        let key = node.create_mr(machine, &body).expect("region");
        Mr { key, addr, iova }
    }

    pub fn modify(&self, world: &mut World, qpn: u32, body: ModifyQp) -> Result<(), AdminStatus> {
        world.engine.modify_qp(
            &mut world.nodes,
            self.id,
            &ModifyQp {
                qpn: U32::new(qpn),
                ..body
            },
        )
    }

    pub fn set_state(
        &self,
        world: &mut World,
        qpn: u32,
        state: QpStateCode,
    ) -> Result<(), AdminStatus> {
        let body = ModifyQp {
            mask: U32::new(QP_MASK_STATE),
            state: state.to_wire(),
            ..ModifyQp::default()
        };
        self.modify(world, qpn, body)
    }

    /// Brings a queue pair to RTS; RC is connected to `peer` (node, queue pair, epoch).
    pub fn ready(&self, world: &mut World, qp: &Qp, peer: Option<(u16, u32, u32)>) {
        self.ready_at(world, qp, peer, (0, 0));
    }

    /// The same; requests begin with these packet sequence numbers: those of this end, and those of the peer.
    pub fn ready_at(
        &self,
        world: &mut World,
        qp: &Qp,
        peer: Option<(u16, u32, u32)>,
        (sq_psn, rq_psn): (u32, u32),
    ) {
        self.set_state(world, qp.qpn, QpStateCode::Init)
            .expect("init");
        let (node, qpn, epoch) = peer.unwrap_or_default();
        let remote = if peer.is_some() { QP_MASK_REMOTE } else { 0 };
        let body = ModifyQp {
            mask: U32::new(QP_MASK_STATE | QP_MASK_ACCESS | QP_MASK_RNR | remote),
            state: QpStateCode::Rtr.to_wire(),
            remote_node: U16::new(node),
            remote_qpn: U32::new(qpn),
            remote_epoch: U32::new(epoch),
            access: U32::new(ACCESS_ALL),
            rnr_timeout_us: U32::new(1000),
            rq_psn: U32::new(rq_psn),
            ..ModifyQp::default()
        };
        self.modify(world, qp.qpn, body).expect("ready to receive");
        let numbered = if peer.is_some() { QP_MASK_SQ_PSN } else { 0 };
        let body = ModifyQp {
            mask: U32::new(QP_MASK_STATE | numbered),
            state: QpStateCode::Rts.to_wire(),
            sq_psn: U32::new(sq_psn),
            ..ModifyQp::default()
        };
        self.modify(world, qp.qpn, body).expect("ready to send");
    }

    /// Brings a UD queue pair with this queue key to RTS.
    pub fn ready_datagrams(&self, world: &mut World, qp: &Qp, qkey: u32) {
        let steps = [
            (QpStateCode::Init, QP_MASK_QKEY),
            (QpStateCode::Rtr, 0),
            (QpStateCode::Rts, 0),
        ];
        for (state, mask) in steps {
            let body = ModifyQp {
                mask: U32::new(QP_MASK_STATE | mask),
                state: state.to_wire(),
                qkey: U32::new(qkey),
                ..ModifyQp::default()
            };
            self.modify(world, qp.qpn, body).expect("transition");
        }
    }

    /// Gives a UD queue pair another queue key.
    pub fn set_qkey(&self, world: &mut World, qp: &Qp, qkey: u32) {
        let body = ModifyQp {
            mask: U32::new(QP_MASK_QKEY),
            qkey: U32::new(qkey),
            ..ModifyQp::default()
        };
        self.modify(world, qp.qpn, body).expect("allowed");
    }

    /// Sets an entry of the GID table.
    pub fn gid(&self, world: &mut World, index: u32, gid: [u8; 16]) {
        self.gid_in(world, index, gid, None);
    }

    /// Sets an entry of the GID table, perhaps to one in a VLAN.
    pub fn gid_in(&self, world: &mut World, index: u32, gid: [u8; 16], vlan_id: Option<u16>) {
        let body = SetGid {
            gid,
            index: U32::new(index),
            flags: U16::new(GID_VALID | vlan_id.map_or(0, |_| GID_VLAN)),
            vlan_id: U16::new(vlan_id.unwrap_or(0)),
        };
        let (node, _) = world.nodes.node_mut(self.id).expect("node exists");
        node.set_gid(&body).expect("entry");
    }

    /// Attaches a queue pair to a multicast group.
    pub fn attach(&self, world: &mut World, qpn: u32, gid: [u8; 16]) -> Result<(), AdminStatus> {
        let (node, _) = world.nodes.node_mut(self.id).expect("node exists");
        node.attach_multicast(&member(qpn, gid))
    }

    /// Detaches a queue pair from a multicast group.
    pub fn detach(&self, world: &mut World, qpn: u32, gid: [u8; 16]) -> Result<(), AdminStatus> {
        let (node, _) = world.nodes.node_mut(self.id).expect("node exists");
        node.detach_multicast(&member(qpn, gid))
    }

    /// Takes frames for `addresses` and broadcasts into these queue pairs.
    pub fn receive_frames(&mut self, world: &mut World, addresses: &[[u8; 6]], qpns: &[u32]) {
        let list = self.alloc(4096);
        self.write(list, addresses.as_flattened());
        let filter = SetRxFilter {
            addresses: U64::new(list),
            count: U32::new(addresses.len() as u32),
            flags: U32::new(RX_BROADCAST),
        };
        self.filter_frames(world, &filter, qpns);
    }

    /// Takes all frames into a queue pair.
    pub fn receive_all_frames(&mut self, world: &mut World, qpn: u32) {
        let filter = SetRxFilter {
            flags: U32::new(RX_PROMISC | RX_BROADCAST),
            ..SetRxFilter::default()
        };
        self.filter_frames(world, &filter, &[qpn]);
    }

    fn filter_frames(&mut self, world: &mut World, filter: &SetRxFilter, qpns: &[u32]) {
        let table = self.alloc(4096);
        for (at, qpn) in (table..).step_by(4).zip(qpns) {
            self.write(at, &qpn.to_le_bytes());
        }
        let rss = SetRss {
            table: U64::new(table),
            count: U32::new(qpns.len() as u32),
            reserved: U32::new(0),
        };
        let (node, machine) = world.nodes.node_mut(self.id).expect("node exists");
        node.set_rx_filter(machine, filter).expect("filter");
        node.set_rss(machine, &rss).expect("spreading table");
    }
}

/// A queue pair as the member of a group.
fn member(qpn: u32, gid: [u8; 16]) -> GroupMember {
    GroupMember {
        gid,
        qpn: U32::new(qpn),
        ..GroupMember::default()
    }
}
