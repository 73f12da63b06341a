// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Receive rings.

use super::{producer::Producer, BadIndex, Doorbell, PostError, QueueMemory};
use nupa_proto::wqe::{RecvHeader, Sge, MAX_RECV_STRIDE};
use zerocopy::little_endian::{U32, U64};
use zerocopy::IntoBytes;

/// Producer of receive buffers.
#[derive(Debug)]
pub struct RecvRing<M, D> {
    memory: M,
    producer: Producer<D>,
    log_stride: u8,
}

impl<M: QueueMemory, D: Doorbell> RecvRing<M, D> {
    /// An empty ring of `1 << log_entries` entries of `1 << log_stride` bytes.
    pub fn new(memory: M, doorbell: D, log_entries: u8, log_stride: u8) -> Self {
        Self {
            memory,
            producer: Producer::new(doorbell, log_entries),
            log_stride: log_stride.min(MAX_RECV_STRIDE.trailing_zeros() as u8),
        }
    }

    /// Scatter/gather entries that an entry of the ring holds.
    #[inline]
    pub fn max_sges(&self) -> usize {
        let room = (1usize << self.log_stride).saturating_sub(size_of::<RecvHeader>());
        room.checked_div(size_of::<Sge>()).unwrap_or(0)
    }

    /// Entries that are free.
    #[inline]
    pub fn free(&self) -> u32 {
        self.producer.free()
    }

    /// Writes one entry, not yet visible to the device, and returns the index behind it.
    #[inline]
    pub fn post(&mut self, wr_id: u64, sges: &[Sge]) -> Result<u32, PostError> {
        if sges.len() > self.max_sges() {
            return Err(PostError::Invalid);
        }
        if self.producer.free() == 0 {
            return Err(PostError::Full);
        }
        let count = u32::try_from(sges.len()).map_err(|_| PostError::Invalid)?;
        let header = RecvHeader {
            wr_id: U64::new(wr_id),
            sge_count: U32::new(count),
            reserved: U32::new(0),
        };
        let offset = self.producer.position(0) << self.log_stride;
        self.memory.write(offset, header.as_bytes());
        self.memory.write(
            offset.wrapping_add(size_of::<RecvHeader>()),
            sges.as_bytes(),
        );
        Ok(self.producer.advance(1))
    }

    /// Index behind everything that was handed over.
    #[inline]
    pub fn handed_over(&self) -> u32 {
        self.producer.rung()
    }

    /// How many entries it has.
    #[inline]
    pub fn entries(&self) -> u32 {
        self.producer.entries()
    }

    /// Index behind everything posted.
    #[inline]
    pub fn written(&self) -> u32 {
        self.producer.written()
    }

    /// Reads an entry that was handed over and is not free again, as it was posted: its `wr_id`, and its scatter/gather entries into
    /// `sges`. Returns how many those are, too. For owners that fill entries themselves.
    #[inline]
    pub fn entry(&self, index: u32, sges: &mut [Sge]) -> Option<(u64, usize)> {
        self.producer.outstanding(index)?;
        self.read(index, sges)
    }

    /// As [`RecvRing::entry`], whichever entry has the place of this one.
    #[inline]
    pub fn read(&self, index: u32, sges: &mut [Sge]) -> Option<(u64, usize)> {
        let offset = self.producer.place(index) << self.log_stride;
        let mut header = RecvHeader::default();
        self.memory.read(offset, header.as_mut_bytes());
        let count = usize::try_from(header.sge_count.get()).ok()?;
        let sges = sges.get_mut(..count)?;
        let behind = offset.wrapping_add(size_of::<RecvHeader>());
        self.memory.read(behind, sges.as_mut_bytes());
        Some((header.wr_id.get(), count))
    }

    /// Hands everything posted to the device; kicks it if it asked for that. Returns whether it did.
    #[inline]
    pub fn ring(&mut self) -> bool {
        self.producer
            .ring(|doorbell, index, _| doorbell.kick(index))
    }

    /// Frees the entries before the `queue_index` of a receive completion; returns how many.
    #[inline]
    pub fn completed(&mut self, queue_index: u32) -> Result<u32, BadIndex> {
        self.producer.completed(queue_index)
    }

    /// Counts what was posted as handed over without telling the device, which is gone.
    pub fn ring_lost(&mut self) {
        self.producer.ring_lost();
    }

    /// Whether something was handed over and is not completed.
    pub fn is_busy(&self) -> bool {
        self.producer.oldest().is_some()
    }

    /// Gives up the oldest entry that was handed over and not completed, and returns its `wr_id`: to be called when the
    /// device is gone, which will complete nothing any more.
    pub fn give_up(&mut self) -> Option<u64> {
        let position = self.producer.oldest()?;
        let mut header = RecvHeader::default();
        self.memory
            .read(position << self.log_stride, header.as_mut_bytes());
        self.producer.give_up(1);
        Some(header.wr_id.get())
    }

    /// Forgets everything posted; to be called when the queue pair has gone to the reset state.
    pub fn reset(&mut self) {
        self.producer.reset();
    }
}
