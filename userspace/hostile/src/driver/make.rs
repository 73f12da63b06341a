// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Objects as an honest driver makes them, so that lies about them come further than the first check.

use std::sync::Arc;

use nupa_proto::admin::{
    AdminOpcode, AllocKey, BufferRef, ById, CreateCq, CreateEq, CreateMr, CreateQp, KeyKind,
    ModifyQp, NodeInfo, PageList, QpStateCode, QpType, SetGid, SetRss, SetRxFilter, ACCESS_ALL,
    GID_VALID, QP_FLAG_PRIVILEGED, QP_MASK_ACCESS, QP_MASK_QKEY, QP_MASK_REMOTE, QP_MASK_RNR_RETRY,
    QP_MASK_STATE, RX_BROADCAST, RX_PROMISC,
};
use nupa_proto::ident::DMA_LKEY;
use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::draw::Draw;
use crate::ffi::Pages;
use crate::objects::{keep, Pair, Queue, Use};
use crate::shared::Shared;

use super::function::{Function, FREE};

/// log2 of the entries of each ring, and of the bytes of an entry of a receive queue.
const LOG_ENTRIES: u8 = 6;
const LOG_STRIDE: u8 = 6;
/// Bytes of each region.
const REGION: u64 = 1 << 16;
/// Queue pairs, by type.
const PAIRS: [QpType; 6] = [
    QpType::Rc,
    QpType::Rc,
    QpType::Rc,
    QpType::Ud,
    QpType::Raw,
    QpType::Raw,
];
/// Nodes that may be there.
const NODES: u16 = 3;
/// Queue key of datagrams.
const QKEY: u32 = 1;

impl Function {
    /// Starts the function anew, and makes some of each object.
    pub(super) fn start(&self, draw: &mut Draw) -> anyhow::Result<()> {
        self.enable()?;
        let doorbell = self.doorbell()?;
        let mut slot = 0;
        let mut next = || {
            slot = u16::wrapping_add(slot, 1);
            slot
        };
        let eqn = self.event_queue(draw, next())?;
        let domain = self.create(AdminOpcode::AllocPd, &[0u8; 0])?;
        for kind in PAIRS {
            let cqn = self.completion_queue(draw, eqn, next(), &doorbell)?;
            self.queue_pair(draw, kind, (domain, cqn), [next(), next()], &doorbell)?;
        }
        for _ in 0..4 {
            self.region(draw, domain)?;
        }
        for kind in KeyKind::ALL {
            let body = AllocKey {
                pd: domain.into(),
                max_pages: if *kind == KeyKind::FastReg { 4 } else { 0 }.into(),
                kind: kind.to_wire(),
                ..AllocKey::default()
            };
            let key = self.create(AdminOpcode::AllocKey, &body)?;
            keep(&mut self.objects().keys, key);
        }
        self.receive_frames()?;
        Ok(())
    }

    fn ring(&self, draw: &mut Draw) -> (usize, PageList) {
        let at = self.page(draw);
        let list = PageList {
            addr: self.address(at).into(),
            ..PageList::default()
        };
        (at, list)
    }

    fn event_queue(&self, draw: &mut Draw, slot: u16) -> Result<u32, Errno> {
        let (_, ring) = self.ring(draw);
        let body = CreateEq {
            ring,
            doorbell_slot: slot.into(),
            log_entries: LOG_ENTRIES,
            ..CreateEq::default()
        };
        self.create(AdminOpcode::CreateEq, &body)
    }

    fn completion_queue(
        &self,
        draw: &mut Draw,
        eqn: u32,
        slot: u16,
        doorbell: &Arc<Pages>,
    ) -> Result<u32, Errno> {
        let (at, ring) = self.ring(draw);
        let body = CreateCq {
            ring,
            doorbell_slot: slot.into(),
            log_entries: LOG_ENTRIES,
            eqn: eqn.into(),
            ..CreateCq::default()
        };
        let number = self.create(AdminOpcode::CreateCq, &body)?;
        self.keep_queue(Use::Completions, number, (at, slot), doorbell);
        Ok(number)
    }

    fn keep_queue(
        &self,
        purpose: Use,
        number: u32,
        (ring, slot): (usize, u16),
        doorbell: &Arc<Pages>,
    ) {
        let queue = Queue {
            purpose,
            handle: number,
            shared: false,
            ring,
            log_entries: LOG_ENTRIES,
            doorbell: doorbell.clone(),
            trapped: None,
            slot,
        };
        keep(&mut self.objects().queues, queue);
    }

    fn queue_pair(
        &self,
        draw: &mut Draw,
        kind: QpType,
        (domain, cqn): (u32, u32),
        [send, receive]: [u16; 2],
        doorbell: &Arc<Pages>,
    ) -> Result<(), Errno> {
        let ((sends, sq), (receives, rq)) = (self.ring(draw), self.ring(draw));
        let parameters = CreateQp {
            sq,
            rq,
            qp_type: kind.to_wire(),
            flags: QP_FLAG_PRIVILEGED,
            log_sq: LOG_ENTRIES,
            log_rq: LOG_ENTRIES,
            log_rq_stride: LOG_STRIDE,
            pd: domain.into(),
            send_cqn: cqn.into(),
            recv_cqn: cqn.into(),
            sq_slot: send.into(),
            rq_slot: receive.into(),
            ..CreateQp::default()
        };
        self.area().write(FREE, parameters.as_bytes());
        let buffer = BufferRef {
            addr: self.address(FREE).into(),
            len: length(size_of::<CreateQp>()).into(),
            ..BufferRef::default()
        };
        let number = self.create(AdminOpcode::CreateQp, &buffer)?;
        self.keep_queue(Use::Send, number, (sends, send), doorbell);
        self.keep_queue(Use::Receive, number, (receives, receive), doorbell);
        // Its kind as descriptors know it.
        let verbs = if kind == QpType::Ud {
            crate::create::UD
        } else {
            crate::create::RC
        };
        let pair = Pair {
            handle: number,
            number,
            kind: verbs,
        };
        keep(&mut self.objects().pairs, pair);
        self.ready(draw, number, kind)
    }

    /// Takes a queue pair to where it sends: a connected one to any queue pair, though that is connected to another one.
    fn ready(&self, draw: &mut Draw, number: u32, kind: QpType) -> Result<(), Errno> {
        let change = |mask: u32, state: QpStateCode| ModifyQp {
            qpn: number.into(),
            mask: (QP_MASK_STATE | mask).into(),
            state: state.to_wire(),
            qkey: QKEY.into(),
            ..ModifyQp::default()
        };
        let first = if kind == QpType::Ud { QP_MASK_QKEY } else { 0 };
        self.modify(&change(first, QpStateCode::Init))?;
        let mut receiving = change(0, QpStateCode::Rtr);
        let mut peer = None;
        if kind == QpType::Rc {
            let (node, qpn) = self.any_peer(draw, NODES);
            peer = Some((node, qpn));
            let id = ById {
                id: u32::from(node).into(),
                ..ById::default()
            };
            let found: NodeInfo = self.command(AdminOpcode::QueryNode, &id)?;
            receiving = ModifyQp {
                remote_node: node.into(),
                remote_qpn: qpn.into(),
                remote_epoch: found.epoch,
                access: ACCESS_ALL.into(),
                rnr_retry: draw.small_byte(8),
                ..change(
                    QP_MASK_REMOTE | QP_MASK_ACCESS | QP_MASK_RNR_RETRY,
                    QpStateCode::Rtr,
                )
            };
        }
        self.modify(&receiving)?;
        self.modify(&change(0, QpStateCode::Rts))?;
        if let Some(peer) = peer {
            self.note_peer(peer);
        }
        Ok(())
    }

    fn modify(&self, body: &ModifyQp) -> Result<(), Errno> {
        let _: [u8; 0] = self.command(AdminOpcode::ModifyQp, body)?;
        Ok(())
    }

    fn region(&self, draw: &mut Draw, domain: u32) -> Result<(), Errno> {
        let (_, pages) = self.ring(draw);
        let body = CreateMr {
            iova: pages.addr,
            pages,
            len: REGION.into(),
            pd: domain.into(),
            access: ACCESS_ALL.into(),
        };
        let key = self.create(AdminOpcode::CreateMr, &body)?;
        let mut objects = self.objects();
        keep(&mut objects.keys, key);
        // A key of the driver's own, for all that it may reach.
        keep(&mut objects.keys, DMA_LKEY);
        Ok(())
    }

    /// Frames of all kinds go to the raw queue pairs, and datagrams come from an address of somebody.
    fn receive_frames(&self) -> Result<(), Errno> {
        let pairs: Vec<u32> = self
            .objects()
            .pairs
            .iter()
            .map(|pair| pair.number)
            .collect();
        let table: Vec<u32> = pairs
            .iter()
            .skip(PAIRS.len().saturating_sub(2))
            .copied()
            .collect();
        self.area().write(FREE, table.as_bytes());
        let body = SetRss {
            table: self.address(FREE).into(),
            count: length(table.len()).into(),
            ..SetRss::default()
        };
        let _: [u8; 0] = self.command(AdminOpcode::SetRss, &body)?;
        let filter = SetRxFilter {
            flags: (RX_PROMISC | RX_BROADCAST).into(),
            ..SetRxFilter::default()
        };
        let _: [u8; 0] = self.command(AdminOpcode::SetRxFilter, &filter)?;
        let gid = SetGid {
            gid: [0xfd; 16],
            flags: GID_VALID.into(),
            ..SetGid::default()
        };
        let _: [u8; 0] = self.command(AdminOpcode::SetGid, &gid)?;
        Ok(())
    }
}

/// A length in a command.
fn length(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}
