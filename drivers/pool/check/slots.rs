// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Node slots.

use super::{Checker, Must, Problem, WORD};
use crate::Window;
use core::mem::offset_of;
use nupa_proto::pool::{
    Claim, ClaimState, Presence, Slot, BELL_IVSHMEM, BELL_KIND_SHIFT, PRESENCE_POLLING,
    PRESENCE_UP, SLOT_SIZE,
};

impl<W: Window, R: FnMut(Problem)> Checker<'_, W, R> {
    /// Checks a slot; its claim, if a node has it.
    pub(super) fn slot(&mut self, node: u16) -> Option<Claim> {
        let slot = self.geometry.slot(node);
        let at = |offset: usize| slot.wrapping_add(offset as u64);
        self.window.refresh(slot, SLOT_SIZE as u64);
        self.zeroes(at(offset_of!(Slot, reserved0))..at(offset_of!(Slot, token)));
        let reserved = match self.geometry.inboxes() {
            None => offset_of!(Slot, changes),
            Some(_) => offset_of!(Slot, reserved1),
        };
        self.zeroes(at(reserved)..at(SLOT_SIZE));
        self.bell(at(offset_of!(Slot, bell)));
        let found = self.load(slot)?;
        let Ok(claim) = Claim::from_wire(found) else {
            let must = Must::Read("0 (free), 1 (claiming) or 2 (taken) in its highest 8 bits");
            self.field(slot, "claim", found, must);
            return None;
        };
        if claim.state != ClaimState::Free && claim.epoch == 0 {
            let must = Must::Read("of an epoch, in its lowest 32 bits, as it is taken");
            self.field(slot, "claim", found, must);
        }
        self.presence(at(offset_of!(Slot, presence)), claim);
        if claim.state != ClaimState::Taken {
            return None;
        }
        let token = at(offset_of!(Slot, token));
        let found = self.load(token)?;
        if found & 0xff_ffff != u64::from(claim.token) {
            let must = Must::Read("a number whose lowest 24 bits are those in the claim word");
            self.field(token, "token", found, must);
        }
        Some(claim)
    }

    fn presence(&mut self, offset: u64, claim: Claim) {
        let Some(found) = self.load(offset) else {
            return;
        };
        let presence = Presence::from_wire(found);
        let unknown = presence.flags & !(PRESENCE_UP | PRESENCE_POLLING) != 0;
        let must = match claim.state {
            _ if unknown => Must::Read("of no other flags than PRESENCE_UP and PRESENCE_POLLING"),
            ClaimState::Free if presence.flags != 0 => {
                Must::Read("without flags, as nobody has the slot")
            }
            ClaimState::Taken if presence.epoch != claim.epoch => {
                Must::Read("of the epoch that the claim word has")
            }
            _ => return,
        };
        self.field(offset, "presence", found, must);
    }

    fn bell(&mut self, offset: u64) {
        let found = self.load(offset).unwrap_or(0);
        let known = found >> BELL_KIND_SHIFT == BELL_IVSHMEM;
        if found != 0 && !known {
            let must = Must::Read("0, or of a kind that is known in its highest 16 bits");
            self.field(offset, "bell", found, must);
        }
    }
}

const _: () = assert!(offset_of!(Slot, reserved0) as u64 == WORD);
