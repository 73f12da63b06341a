// SPDX-License-Identifier: GPL-2.0 OR MIT
//! How pools are divided that are formatted here.

use super::{areas::Areas, inboxes::Inboxes, slots_end, Format, Geometry, Layout};
use nupa_proto::pool::{inbox::INBOX_MIN_LOG_BULK, DIRECTORY_SIZE, MIN_LOG_BULK};

/// Largest payload area that is of use: more does not stay in a processor's cache.
const LOG_BULK: u8 = 21;
/// Every so much-th part of a pool is device memory at least, where there is room.
const DEVICE_MEMORY_PART: u64 = 4;
/// log2 of the entries of a ring, where there is one for every two nodes.
const LOG_ENTRIES: u8 = 8;
/// In an inbox, log2 of by how much the payload area of a ring of frames has more bytes than entries.
const LOG_ENTRIES_LESS: u8 = 13;
/// Inboxes that each node has at least, where there is room and it has as many peers.
const INBOXES: u16 = 16;

impl Geometry {
    /// Divides a pool that is to be formatted, with payload areas as large as is of use. `None` if it is too small.
    pub fn choose(size: u64, max_nodes: u16, format: Format) -> Option<Self> {
        let end = slots_end(max_nodes)?;
        let layout = match format {
            Format::Areas => Layout::Areas(areas(size, max_nodes, end)?),
            Format::Inboxes => Layout::Inboxes(inboxes(size, max_nodes, end)?),
        };
        Some(Self {
            size,
            max_nodes,
            layout,
        })
    }
}

/// `start`: where the slots end.
fn areas(size: u64, max_nodes: u16, start: u64) -> Option<Areas> {
    let candidates = || (MIN_LOG_BULK..=LOG_BULK).rev();
    let divide = |log_bulk| Areas::new(size, max_nodes, LOG_ENTRIES, log_bulk, start);
    let roomy = |areas: &Areas| {
        let left = size.saturating_sub(areas.device_memory);
        left >= size / DEVICE_MEMORY_PART
    };
    let found = candidates().filter_map(divide).find(roomy);
    found.or_else(|| divide(MIN_LOG_BULK))
}

/// With inboxes for a number of peers, and then with as many more as leave a part to device memory.
fn inboxes(size: u64, max_nodes: u16, start: u64) -> Option<Inboxes> {
    let others = max_nodes.checked_sub(1)?;
    let wanted = others.min(INBOXES);
    let divide = |log_bulk: u8, inboxes| {
        let log_entries = log_bulk.saturating_sub(LOG_ENTRIES_LESS);
        Inboxes::new(size, max_nodes, [log_entries, log_bulk], inboxes, start)
    };
    let candidates = (INBOX_MIN_LOG_BULK..=LOG_BULK).rev();
    let roomy = |log_bulk: u8| {
        let least = divide(log_bulk, 1)?;
        let memory = least.region_stride / DEVICE_MEMORY_PART;
        let fit = fit(&least, least.region_stride.saturating_sub(memory));
        Some((log_bulk, fit.min(others))).filter(|_| fit >= wanted)
    };
    if let Some((log_bulk, inboxes)) = candidates.filter_map(roomy).next() {
        return divide(log_bulk, inboxes);
    }
    let least = divide(INBOX_MIN_LOG_BULK, 1)?;
    divide(
        INBOX_MIN_LOG_BULK,
        fit(&least, least.region_stride).min(wanted),
    )
}

/// Inboxes that fit behind the directory into so many bytes of a region.
fn fit(inboxes: &Inboxes, bytes: u64) -> u16 {
    let room = bytes.saturating_sub(DIRECTORY_SIZE);
    let count = room.checked_div(inboxes.inbox_len).unwrap_or(0);
    u16::try_from(count).unwrap_or(u16::MAX)
}
