// SPDX-License-Identifier: GPL-2.0
//! The receive filter.

use kernel::prelude::*;
use nk::net::{AddressList, Device, MacAddress};
use nupa_fabric::Port;
use nupa_proto::admin::{RX_ALL_MULTICAST, RX_BROADCAST, RX_PROMISC};

use crate::nic::Nic;

/// What to receive beside the device's own address.
pub(crate) struct Filter {
    unicast: KVec<MacAddress>,
    multicast: KVec<MacAddress>,
    flags: u32,
}

fn copy(list: &AddressList<'_>) -> Result<KVec<MacAddress>> {
    let mut addresses = KVec::with_capacity(list.len(), GFP_KERNEL)?;
    for address in list {
        addresses.push(address, GFP_KERNEL)?;
    }
    Ok(addresses)
}

impl Filter {
    /// Own address and broadcasts only.
    pub(crate) const fn new() -> Self {
        Self {
            unicast: KVec::new(),
            multicast: KVec::new(),
            flags: RX_BROADCAST,
        }
    }

    /// What the core asks for. With the RTNL held.
    pub(crate) fn wanted(
        dev: &Device<Nic>,
        unicast: &AddressList<'_>,
        multicast: &AddressList<'_>,
    ) -> Result<Self> {
        let mut flags = RX_BROADCAST;
        if dev.is_promiscuous() {
            flags |= RX_PROMISC | RX_ALL_MULTICAST;
        }
        if dev.wants_all_multicast() {
            flags |= RX_ALL_MULTICAST;
        }
        Ok(Self {
            unicast: copy(unicast)?,
            multicast: copy(multicast)?,
            flags,
        })
    }

    /// Hands the filter to the port. What does not fit is received with its whole class; the stack sorts it out.
    pub(crate) fn apply(&self, port: &Port, own: MacAddress) -> Result {
        let room = usize::from(port.info().limits.max_rx_addresses.get()).saturating_sub(1);
        let mut flags = self.flags;
        let mut addresses = KVec::with_capacity(room.saturating_add(1), GFP_KERNEL)?;
        addresses.push(own, GFP_KERNEL)?;
        if self.unicast.len() <= room {
            addresses.extend_from_slice(&self.unicast, GFP_KERNEL)?;
        } else {
            flags |= RX_PROMISC;
        }
        if addresses.len().saturating_add(self.multicast.len()) <= room.saturating_add(1) {
            addresses.extend_from_slice(&self.multicast, GFP_KERNEL)?;
        } else {
            flags |= RX_ALL_MULTICAST;
        }
        port.set_rx_filter(&addresses, flags)
    }
}
