// SPDX-License-Identifier: GPL-2.0 OR MIT

//! SENDs of a list that are in the ring before the receiver's state was read behind them: one full fence for all of them, as a network card is
//! notified once for a list.

use nupa_proto::process_ring::{STATE_ARMED, STATE_OPEN};

use super::{Message, Sender, Sent};
use crate::ffi::ProcessBytes;

/// Most SENDs that lie in the ring so: a receiver that waits for an event is woken behind the last one.
const MOST: u32 = 16;

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Put {
    /// It is in the ring, or was carried out.
    Yes,
    /// It is for the engine.
    No,
    /// The receiver has closed the ring. This request and those before it that were not confirmed are for the engine.
    Closed,
}

/// SENDs that perhaps nobody takes, because the ring may have been closed before they were there.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Unconfirmed {
    messages: u32,
    /// Their bytes.
    bytes: u32,
    /// How many of them are noted in [`Sent`].
    noted: u32,
    /// [`Sent::begin`] was called.
    begun: bool,
}

impl Unconfirmed {
    #[inline(always)]
    pub(super) fn messages(&self) -> u32 {
        self.messages
    }

    /// Whether one may be noted: its completion is asked for, and nobody waits for the event of that.
    #[inline(always)]
    fn begin(&mut self, sent: &Sent) -> bool {
        self.begun = self.begun || sent.begin();
        self.begun
    }
}

impl Sender {
    /// Puts a SEND into the ring, if there is a place for it. It is to be [confirmed](Sender::confirm).
    #[inline]
    pub(super) fn put_message(
        &mut self,
        message: &Message,
        len: u32,
        inline: &[u8],
        parts: &[ProcessBytes],
    ) -> bool {
        let (number, sent) = (self.number(), &self.sent);
        let Some(out) = &mut self.ring else {
            return false;
        };
        if !out.admits(sent, number, message, len, self.draw != 0) {
            return false;
        }
        out.settle(&mut self.at.written);
        // If a WRITE before it fails it is flushed, also if its completion is not asked for.
        let signaled = message.is_signaled();
        let noted = signaled || self.at.written.is_some();
        let unconfirmed = &mut self.unconfirmed;
        if noted && !sent.has_room(unconfirmed.noted) {
            return false;
        }
        if signaled && !unconfirmed.begin(sent) {
            return false;
        }
        out.write(number, message, len, inline, parts);
        if noted {
            let ahead = unconfirmed.noted;
            sent.put(ahead, message.wr_id, number, self.at.signaled, signaled);
            unconfirmed.noted = ahead.wrapping_add(1);
        }
        unconfirmed.messages = unconfirmed.messages.wrapping_add(1);
        unconfirmed.bytes = unconfirmed.bytes.wrapping_add(len);
        true
    }

    /// Confirms the SENDs that are in the ring, unless `more` follow. What became of the last one.
    #[inline(always)]
    pub(super) fn confirm_unless(&mut self, more: bool) -> Put {
        let messages = self.unconfirmed.messages;
        if more && messages < MOST || self.confirm() {
            return Put::Yes;
        }
        match messages {
            // There is none to go back to.
            1 => Put::No,
            _ => Put::Closed,
        }
    }

    /// Reads the receiver's state behind the SENDs that are not confirmed, if there are any. If it has closed the ring these are for the engine: then false.
    #[inline(always)]
    pub(crate) fn confirm(&mut self) -> bool {
        self.is_confirmed() || self.read_state()
    }

    /// Whether there are none.
    #[inline(always)]
    pub(crate) fn is_confirmed(&self) -> bool {
        self.unconfirmed.messages == 0
    }

    #[inline]
    fn read_state(&mut self) -> bool {
        let Unconfirmed {
            messages,
            bytes,
            noted,
            begun,
        } = std::mem::take(&mut self.unconfirmed);
        let sent = &self.sent;
        let state = match &mut self.ring {
            Some(out) => out.state_behind_entries(),
            None => 0,
        };
        let is_open = state & STATE_OPEN != 0;
        if is_open {
            if let Some(out) = &mut self.ring {
                out.count(messages, bytes);
                out.sent = out.line;
            }
            sent.publish(noted);
            self.at.messages = self.at.messages.wrapping_add(messages);
            self.bypassed = self.bypassed.wrapping_add(messages);
        } else {
            // The receiver takes nothing any more.
            self.bypass_state.stop();
        }
        if begun {
            sent.end();
        }
        if is_open && state & STATE_ARMED != 0 {
            self.source.kick_peer();
        }
        is_open
    }
}
