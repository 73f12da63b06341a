// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What lies where in a pool.

use crate::{area::Area, place::Place};
use core::ops::Range;
use nupa_proto::pool::{
    message::{max_frame, ENTRY_SIZE},
    Class, Superblock, DIRECTORY_SIZE, LINK_RINGS, MAX_LOG_BULK, MAX_LOG_ENTRIES, MAX_NODES,
    MIN_LOG_BULK, MIN_LOG_ENTRIES, PAGE, SHORT_LOG_BULK, SLOT_SIZE,
};

/// log2 of the entries of a ring in pools that are formatted here.
const LOG_ENTRIES: u8 = 8;
/// Largest payload area that is of use: more does not stay in a processor's cache.
const LOG_BULK: u8 = 21;
/// Every so much-th part of a pool is device memory at least, where there is room.
const DEVICE_MEMORY_PART: u64 = 4;

/// How a pool is divided. All of it follows from four numbers; a superblock that says anything else is corrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    size: u64,
    max_nodes: u16,
    log_entries: u8,
    log_bulk: u8,
    ring_stride: u64,
    rings: u64,
    device_memory: u64,
    device_memory_stride: u64,
}

/// Offset of the node slots.
const SLOTS: u64 = PAGE;

impl Geometry {
    /// Divides a pool that is to be formatted, with payload areas as large as is of use. `None` if it is too small.
    pub fn choose(size: u64, max_nodes: u16) -> Option<Self> {
        let candidates = || (MIN_LOG_BULK..=LOG_BULK).rev();
        let divide = |log_bulk| Self::new(size, max_nodes, LOG_ENTRIES, log_bulk);
        let roomy = |geometry: &Self| {
            let left = size.saturating_sub(geometry.device_memory);
            left >= size / DEVICE_MEMORY_PART
        };
        let found = candidates().filter_map(divide).find(roomy);
        found.or_else(|| divide(MIN_LOG_BULK))
    }

    /// `None` if a number is out of bounds, or the pool too small for it.
    pub(crate) fn new(size: u64, max_nodes: u16, log_entries: u8, log_bulk: u8) -> Option<Self> {
        let sound = (2..=MAX_NODES).contains(&max_nodes)
            && (MIN_LOG_ENTRIES..=MAX_LOG_ENTRIES).contains(&log_entries)
            && (MIN_LOG_BULK..=MAX_LOG_BULK).contains(&log_bulk);
        if !sound {
            return None;
        }
        let nodes = u64::from(max_nodes);
        let rings = Class::ALL
            .iter()
            .map(|class| ring_len(*class, log_entries, log_bulk));
        let ring_stride = rings.fold(LINK_RINGS, u64::saturating_add);
        let slots = nodes.checked_mul(SLOT_SIZE as u64)?;
        let rings = SLOTS.checked_add(slots)?.checked_next_multiple_of(PAGE)?;
        let pairs = nodes.checked_mul(nodes.checked_sub(1)?)?;
        let device_memory = rings.checked_add(ring_stride.checked_mul(pairs)?)?;
        let left = size.checked_sub(device_memory)?;
        let share = left.checked_div(nodes)?;
        let device_memory_stride = share.checked_sub(share.checked_rem(PAGE)?)?;
        Some(Self {
            size,
            max_nodes,
            log_entries,
            log_bulk,
            ring_stride,
            rings,
            device_memory,
            device_memory_stride,
        })
    }

    /// What a superblock says, if it is sound.
    pub(crate) fn read(block: &Superblock) -> Option<Self> {
        let size = block.size.get();
        let geometry = Self::new(
            size,
            block.max_nodes.get(),
            block.log_entries,
            block.log_bulk,
        )?;
        let mut expected = *block;
        geometry.describe(&mut expected);
        let places = |b: &Superblock| {
            let offsets = [b.slots, b.rings, b.ring_stride, b.device_memory];
            (offsets, b.device_memory_stride)
        };
        (places(block) == places(&expected)).then_some(geometry)
    }

    /// Fills in a superblock.
    pub(crate) fn describe(&self, block: &mut Superblock) {
        block.size.set(self.size);
        block.max_nodes.set(self.max_nodes);
        (block.log_entries, block.log_bulk) = (self.log_entries, self.log_bulk);
        block.slots.set(SLOTS);
        block.rings.set(self.rings);
        block.ring_stride.set(self.ring_stride);
        block.device_memory.set(self.device_memory);
        block.device_memory_stride.set(self.device_memory_stride);
    }

    /// Bytes of the pool.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Node ids are below this.
    pub fn max_nodes(&self) -> u16 {
        self.max_nodes
    }

    /// Entries of a ring.
    pub fn entries(&self) -> u32 {
        1 << self.log_entries
    }

    /// Bytes of a ring's payload area.
    pub fn bulk(&self) -> u32 {
        1 << self.log_bulk
    }

    /// Bytes of the longest frame.
    pub fn max_frame(&self) -> u32 {
        max_frame(self.log_bulk)
    }

    /// Where the device memory that a node offers to programs lies: its share behind the directory. Empty if there is none.
    pub fn device_memory(&self, node: u16) -> Range<u64> {
        let share = self.share(node);
        match self.directory(node) {
            Some(directory) => directory.end..share.end,
            None => share.start..share.start,
        }
    }

    /// Where a node's directory lies, if its share of device memory is large enough for one.
    pub fn directory(&self, node: u16) -> Option<Range<u64>> {
        let share = self.share(node);
        let end = share.start.checked_add(DIRECTORY_SIZE)?;
        let room = share.end.checked_sub(end)?;
        (room >= DIRECTORY_SIZE).then_some(share.start..end)
    }

    /// Where a node's share of device memory lies. Empty for a node that cannot be.
    fn share(&self, node: u16) -> Range<u64> {
        if node >= self.max_nodes {
            return self.size..self.size;
        }
        let before = self.device_memory_stride.saturating_mul(u64::from(node));
        let start = self.device_memory.saturating_add(before).min(self.size);
        let end = start.saturating_add(self.device_memory_stride);
        start..end.min(self.size)
    }

    /// What lies at an offset, for people.
    pub fn area(&self, offset: u64) -> Area {
        // Quotient and remainder.
        let divide = |distance: u64, stride: u64| {
            let number = distance.checked_div(stride).unwrap_or(0);
            (number, distance.wrapping_sub(number.wrapping_mul(stride)))
        };
        let part = |start: u64, stride: u64| divide(offset.saturating_sub(start), stride);
        if offset < SLOTS {
            return Area::Superblock;
        }
        if offset < self.rings {
            let (node, _) = part(SLOTS, SLOT_SIZE as u64);
            return Area::Slot { node };
        }
        if offset >= self.device_memory {
            let (node, distance) = part(self.device_memory, self.device_memory_stride);
            return match distance < DIRECTORY_SIZE {
                true => Area::Directory { node },
                false => Area::DeviceMemory { node },
            };
        }
        let (pair, distance) = part(self.rings, self.ring_stride);
        let others = u64::from(self.max_nodes).saturating_sub(1).max(1);
        let (source, target) = divide(pair, others);
        let target = target.saturating_add(u64::from(target >= source));
        let mut end = LINK_RINGS;
        let holds = |class: &&Class| {
            end = end.saturating_add(ring_len(**class, self.log_entries, self.log_bulk));
            distance < end
        };
        let class = match distance < LINK_RINGS {
            true => None,
            false => Class::ALL.iter().find(holds).copied(),
        };
        Area::Link {
            source,
            target,
            class,
        }
    }

    /// All node slots.
    #[cfg(not(MODULE))]
    pub(crate) fn slots(&self) -> Range<u64> {
        SLOTS..self.rings
    }

    /// Offset of a node's slot.
    #[inline]
    pub fn slot(&self, node: u16) -> u64 {
        SLOTS.wrapping_add(u64::from(node).wrapping_mul(SLOT_SIZE as u64))
    }

    /// Place of the ring of a class from one node to another, which are not the same.
    pub fn ring(&self, source: u16, target: u16, class: Class) -> Place {
        let others = u64::from(self.max_nodes).wrapping_sub(1);
        let target = u64::from(target).wrapping_sub(u64::from(target > source));
        let pair = u64::from(source).wrapping_mul(others).wrapping_add(target);
        let link = self.rings.wrapping_add(pair.wrapping_mul(self.ring_stride));
        let before = Class::ALL.iter().take_while(|other| **other != class);
        let before = before.map(|other| ring_len(*other, self.log_entries, self.log_bulk));
        let entries = before.fold(link.wrapping_add(LINK_RINGS), u64::wrapping_add);
        let log_bulk = log_bulk_of(class, self.log_bulk);
        Place::new(class, link, entries, (self.log_entries, log_bulk))
    }
}

/// log2 of the bytes of the payload area of a ring.
#[inline]
const fn log_bulk_of(class: Class, log_bulk: u8) -> u8 {
    match class {
        Class::Frame => log_bulk,
        // Frames are up to three times as long as parts of messages, and TCP sends some at a time.
        Class::Request | Class::Response if log_bulk > MIN_LOG_BULK => log_bulk.wrapping_sub(1),
        Class::Request | Class::Response => MIN_LOG_BULK,
        Class::ShortRequest | Class::ShortResponse => SHORT_LOG_BULK,
    }
}

/// Bytes of a ring: entries and payload area, whole pages.
fn ring_len(class: Class, log_entries: u8, log_bulk: u8) -> u64 {
    let entries = ENTRY_SIZE << log_entries;
    let len = entries.wrapping_add(1 << log_bulk_of(class, log_bulk));
    len.next_multiple_of(PAGE)
}

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests fail by panicking"
)]
mod tests {
    extern crate std;

    use super::*;
    use std::vec::Vec;

    const MIB: u64 = 1 << 20;

    #[test]
    fn usual_pools_can_be_divided() {
        for (size, nodes, log_bulk) in [(256, 8, 20), (64, 4, 20), (128, 8, 19), (1024, 8, 21)] {
            let geometry = Geometry::choose(size * MIB, nodes).unwrap();
            assert_eq!((nodes, geometry.log_bulk), (nodes, log_bulk));
            assert!(!geometry.device_memory(nodes - 1).is_empty());
        }
        assert_eq!(Geometry::choose(MIB, 8), None);
        assert_eq!(Geometry::choose(u64::MAX, 65), None);
        assert_eq!(Geometry::choose(u64::MAX, 1), None);
        assert!(Geometry::choose(u64::MAX, 64).is_some());
    }

    #[test]
    fn parts_do_not_overlap_and_fill_the_pool() {
        let geometry = Geometry::choose(64 * MIB, 4).unwrap();
        assert!(geometry.slots().end >= geometry.slot(3) + SLOT_SIZE as u64);
        let mut end = geometry.slots().end;
        for (source, target) in (0..4).flat_map(|s| (0..4).map(move |t| (s, t))) {
            if source == target {
                continue;
            }
            let places = Class::ALL
                .iter()
                .map(|class| geometry.ring(source, target, *class));
            let places: Vec<Place> = places.collect();
            // The words lie in a page, each kind in a line of its own.
            for (number, place) in (0..).zip(&places) {
                let words = [
                    place.producer(),
                    place.producer_want(),
                    place.consumer(),
                    place.consumer_bulk(),
                ];
                let expected = [0, 0x40, 0x80, 0xc0].map(|line| end + line + 8 * number);
                assert_eq!(words, expected);
            }
            end += LINK_RINGS;
            for place in &places {
                assert_eq!(place.entry(0), end);
                assert_eq!(place.entry(u32::MAX) + ENTRY_SIZE, place.bulk(0));
                end = place.bulk(place.bulk_len() - 1) + 1;
            }
        }
        assert_eq!(end, geometry.device_memory);
        for node in 0..4 {
            let (share, memory) = (geometry.share(node), geometry.device_memory(node));
            assert_eq!(geometry.directory(node), Some(share.start..memory.start));
            assert_eq!(memory.start, share.start + DIRECTORY_SIZE);
            assert_eq!(memory.end, share.end);
            assert_eq!(share.end, geometry.share(node + 1).start.min(share.end));
        }
        assert!(geometry.device_memory(3).end <= 64 * MIB);
        assert!(geometry.device_memory(4).is_empty());
        assert_eq!(geometry.directory(4), None);
    }

    #[test]
    fn a_small_share_has_no_directory_and_offers_nothing() {
        let rings = Geometry::new(1 << 30, 2, 8, MIN_LOG_BULK)
            .unwrap()
            .device_memory;
        for (share, room) in [(0, false), (0x1f000, false), (0x20000, true)] {
            let geometry = Geometry::new(rings + 2 * share, 2, 8, MIN_LOG_BULK).unwrap();
            assert_eq!(geometry.directory(1).is_some(), room);
            assert_eq!(geometry.device_memory(1).is_empty(), !room);
        }
    }

    #[test]
    fn what_lies_where_is_told() {
        let geometry = Geometry::choose(64 * MIB, 4).unwrap();
        let told = |offset| std::format!("{}", geometry.area(offset));
        assert_eq!(told(0x80), "superblock");
        assert_eq!(told(geometry.slot(3) + 0x40), "slot of node 3");
        for (source, target) in (0..4).flat_map(|s| (0..4).map(move |t| (s, t))) {
            if source == target {
                continue;
            }
            let way = std::format!("from node {source} to node {target}");
            let names = [
                "requests",
                "responses",
                "frames",
                "short requests",
                "short responses",
            ];
            for (class, name) in Class::ALL.iter().zip(names) {
                let ring = geometry.ring(source, target, *class);
                let indices = std::format!("indices of the rings {way}");
                assert_eq!(told(ring.consumer_bulk()), indices);
                let entries = std::format!("ring of {name} {way}");
                assert_eq!(told(ring.entry(0)), entries);
                assert_eq!(told(ring.bulk(ring.bulk_len() - 1)), entries);
            }
        }
        let memory = geometry.device_memory(2);
        assert_eq!(told(memory.start - 1), "directory of node 2");
        assert_eq!(told(memory.start), "device memory of node 2");
    }

    #[test]
    fn a_superblock_that_contradicts_itself_is_refused() {
        let geometry = Geometry::choose(64 * MIB, 4).unwrap();
        let mut block: Superblock = zerocopy::FromZeros::new_zeroed();
        assert_eq!(Geometry::read(&block), None);
        geometry.describe(&mut block);
        assert_eq!(Geometry::read(&block), Some(geometry));
        block.rings.set(block.rings.get() + PAGE);
        assert_eq!(Geometry::read(&block), None);
    }
}
