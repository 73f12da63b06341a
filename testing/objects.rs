// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a node's driver makes: queues and regions.

use crate::machine::{RingView, SlotView};
use nupa_engine::rings::{
    CompletionRing, Data, EventRing, Operation, RecvRing, SendRequest, SendRing,
};
use nupa_proto::{
    cqe::{Cqe, CQE_PHASE},
    eqe::Eqe,
    ident::DMA_LKEY,
    wqe::Sge,
};
use zerocopy::little_endian::{U32, U64};

pub struct Cq {
    pub cqn: u32,
    pub ring: CompletionRing<RingView, SlotView>,
}

pub struct Eq {
    pub eqn: u32,
    pub ring: EventRing<RingView, SlotView>,
}

pub struct Srq {
    pub srqn: u32,
    /// Doorbell slot, on page 0.
    pub slot: u16,
    /// DMA address of the ring.
    pub addr: u64,
    pub ring: RecvRing<RingView, SlotView>,
}

pub struct Qp {
    pub qpn: u32,
    /// Doorbell slots of send and receive queue.
    pub slots: (u16, u16),
    /// DMA address of the send ring.
    pub send_addr: u64,
    pub send: SendRing<RingView, SlotView>,
    pub recv: RecvRing<RingView, SlotView>,
}

/// A registered region and its memory.
#[derive(Clone, Copy, Default)]
pub struct Mr {
    pub key: u32,
    pub addr: u64,
    pub iova: u64,
}

impl Mr {
    pub fn sge(&self, offset: u64, len: u32) -> Sge {
        sge(self.iova + offset, len, self.key)
    }

    /// Privileged entry over its memory.
    pub fn dma(&self, offset: u64, len: u32) -> Sge {
        sge(self.addr + offset, len, DMA_LKEY)
    }
}

pub fn sge(addr: u64, len: u32, key: u32) -> Sge {
    Sge {
        addr: U64::new(addr),
        len: U32::new(len),
        lkey: U32::new(key),
    }
}

impl Qp {
    /// Posts one request, for which there has to be room, and rings.
    pub fn submit(&mut self, wr_id: u64, flags: u8, operation: Operation, data: Data<'_>) {
        let request = SendRequest {
            wr_id,
            flags,
            operation,
            data,
        };
        self.send.post(&request).expect("room");
        self.send.ring();
    }
}

impl Cq {
    /// All completions that are there.
    pub fn drain(&mut self) -> Vec<Cqe> {
        let found: Vec<Cqe> = std::iter::from_fn(|| self.ring.poll()).collect();
        for cqe in &found {
            // Nothing but what the entry says gets to whoever has the queue.
            let rest = (u32::from(cqe.reserved0), cqe.reserved1.get());
            assert_eq!((rest, cqe.valid.get() & !CQE_PHASE), ((0, 0), 0));
        }
        found
    }
}

impl Eq {
    /// Types and objects of all events that are there.
    pub fn drain(&mut self) -> Vec<(u8, u16, u32)> {
        let event = |event: Eqe| (event.event_type, event.node.get(), event.object.get());
        std::iter::from_fn(|| self.ring.poll().map(event)).collect()
    }
}
