// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Send queues.

use std::sync::Arc;

use nupa_engine::client::{Data, Operation, PostError, SendRequest, SendRing};
use nupa_proto::wqe::{MAX_BLOCKS, WQE_SIGNALED};

use super::done::Done;
use super::draft::Draft;
use super::size::SendSize;
use crate::ffi::{Pages, Slot};

/// Blocks of the longest request.
const MOST_BLOCKS: u32 = 6;
const _: () = assert!(MOST_BLOCKS as usize == MAX_BLOCKS);

/// Producer of send requests.
#[derive(Debug)]
pub(crate) struct SendQueue {
    poster: Poster,
    draft: Draft,
}

impl SendQueue {
    /// An empty queue over zeroed memory of the given size.
    pub(crate) fn new(memory: Pages, slot: Slot, size: SendSize, signal_all: bool) -> Self {
        let poster = Poster {
            ring: SendRing::new(memory, slot, size.log_blocks),
            done: Arc::default(),
            max_sge: size.max_sge,
            max_inline: size.max_inline,
            flags: if signal_all { WQE_SIGNALED } else { 0 },
        };
        Self {
            poster,
            draft: Draft::default(),
        }
    }

    /// Where completions say how far the controller has come.
    pub(crate) fn done(&self) -> &Arc<Done> {
        &self.poster.done
    }

    /// Writes one request, which [`SendQueue::ring`] hands over.
    #[inline]
    pub(crate) fn post(&mut self, request: &SendRequest<'_>) -> Result<(), PostError> {
        self.poster.post(request)
    }

    /// Writes one request and hands it over, through the push slot if it is short.
    #[inline(always)]
    pub(crate) fn post_alone(&mut self, request: &SendRequest<'_>) -> Result<(), PostError> {
        self.poster.post_alone(request)
    }

    /// Hands everything posted to the controller.
    #[inline]
    pub(crate) fn ring(&mut self) {
        self.poster.ring.ring();
    }

    /// Forgets everything, as the controller does when the queue pair goes to the reset state.
    pub(crate) fn reset(&mut self) {
        self.poster.ring.reset();
        self.poster.done.reset();
    }

    /// Begins a batch of requests that are made piece by piece (`ibv_wr_start()`).
    pub(crate) fn start(&mut self) {
        self.draft.start();
    }

    /// Begins the next request of the batch.
    #[inline]
    pub(crate) fn begin(&mut self, wr_id: u64, flags: u8, operation: Operation) {
        self.post_draft(false);
        self.draft.begin(wr_id, flags, operation);
    }

    /// The request that was begun last.
    pub(crate) fn draft(&mut self) -> &mut Draft {
        &mut self.draft
    }

    /// Hands the batch over, or nothing of it if one of its requests was refused (`ibv_wr_complete()`).
    pub(crate) fn complete(&mut self) -> Result<(), PostError> {
        self.post_draft(true);
        match self.draft.error() {
            None => {
                self.poster.ring.ring();
                Ok(())
            }
            Some(error) => {
                self.poster.ring.rewind();
                Err(error)
            }
        }
    }

    /// Takes the batch back (`ibv_wr_abort()`).
    pub(crate) fn abort(&mut self) {
        self.draft.start();
        self.poster.ring.rewind();
    }

    /// Posts the request that was begun last, if there is one. One that is the whole batch goes through the push slot.
    #[inline]
    fn post_draft(&mut self, last: bool) {
        let Some(request) = self.draft.request() else {
            return;
        };
        let posted = if last && self.draft.is_alone() {
            self.poster.post_alone(&request)
        } else {
            self.poster.post(&request)
        };
        if let Err(error) = posted {
            self.draft.refuse(error);
        }
    }
}

/// The ring, and what its requests have to keep to.
#[derive(Debug)]
struct Poster {
    ring: SendRing<Pages, Slot>,
    done: Arc<Done>,
    max_sge: usize,
    max_inline: usize,
    /// Flags of every request: `WQE_SIGNALED` or 0.
    flags: u8,
}

impl Poster {
    #[inline]
    fn post(&mut self, request: &SendRequest<'_>) -> Result<(), PostError> {
        let request = self.admit(request)?;
        self.ring.post(&request).map(|_| ())
    }

    #[inline(always)]
    fn post_alone(&mut self, request: &SendRequest<'_>) -> Result<(), PostError> {
        let request = self.admit(request)?;
        self.ring.post_push(&request).map(|_| ())
    }

    /// Checks the limits and sees to it that what is free is known to be.
    #[inline(always)]
    fn admit<'a>(&mut self, request: &SendRequest<'a>) -> Result<SendRequest<'a>, PostError> {
        let fits = match request.data {
            Data::Sges(sges) => sges.len() <= self.max_sge,
            Data::Inline(bytes) => bytes.len() <= self.max_inline,
        };
        if !fits {
            return Err(PostError::Invalid);
        }
        if self.ring.free_blocks() < MOST_BLOCKS {
            self.reclaim();
        }
        Ok(SendRequest {
            flags: request.flags | self.flags,
            ..*request
        })
    }

    #[cold]
    fn reclaim(&mut self) {
        // An index that is not within what was posted would be the controller's fault: nothing becomes free then.
        let _ = self.ring.completed(self.done.get());
    }
}
