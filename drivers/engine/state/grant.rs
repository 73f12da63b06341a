// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Grants to write directly to the memory of a node of another host: those that were given, and those that were received.

use crate::state::qp::Remote;
use nupa_pool::Grant;
use nupa_proto::pool::GRANT_SLOTS;

/// A grant that a peer has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GrantGiven {
    /// Queue pair that writes come to, and the one that they come from.
    pub(crate) qpn: u32,
    pub(crate) source: Remote,
    pub(crate) key: u32,
    /// The peer was told that it may read there, too.
    pub(crate) reads: bool,
    pub(crate) serial: u64,
    /// When it ended, in the clock's microseconds, if it holds no more; the peer may be writing with it.
    pub(crate) ended_us: Option<u64>,
}

/// The grants that a peer has, and had and may be writing with.
#[derive(Debug, Default)]
pub(crate) struct GrantsGiven {
    pub(crate) slots: [Option<GrantGiven>; GRANT_SLOTS as usize],
    /// The slot that is made free next.
    pub(crate) next: u16,
    /// Serial of the last one.
    last: u64,
}

/// A region that can be granted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GrantRange {
    /// DMA address.
    pub(crate) dma: u64,
    pub(crate) addr: u64,
    pub(crate) len: u64,
    /// Whether the peer may read there, too.
    pub(crate) reads: bool,
}

/// Whether a driver waits until nobody writes with what was taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writers {
    /// Yes, by [`Engine::writers_gone`](crate::Engine::writers_gone): its command completes only then.
    Await,
    /// No.
    Ignore,
}

impl GrantsGiven {
    /// Forgets all grants; serials go on.
    pub(crate) fn clear(&mut self) {
        self.slots.fill(None);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slots.iter().all(Option::is_none)
    }

    pub(crate) fn get(&self, slot: u16) -> Option<GrantGiven> {
        *self.slots.get(usize::from(slot))?
    }

    pub(crate) fn set(&mut self, slot: u16, given: Option<GrantGiven>) {
        if let Some(place) = self.slots.get_mut(usize::from(slot)) {
            *place = given;
        }
    }

    /// The slot of a grant.
    pub(crate) fn find(&self, matches: impl Fn(&Option<GrantGiven>) -> bool) -> Option<u16> {
        let at = self.slots.iter().position(matches)?;
        u16::try_from(at).ok()
    }

    /// A serial that was not there before; none if all of this epoch are used up.
    pub(crate) fn serial(&mut self, epoch: u32) -> Option<u64> {
        let first = (u64::from(epoch) << 32) | 1;
        let next = match (self.last >> 32) as u32 == epoch {
            true => self.last.checked_add(1)?,
            false => first,
        };
        if next < first || (next >> 32) as u32 != epoch {
            return None;
        }
        self.last = next;
        Some(next)
    }
}

/// Leave to write to a peer's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GrantHeld {
    pub(crate) grant: Grant,
    /// Where what is granted begins, in the DMA address space of this host's node.
    pub(crate) dma: u64,
    /// Queue pairs, here and there, that it is for.
    pub(crate) qpns: (u32, u32),
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::GrantsGiven;

    #[test]
    fn serials_do_not_come_again() {
        let mut grants_given = GrantsGiven::default();
        assert_eq!(grants_given.serial(3), Some(0x3_0000_0001));
        assert_eq!(grants_given.serial(3), Some(0x3_0000_0002));
        grants_given.clear();
        assert_eq!(grants_given.serial(3), Some(0x3_0000_0003));
        assert_eq!(grants_given.serial(4), Some(0x4_0000_0001));
        grants_given.last = 0x4_ffff_ffff;
        assert_eq!(grants_given.serial(4), None);
        assert_eq!(grants_given.serial(5), Some(0x5_0000_0001));
        grants_given.last = u64::MAX;
        assert_eq!(grants_given.serial(u32::MAX), None);
    }
}
