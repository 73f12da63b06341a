// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Requests in lines that are done because the peer has taken them out.

use super::{Blocked, Sender};
use crate::{
    line::{acknowledged, Lines},
    message::{Acknowledged, Violation},
    Window,
};
use nupa_proto::pool::{
    line::{LINE_BODY, LINE_STAMP},
    Class, LinkWord,
};

/// How far requests in lines, which the peer has taken out, have been looked at.
#[derive(Debug)]
pub(super) struct Acks {
    /// Index before which all were looked at; what lies behind is not written over.
    pub(super) looked_at: u32,
    /// Index before which those that are not answered are done.
    pub(super) done: u32,
    /// Index before which the peer had taken all when it was asked, and indices in the rings of responses at that time.
    asked: Option<(u32, [u32; 2])>,
}

impl Acks {
    /// Of a ring that nothing was put into.
    pub(super) const NONE: Self = Self {
        looked_at: 0,
        done: 0,
        asked: None,
    };
}

impl Sender {
    /// Whether the peer's taking requests out says that they are done.
    #[inline]
    pub fn is_acknowledged(&self) -> bool {
        let requests = matches!(self.place.class(), Class::Request | Class::ShortRequest);
        self.place.is_in_lines() && requests
    }

    /// Whether [`Sender::next_ack`] looks at anything.
    #[inline]
    pub(crate) fn has_acks(&self) -> bool {
        self.acks.looked_at != self.acks.done
    }

    /// Whether [`Sender::next_ack`] may find something, now or once it is allowed to.
    #[inline]
    pub(crate) fn may_acknowledge(&self, window: &impl Window) -> bool {
        self.is_acknowledged() && (self.has_acks() || self.may_have_acks(window))
    }

    /// Whether the peer has taken requests out that were not looked at. What it has to say against them, it has put into the rings of responses
    /// before, whose indices are `responses` now. What was asked before stands until [`Sender::allow_acks`].
    pub(crate) fn ask_for_acks(
        &mut self,
        window: &impl Window,
        responses: [u32; 2],
    ) -> Result<bool, Violation> {
        if self.acks.asked.is_some() {
            return Ok(true);
        }
        match self.look(window) {
            Ok(()) | Err(Blocked::Down | Blocked::Full | Blocked::TooLong) => {}
            Err(Blocked::Violation(violation)) => return Err(violation),
        }
        let found = self.consumed != self.acks.looked_at;
        if found {
            self.acks.asked = Some((self.consumed, responses));
        }
        Ok(found)
    }

    /// Whether the peer has taken something out that was not looked at, or breaks the rules.
    #[inline]
    fn may_have_acks(&self, window: &impl Window) -> bool {
        let at = self.place.consumer();
        window.refresh(at, size_of::<u64>() as u64);
        let word = window.load(at).map(LinkWord::from_wire);
        word.is_ok_and(|word| word.index != self.acks.looked_at && self.is_ours(word))
    }

    /// Indices in the rings of responses when requests were seen to be taken out.
    #[inline]
    pub(crate) fn asked_at(&self) -> Option<[u32; 2]> {
        self.acks.asked.map(|(_, at)| at)
    }

    /// All responses that there were when requests were seen to be taken out have been dealt with.
    pub(crate) fn allow_acks(&mut self) {
        let Some((done, _)) = self.acks.asked.take() else {
            return;
        };
        // Others may have written to the lines since, so that they seemed to say nothing, and were passed by.
        let left = done.wrapping_sub(self.acks.looked_at);
        if left <= self.consumed.wrapping_sub(self.acks.looked_at) {
            self.acks.done = done;
        }
    }

    /// The next request that is done because it was taken out, and not answered. Of several of the same queue pairs that follow one another it is the
    /// last: it says that those before it are done.
    pub(crate) fn next_ack(
        &mut self,
        window: &impl Window,
    ) -> Result<Option<Acknowledged>, Violation> {
        let mut last: Option<Acknowledged> = None;
        while self.has_acks() {
            let (lines, next) = self.read_own(window)?;
            if let (Some(last), Some(next)) = (&last, &next) {
                if !last.same_queue_pairs(next) {
                    break;
                }
            }
            let left = self.acks.done.wrapping_sub(self.acks.looked_at);
            self.acks.looked_at = self.acks.looked_at.wrapping_add(lines.min(left));
            last = next.or(last);
        }
        Ok(last)
    }

    /// Frees what the peer has taken out as far as its being taken says nothing.
    pub(super) fn skip_silent(&mut self, window: &impl Window) -> Result<(), Violation> {
        while self.acks.looked_at != self.consumed {
            let (lines, acknowledged) = self.read_own(window)?;
            if acknowledged.is_some() {
                break;
            }
            let left = self.consumed.wrapping_sub(self.acks.looked_at);
            self.acks.looked_at = self.acks.looked_at.wrapping_add(lines.min(left));
            self.acks.done = self.acks.looked_at;
        }
        Ok(())
    }

    /// The entry that is looked at next: how many lines it has, and what is done when it is taken out.
    fn read_own(&self, window: &impl Window) -> Result<(u32, Option<Acknowledged>), Violation> {
        let at = self
            .place
            .entry(self.acks.looked_at)
            .wrapping_add(LINE_STAMP);
        let mut line = [0; LINE_BODY];
        window.read(at, &mut line)?;
        let lines = Lines::count(&line)?;
        Ok((lines, acknowledged(self.place.class(), &line)))
    }
}
