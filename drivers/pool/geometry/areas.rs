// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Pools with an area of rings for each two nodes.

use super::{divide, rings::Rings, share};
use crate::{area::Area, link::Ends, place::Place};
use core::ops::Range;
use nupa_proto::pool::{
    Class, Superblock, AREA_NODES, DIRECTORY_SIZE, MAX_LOG_BULK, MAX_LOG_ENTRIES, MIN_LOG_BULK,
    MIN_LOG_ENTRIES, PAGE, SHORT_LOG_BULK,
};

/// How such a pool is divided behind its slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Areas {
    others: u64,
    sizes: Rings,
    ring_stride: u64,
    rings: u64,
    pub(super) device_memory: u64,
    device_memory_stride: u64,
}

impl Areas {
    /// `None` if a number is out of bounds, or the pool too small for it.
    pub(super) fn new(
        size: u64,
        max_nodes: u16,
        log_entries: u8,
        log_bulk: u8,
        rings: u64,
    ) -> Option<Self> {
        let sound = (2..=AREA_NODES).contains(&max_nodes)
            && (MIN_LOG_ENTRIES..=MAX_LOG_ENTRIES).contains(&log_entries)
            && (MIN_LOG_BULK..=MAX_LOG_BULK).contains(&log_bulk);
        if !sound {
            return None;
        }
        let sizes = Rings {
            log_entries,
            log_frames: log_bulk,
            // Frames are up to three times as long as parts of messages, and TCP sends some at a time.
            log_long: log_bulk.wrapping_sub(1).max(MIN_LOG_BULK),
            log_short: SHORT_LOG_BULK,
            tail: 0,
        };
        let nodes = u64::from(max_nodes);
        let others = nodes.checked_sub(1)?;
        let ring_stride = sizes.stride();
        let pairs = nodes.checked_mul(others)?;
        let device_memory = rings.checked_add(ring_stride.checked_mul(pairs)?)?;
        let left = size.checked_sub(device_memory)?;
        let share = left.checked_div(nodes)?;
        let device_memory_stride = share.checked_sub(share.checked_rem(PAGE)?)?;
        Some(Self {
            others,
            sizes,
            ring_stride,
            rings,
            device_memory,
            device_memory_stride,
        })
    }

    /// What a superblock says that `describe` writes.
    pub(super) fn is_described(&self, block: &Superblock) -> bool {
        let mut expected = *block;
        self.describe(&mut expected);
        let places = |b: &Superblock| {
            let offsets = [b.rings, b.ring_stride, b.device_memory];
            (offsets, b.device_memory_stride)
        };
        places(block) == places(&expected)
    }

    /// Fills in a superblock.
    pub(super) fn describe(&self, block: &mut Superblock) {
        block.log_entries = self.sizes.log_entries;
        block.log_bulk = self.sizes.log_frames;
        block.rings.set(self.rings);
        block.ring_stride.set(self.ring_stride);
        block.device_memory.set(self.device_memory);
        block.device_memory_stride.set(self.device_memory_stride);
    }

    pub(super) fn sizes(&self) -> &Rings {
        &self.sizes
    }

    /// Where the share of device memory of a node that can be lies.
    pub(super) fn share(&self, node: u16, size: u64) -> Range<u64> {
        share(self.device_memory, self.device_memory_stride, node, size)
    }

    /// Where a node's directory lies, if its share of device memory is large enough for one.
    pub(super) fn directory(&self, node: u16, size: u64) -> Option<Range<u64>> {
        let share = self.share(node, size);
        let end = share.start.checked_add(DIRECTORY_SIZE)?;
        let room = share.end.checked_sub(end)?;
        (room >= DIRECTORY_SIZE).then_some(share.start..end)
    }

    /// Where the device memory that a node offers to programs lies.
    pub(super) fn device_memory(&self, node: u16, size: u64) -> Range<u64> {
        let share = self.share(node, size);
        match self.directory(node, size) {
            Some(directory) => directory.end..share.end,
            None => share.start..share.start,
        }
    }

    /// What lies at an offset behind the slots, for people.
    pub(super) fn area(&self, offset: u64) -> Area {
        if offset >= self.device_memory {
            let distance = offset.wrapping_sub(self.device_memory);
            let (node, distance) = divide(distance, self.device_memory_stride);
            return match distance < DIRECTORY_SIZE {
                true => Area::Directory { node },
                false => Area::DeviceMemory { node },
            };
        }
        let (pair, distance) = divide(offset.saturating_sub(self.rings), self.ring_stride);
        let (source, target) = divide(pair, self.others.max(1));
        Area::Link {
            source,
            target: target.saturating_add(u64::from(target >= source)),
            class: self.sizes.class_at(distance),
        }
    }

    /// Place of the ring of a class from one node to another.
    pub(super) fn ring(&self, source: u16, target: u16, class: Class) -> Place {
        let link = self.link(source, target);
        self.sizes.place(class, [link, link])
    }

    /// Offset of all rings from one node to another.
    fn link(&self, source: u16, target: u16) -> u64 {
        let before = u64::from(target).wrapping_sub(u64::from(target > source));
        let pair = u64::from(source)
            .wrapping_mul(self.others)
            .wrapping_add(before);
        self.rings.wrapping_add(pair.wrapping_mul(self.ring_stride))
    }

    /// The rings between two nodes, as `own` sees them.
    pub(super) fn ends(&self, own: u16, peer: u16) -> Ends {
        let (to, from) = (self.link(own, peer), self.link(peer, own));
        Ends::new(self.sizes, [to, to], [from, from])
    }
}
