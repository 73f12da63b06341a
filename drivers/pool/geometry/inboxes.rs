// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Pools whose nodes have inboxes.

use super::{divide, rings::Rings, share};
use crate::{area::Area, link::Ends};
use core::ops::Range;
use nupa_proto::pool::{
    inbox::{
        inbox_log_long, inbox_log_short, InboxSuperblock, INBOX_MIN_LOG_BULK, INBOX_TAIL, PAIR_SIZE,
    },
    DIRECTORY_SIZE, LINE, MAX_LOG_BULK, MAX_LOG_ENTRIES, MAX_NODES, MIN_LOG_ENTRIES, PAGE,
};

/// An inbox of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Inbox {
    /// The node that has it.
    pub(crate) node: u16,
    /// Which of the node's it is.
    pub(crate) number: u16,
}

/// How such a pool is divided behind its slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Inboxes {
    sizes: Rings,
    inboxes: u16,
    pub(super) inbox_len: u64,
    pairs: u64,
    pair_stride: u64,
    regions: u64,
    pub(super) region_stride: u64,
}

impl Inboxes {
    /// `None` if a number is out of bounds, or the pool too small for it. `logs`: log2 of entries, and of payload areas of frames.
    pub(super) fn new(
        size: u64,
        max_nodes: u16,
        logs: [u8; 2],
        inboxes: u16,
        pairs: u64,
    ) -> Option<Self> {
        let [log_entries, log_bulk] = logs;
        let sound = (2..=MAX_NODES).contains(&max_nodes)
            && (MIN_LOG_ENTRIES..=MAX_LOG_ENTRIES).contains(&log_entries)
            && (INBOX_MIN_LOG_BULK..=MAX_LOG_BULK).contains(&log_bulk)
            && (1..max_nodes).contains(&inboxes);
        if !sound {
            return None;
        }
        let sizes = Rings {
            log_entries,
            log_frames: log_bulk,
            log_long: inbox_log_long(log_bulk),
            log_short: inbox_log_short(log_bulk),
            tail: INBOX_TAIL,
        };
        let nodes = u64::from(max_nodes);
        let pair_stride = PAIR_SIZE
            .checked_mul(nodes)?
            .checked_next_multiple_of(LINE)?;
        let regions = pairs
            .checked_add(pair_stride.checked_mul(nodes)?)?
            .checked_next_multiple_of(PAGE)?;
        let region = size.checked_sub(regions)?.checked_div(nodes)?;
        let region_stride = region.checked_sub(region.checked_rem(PAGE)?)?;
        let inbox_len = sizes.stride();
        let used = inbox_len
            .checked_mul(inboxes.into())?
            .checked_add(DIRECTORY_SIZE)?;
        (used <= region_stride).then_some(Self {
            sizes,
            inboxes,
            inbox_len,
            pairs,
            pair_stride,
            regions,
            region_stride,
        })
    }

    /// Whether a superblock says what `describe` writes.
    pub(super) fn is_described(&self, block: &InboxSuperblock) -> bool {
        let mut expected = *block;
        self.describe(&mut expected);
        let places = |b: &InboxSuperblock| [b.pairs, b.pair_stride, b.regions, b.region_stride];
        places(block) == places(&expected)
    }

    /// Fills in a superblock.
    pub(super) fn describe(&self, block: &mut InboxSuperblock) {
        block.log_entries = self.sizes.log_entries;
        block.log_bulk = self.sizes.log_frames;
        block.inboxes.set(self.inboxes);
        block.pairs.set(self.pairs);
        block.pair_stride.set(self.pair_stride);
        block.regions.set(self.regions);
        block.region_stride.set(self.region_stride);
    }

    pub(super) fn sizes(&self) -> &Rings {
        &self.sizes
    }

    /// Inboxes of each node.
    pub(super) fn count(&self) -> u16 {
        self.inboxes
    }

    /// Offset of what a node says about another.
    #[inline]
    pub(super) fn pair(&self, own: u16, other: u16) -> u64 {
        let row = self.pair_stride.wrapping_mul(own.into());
        let before = PAIR_SIZE.wrapping_mul(other.into());
        self.pairs.wrapping_add(row).wrapping_add(before)
    }

    /// All that a node says about others.
    pub(super) fn row(&self, own: u16) -> Range<u64> {
        let start = self.pair(own, 0);
        start..start.wrapping_add(self.pair_stride)
    }

    /// All that all nodes say about others.
    #[cfg(not(MODULE))]
    pub(super) fn rows(&self) -> Range<u64> {
        self.pairs..self.regions
    }

    fn region(&self, node: u16, size: u64) -> Range<u64> {
        share(self.regions, self.region_stride, node, size)
    }

    /// Where a node's directory lies.
    pub(super) fn directory(&self, node: u16, size: u64) -> Range<u64> {
        let start = self.region(node, size).start;
        start..start.saturating_add(DIRECTORY_SIZE)
    }

    /// Where the device memory that a node offers to programs lies.
    pub(super) fn device_memory(&self, node: u16, size: u64) -> Range<u64> {
        let inboxes = self.inbox_len.saturating_mul(self.inboxes.into());
        let start = self.directory(node, size).end.saturating_add(inboxes);
        start..self.region(node, size).end
    }

    /// Offset of an inbox.
    pub(super) fn inbox(&self, inbox: Inbox) -> u64 {
        let region = self.region_stride.wrapping_mul(inbox.node.into());
        let before = self.inbox_len.wrapping_mul(inbox.number.into());
        self.regions
            .wrapping_add(region)
            .wrapping_add(DIRECTORY_SIZE)
            .wrapping_add(before)
    }

    /// The rings between two nodes that write to these inboxes of each other, as the node sees them that has `own`. Each reads nothing but its own.
    pub(super) fn ends(&self, own: Inbox, peer: Inbox) -> Ends {
        let (here, there) = (self.inbox(own), self.inbox(peer));
        Ends::new(self.sizes, [there, here], [here, there])
    }

    /// What lies at an offset behind the slots, for people.
    pub(super) fn area(&self, offset: u64) -> Area {
        if offset < self.regions {
            let distance = offset.saturating_sub(self.pairs);
            let (node, distance) = divide(distance, self.pair_stride);
            let (other, _) = divide(distance, PAIR_SIZE);
            return Area::Pair { node, other };
        }
        let distance = offset.wrapping_sub(self.regions);
        let (node, distance) = divide(distance, self.region_stride);
        let Some(distance) = distance.checked_sub(DIRECTORY_SIZE) else {
            return Area::Directory { node };
        };
        let (inbox, distance) = divide(distance, self.inbox_len);
        match inbox < u64::from(self.inboxes) {
            true => Area::Inbox {
                node,
                inbox,
                class: self.sizes.class_at(distance),
            },
            false => Area::DeviceMemory { node },
        }
    }
}
