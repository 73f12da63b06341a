// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Send rings.

use super::{
    producer::Producer, request::Encoded, BadIndex, Data, Doorbell, Head, PostError, QueueMemory,
    SendRequest,
};
use nupa_proto::wqe::{Control, BLOCK_SIZE};
use zerocopy::IntoBytes;

/// Producer of send requests.
#[derive(Debug)]
pub struct SendRing<M, D> {
    memory: M,
    producer: Producer<D>,
}

impl<M: QueueMemory, D: Doorbell> SendRing<M, D> {
    /// An empty ring of `1 << log_blocks` blocks.
    pub fn new(memory: M, doorbell: D, log_blocks: u8) -> Self {
        Self {
            memory,
            producer: Producer::new(doorbell, log_blocks),
        }
    }

    /// Blocks that are free.
    #[inline]
    pub fn free_blocks(&self) -> u32 {
        self.producer.free()
    }

    /// Index behind everything posted.
    #[inline]
    pub fn index(&self) -> u32 {
        self.producer.written()
    }

    /// Writes one descriptor, not yet visible to the device, and returns the index behind it: the completion that
    /// carries this `queue_index`, or a later one, says that its blocks are free.
    #[inline]
    pub fn post(&mut self, request: &SendRequest<'_>) -> Result<u32, PostError> {
        self.post_and(&mut request.head(), request.data, false)
    }

    /// Hands everything posted to the device; kicks it if it asked for that. Returns whether it did.
    #[inline]
    pub fn ring(&mut self) -> bool {
        self.producer
            .ring(|doorbell, index, _| doorbell.kick(index))
    }

    /// [`SendRing::post`] of a request in two parts and, if `hand_over` says so, [`SendRing::ring`] in one: a descriptor of one block that is all
    /// there is to hand over goes through the push slot, so that the device need not fetch it. Returns the index behind
    /// it.
    #[inline(always)]
    pub fn post_and(
        &mut self,
        head: &mut Head,
        data: Data<'_>,
        hand_over: bool,
    ) -> Result<u32, PostError> {
        let encoded = head.with(data).ok_or(PostError::Invalid)?;
        self.write(&encoded)?;
        let index = self.producer.advance(u32::from(encoded.blocks));
        if hand_over {
            self.producer.ring(|doorbell, index, blocks| {
                // A single block is all of this descriptor, and there is nothing before it.
                if !(blocks == 1 && doorbell.push(encoded.first, index)) {
                    doorbell.kick(index);
                }
            });
        }
        Ok(index)
    }

    /// Index before which everything is complete, or was given up.
    #[inline]
    pub fn done(&self) -> u32 {
        self.producer.done()
    }

    /// Whether something was posted since the ring was last rung.
    #[inline]
    pub fn is_behind(&self) -> bool {
        self.producer.rung() != self.producer.written()
    }

    /// Takes back what was posted since the ring was last rung.
    #[inline]
    pub fn rewind(&mut self) {
        self.producer.rewind();
    }

    /// Frees the blocks before the `queue_index` of a send completion; returns how many.
    #[inline]
    pub fn completed(&mut self, queue_index: u32) -> Result<u32, BadIndex> {
        self.producer.completed(queue_index)
    }

    /// Forgets everything posted; to be called when the queue pair has gone to the reset state.
    pub fn reset(&mut self) {
        self.producer.reset();
    }

    /// Counts what was posted as handed over without telling the device, which is gone.
    pub fn ring_lost(&mut self) {
        self.producer.ring_lost();
    }

    /// Whether something was handed over and is not completed.
    pub fn is_busy(&self) -> bool {
        self.producer.oldest().is_some()
    }

    /// Gives up the oldest request that was handed over and not completed, and returns its `wr_id`: to be called when the
    /// device is gone, which will complete nothing any more.
    pub fn give_up(&mut self) -> Option<u64> {
        let position = self.producer.oldest()?;
        let mut control = Control::default();
        self.memory
            .read(position.wrapping_mul(BLOCK_SIZE), control.as_mut_bytes());
        self.producer.give_up(u32::from(control.blocks.max(1)));
        Some(control.wr_id.get())
    }

    /// Writes the blocks of a descriptor.
    #[inline(always)]
    fn write(&self, encoded: &Encoded<'_>) -> Result<(), PostError> {
        if self.producer.free() < u32::from(encoded.blocks) {
            return Err(PostError::Full);
        }
        let at = |ahead| self.producer.position(ahead).wrapping_mul(BLOCK_SIZE);
        self.memory.write(at(0), encoded.first);
        for (ahead, block) in (1..).zip(encoded.rest.chunks(BLOCK_SIZE)) {
            self.memory.write(at(ahead), block);
        }
        Ok(())
    }
}
