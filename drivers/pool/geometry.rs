// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What lies where in a pool.

mod areas;
#[cfg(not(MODULE))]
mod choose;
mod inboxes;
mod rings;
#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests fail by panicking"
)]
mod tests;

pub(crate) use self::{inboxes::Inbox, rings::Rings};

use self::{areas::Areas, inboxes::Inboxes};
use crate::{area::Area, link::Ends, place::Place};
use core::ops::Range;
use nupa_proto::pool::{
    inbox::{InboxSuperblock, VERSION_INBOXES},
    message::read_piece,
    Class, Superblock, PAGE, SLOT_SIZE, VERSION,
};
#[cfg(not(MODULE))]
use zerocopy::transmute_mut;
use zerocopy::transmute_ref;

/// How a pool is divided. All of it follows from a few numbers; a superblock that says anything else is corrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    size: u64,
    max_nodes: u16,
    layout: Layout,
}

/// What lies behind the slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// Rings for every two nodes ([`VERSION`]), and device memory.
    Areas(Areas),
    /// What nodes say about each other, and a region for each ([`VERSION_INBOXES`]).
    Inboxes(Inboxes),
}

/// What a pool that is formatted is to have behind its slots.
#[cfg(not(MODULE))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Rings for every two nodes: version 2.
    #[default]
    Areas,
    /// Inboxes for as many peers as each node talks with at a time: version 3.
    Inboxes,
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
    /// What the numbers of a superblock say whose version is known; `None` if one is out of bounds, or the pool too small for them. Offsets are not looked at.
    pub(crate) fn of_numbers(block: &Superblock) -> Option<Self> {
        let (size, max_nodes) = (block.size.get(), block.max_nodes.get());
        let [entries, bulk] = [block.log_entries, block.log_bulk];
        let end = slots_end(max_nodes)?;
        let layout = match block.version.get() {
            VERSION => Layout::Areas(Areas::new(size, max_nodes, entries, bulk, end)?),
            VERSION_INBOXES => {
                let inboxes = Self::with_inboxes(block).inboxes.get();
                let logs = [entries, bulk];
                Layout::Inboxes(Inboxes::new(size, max_nodes, logs, inboxes, end)?)
            }
            _ => return None,
        };
        Some(Self {
            size,
            max_nodes,
            layout,
        })
    }

    /// A superblock as one of a pool with inboxes.
    pub(crate) fn with_inboxes(block: &Superblock) -> &InboxSuperblock {
        transmute_ref!(block)
    }

    /// What a superblock says, if it is sound.
    pub(crate) fn read(block: &Superblock) -> Option<Self> {
        let geometry = Self::of_numbers(block)?;
        let described = match &geometry.layout {
            Layout::Areas(areas) => areas.is_described(block),
            Layout::Inboxes(inboxes) => inboxes.is_described(Self::with_inboxes(block)),
        };
        (described && block.slots.get() == SLOTS).then_some(geometry)
    }

    /// Fills in a superblock.
    #[cfg(not(MODULE))]
    pub(crate) fn describe(&self, block: &mut Superblock) {
        block.version.set(self.version());
        block.size.set(self.size);
        block.max_nodes.set(self.max_nodes);
        block.slots.set(SLOTS);
        match &self.layout {
            Layout::Areas(areas) => areas.describe(block),
            Layout::Inboxes(inboxes) => inboxes.describe(transmute_mut!(block)),
        }
    }

    /// Version of pools that are divided so.
    pub fn version(&self) -> u32 {
        match &self.layout {
            Layout::Areas(_) => VERSION,
            Layout::Inboxes(_) => VERSION_INBOXES,
        }
    }

    /// Inboxes of each node; none in a pool that has rings for every two nodes.
    pub fn inboxes(&self) -> Option<u16> {
        Some(self.layout.inboxes()?.count())
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
        self.layout.sizes().max_frame()
    }

    /// Longest part of a message that is sent in several, and of what a READ asks for at a time.
    pub fn piece(&self) -> u32 {
        let place = self.layout.sizes().place(Class::Request, [0; 2]);
        read_piece(place.max_payload())
    }

    /// Where the device memory that a node offers to programs lies: its share behind the directory. Empty if there is none.
    pub fn device_memory(&self, node: u16) -> Range<u64> {
        if node >= self.max_nodes {
            return self.size..self.size;
        }
        match &self.layout {
            Layout::Areas(areas) => areas.device_memory(node, self.size),
            Layout::Inboxes(inboxes) => inboxes.device_memory(node, self.size),
        }
    }

    /// Where a node's directory lies, if it has one.
    pub fn directory(&self, node: u16) -> Option<Range<u64>> {
        let node = Some(node).filter(|node| *node < self.max_nodes)?;
        match &self.layout {
            Layout::Areas(areas) => areas.directory(node, self.size),
            Layout::Inboxes(inboxes) => Some(inboxes.directory(node, self.size)),
        }
    }

    /// What lies at an offset, for people.
    pub fn area(&self, offset: u64) -> Area {
        if offset < SLOTS {
            return Area::Superblock;
        }
        let distance = offset.wrapping_sub(SLOTS);
        let (node, _) = divide(distance, SLOT_SIZE as u64);
        match &self.layout {
            _ if slots_end(self.max_nodes).is_some_and(|end| offset < end) => Area::Slot { node },
            Layout::Areas(areas) => areas.area(offset),
            Layout::Inboxes(inboxes) => inboxes.area(offset),
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

    /// Place of the ring of a class from one node to another, which are not the same, in a pool that has rings for every two nodes. In others it lies
    /// outside of the pool.
    pub fn ring(&self, source: u16, target: u16, class: Class) -> Place {
        match &self.layout {
            Layout::Areas(areas) => areas.ring(source, target, class),
            Layout::Inboxes(inboxes) => inboxes.sizes().place(class, [self.size; 2]),
        }
    }

    /// The rings between two nodes as `own` sees them, in a pool that has rings for every two.
    pub(crate) fn ends(&self, own: u16, peer: u16) -> Option<Ends> {
        match &self.layout {
            Layout::Areas(areas) => Some(areas.ends(own, peer)),
            Layout::Inboxes(_) => None,
        }
    }

    /// The rings between two nodes that write to these inboxes of each other, as the node sees them that has `own`.
    pub(crate) fn inbox_ends(&self, own: Inbox, peer: Inbox) -> Option<Ends> {
        let sound = |inbox: Inbox| {
            inbox.node < self.max_nodes && self.inboxes().is_some_and(|count| inbox.number < count)
        };
        let inboxes = self.layout.inboxes()?;
        (sound(own) && sound(peer)).then(|| inboxes.ends(own, peer))
    }

    /// Offset of a node's inbox.
    pub(crate) fn inbox(&self, inbox: Inbox) -> Option<u64> {
        Some(self.layout.inboxes()?.inbox(inbox))
    }

    /// Offset of what a node says about another.
    pub(crate) fn pair(&self, own: u16, other: u16) -> Option<u64> {
        Some(self.layout.inboxes()?.pair(own, other))
    }

    /// All that a node says about others.
    pub(crate) fn row(&self, own: u16) -> Option<Range<u64>> {
        Some(self.layout.inboxes()?.row(own))
    }

    /// All that nodes say about each other.
    #[cfg(not(MODULE))]
    pub(crate) fn rows(&self) -> Option<Range<u64>> {
        Some(self.layout.inboxes()?.rows())
    }
}

impl Layout {
    fn inboxes(&self) -> Option<&Inboxes> {
        match self {
            Self::Areas(_) => None,
            Self::Inboxes(inboxes) => Some(inboxes),
        }
    }

    fn sizes(&self) -> &Rings {
        match self {
            Self::Areas(areas) => areas.sizes(),
            Self::Inboxes(inboxes) => inboxes.sizes(),
        }
    }
}
