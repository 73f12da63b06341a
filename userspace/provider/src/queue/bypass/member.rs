// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The queue pairs of a completion queue that have rings.

use std::sync::atomic::Ordering;
use std::sync::Arc;

use nupa_proto::cqe::{Cqe, CQE_SOLICITED};
use nupa_proto::status::WcStatus;

use super::receiver::Next;
use super::sent::First;
use super::{BypassState, Receiver, Sent};
use crate::ffi::fence;

/// Queue pairs of a completion queue that may have rings: each poll looks at all of them.
const MOST: usize = 64;
/// Messages in a row that come past the engine before one that does not has its turn.
const IN_ROW: u32 = 16;
/// Polls that find nothing, if messages come past the engine now and then, before one has the engine work.
const UNSERVED: u32 = 256;
/// Polls that find nothing before completions of messages that nobody has received are shown.
const SHOWN_AFTER: u32 = 64;

/// A queue pair with rings.
#[derive(Debug)]
struct Bypass {
    qpn: u32,
    bypass_state: Arc<BypassState>,
    /// Messages that it has sent, if their completions come here.
    sent: Option<Arc<Sent>>,
    /// What it receives with, if its completions come here.
    receiver: Option<Receiver>,
    /// Index of the send queue behind the request that has failed.
    failed: Option<u32>,
    /// Polls since the oldest message was sent that nobody has received.
    waited: u32,
    /// The oldest is a WRITE that was not taken for [`SHOWN_AFTER`] polls, and the engine was not told of it.
    slow: bool,
    /// Status of a request that had the engine take entries: that of the first request which was not complete before.
    blamed: Option<u8>,
    /// Index of the send queue of a completion that was shown with that status.
    shown: Option<u32>,
    /// Whether what was sent is looked at first: both have their turn.
    sent_first: bool,
}

/// The queue pairs of a completion queue that have rings.
#[derive(Debug, Default)]
pub(in crate::queue) struct Bypasses {
    list: Vec<Bypass>,
    /// There are some, or there is something to be noted for those to come.
    in_use: bool,
    /// The one that is looked at first.
    turn: usize,
    /// Polls in a row that found nothing: so many at least, and so many or fewer by what 32 bits count.
    empty: u32,
    idle: u32,
    /// Messages in a row that came past the engine.
    in_row: u32,
    /// Any is [slow](Bypass::slow).
    any_slow: bool,
    /// Polls that found nothing since the engine was asked to work for one.
    unserved: u32,
    /// The program waits for an event.
    armed: Option<Armed>,
}

/// When the event of an armed completion queue is made.
#[derive(Clone, Copy, Debug)]
struct Armed {
    /// Completions of the engine's that were there before.
    before: usize,
    solicited_only: bool,
}

/// What is to be done with the next completion of the engine's.
#[derive(Debug)]
pub(in crate::queue) enum Step {
    /// It is to be shown.
    Show,
    /// It is not to be shown.
    Drop,
    /// It is not to be shown, but says how far the queue is.
    Count,
    /// This comes before it.
    First(Cqe),
}

impl Bypasses {
    /// Whether there are none.
    #[inline(always)]
    pub(in crate::queue) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Whether there are none, and nothing is to be noted for those to come.
    #[inline(always)]
    pub(in crate::queue) fn is_idle(&self) -> bool {
        !self.in_use
    }

    fn set_in_use(&mut self) {
        self.in_use = !self.is_empty() || self.is_armed();
    }

    /// Whether there may be another one.
    pub(in crate::queue) fn has_room(&self) -> bool {
        self.list.len() < MOST
    }

    /// Whether the program waits for an event.
    #[inline(always)]
    pub(in crate::queue) fn is_armed(&self) -> bool {
        self.armed.is_some()
    }

    fn of(&mut self, qpn: u32) -> Option<&mut Bypass> {
        self.list.iter_mut().find(|bypass| bypass.qpn == qpn)
    }

    fn entry(&mut self, qpn: u32, bypass_state: &Arc<BypassState>) -> Option<&mut Bypass> {
        if self.of(qpn).is_none() {
            self.list.push(Bypass {
                qpn,
                bypass_state: Arc::clone(bypass_state),
                sent: None,
                receiver: None,
                failed: None,
                waited: 0,
                slow: false,
                blamed: None,
                shown: None,
                sent_first: false,
            });
            self.set_in_use();
        }
        self.of(qpn)
    }

    /// Completions of messages that a queue pair sends come from there.
    pub(in crate::queue) fn add_sent(
        &mut self,
        qpn: u32,
        sent: Arc<Sent>,
        bypass_state: &Arc<BypassState>,
    ) {
        sent.set_armed(self.is_armed());
        if let Some(bypass) = self.entry(qpn, bypass_state) {
            bypass.sent = Some(sent);
        }
    }

    /// A queue pair receives with a ring.
    pub(in crate::queue) fn add_receiver(&mut self, receiver: Receiver) {
        let bypass_state = Arc::clone(receiver.bypass_state());
        if let Some(bypass) = self.entry(receiver.qpn(), &bypass_state) {
            bypass.receiver = Some(receiver);
        }
    }

    /// Forgets a queue pair.
    pub(in crate::queue) fn remove(&mut self, qpn: u32) {
        self.list.retain(|bypass| bypass.qpn != qpn);
        self.set_in_use();
    }

    /// The program is about to wait for an event. To be called before the engine is told of that; [`Bypasses::set_armed`] follows.
    pub(in crate::queue) fn arm(&mut self) {
        self.tell_armed(true);
        fence(Ordering::SeqCst);
    }

    /// Whether messages have come that were not taken.
    pub(in crate::queue) fn has_message(&mut self) -> bool {
        self.receivers().any(Receiver::has_entry)
    }

    fn receivers(&mut self) -> impl Iterator<Item = &mut Receiver> {
        let list = self.list.iter_mut();
        list.filter_map(|bypass| bypass.receiver.as_mut())
    }

    /// A queue pair whose WRITEs the engine is to take out of the ring: they have been there for so many polls that the receiver's program does not seem
    /// to poll.
    #[cold]
    pub(in crate::queue) fn take_slow(&mut self) -> Option<u32> {
        let slow = self.list.iter_mut().find(|bypass| bypass.slow);
        self.any_slow = slow.is_some();
        let slow = slow?;
        slow.slow = false;
        Some(slow.qpn)
    }

    /// Whether [`Bypasses::take_slow`] may find one.
    #[inline]
    pub(in crate::queue) fn any_slow(&self) -> bool {
        self.any_slow
    }

    /// The queue pairs that have WRITEs in a ring which nobody has taken, and what was sent there.
    pub(in crate::queue) fn writers(&self) -> impl Iterator<Item = (u32, &Arc<Sent>)> {
        let all = self.list.iter();
        all.filter_map(|bypass| Some((bypass.qpn, bypass.sent.as_ref()?)))
            .filter(|(_, sent)| sent.last_untaken().is_some())
    }

    fn tell_armed(&mut self, armed: bool) {
        for bypass in &mut self.list {
            if let Some(receiver) = &mut bypass.receiver {
                receiver.set_armed(armed);
            }
            if let Some(sent) = &bypass.sent {
                sent.set_armed(armed);
            }
        }
    }

    /// The engine was told. `waiting` says how many of its completions are there.
    pub(in crate::queue) fn set_armed(
        &mut self,
        solicited_only: bool,
        waiting: impl FnOnce() -> usize,
    ) {
        self.armed = Some(Armed {
            before: waiting(),
            solicited_only,
        });
        self.set_in_use();
    }

    /// The completion of a message that was sent, after the device went: those that all is complete before.
    #[cold]
    pub(in crate::queue) fn take_lost(&mut self) -> Option<Cqe> {
        self.list.iter_mut().find_map(|bypass| {
            bypass.bypass_state.stop();
            bypass.take_lost()
        })
    }

    /// A completion of the engine's was taken: perhaps the event was made for it.
    pub(in crate::queue) fn note(&mut self, cqe: &Cqe) {
        if self.armed.is_some() {
            self.note_armed(cqe.flags & CQE_SOLICITED != 0 || cqe.status != 0);
        }
    }

    fn note_armed(&mut self, solicited: bool) {
        let Some(armed) = &mut self.armed else {
            return;
        };
        if armed.before > 0 {
            armed.before = armed.before.wrapping_sub(1);
        } else if solicited || !armed.solicited_only {
            self.armed = None;
            self.set_in_use();
            self.tell_armed(false);
        }
    }

    /// Whether enough messages in a row have come past the engine: what it has comes first.
    #[inline]
    pub(in crate::queue) fn is_engines_turn(&mut self) -> bool {
        let is_turn = self.in_row >= IN_ROW;
        if is_turn {
            self.in_row = 0;
        }
        is_turn
    }

    /// Writes the next completion that the engine has no part in to `completion`. If there is none this returns false, and `completion` means nothing.
    #[inline]
    pub(in crate::queue) fn take(&mut self, completion: &mut Cqe) -> bool {
        let at_once = self.armed.is_some();
        for _ in 0..self.list.len() {
            self.turn = match self.turn.wrapping_add(1) {
                next if next < self.list.len() => next,
                _ => 0,
            };
            let Some(bypass) = self.list.get_mut(self.turn) else {
                return false;
            };
            let found = bypass.take(at_once, completion);
            self.any_slow |= bypass.slow;
            if found {
                (self.empty, self.idle) = (0, 0);
                self.in_row = self.in_row.wrapping_add(1);
                return true;
            }
        }
        false
    }

    /// There was nothing to take, from the engine either. Returns whether the engine need not be asked to work for that.
    #[inline]
    pub(in crate::queue) fn found_nothing(&mut self) -> bool {
        self.empty = self.empty.saturating_add(1);
        self.idle = self.idle.wrapping_add(1);
        if self.idle % SHOWN_AFTER == 0 {
            self.receivers().for_each(Receiver::offer_writes);
        }
        self.unserved = self.unserved.wrapping_add(1);
        let may_wait = self.empty < SHOWN_AFTER && self.unserved < UNSERVED;
        if !may_wait {
            self.unserved = 0;
        }
        may_wait
    }

    /// What is to be done with a completion of the engine's.
    #[inline]
    pub(in crate::queue) fn compare(&mut self, cqe: &Cqe, is_receive: bool) -> Step {
        match self.of(cqe.qpn.get()) {
            None => Step::Show,
            Some(bypass) if is_receive => bypass.compare_receive(cqe),
            Some(bypass) => bypass.compare_send(cqe),
        }
    }
}

impl Bypass {
    #[inline]
    fn take(&mut self, at_once: bool, completion: &mut Cqe) -> bool {
        self.sent_first = !self.sent_first;
        let receiver = |bypass: &mut Self, completion: &mut Cqe| {
            let receiver = bypass.receiver.as_mut();
            receiver.is_some_and(|receiver| receiver.take(completion))
        };
        match self.sent_first {
            true => self.take_sent(at_once, completion) || receiver(self, completion),
            false => receiver(self, completion) || self.take_sent(at_once, completion),
        }
    }

    /// Takes the oldest request that was sent, if its completion is to be shown, and writes that to `completion`; else returns false.
    #[inline]
    fn take_sent(&mut self, at_once: bool, completion: &mut Cqe) -> bool {
        loop {
            let Some(sent) = self.sent.as_ref() else {
                return false;
            };
            let Some(first) = sent.first() else {
                return false;
            };
            self.waited = self.waited.saturating_add(1);
            let received = sent.is_received(&first);
            // Where nothing goes into the ring any more nothing completes later than it need, as of a queue pair that is drained.
            let waited = || at_once || self.waited >= SHOWN_AFTER || !self.bypass_state.is_ready();
            if first.is_write() {
                self.slow |= !received && self.waited % SHOWN_AFTER == 0;
            }
            let shown = received || self.failed.is_some() || !first.is_write() && waited();
            if !shown || sent.is_held(&first) || !sent.is_due(&first) {
                return false;
            }
            if self.complete(first, completion) {
                return true;
            }
        }
    }

    /// As [`Bypass::take_sent`] after the device went: nobody takes WRITEs that were not taken.
    fn take_lost(&mut self) -> Option<Cqe> {
        let mut completion = Cqe::default();
        loop {
            let sent = self.sent.as_ref()?;
            let first = sent.first().filter(|first| sent.is_due(first))?;
            if first.is_write() && !sent.is_received(&first) {
                self.failed.get_or_insert(first.behind());
            }
            if self.complete(first, &mut completion) {
                return Some(completion);
            }
        }
    }

    /// Takes the oldest request that was sent. If its completion is asked for, or one of an error, writes that to `completion`; else returns false.
    #[inline]
    fn complete(&mut self, first: First, completion: &mut Cqe) -> bool {
        let is_behind = |failed| !Sent::is_before(&first, failed);
        let status = match self.failed.is_some_and(is_behind) {
            true => WcStatus::WrFlush,
            false => WcStatus::Success,
        };
        self.complete_with(first, status.to_wire(), completion)
    }

    #[inline]
    fn complete_with(&mut self, first: First, status: u8, completion: &mut Cqe) -> bool {
        if let Some(sent) = &self.sent {
            sent.take();
        }
        (self.waited, self.slow) = (0, false);
        let shown = first.is_signaled() || status != WcStatus::Success.to_wire();
        if shown {
            *completion = Cqe {
                wr_id: first.wr_id.into(),
                qpn: self.qpn.into(),
                byte_len: first.len.into(),
                opcode: first.opcode().to_wire(),
                status,
                ..Cqe::default()
            };
        }
        shown
    }

    fn compare_send(&mut self, cqe: &Cqe) -> Step {
        let Some(sent) = self.sent.clone() else {
            return Step::Show;
        };
        let index = cqe.queue_index.get();
        let (failed, is_drain) = (
            cqe.status != WcStatus::Success.to_wire(),
            sent.drain_id() == Some(cqe.wr_id.get()),
        );
        if is_drain && !failed {
            // At once, so that the completion queue has the room that the program counts on. What it was posted for is shown because it was taken.
            return Step::Count;
        }
        while let Some(first) = sent.first().filter(|first| Sent::is_before(first, index)) {
            let untaken = first.is_write() && self.failed.is_none() && !sent.is_received(&first);
            let mut completion = Cqe::default();
            let shown = match untaken && failed {
                // What the engine was to take comes before all else that it was handed.
                true => {
                    self.failed = Some(first.behind());
                    self.complete_with(first, cqe.status, &mut completion)
                }
                false => self.complete(first, &mut completion),
            };
            if shown {
                return Step::First(completion);
            }
        }
        if failed {
            self.close();
        }
        if self.shown.take_if(|shown| *shown == index).is_some() {
            return Step::Count;
        }
        if is_drain {
            if failed && self.failed.is_none() {
                // All that it was to take was taken before.
                self.blamed = Some(cqe.status);
            }
            return Step::Count;
        }
        if failed {
            self.failed.get_or_insert(index);
        }
        match self.blamed.take() {
            Some(status) if failed => {
                self.shown = Some(index);
                Step::First(Cqe { status, ..*cqe })
            }
            _ => Step::Show,
        }
    }

    /// The queue pair has failed.
    fn close(&mut self) {
        self.bypass_state.stop();
        if let Some(receiver) = &mut self.receiver {
            receiver.close();
        }
    }

    fn compare_receive(&mut self, cqe: &Cqe) -> Step {
        let failed = cqe.status != WcStatus::Success.to_wire();
        let Some(receiver) = &mut self.receiver else {
            return Step::Show;
        };
        if failed && receiver.is_open() {
            // What was sent before that is there.
            receiver.close();
        }
        receiver.see(cqe);
        if let Some(first) = receiver.wait_and_take() {
            return Step::First(first);
        }
        match receiver.compare(cqe) {
            Next::This => {
                receiver.pass(cqe, failed);
                Step::Show
            }
            Next::Nothing => Step::Drop,
            Next::Ring => receiver.miss().map_or(Step::Show, Step::First),
        }
    }
}
