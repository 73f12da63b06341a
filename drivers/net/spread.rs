// SPDX-License-Identifier: GPL-2.0
//! The spread of received frames over channels (receive side scaling).
//!
//! The hash of a frame's flow comes with it: its sender's stack computes it, so this node has neither a hash function nor a key. The
//! controller takes the hash modulo the length of a table of queue pairs.

use crate::{channel::Channel, nic::Nic};
use kernel::prelude::*;
use nk::net::Device;
use nupa_fabric::PortInfo;

/// Most entries of the table.
const MAX_ENTRIES: usize = 128;

/// Entries of the table that the port allows: a power of two, so that it is the low digits of the hash that count.
pub(crate) fn entries(info: &PortInfo) -> usize {
    let most = usize::from(info.limits.rss_entries.get()).min(MAX_ENTRIES);
    1usize
        .checked_shl(most.checked_ilog2().unwrap_or(0))
        .unwrap_or(1)
}

/// Which channel takes frames of which hash.
pub(crate) struct Spread {
    /// What the user has set. It counts while the network core says that there is such a thing.
    own: KVec<u32>,
}

impl Spread {
    /// A table of so many entries that gives all channels the same.
    pub(crate) fn new(entries: usize) -> Result<Self> {
        let mut own = KVec::with_capacity(entries, GFP_KERNEL)?;
        own.resize(entries, 0, GFP_KERNEL)?;
        Ok(Self { own })
    }

    /// The channel of each entry, one of `channels`.
    pub(crate) fn table<'a>(
        &'a self,
        dev: &Device<Nic>,
        channels: u32,
    ) -> impl Iterator<Item = u32> + 'a {
        let is_own = dev.has_own_indirection();
        (0u32..).zip(&self.own).map(move |(index, own)| {
            let entry = if is_own { *own } else { index };
            entry.checked_rem(channels).unwrap_or(0)
        })
    }

    /// Keeps what the user has set.
    pub(crate) fn keep(&mut self, table: &[u32]) {
        for (own, new) in self.own.iter_mut().zip(table) {
            *own = *new;
        }
    }
}

/// The queue pair of each entry of a table. `EINVAL` if there is no such channel.
pub(crate) fn queue_pairs(
    channels: &[Channel],
    table: impl Iterator<Item = u32>,
) -> Result<KVec<u32>> {
    let mut numbers = KVec::with_capacity(MAX_ENTRIES, GFP_KERNEL)?;
    for entry in table {
        let channel = channels.get(entry as usize).ok_or(EINVAL)?;
        numbers.push(channel.number(), GFP_KERNEL)?;
    }
    Ok(numbers)
}
