// SPDX-License-Identifier: GPL-2.0
//! What `ethtool` shows and sets.
//!
//! C header: `include/linux/ethtool.h`

mod strings;
mod vtable;

pub use self::strings::{write_text, StringSet};
pub(super) use self::vtable::VTable;

use super::{operations, Device, Rtnl};
use crate::bindings;
use kernel::prelude::*;

/// Identity of driver and device (`ethtool -i`).
pub struct DriverInfo<'a>(&'a mut bindings::ethtool_drvinfo);

impl DriverInfo<'_> {
    /// Sets driver name, firmware version and bus address; what does not fit is cut.
    pub fn set(&mut self, driver: core::fmt::Arguments<'_>, firmware: core::fmt::Arguments<'_>) {
        write_text(&mut self.0.driver, driver);
        write_text(&mut self.0.fw_version, firmware);
    }
}

/// Ring sizes (`ethtool -g`, `-G`), in entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rings {
    /// Receive buffers.
    pub rx: u32,
    /// Packets to send.
    pub tx: u32,
}

/// Interrupt moderation (`ethtool -c`, `-C`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coalesce {
    /// Receive: longest wait in microseconds.
    pub rx_usecs: u32,
    /// Receive: packets that end the wait.
    pub rx_frames: u32,
    /// Receive moderation adapts to the load.
    pub adaptive_rx: bool,
    /// Transmit: longest wait in microseconds.
    pub tx_usecs: u32,
    /// Transmit: packets that end the wait.
    pub tx_frames: u32,
}

/// What a driver does for `ethtool`. The RTNL is held, the call may sleep.
pub trait Operations: operations::Operations {
    /// Fills in what `ethtool -i` shows; the core knows the bus address.
    fn driver_info(dev: &Device<Self>, info: &mut DriverInfo<'_>);

    /// Link speed in Mb/s, `None` if unknown.
    fn link_speed(dev: &Device<Self>) -> Option<u32>;

    /// Statistics that [`stat_names`](Self::stat_names) and [`stat_values`](Self::stat_values) give; it does not change
    /// while the RTNL is held.
    fn stat_count(dev: &Device<Self>) -> usize;

    /// Names of the statistics, in order.
    fn stat_names(dev: &Device<Self>, names: &mut StringSet<'_>);

    /// The statistics, in the same order; `values` has [`stat_count`](Self::stat_count) entries.
    fn stat_values(dev: &Device<Self>, values: &mut [u64]);

    /// Ring sizes now, and at most.
    fn rings(dev: &Device<Self>) -> (Rings, Rings);

    /// Sets ring sizes, within the maxima.
    fn set_rings(dev: &Device<Self>, rtnl: &Rtnl, rings: Rings) -> Result;

    /// Combined channels (a transmit and a receive queue each) now, and at most.
    fn channels(dev: &Device<Self>) -> (u32, u32);

    /// Sets the number of combined channels, from 1 to the maximum.
    fn set_channels(dev: &Device<Self>, rtnl: &Rtnl, count: u32) -> Result;

    /// Fills in which receive queue takes packets of which flow hash: one of hash `h` goes to queue `table[h % table.len()]`. The
    /// length is that of [`Config::indirection`](crate::net::Config::indirection), here and below.
    fn indirection(dev: &Device<Self>, table: &mut [u32]);

    /// Replaces that table. The user's is in force from now on if this succeeds, and until
    /// [`Device::has_own_indirection`] says that it is not any more.
    fn set_indirection(dev: &Device<Self>, rtnl: &Rtnl, table: &[u32]) -> Result;

    /// Interrupt moderation.
    fn coalesce(dev: &Device<Self>) -> Coalesce;

    /// Sets interrupt moderation.
    fn set_coalesce(dev: &Device<Self>, rtnl: &Rtnl, coalesce: Coalesce) -> Result;
}
