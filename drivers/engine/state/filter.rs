// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Which frames a node takes, and which queue pair gets them.

use crate::hal::{Memory, NoMemory, Storage, Table};
use nupa_proto::{
    admin::{SetRss, SetRxFilter, RX_ALL_MULTICAST, RX_BROADCAST, RX_PROMISC},
    status::AdminStatus,
};

/// Addresses of a receive filter at most.
pub(crate) const MAX_ADDRESSES: usize = 128;
/// Entries of a spreading table at most.
pub(crate) const RSS_ENTRIES: usize = 128;

/// Receive filter of a node's raw port. A new one takes nothing.
pub(crate) struct RxFilter<S: Storage> {
    addresses: S::Table<[u8; 6]>,
    count: usize,
    flags: u32,
}

impl<S: Storage> Default for RxFilter<S> {
    fn default() -> Self {
        Self {
            addresses: S::Table::default(),
            count: 0,
            flags: 0,
        }
    }
}

/// Takes values over into a table, which becomes as long as they are many. In case of an error it keeps its own.
fn store<T: Copy, const N: usize>(
    table: &mut impl Table<T>,
    values: &[T; N],
) -> Result<(), AdminStatus> {
    if table.slots().len() < N {
        let grown = table.grow(N);
        grown.map_err(|NoMemory| AdminStatus::NoResources)?;
    }
    for (slot, value) in table.slots_mut().iter_mut().zip(values) {
        *slot = Some(*value);
    }
    Ok(())
}

impl<S: Storage> RxFilter<S> {
    /// Takes a new filter over; in case of an error the old one stays.
    pub(crate) fn set(
        &mut self,
        memory: &impl Memory,
        command: &SetRxFilter,
    ) -> Result<(), AdminStatus> {
        let (count, flags) = (command.count.get() as usize, command.flags.get());
        if flags & !(RX_PROMISC | RX_ALL_MULTICAST | RX_BROADCAST) != 0 {
            return Err(AdminStatus::InvalidField);
        }
        let mut addresses = [[0; 6]; MAX_ADDRESSES];
        let used = addresses.get_mut(..count).ok_or(AdminStatus::NoResources)?;
        if count != 0 {
            let bytes = used.as_flattened_mut();
            memory
                .read(command.addresses.get(), bytes)
                .map_err(|_| AdminStatus::BadAddress)?;
            store(&mut self.addresses, &addresses)?;
        }
        (self.count, self.flags) = (count, flags);
        Ok(())
    }

    /// Whether a frame for this address is taken.
    #[inline]
    pub(crate) fn takes(&self, address: &[u8; 6]) -> bool {
        let by_flag = match address {
            [0xff, 0xff, 0xff, 0xff, 0xff, 0xff] => RX_BROADCAST,
            [first, ..] if first & 1 != 0 => RX_ALL_MULTICAST,
            _ => RX_PROMISC,
        };
        let mut own = self.addresses.slots().iter().take(self.count).flatten();
        self.flags & by_flag != 0 || own.any(|own| own == address)
    }
}

/// Table that spreads frames over raw queue pairs. A new one receives nothing.
pub(crate) struct Rss<S: Storage> {
    table: S::Table<u32>,
    count: u32,
}

impl<S: Storage> Default for Rss<S> {
    fn default() -> Self {
        Self {
            table: S::Table::default(),
            count: 0,
        }
    }
}

impl<S: Storage> Rss<S> {
    /// Takes a new table over, each entry of which `valid` agrees to; in case of an error the old one stays.
    pub(crate) fn set(
        &mut self,
        memory: &impl Memory,
        command: &SetRss,
        valid: impl Fn(u32) -> bool,
    ) -> Result<(), AdminStatus> {
        let count = command.count.get();
        if command.reserved.get() != 0 || count as usize > RSS_ENTRIES {
            return Err(AdminStatus::InvalidField);
        }
        let mut bytes = [[0; 4]; RSS_ENTRIES];
        let used = bytes.get_mut(..count as usize).unwrap_or_default();
        if count != 0 {
            let bytes = used.as_flattened_mut();
            memory
                .read(command.table.get(), bytes)
                .map_err(|_| AdminStatus::BadAddress)?;
        }
        let table = bytes.map(u32::from_le_bytes);
        if !table.iter().take(count as usize).all(|qpn| valid(*qpn)) {
            return Err(AdminStatus::NoSuchObject);
        }
        store(&mut self.table, &table)?;
        self.count = count;
        Ok(())
    }

    /// Queue pair for frames of this hash.
    #[inline]
    pub(crate) fn pick(&self, hash: u32) -> Option<u32> {
        let entry = hash.checked_rem(self.count)?;
        *self.table.slots().get(entry as usize)?
    }

    /// Whether the queue pair is in the table.
    pub(crate) fn contains(&self, qpn: u32) -> bool {
        let used = self.table.slots().iter().take(self.count as usize);
        used.flatten().any(|entry| *entry == qpn)
    }
}
