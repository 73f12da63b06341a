// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a node knows of another.

use crate::{pair::Pair, Poisoned, Window};
use nupa_proto::pool::{Claim, ClaimState, Presence, Slot, CAP_POOL_LINES, LINE, PRESENCE_UP};

/// Where another node stands, as seen from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Not there.
    Absent,
    /// There, with `epoch` as the one that counts.
    Up,
    /// Whatever comes of its `epoch` is refused: it has left or died with it, or broken the rules.
    Refused,
}

/// What a node knows of another. Where that is kept is for the host to say, see [`Pool::join_with`](crate::Pool::join_with).
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// While a slot is looked for, what its claim word was.
    pub(crate) claim: u64,
    pub(crate) heartbeat: u64,
    /// When the heartbeat was seen to move.
    moved_us: u64,
    pub(crate) epoch: u32,
    pub(crate) standing: Standing,
    /// Its link was handed out.
    pub(crate) opened: bool,
    /// Its slot was looked at before.
    known: bool,
    /// What of it could not be read, so that it went down.
    pub(crate) poisoned: Option<Poisoned>,
    /// What its slot said of changes when that was looked at last.
    pub(crate) said_changes: u64,
    /// In a pool with inboxes, what both say about each other.
    pub(crate) pair: Pair,
}

/// What a look at a peer shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Nothing new.
    None,
    /// It came.
    Up,
    /// It left, or was reset: it says so itself.
    Down,
    /// It died: it does nothing any more.
    Dead,
}

/// What a peer's slot says.
struct Shown {
    claim: u64,
    presence: u64,
    heartbeat: u64,
    changes: u64,
}

impl Shown {
    fn read(window: &impl Window, slot: u64) -> Result<Self, Poisoned> {
        window.refresh(slot, LINE.wrapping_mul(2));
        let field = |offset: usize| window.load(slot.wrapping_add(offset as u64));
        Ok(Self {
            claim: field(core::mem::offset_of!(Slot, claim))?,
            presence: field(core::mem::offset_of!(Slot, presence))?,
            heartbeat: field(core::mem::offset_of!(Slot, heartbeat))?,
            changes: field(core::mem::offset_of!(Slot, changes))?,
        })
    }
}

/// Whether the slot at `slot`, which was refreshed, says that its node knows entries of lines.
pub(crate) fn knows_lines(window: &impl Window, slot: u64) -> Result<bool, Poisoned> {
    let at = slot.wrapping_add(core::mem::offset_of!(Slot, capabilities) as u64);
    Ok(window.load(at)? & CAP_POOL_LINES != 0)
}

impl Peer {
    /// Of a node that was not looked at yet.
    pub const UNKNOWN: Self = Self {
        claim: 0,
        heartbeat: 0,
        moved_us: 0,
        epoch: 0,
        standing: Standing::Absent,
        opened: false,
        known: false,
        poisoned: None,
        said_changes: 0,
        pair: Pair::UNKNOWN,
    };

    /// Looks at the peer's slot. One that cannot be read is as good as none.
    pub(crate) fn look(
        &mut self,
        window: &impl Window,
        slot: u64,
        now_us: u64,
        dead_after_us: u64,
    ) -> Change {
        match Shown::read(window, slot) {
            Ok(shown) => {
                self.said_changes = shown.changes;
                self.compare(&shown, now_us, dead_after_us)
            }
            Err(poisoned) => self.lose(poisoned),
        }
    }

    /// Something that is the peer's cannot be read: if it was up, it is down now.
    pub(crate) fn lose(&mut self, poisoned: Poisoned) -> Change {
        if self.standing != Standing::Up {
            return Change::None;
        }
        (self.standing, self.poisoned) = (Standing::Refused, Some(poisoned));
        Change::Down
    }

    fn compare(&mut self, shown: &Shown, now_us: u64, dead_after_us: u64) -> Change {
        let claim = Claim::from_wire(shown.claim);
        let presence = Presence::from_wire(shown.presence);
        let heartbeat = shown.heartbeat;
        let moved = self.known && heartbeat != self.heartbeat;
        if moved || !self.known {
            (self.heartbeat, self.moved_us, self.known) = (heartbeat, now_us, true);
        }
        let taken = claim.ok().filter(|claim| claim.state == ClaimState::Taken);
        let there = taken
            .map(|claim| claim.epoch)
            .filter(|epoch| presence.epoch == *epoch && presence.flags & PRESENCE_UP != 0);
        match self.standing {
            Standing::Up => {
                let silent = now_us.saturating_sub(self.moved_us) >= dead_after_us;
                let change = match there == Some(self.epoch) {
                    true if silent => Change::Dead,
                    true => return Change::None,
                    false => Change::Down,
                };
                (self.standing, self.poisoned) = (Standing::Refused, None);
                change
            }
            Standing::Refused if there == Some(self.epoch) => Change::None,
            _ => match there.filter(|_| moved) {
                Some(epoch) => {
                    (self.epoch, self.standing, self.opened) = (epoch, Standing::Up, false);
                    Change::Up
                }
                None => Change::None,
            },
        }
    }

    /// Forgives silence of a time in which nobody looked.
    pub(crate) fn forgive(&mut self, us: u64) {
        self.moved_us = self.moved_us.saturating_add(us);
    }

    /// Lets the peer come up anew, unless its epoch is refused.
    pub(crate) fn forget(&mut self) {
        if self.standing == Standing::Up {
            self.standing = Standing::Absent;
        }
    }
}
