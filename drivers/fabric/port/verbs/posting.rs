// SPDX-License-Identifier: GPL-2.0
//! Rings of queue pairs and shared receive queues that the kernel itself uses.

use crate::{doorbell::Slot, memory::QueueMemory, port::qp::post_error};
use kernel::prelude::*;
use nk::bound::BoundDevice;
use nupa_engine::rings::{RecvRing, SendRequest, SendRing};
use nupa_proto::wqe::{Sge, BLOCK_SIZE};

use super::QueueRing;

/// Producer of send requests. Any context; neither sleeps nor takes locks.
pub struct SendPoster {
    ring: SendRing<QueueMemory, Slot>,
}

impl SendPoster {
    /// Writes a request, and returns the index behind it. The controller sees it at the next [`SendPoster::ring`].
    ///
    /// `ENOSPC` if there is no room, `EINVAL` if it has too many pieces; nothing is written then.
    pub fn post(&mut self, request: &SendRequest<'_>) -> Result<u32> {
        self.ring.post(request).map_err(post_error)
    }

    /// Hands everything posted to the controller.
    pub fn ring(&mut self) {
        self.ring.ring();
    }

    /// Frees everything before the `queue_index` of a completion. `EIO` if that was not handed to the controller, which
    /// is broken then.
    pub fn completed(&mut self, queue_index: u32) -> Result {
        self.ring.completed(queue_index).map_err(|_| EIO)?;
        Ok(())
    }

    /// As [`SendPoster::ring`] for a controller that was lost, which is told nothing.
    pub fn ring_lost(&mut self) {
        self.ring.ring_lost();
    }

    /// Whether something was handed over and is not completed.
    pub fn is_busy(&self) -> bool {
        self.ring.is_busy()
    }

    /// Gives up the oldest request that was handed over and not completed, and returns its `wr_id`; for controllers that
    /// were lost.
    pub fn give_up(&mut self) -> Option<u64> {
        self.ring.give_up()
    }

    /// Forgets everything posted; to be called when the queue pair has gone to the reset state.
    pub fn reset(&mut self) {
        self.ring.reset();
    }
}

/// Producer of receive requests. Any context; neither sleeps nor takes locks.
pub struct RecvPoster {
    ring: RecvRing<QueueMemory, Slot>,
}

impl RecvPoster {
    /// Writes a request. The controller sees it at the next [`RecvPoster::ring`]. Errors as with [`SendPoster::post`].
    pub fn post(&mut self, wr_id: u64, pieces: &[Sge]) -> Result {
        self.ring.post(wr_id, pieces).map_err(post_error)?;
        Ok(())
    }

    /// Hands everything posted to the controller.
    pub fn ring(&mut self) {
        self.ring.ring();
    }

    /// As [`SendPoster::completed`].
    pub fn completed(&mut self, queue_index: u32) -> Result {
        self.ring.completed(queue_index).map_err(|_| EIO)?;
        Ok(())
    }

    /// As [`SendPoster::ring_lost`].
    pub fn ring_lost(&mut self) {
        self.ring.ring_lost();
    }

    /// As [`SendPoster::is_busy`].
    pub fn is_busy(&self) -> bool {
        self.ring.is_busy()
    }

    /// As [`SendPoster::give_up`].
    pub fn give_up(&mut self) -> Option<u64> {
        self.ring.give_up()
    }

    /// As [`SendPoster::reset`].
    pub fn reset(&mut self) {
        self.ring.reset();
    }
}

/// A ring that was made, in its parts: memory, slot, and where it is.
pub(super) struct Made {
    pub(super) memory: QueueMemory,
    pub(super) ring: QueueRing,
}

impl Made {
    /// Memory for `1 << log_entries` entries of `1 << log_stride` bytes.
    pub(super) fn new(device: &BoundDevice, log_entries: u8, log_stride: u8) -> Result<Self> {
        let shift = u32::from(log_entries).saturating_add(log_stride.into());
        let bytes = 1usize.checked_shl(shift).ok_or(EINVAL)?;
        let memory = QueueMemory::new(device, bytes)?;
        let ring = QueueRing {
            list: memory.page_list(),
            log_entries,
            log_stride,
        };
        Ok(Self { memory, ring })
    }

    /// Memory for the blocks of a send ring.
    pub(super) fn blocks(device: &BoundDevice, log_blocks: u8) -> Result<Self> {
        Self::new(device, log_blocks, BLOCK_SIZE.trailing_zeros() as u8)
    }

    pub(super) fn into_send(self, slot: Slot) -> SendPoster {
        SendPoster {
            ring: SendRing::new(self.memory, slot, self.ring.log_entries),
        }
    }

    pub(super) fn into_recv(self, slot: Slot) -> RecvPoster {
        let QueueRing {
            log_entries,
            log_stride,
            ..
        } = self.ring;
        RecvPoster {
            ring: RecvRing::new(self.memory, slot, log_entries, log_stride),
        }
    }
}
