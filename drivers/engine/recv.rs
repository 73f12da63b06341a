// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Receive queues: the entries that messages and frames are put into.

use crate::{
    access::{local, Purpose},
    check::{Check, Refusal},
    hal::{Memory, Platform, SlotWord},
    node::{Node, Regions},
    qp::QueuePair,
    request::Received,
    span::Spans,
    storage::Storage,
};
use nupa_proto::{
    cqe::{Cqe, CqeOpcode},
    status::WcStatus,
    wqe::{RecvHeader, Sge, MIN_RECV_STRIDE},
};
use zerocopy::{
    little_endian::{U16, U32, U64},
    FromBytes,
};

/// Why no entry could be used.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Unusable {
    /// None is posted.
    Empty,
    /// The owner's producer index is out of bounds.
    Doorbell,
    /// The entry is bad; its owner is to blame.
    Entry { wr_id: u64, refusal: Refusal },
}

/// How many receive entries a message may fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fill {
    /// Exactly one (messages).
    One,
    /// As many as it needs (frames).
    Many,
}

impl<P: AsRef<[u64]> + AsMut<[u64]>> QueuePair<P> {
    /// Whether entry `index` is posted, which lies at or behind the next one to be filled.
    #[inline]
    pub(crate) fn is_posted(
        &mut self,
        platform: &impl Platform,
        index: u32,
    ) -> Result<bool, Unusable> {
        if index != self.recv.posted {
            return Ok(true);
        }
        let entries = self.recv.ring.as_ref().map_or(0, |ring| ring.entries());
        let posted = platform.load(self.page, self.recv.slot, SlotWord::Index);
        if posted.wrapping_sub(self.recv.index) > entries {
            return Err(Unusable::Doorbell);
        }
        self.recv.posted = posted;
        Ok(index != posted)
    }

    /// Asks the owner to kick when it posts more, and looks once more: true if it has done so meanwhile.
    pub(crate) fn want_entries(&mut self, platform: &impl Platform) -> bool {
        self.recv.wanted = true;
        platform.store(self.page, self.recv.slot, SlotWord::Event, self.recv.posted);
        platform.fence();
        platform.load(self.page, self.recv.slot, SlotWord::Index) != self.recv.posted
    }

    /// The `wr_id` of one entry, or 0 if it is out of reach.
    pub(crate) fn entry_id(&self, memory: &impl Memory, index: u32) -> U64 {
        let mut id = [0; 8];
        if let Some(addr) = self.recv.ring.as_ref().and_then(|ring| ring.addr(index)) {
            // Out of reach leaves it zero.
            let _ = memory.read(addr, &mut id);
        }
        U64::from_bytes(id)
    }

    /// Copies one entry out and checks it; adds its memory to `spans`. Returns its `wr_id`.
    #[inline]
    fn take_entry<S: Storage<Pages = P>>(
        &self,
        memory: &impl Memory,
        regions: &Regions<S>,
        index: u32,
        spans: &mut Spans,
    ) -> Result<u64, Unusable> {
        let unreadable = || Unusable::Entry {
            wr_id: 0,
            refusal: Refusal::new(WcStatus::LocalQpOperation, Check::DescriptorMemory),
        };
        let ring = self.recv.ring.as_ref().ok_or(Unusable::Empty)?;
        let addr = ring.addr(index).ok_or_else(unreadable)?;
        let mut bytes = [0; MIN_RECV_STRIDE];
        memory.read(addr, &mut bytes).map_err(|_| unreadable())?;
        let (header, rest) = RecvHeader::ref_from_prefix(&bytes).map_err(|_| unreadable())?;
        let (wr_id, count) = (header.wr_id.get(), header.sge_count.get() as usize);
        let bad = |status, check| Unusable::Entry {
            wr_id,
            refusal: Refusal::new(status, check),
        };
        let room = ring.entry_size().saturating_sub(size_of::<RecvHeader>());
        if header.reserved.get() != 0 || count.saturating_mul(size_of::<Sge>()) > room {
            return Err(bad(WcStatus::LocalQpOperation, Check::BufferDescriptor));
        }
        let mut sge = Sge::read_from_bytes(rest).map_err(|_| unreadable())?;
        let mut at = addr.wrapping_add(MIN_RECV_STRIDE as u64);
        for left in (0..count).rev() {
            let span = local::<S, _>(regions, self, &sge, Purpose::Destination)
                .map_err(|refusal| Unusable::Entry { wr_id, refusal })?;
            let pushed = spans.push(span);
            pushed.map_err(|_| bad(WcStatus::LocalLength, Check::BufferLength))?;
            if left > 0 {
                let mut bytes = [0; size_of::<Sge>()];
                memory.read(at, &mut bytes).map_err(|_| unreadable())?;
                sge = Sge::read_from_bytes(&bytes).map_err(|_| unreadable())?;
                at = at.wrapping_add(bytes.len() as u64);
            }
        }
        Ok(wr_id)
    }
}

impl<S: Storage> Node<S> {
    /// Prepares receive entries of a queue pair for `len` bytes. Nothing is consumed yet, see [`Node::received`].
    #[inline]
    pub(crate) fn prepare_receive(
        &mut self,
        platform: &impl Platform,
        qpn: u32,
        len: u32,
        fill: Fill,
        spans: &mut Spans,
    ) -> Result<Received, Unusable> {
        let Self { pairs, regions, .. } = self;
        let pair = pairs.get_mut(qpn).ok_or(Unusable::Empty)?;
        if pair.recv.ring.is_none() {
            return Err(Unusable::Empty);
        }
        let first = pair.recv.index;
        let (mut wr_id, mut entries) = (0, 0u16);
        while entries == 0 || (fill == Fill::Many && spans.total() < len) {
            let index = first.wrapping_add(u32::from(entries));
            if !pair.is_posted(platform, index)? {
                return Err(Unusable::Empty);
            }
            let id = pair.take_entry::<S>(platform.memory(), regions, index, spans)?;
            if entries == 0 {
                wr_id = id;
            }
            entries = entries.wrapping_add(1);
        }
        Ok(Received { wr_id, entries })
    }

    /// Consumes receive entries and writes their completion; `entry` has everything but queue pair, index and counts.
    #[inline]
    pub(crate) fn received(
        &mut self,
        platform: &impl Platform,
        qpn: u32,
        received: Received,
        entry: Cqe,
        urgent: bool,
    ) {
        let Some(pair) = self.pairs.get_mut(qpn) else {
            return;
        };
        pair.recv.index = pair.recv.index.wrapping_add(u32::from(received.entries));
        pair.recv.stalled = false;
        let entry = Cqe {
            wr_id: U64::new(received.wr_id),
            qpn: U32::new(qpn),
            queue_index: U32::new(pair.recv.index),
            buffers: U16::new(received.entries),
            ..entry
        };
        let cqn = pair.recv.cqn;
        self.complete(platform, cqn, &entry, urgent);
    }

    /// Completes the next receive entry with an error of its own; the queue pair goes to the error state.
    #[cold]
    pub(crate) fn fail_receive(
        &mut self,
        platform: &impl Platform,
        qpn: u32,
        wr_id: u64,
        refusal: Refusal,
    ) {
        self.counters.bad_descriptors.add(1);
        let entry = Cqe {
            opcode: CqeOpcode::Recv.to_wire(),
            status: refusal.status.to_wire(),
            vendor_error: refusal.check as u8,
            ..Cqe::default()
        };
        self.received(platform, qpn, Received { wr_id, entries: 1 }, entry, true);
        self.fail(platform, qpn);
    }
}
