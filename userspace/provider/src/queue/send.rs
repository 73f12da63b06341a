// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Send queues.

use std::sync::Arc;

use nupa_engine::rings::{Data, Head, Operation, PostError, SendRequest, SendRing};
use nupa_proto::wqe::WQE_SIGNALED;

use super::bypass::{Kind, Position, Put, Sender};
use super::done::Done;
use super::draft::Draft;
use super::size::SendSize;
use crate::ffi::{Pages, Slot};

/// Why a request was not posted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Refused {
    Error(PostError),
    /// It, and those of its list that were posted since [`SendQueue::is_confirmed`], are to be posted again: the process ring that they were in is closed.
    Closed,
}

impl From<PostError> for Refused {
    fn from(error: PostError) -> Self {
        Self::Error(error)
    }
}

/// Producer of send requests.
#[derive(Debug)]
pub(crate) struct SendQueue {
    poster: Poster,
    draft: Draft,
    /// What [`Sender::rewind`] goes back to when the batch is taken back.
    mark: Position,
}

impl SendQueue {
    /// An empty queue over zeroed memory of the given size.
    pub(crate) fn new(memory: Pages, slot: Slot, size: SendSize, signal_all: bool) -> Self {
        let poster = Poster {
            ring: SendRing::new(memory, slot, size.log_blocks),
            done: Arc::default(),
            max_sge: size.max_sge,
            max_inline: size.max_inline,
            requests: size.requests,
            flags: if signal_all { WQE_SIGNALED } else { 0 },
            sender: None,
        };
        Self {
            poster,
            draft: Draft::default(),
            mark: Position::default(),
        }
    }

    /// SENDs and WRITEs may go into a process ring from now on.
    pub(crate) fn attach(&mut self, sender: Sender) {
        self.poster.sender = Some(sender);
    }

    /// Requests that the program is told there is room for.
    pub(crate) fn requests(&self) -> u32 {
        self.poster.requests
    }

    /// Where completions say how far the controller has come.
    pub(crate) fn done(&self) -> &Arc<Done> {
        &self.poster.done
    }

    /// Writes one request of a list. If `last` says so it is handed over with all before it, else [`SendQueue::ring`] does that.
    #[inline]
    pub(crate) fn post(&mut self, request: &SendRequest<'_>, last: bool) -> Result<(), Refused> {
        let kind = self
            .poster
            .kind(request.wr_id, request.flags, &request.operation);
        match self.poster.bypass(kind, request.data, !last) {
            Put::Yes => return Ok(()),
            Put::No => {}
            Put::Closed => return Err(Refused::Closed),
        }
        self.poster.drain_first()?;
        let mut head = self.head(kind, request.wr_id, request.flags, &request.operation);
        let index = self.poster.post(&mut head, request.data, last)?;
        self.poster.note(kind, index);
        Ok(())
    }

    /// Writes a SEND and hands it over if there is known to be room for it; makes no room. False if it was not written.
    #[inline(always)]
    pub(crate) fn try_send(&mut self, request: &SendRequest<'_>) -> bool {
        let kind = self
            .poster
            .kind(request.wr_id, request.flags, &request.operation);
        if self.poster.bypass(kind, request.data, false) == Put::Yes {
            return true;
        }
        if self.poster.drain_first().is_err() {
            return false;
        }
        let mut head = self.head(kind, request.wr_id, request.flags, &request.operation);
        let Ok(index) = self.poster.try_post(&mut head, request.data, true) else {
            return false;
        };
        self.poster.note(kind, index);
        true
    }

    /// The same with any request that takes no receive entry; false if it was not written. It is not where there is a process ring: [`SendQueue::post`]
    /// knows what to do then.
    #[inline(always)]
    pub(crate) fn try_post(&mut self, request: &SendRequest<'_>) -> bool {
        let poster = &mut self.poster;
        if poster.sender.as_ref().is_some_and(Sender::bypasses) {
            return false;
        }
        let flags = request.flags | poster.flags;
        let mut head = Head::new(request.wr_id, flags, &request.operation);
        let Ok(index) = poster.try_post(&mut head, request.data, true) else {
            return false;
        };
        if poster.sender.is_some() {
            let kind = poster.kind(request.wr_id, flags, &request.operation);
            poster.note(kind, index);
        }
        true
    }

    /// Has the engine take the WRITEs that nobody has taken out of the ring, if there are any and it was not told.
    pub(crate) fn drain(&mut self) {
        if let Some(line) = self.poster.sender.as_mut().and_then(Sender::untaken) {
            self.drain_to(line, false);
        }
    }

    /// Whether there are WRITEs in the ring that nobody has taken.
    pub(crate) fn has_untaken(&self) -> bool {
        let sender = self.poster.sender.as_ref();
        sender.is_some_and(|sender| sender.sent().last_untaken().is_some())
    }

    /// As [`SendQueue::drain`], and if completions are asked for that wait for them with a completion, of which the program is not told: it makes the event. Also if the
    /// engine was told, but not if there is to be such a completion already.
    pub(crate) fn drain_for_event(&mut self) {
        let Some(sender) = &self.poster.sender else {
            return;
        };
        match sender.sent().last_untaken() {
            Some((line, true)) if sender.sent().is_draining(line) => {}
            Some((line, true)) => self.drain_to(line, true),
            _ => self.drain(),
        }
    }

    fn drain_to(&mut self, line: u32, signaled: bool) {
        // There is room: a WRITE that is not complete has no place in the queue, and there are some for requests that the program has not posted.
        let _ = self.poster.drain(line, signaled);
        self.ring();
    }

    /// A batch ends. Does that, if it was left to this.
    fn end_batch(&mut self) {
        let sender = self.poster.sender.as_ref();
        if sender.is_some_and(|sender| sender.sent().end_batch()) {
            self.drain_for_event();
        }
    }

    /// Segments of a request, signaled if all requests are.
    #[inline(always)]
    fn head(&self, kind: Kind, wr_id: u64, flags: u8, operation: &Operation) -> Head {
        let mut head = Head::new(wr_id, flags | self.poster.flags, operation);
        // What others would say is not looked at, and most requests are known to be others where this is compiled.
        if kind.takes_entry() {
            if let Some(sender) = &self.poster.sender {
                head.set_bypassed(sender.bypassed());
            }
        }
        head
    }

    /// Whether what was posted stays so: no request of the list is waiting for those behind it.
    #[inline]
    pub(crate) fn is_confirmed(&self) -> bool {
        let sender = self.poster.sender.as_ref();
        sender.is_none_or(Sender::is_confirmed)
    }

    /// Has it stay so, where a list ends before its last request. False if what was posted since [`SendQueue::is_confirmed`] is to be posted again.
    #[inline]
    pub(crate) fn confirm(&mut self) -> bool {
        let sender = self.poster.sender.as_mut();
        sender.is_none_or(Sender::confirm)
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
        if let Some(sender) = &mut self.poster.sender {
            *sender = sender.another();
        }
    }

    /// Gives up the oldest request that the device has not processed; returns its identification. For devices that are gone.
    pub(crate) fn give_up(&mut self) -> Option<u64> {
        self.poster.reclaim();
        let id = self.poster.sender.as_ref().map(Sender::sent);
        let id = id.and_then(|sent| sent.drain_id());
        // The program has not posted those that have the engine take entries.
        let mut given_up = self.poster.ring.give_up();
        while given_up.is_some() && given_up == id {
            given_up = self.poster.ring.give_up();
        }
        // What went past the engine behind it is next.
        self.poster.done.set(self.poster.ring.done());
        given_up
    }

    /// Begins a batch of requests that are made piece by piece (`ibv_wr_start()`).
    pub(crate) fn start(&mut self) {
        self.draft.start();
        if let Some(sender) = &self.poster.sender {
            self.mark = sender.mark();
            sender.sent().begin_batch();
        }
    }

    /// Begins the next request of the batch.
    #[inline(always)]
    pub(crate) fn begin(&mut self, wr_id: u64, flags: u8, operation: Operation) {
        if self.draft.is_begun() {
            self.post_before_next();
        }
        let kind = self.poster.kind(wr_id, flags, &operation);
        self.draft
            .begin(self.head(kind, wr_id, flags, &operation), kind);
    }

    #[inline(never)]
    fn post_before_next(&mut self) {
        self.post_draft(false);
    }

    /// The request that was begun last.
    pub(crate) fn draft(&mut self) -> &mut Draft {
        &mut self.draft
    }

    /// Hands the batch over, or nothing of it if one of its requests was refused (`ibv_wr_complete()`).
    pub(crate) fn complete(&mut self) -> Result<(), PostError> {
        self.post_draft(true);
        let result = match self.draft.error() {
            None => Ok(()),
            Some(error) => {
                self.rewind();
                Err(error)
            }
        };
        self.end_batch();
        result
    }

    /// Takes back what of the batch was posted.
    fn rewind(&mut self) {
        self.poster.ring.rewind();
        if let Some(sender) = &mut self.poster.sender {
            sender.rewind(self.mark);
        }
    }

    /// Takes the batch back (`ibv_wr_abort()`).
    pub(crate) fn abort(&mut self) {
        self.draft.start();
        self.rewind();
        self.end_batch();
    }

    /// Posts the request that was begun last, if there is one; the last one is handed over with those before it. Only a batch of one request goes
    /// into a process ring: what is there cannot be taken back.
    #[inline(always)]
    fn post_draft(&mut self, last: bool) {
        let Some((head, kind, data)) = self.draft.request() else {
            return;
        };
        let is_only = last && !self.poster.ring.is_behind();
        if is_only && self.poster.bypass(kind, data, false) == Put::Yes {
            return;
        }
        let posted = self
            .poster
            .drain_first()
            .and_then(|()| self.poster.post(head, data, last));
        match posted {
            Ok(index) => self.poster.note(kind, index),
            Err(error) => self.draft.refuse(error),
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
    /// Requests that the program is told there is room for.
    requests: u32,
    /// Flags of every request: `WQE_SIGNALED` or 0.
    flags: u8,
    /// What may go into a process ring, where queue pairs have those.
    sender: Option<Sender>,
}

impl Poster {
    /// What a request is to the process ring.
    #[inline(always)]
    fn kind(&self, wr_id: u64, flags: u8, operation: &Operation) -> Kind {
        Kind::of(wr_id, flags | self.flags, operation)
    }

    /// Puts a request into the process ring, if it may go there. With `more`, others of its list follow.
    #[inline(always)]
    fn bypass(&mut self, kind: Kind, data: Data<'_>, more: bool) -> Put {
        let Some(sender) = &mut self.sender else {
            return Put::No;
        };
        let fits = match data {
            Data::Inline(bytes) => bytes.len() <= self.max_inline,
            Data::Sges(sges) => sges.len() <= self.max_sge,
        };
        let message = kind.message();
        match message.filter(|message| fits && sender.may_send(message)) {
            Some(message) => sender.send(message, data, more),
            None => sender.leave(),
        }
    }

    /// If there are WRITEs in the ring, has the engine take them before what follows.
    #[inline(always)]
    fn drain_first(&mut self) -> Result<(), PostError> {
        match self.sender.as_mut().and_then(Sender::untaken) {
            Some(line) => self.drain(line, false),
            None => Ok(()),
        }
    }

    /// Posts a WRITE of no bytes that says behind which line of the ring it comes; it is to be handed over.
    #[inline(never)]
    fn drain(&mut self, line: u32, signaled: bool) -> Result<(), PostError> {
        let id = self.sender.as_ref().map(Sender::sent);
        let Some(id) = id.and_then(|sent| sent.drain_id()) else {
            return Ok(());
        };
        let flags = if signaled { WQE_SIGNALED } else { self.flags };
        let nothing = Operation::Write {
            addr: 0,
            rkey: 0,
            imm: None,
        };
        let mut head = Head::new(id, flags, &nothing);
        head.set_bypassed(line);
        let index = self.post(&mut head, Data::Inline(&[]), false)?;
        if let Some(sender) = &mut self.sender {
            sender.note_drain(line, index, flags & WQE_SIGNALED != 0);
        }
        Ok(())
    }

    /// A request was posted for the engine; `index` is that of the ring behind it.
    #[inline(always)]
    fn note(&mut self, kind: Kind, index: u32) {
        if let Some(sender) = &mut self.sender {
            sender.note(kind, index);
        }
    }

    #[inline(always)]
    fn post(&mut self, head: &mut Head, data: Data<'_>, last: bool) -> Result<u32, PostError> {
        match self.try_post(head, data, last) {
            Err(PostError::Full) => self.reclaim_and_post(head, data, last),
            done => done,
        }
    }

    /// As [`Poster::post`], with the room that is known of.
    #[inline(always)]
    fn try_post(&mut self, head: &mut Head, data: Data<'_>, last: bool) -> Result<u32, PostError> {
        let fits = match data {
            Data::Sges(sges) => sges.len() <= self.max_sge,
            Data::Inline(bytes) => bytes.len() <= self.max_inline,
        };
        if !fits {
            return Err(PostError::Invalid);
        }
        self.ring.post_and(head, data, last)
    }

    #[cold]
    fn reclaim_and_post(
        &mut self,
        head: &mut Head,
        data: Data<'_>,
        last: bool,
    ) -> Result<u32, PostError> {
        self.reclaim();
        self.try_post(head, data, last)
    }

    fn reclaim(&mut self) {
        // An index that is not within what was posted would be the controller's fault: nothing becomes free then.
        let _ = self.ring.completed(self.done.get());
    }
}
