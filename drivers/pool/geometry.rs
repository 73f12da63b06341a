// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What lies where in a pool.

mod areas;
mod rings;
#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests fail by panicking"
)]
mod tests;

use self::areas::Areas;
use crate::{area::Area, link::Ends, place::Place};
use core::ops::Range;
use nupa_proto::pool::{message::max_frame, Class, Superblock, PAGE, SLOT_SIZE};

/// How a pool is divided. All of it follows from four numbers; a superblock that says anything else is corrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    size: u64,
    max_nodes: u16,
    areas: Areas,
}

/// Offset of the node slots.
const SLOTS: u64 = PAGE;

/// Where the slots of so many nodes end, at the end of a page.
fn slots_end(max_nodes: u16) -> Option<u64> {
    let slots = u64::from(max_nodes).checked_mul(SLOT_SIZE as u64)?;
    SLOTS.checked_add(slots)?.checked_next_multiple_of(PAGE)
}

/// Quotient and remainder, for people: of nothing by nothing, too.
fn divide(distance: u64, stride: u64) -> (u64, u64) {
    let number = distance.checked_div(stride).unwrap_or(0);
    (number, distance.wrapping_sub(number.wrapping_mul(stride)))
}

/// Where a node's share of what lies from `start` on is, of a pool of `size` bytes.
fn share(start: u64, stride: u64, node: u16, size: u64) -> Range<u64> {
    let before = stride.saturating_mul(u64::from(node));
    let start = start.saturating_add(before).min(size);
    start..start.saturating_add(stride).min(size)
}

impl Geometry {
    /// Divides a pool that is to be formatted, with payload areas as large as is of use. `None` if it is too small.
    pub fn choose(size: u64, max_nodes: u16) -> Option<Self> {
        let areas = Areas::choose(size, max_nodes, slots_end(max_nodes)?)?;
        Some(Self {
            size,
            max_nodes,
            areas,
        })
    }

    /// `None` if a number is out of bounds, or the pool too small for it.
    pub(crate) fn new(size: u64, max_nodes: u16, log_entries: u8, log_bulk: u8) -> Option<Self> {
        let end = slots_end(max_nodes)?;
        let areas = Areas::new(size, max_nodes, log_entries, log_bulk, end)?;
        Some(Self {
            size,
            max_nodes,
            areas,
        })
    }

    /// What a superblock says, if it is sound.
    pub(crate) fn read(block: &Superblock) -> Option<Self> {
        let size = block.size.get();
        let (nodes, entries, bulk) = (block.max_nodes.get(), block.log_entries, block.log_bulk);
        let geometry = Self::new(size, nodes, entries, bulk)?;
        let sound = block.slots.get() == SLOTS && geometry.areas.is_described(block);
        sound.then_some(geometry)
    }

    /// Fills in a superblock.
    #[cfg(not(MODULE))]
    pub(crate) fn describe(&self, block: &mut Superblock) {
        block.size.set(self.size);
        block.max_nodes.set(self.max_nodes);
        block.slots.set(SLOTS);
        self.areas.describe(block);
    }

    /// Bytes of the pool.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Node ids are below this.
    pub fn max_nodes(&self) -> u16 {
        self.max_nodes
    }

    /// Bytes of the longest frame.
    pub fn max_frame(&self) -> u32 {
        max_frame(self.areas.sizes().log_frames)
    }

    /// Where the device memory that a node offers to programs lies: its share behind the directory. Empty if there is none.
    pub fn device_memory(&self, node: u16) -> Range<u64> {
        match node < self.max_nodes {
            true => self.areas.device_memory(node, self.size),
            false => self.size..self.size,
        }
    }

    /// Where a node's directory lies, if it has one.
    pub fn directory(&self, node: u16) -> Option<Range<u64>> {
        let node = Some(node).filter(|node| *node < self.max_nodes)?;
        self.areas.directory(node, self.size)
    }

    /// What lies at an offset, for people.
    pub fn area(&self, offset: u64) -> Area {
        if offset < SLOTS {
            return Area::Superblock;
        }
        let distance = offset.wrapping_sub(SLOTS);
        let (node, _) = divide(distance, SLOT_SIZE as u64);
        match slots_end(self.max_nodes).is_some_and(|end| offset < end) {
            true => Area::Slot { node },
            false => self.areas.area(offset),
        }
    }

    /// All node slots.
    #[cfg(not(MODULE))]
    pub(crate) fn slots(&self) -> Range<u64> {
        SLOTS..slots_end(self.max_nodes).unwrap_or(SLOTS)
    }

    /// Offset of a node's slot.
    #[inline]
    pub fn slot(&self, node: u16) -> u64 {
        SLOTS.wrapping_add(u64::from(node).wrapping_mul(SLOT_SIZE as u64))
    }

    /// Place of the ring of a class from one node to another, which are not the same.
    pub fn ring(&self, source: u16, target: u16, class: Class) -> Place {
        self.areas.ring(source, target, class)
    }

    /// The rings between two nodes, as `own` sees them.
    pub(crate) fn ends(&self, own: u16, peer: u16) -> Ends {
        self.areas.ends(own, peer)
    }
}
