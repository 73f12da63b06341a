// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Send rings.

use super::{
    producer::Producer, request::Encoded, BadIndex, Doorbell, PostError, QueueMemory, SendRequest,
};
use nupa_proto::wqe::{BLOCK_SIZE, DATA_OFFSET};

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
        let encoded = request.encode().ok_or(PostError::Invalid)?;
        self.write(&encoded)?;
        Ok(self.producer.advance(u32::from(encoded.blocks)))
    }

    /// Hands everything posted to the device; kicks it if it asked for that. Returns whether it did.
    #[inline]
    pub fn ring(&mut self) -> bool {
        self.producer.ring(|doorbell, index| doorbell.kick(index))
    }

    /// [`SendRing::post`] and [`SendRing::ring`] in one: a descriptor of one block goes through the push slot, so that
    /// the device need not fetch it. Returns the index behind it.
    #[inline]
    pub fn post_push(&mut self, request: &SendRequest<'_>) -> Result<u32, PostError> {
        let encoded = request.encode().ok_or(PostError::Invalid)?;
        let alone = encoded.blocks == 1 && self.producer.is_rung();
        let block = self.write(&encoded)?;
        let index = self.producer.advance(u32::from(encoded.blocks));
        self.producer.ring(|doorbell, index| {
            if !(alone && doorbell.push(&block, index)) {
                doorbell.kick(index);
            }
        });
        Ok(index)
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

    /// Writes the blocks of a descriptor and returns the first one.
    #[inline]
    fn write(&self, encoded: &Encoded<'_>) -> Result<[u8; BLOCK_SIZE], PostError> {
        if self.producer.free() < u32::from(encoded.blocks) {
            return Err(PostError::Full);
        }
        let (near, far) = encoded
            .data
            .split_at(encoded.data.len().min(BLOCK_SIZE - DATA_OFFSET));
        let mut first = [0; BLOCK_SIZE];
        let (head, tail) = first.split_at_mut(DATA_OFFSET);
        head.copy_from_slice(&encoded.head);
        for (to, from) in tail.iter_mut().zip(near) {
            *to = *from;
        }
        self.memory
            .write(self.producer.position(0).wrapping_mul(BLOCK_SIZE), &first);
        for (ahead, block) in (1..).zip(far.chunks(BLOCK_SIZE)) {
            self.memory.write(
                self.producer.position(ahead).wrapping_mul(BLOCK_SIZE),
                block,
            );
        }
        Ok(first)
    }
}
