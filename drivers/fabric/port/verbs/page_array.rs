// SPDX-License-Identifier: GPL-2.0
//! Lists of pages that a command names.

use crate::memory::QueueMemory;
use kernel::prelude::*;
use nk::bound::BoundDevice;
use nupa_engine::rings::QueueMemory as _;
use nupa_proto::{
    admin::{PageList, LIST_PAGE_ENTRIES},
    doorbell::PAGE_SIZE,
};

/// Bytes of an entry.
const ENTRY: usize = size_of::<u64>();

/// Addresses of the pages of a queue or region in memory that the controller reads while it executes the command, and
/// not later. A range in one piece takes no memory.
pub struct PageArray {
    list: PageList,
    /// Pages of the list, [`LIST_PAGE_ENTRIES`] addresses each, and the page that lists them if they are several.
    _memory: KVec<QueueMemory>,
}

impl PageArray {
    pub(super) fn new(
        device: &BoundDevice,
        shift: u8,
        start: u64,
        count: usize,
        addresses: &mut dyn Iterator<Item = u64>,
    ) -> Result<Self> {
        if count == 1 {
            let mask = 1u64
                .checked_shl(shift.into())
                .ok_or(EINVAL)?
                .wrapping_sub(1);
            let page = addresses.next().ok_or(EINVAL)?;
            let list = PageList {
                addr: (page | start & mask).into(),
                ..PageList::default()
            };
            return Ok(Self {
                list,
                _memory: KVec::new(),
            });
        }
        let pages = count.div_ceil(LIST_PAGE_ENTRIES);
        let mut memory = KVec::with_capacity(pages.saturating_add(1), GFP_KERNEL_ACCOUNT)?;
        for page in 0..pages {
            let entries = count
                .saturating_sub(page.saturating_mul(LIST_PAGE_ENTRIES))
                .min(LIST_PAGE_ENTRIES);
            memory.push(
                write(device, PAGE_SIZE, entries, &mut *addresses)?,
                GFP_KERNEL_ACCOUNT,
            )?;
        }
        let (addr, levels) = match &*memory {
            [] => return Err(EINVAL),
            [page] => (page.address(), 0),
            _ => {
                let mut parts = memory.iter().map(QueueMemory::address);
                let bytes = pages.checked_mul(ENTRY).ok_or(EINVAL)?;
                let directory = write(device, bytes, pages, &mut parts)?;
                let addr = directory.address();
                memory.push(directory, GFP_KERNEL_ACCOUNT)?;
                (addr, 1)
            }
        };
        let list = PageList {
            addr: addr.into(),
            pages: u32::try_from(count)?.into(),
            page_shift: shift,
            levels,
            ..PageList::default()
        };
        Ok(Self {
            list,
            _memory: memory,
        })
    }

    /// The list, for the command.
    pub fn list(&self) -> PageList {
        self.list
    }
}

/// Memory that holds `count` addresses.
fn write(
    device: &BoundDevice,
    bytes: usize,
    count: usize,
    addresses: &mut dyn Iterator<Item = u64>,
) -> Result<QueueMemory> {
    let memory = QueueMemory::new(device, bytes)?;
    for offset in (0..).step_by(ENTRY).take(count) {
        let address = addresses.next().ok_or(EINVAL)?;
        memory.write(offset, &address.to_le_bytes());
    }
    Ok(memory)
}
