// SPDX-License-Identifier: GPL-2.0
//! What `ethtool` shows and sets.

use crate::{
    nic::Nic,
    settings::{max_rx, max_tx, Settings, MIN_RING},
    stats::NAMED,
};
use kernel::prelude::*;
use nk::net::{
    ethtool::{Coalesce, DriverInfo, Operations, Rings, StringSet},
    Device, Rtnl,
};
use nupa_proto::admin::{PortCounters, PORT_COUNTER_NAMES};
use zerocopy::{little_endian::U64, FromBytes, IntoBytes};

/// Rounds a ring size to what the port can do: a power of two between the smallest and `most`. `EINVAL` if it is not between these.
fn ring_size(wanted: u32, most: u32) -> Result<u32> {
    if !(MIN_RING..=most).contains(&wanted) {
        return Err(EINVAL);
    }
    wanted.checked_next_power_of_two().ok_or(EINVAL)
}

/// The port's counters in the order of their names; zeroes if the controller does not answer.
fn port_counters(dev: &Device<Nic>) -> impl Iterator<Item = u64> {
    let counters = dev.data().port().counters().unwrap_or_default();
    let values =
        <[U64; size_of::<PortCounters>() / size_of::<U64>()]>::read_from_bytes(counters.as_bytes());
    values.unwrap_or([U64::ZERO; _]).into_iter().map(U64::get)
}

impl Operations for Nic {
    fn driver_info(dev: &Device<Self>, info: &mut DriverInfo<'_>) {
        let [major, minor, patch] = dev.data().port().info().firmware;
        info.set(fmt!("nupa_net"), fmt!("{major}.{minor}.{patch}"));
    }

    fn link_speed(dev: &Device<Self>) -> Option<u32> {
        Some(dev.data().port().info().link_speed_mbps).filter(|speed| *speed != 0)
    }

    fn stat_count(dev: &Device<Self>) -> usize {
        let channels = dev.data().get_ref().stats().len();
        channels
            .saturating_mul(NAMED.len())
            .saturating_add(PORT_COUNTER_NAMES.len())
    }

    fn stat_names(dev: &Device<Self>, names: &mut StringSet<'_>) {
        for index in 0..dev.data().get_ref().stats().len() {
            for (name, _) in NAMED {
                names.push(fmt!("queue{index}_{name}"));
            }
        }
        for name in PORT_COUNTER_NAMES {
            names.push(fmt!("port_{name}"));
        }
    }

    fn stat_values(dev: &Device<Self>, values: &mut [u64]) {
        let nic = dev.data().get_ref();
        let channels = nic
            .stats()
            .iter()
            .flat_map(|stats| NAMED.iter().map(move |(_, counter)| counter(stats).get()));
        for (value, now) in values
            .iter_mut()
            .zip(Iterator::chain(channels, port_counters(dev)))
        {
            *value = now;
        }
    }

    fn rings(dev: &Device<Self>) -> (Rings, Rings) {
        let nic = dev.data();
        let (settings, info) = (nic.settings(), nic.port().info());
        (
            Rings {
                rx: settings.rx,
                tx: settings.tx,
            },
            Rings {
                rx: max_rx(&info),
                tx: max_tx(&info),
            },
        )
    }

    fn set_rings(dev: &Device<Self>, rtnl: &Rtnl, rings: Rings) -> Result {
        let nic = dev.data();
        let info = nic.port().info();
        let rx = ring_size(rings.rx, max_rx(&info))?;
        let tx = ring_size(rings.tx, max_tx(&info))?;
        nic.change_settings(
            dev,
            rtnl,
            Settings {
                rx,
                tx,
                ..nic.settings()
            },
        )
    }

    fn channels(dev: &Device<Self>) -> (u32, u32) {
        let nic = dev.data();
        (nic.settings().channels, nic.port().info().vectors)
    }

    fn set_channels(dev: &Device<Self>, rtnl: &Rtnl, count: u32) -> Result {
        let nic = dev.data();
        nic.change_settings(
            dev,
            rtnl,
            Settings {
                channels: count,
                ..nic.settings()
            },
        )
    }

    fn indirection(dev: &Device<Self>, table: &mut [u32]) {
        dev.data().spread(dev, table);
    }

    fn set_indirection(dev: &Device<Self>, rtnl: &Rtnl, table: &[u32]) -> Result {
        dev.data().set_spread(rtnl, table)
    }

    fn coalesce(dev: &Device<Self>) -> Coalesce {
        dev.data().settings().coalesce
    }

    fn set_coalesce(dev: &Device<Self>, rtnl: &Rtnl, coalesce: Coalesce) -> Result {
        let fits = |n: u32| u16::try_from(n).map(|_| ());
        fits(coalesce.rx_usecs)?;
        fits(coalesce.rx_frames)?;
        fits(coalesce.tx_usecs)?;
        fits(coalesce.tx_frames)?;
        let nic = dev.data();
        nic.change_settings(
            dev,
            rtnl,
            Settings {
                coalesce,
                ..nic.settings()
            },
        )
    }
}
