// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Writes to any place: random bytes, and words that look right where they are.

use std::mem::offset_of;

use nupa_proto::pool::sharing::{
    Export, Hold, RingOwner, EXPORTS, EXPORT_TABLE, HOLDS, HOLD_TABLE,
};
use nupa_proto::pool::{
    Claim, ClaimState, Presence, Slot, BELL_IVSHMEM, BELL_KIND_SHIFT, GRANT_BUSY, GRANT_SLOTS,
    GRANT_TABLE, LINE, PAGE, SLOT_SIZE,
};

use super::{HostileMember, BATCH};

/// Most random bytes at a time.
const BYTES: usize = 200;

impl HostileMember<'_> {
    pub(super) fn wild(&mut self) {
        for _ in 0..BATCH {
            match self.draw.small(40) {
                // Slots seldom: without one nobody listens to the rest.
                0 => self.slot_word(),
                1..=3 => self.any_bytes(),
                4..=15 => self.link_word(),
                16..=25 => self.entry_anywhere(),
                26..=30 => self.payload(),
                31..=33 => self.grant_word(),
                34..=36 => self.export(),
                _ => self.hold(),
            }
        }
    }

    /// Random bytes anywhere. Most of a pool is payload and device memory, so half of them go to where all else is.
    fn any_bytes(&mut self) {
        let geometry = self.memory.geometry();
        let size = geometry.size();
        let mask = self.mask();
        let (start, len) = match self.draw.small(4) {
            0 => (0, geometry.slot(geometry.max_nodes())),
            1 => geometry.directory(mask).map_or((0, size), |all| {
                (all.start, all.end.saturating_sub(all.start))
            }),
            _ => (0, size),
        };
        let at = start.saturating_add(self.draw.long().checked_rem(len).unwrap_or(0));
        let count = self.draw.below(BYTES);
        let bytes = self.draw.bytes(count);
        self.write("random bytes", at, &bytes);
    }

    /// A word of a slot.
    fn slot_word(&mut self) {
        let node = self.draw.one_or(&self.masks, self.own);
        let field = match self.draw.small(8) {
            0 => self.draw.below(SLOT_SIZE),
            1 => offset_of!(Slot, claim),
            2 => offset_of!(Slot, token),
            3 => offset_of!(Slot, heartbeat),
            4 => offset_of!(Slot, presence),
            5 => offset_of!(Slot, identity),
            6 => offset_of!(Slot, capabilities),
            _ => offset_of!(Slot, bell),
        };
        let at = self
            .memory
            .geometry()
            .slot(node)
            .saturating_add(field as u64);
        let epoch = self.epoch(node).wrapping_add(self.draw.small(3));
        let other = self.draw.one_or(self.victims, node);
        let value = match self.draw.small(6) {
            0 => self.draw.long(),
            1 => self.memory.load(at).wrapping_add(1),
            2 => Claim {
                state: self.draw.one_or(ClaimState::ALL, ClaimState::Free),
                token: self.draw.word(),
                epoch,
            }
            .to_wire(),
            3 => Presence {
                flags: self.draw.small(4),
                epoch,
            }
            .to_wire(),
            4 => self.bell(),
            _ => self.memory.load(
                self.memory
                    .geometry()
                    .slot(other)
                    .saturating_add(field as u64),
            ),
        };
        self.store("slots", at, value);
    }

    /// A doorbell: of anybody, or of none.
    pub(super) fn bell(&mut self) -> u64 {
        match self.draw.small(3) {
            0 => 0,
            1 => self.draw.long(),
            _ => (BELL_IVSHMEM << BELL_KIND_SHIFT) | u64::from(self.draw.small(8)),
        }
    }

    /// Bytes in a ring, wherever others have theirs.
    fn payload(&mut self) {
        let (source, target) = self.way();
        let class = self.class();
        let place = self.ring(source, target, class);
        let at = match self.draw.once_in(3) {
            true => place.entry(self.draw.word()),
            false => place.bulk(self.draw.word()),
        };
        let count = self.draw.below(BYTES);
        let bytes = self.draw.bytes(count);
        self.write("payload", at, &bytes);
    }

    /// A grant, or the word of who writes with it.
    fn grant_word(&mut self) {
        let (mask, victim) = (self.mask(), self.victim());
        let Some(directory) = self.memory.geometry().directory(mask) else {
            return;
        };
        let number = u64::from(self.draw.small(u32::from(GRANT_SLOTS)));
        let (victim_number, slots) = (u64::from(victim), u64::from(GRANT_SLOTS));
        let at = match self.draw.once_in(3) {
            true => GRANT_BUSY.saturating_add(LINE.saturating_mul(victim_number)),
            false => {
                let word = victim_number.saturating_mul(slots).saturating_add(number);
                GRANT_TABLE.saturating_add(word.saturating_mul(size_of::<u64>() as u64))
            }
        };
        let value = self.serial(mask, victim);
        self.store("grants", directory.start.saturating_add(at), value);
    }

    /// Serial of a grant: of the node itself, or of the other, or none.
    pub(super) fn serial(&mut self, node: u16, other: u16) -> u64 {
        let epoch = self.draw.one_or(&[node, other], node);
        let epoch = u64::from(self.epoch(epoch));
        match self.draw.small(4) {
            0 => 0,
            1 => self.draw.long(),
            _ => (epoch << 32) | u64::from(self.draw.small(64)),
        }
    }

    /// An offset and a length in the pool: device memory of any node, or anything.
    pub(super) fn range(&mut self) -> (u64, u64) {
        let node = self.draw.small_short(self.memory.nodes());
        let memory = self.memory.geometry().device_memory(node);
        let within = self.draw.long().checked_rem(memory.end.max(1)).unwrap_or(0);
        let (start, len) = match self.draw.small(4) {
            0 => (self.draw.long(), self.draw.long()),
            1 => (memory.start, memory.end.saturating_sub(memory.start)),
            2 => (within, u64::MAX.saturating_sub(within)),
            _ => (within & !PAGE.saturating_sub(1), PAGE),
        };
        match self.draw.once_in(4) {
            true => (start, u64::from(self.draw.lie())),
            false => (start, len),
        }
    }

    fn export(&mut self) {
        let mask = self.mask();
        let (offset, len) = self.range();
        let epoch = u64::from(self.epoch(mask));
        let ring = match self.draw.once_in(2) {
            true => RingOwner::default(),
            false => RingOwner {
                qpn: self.draw.small(64).into(),
                peer_qpn: self.draw.small(64).into(),
                psn: self.draw.small(4).into(),
                peer: mask.into(),
                is_ring: 1.into(),
            },
        };
        let export = Export {
            secret: self.draw.long().into(),
            offset: offset.into(),
            len: len.into(),
            epoch: epoch.into(),
            ring,
            reserved: [0; 16],
        };
        let number = self.draw.small(u32::from(EXPORTS));
        self.line("exports", mask, EXPORT_TABLE, number, &export);
    }

    fn hold(&mut self) {
        let mask = self.mask();
        let (offset, len) = self.range();
        let hold = Hold {
            len: len.into(),
            offset: offset.into(),
            reserved: [0; 48],
        };
        let number = self.draw.small(u32::from(HOLDS));
        self.line("holds", mask, HOLD_TABLE, number, &hold);
    }

    /// Writes a line of a table of a directory.
    fn line(
        &mut self,
        class: &str,
        node: u16,
        table: u64,
        number: u32,
        line: &(impl zerocopy::IntoBytes + zerocopy::Immutable),
    ) {
        let Some(directory) = self.memory.geometry().directory(node) else {
            return;
        };
        let at = table.saturating_add(LINE.saturating_mul(number.into()));
        let mut bytes = line.as_bytes().to_vec();
        if self.draw.once_in(4) {
            self.draw.spoil(&mut bytes);
        }
        self.write(class, directory.start.saturating_add(at), &bytes);
    }
}
