// SPDX-License-Identifier: GPL-2.0
//! The C callbacks behind [`Operations`].

use super::{strings::set_bytes, Coalesce, DriverInfo, Operations, Rings, StringSet};
use crate::{
    bindings,
    net::{Device, Rtnl},
};
use core::marker::PhantomData;
use kernel::{error::from_result, prelude::*, sync::atomic::Relaxed};

/// Most statistics of a device, far below what `int` holds.
const MAX_STATS: usize = 1 << 16;
/// Stands for an unknown link speed (`SPEED_UNKNOWN`).
const SPEED_UNKNOWN: u32 = u32::MAX;

/// The table of C callbacks of `T`.
///
/// # Safety
///
/// They are for the core alone, which passes a registered device of this table, and structures that are ours for the time
/// of the call. It holds the RTNL meanwhile.
pub(in crate::net) struct VTable<T>(PhantomData<T>);

#[expect(
    clippy::missing_safety_doc,
    reason = "the contract of all callbacks is that of the table"
)]
impl<T: Operations> VTable<T> {
    unsafe extern "C" fn get_drvinfo(
        dev: *mut bindings::net_device,
        info: *mut bindings::ethtool_drvinfo,
    ) {
        // SAFETY: See the type.
        let (dev, info) = unsafe { (Device::<T>::from_raw(dev), &mut *info) };
        T::driver_info(dev, &mut DriverInfo(info));
    }

    unsafe extern "C" fn get_link_ksettings(
        dev: *mut bindings::net_device,
        settings: *mut bindings::ethtool_link_ksettings,
    ) -> c_int {
        // SAFETY: See the type.
        let (dev, settings) = unsafe { (Device::<T>::from_raw(dev), &mut *settings) };
        let speed = T::link_speed(dev).filter(|_| dev.carrier_ok());
        settings.base.speed = speed.unwrap_or(SPEED_UNKNOWN);
        settings.base.duplex = if speed.is_some() {
            bindings::DUPLEX_FULL
        } else {
            bindings::DUPLEX_UNKNOWN
        } as u8;
        settings.base.port = bindings::PORT_OTHER as u8;
        settings.base.autoneg = bindings::AUTONEG_DISABLE as u8;
        0
    }

    unsafe extern "C" fn get_sset_count(dev: *mut bindings::net_device, set: c_int) -> c_int {
        if set as u32 != bindings::ethtool_stringset_ETH_SS_STATS {
            return -(bindings::EOPNOTSUPP as c_int);
        }
        // SAFETY: See the type.
        let dev = unsafe { Device::<T>::from_raw(dev) };
        let count = T::stat_count(dev).min(MAX_STATS);
        dev.private().stats.store(count, Relaxed);
        count as c_int
    }

    unsafe extern "C" fn get_strings(dev: *mut bindings::net_device, set: u32, data: *mut u8) {
        if set != bindings::ethtool_stringset_ETH_SS_STATS {
            return;
        }
        // SAFETY: See the type.
        let dev = unsafe { Device::<T>::from_raw(dev) };
        let count = dev.private().stats.load(Relaxed);
        // SAFETY: The core allocated as many names as `get_sset_count` announced last, with the RTNL held since.
        let names = unsafe { core::slice::from_raw_parts_mut(data, set_bytes(count)) };
        T::stat_names(dev, &mut StringSet::new(names));
    }

    unsafe extern "C" fn get_ethtool_stats(
        dev: *mut bindings::net_device,
        _stats: *mut bindings::ethtool_stats,
        data: *mut u64,
    ) {
        // SAFETY: See the type.
        let dev = unsafe { Device::<T>::from_raw(dev) };
        let count = dev.private().stats.load(Relaxed);
        // SAFETY: As in `get_strings`.
        let values = unsafe { core::slice::from_raw_parts_mut(data, count) };
        T::stat_values(dev, values);
    }

    unsafe extern "C" fn get_ringparam(
        dev: *mut bindings::net_device,
        ring: *mut bindings::ethtool_ringparam,
        _kernel_ring: *mut bindings::kernel_ethtool_ringparam,
        _extack: *mut bindings::netlink_ext_ack,
    ) {
        // SAFETY: See the type.
        let (dev, ring) = unsafe { (Device::<T>::from_raw(dev), &mut *ring) };
        let (now, max) = T::rings(dev);
        ring.rx_pending = now.rx;
        ring.tx_pending = now.tx;
        ring.rx_max_pending = max.rx;
        ring.tx_max_pending = max.tx;
    }

    unsafe extern "C" fn set_ringparam(
        dev: *mut bindings::net_device,
        ring: *mut bindings::ethtool_ringparam,
        _kernel_ring: *mut bindings::kernel_ethtool_ringparam,
        _extack: *mut bindings::netlink_ext_ack,
    ) -> c_int {
        // SAFETY: See the type.
        let (dev, rtnl, ring) = unsafe { (Device::<T>::from_raw(dev), Rtnl::held(), &*ring) };
        from_result(|| {
            T::set_rings(
                dev,
                &rtnl,
                Rings {
                    rx: ring.rx_pending,
                    tx: ring.tx_pending,
                },
            )
            .map(|()| 0)
        })
    }

    unsafe extern "C" fn get_channels(
        dev: *mut bindings::net_device,
        channels: *mut bindings::ethtool_channels,
    ) {
        // SAFETY: See the type.
        let (dev, channels) = unsafe { (Device::<T>::from_raw(dev), &mut *channels) };
        let (now, max) = T::channels(dev);
        channels.combined_count = now;
        channels.max_combined = max;
    }

    unsafe extern "C" fn set_channels(
        dev: *mut bindings::net_device,
        channels: *mut bindings::ethtool_channels,
    ) -> c_int {
        // SAFETY: See the type.
        let (dev, rtnl, channels) =
            unsafe { (Device::<T>::from_raw(dev), Rtnl::held(), &*channels) };
        // The core has checked the counts against the maxima, which are 0 for all but combined channels.
        from_result(|| match channels.combined_count {
            0 => Err(EINVAL),
            count => T::set_channels(dev, &rtnl, count).map(|()| 0),
        })
    }

    unsafe extern "C" fn get_rx_ring_count(dev: *mut bindings::net_device) -> u32 {
        // SAFETY: See the type.
        T::channels(unsafe { Device::<T>::from_raw(dev) }).0
    }

    unsafe extern "C" fn get_rxfh_indir_size(dev: *mut bindings::net_device) -> u32 {
        // SAFETY: See the type.
        unsafe { Device::<T>::from_raw(dev) }.private().indirection as u32
    }

    unsafe extern "C" fn get_rxfh(
        dev: *mut bindings::net_device,
        param: *mut bindings::ethtool_rxfh_param,
    ) -> c_int {
        // SAFETY: See the type.
        let (dev, param) = unsafe { (Device::<T>::from_raw(dev), &mut *param) };
        if !param.indir.is_null() {
            let len = dev.private().indirection;
            // SAFETY: The core allocated as many entries as `get_rxfh_indir_size` says, if any; that never changes.
            T::indirection(dev, unsafe {
                core::slice::from_raw_parts_mut(param.indir, len)
            });
        }
        // The sender's stack computes the hash, with a key of its own.
        param.hfunc = bindings::ETH_RSS_HASH_UNKNOWN as u8;
        0
    }

    unsafe extern "C" fn set_rxfh(
        dev: *mut bindings::net_device,
        param: *mut bindings::ethtool_rxfh_param,
        _extack: *mut bindings::netlink_ext_ack,
    ) -> c_int {
        // SAFETY: See the type.
        let (dev, rtnl, param) = unsafe { (Device::<T>::from_raw(dev), Rtnl::held(), &*param) };
        if u32::from(param.hfunc) != bindings::ETH_RSS_HASH_NO_CHANGE || !param.key.is_null() {
            return -(bindings::EOPNOTSUPP as c_int);
        }
        from_result(|| {
            if param.indir.is_null() {
                return Ok(0);
            }
            let len = dev.private().indirection;
            // SAFETY: As in `get_rxfh`.
            let table = unsafe { core::slice::from_raw_parts(param.indir, len) };
            T::set_indirection(dev, &rtnl, table).map(|()| 0)
        })
    }

    unsafe extern "C" fn get_coalesce(
        dev: *mut bindings::net_device,
        coalesce: *mut bindings::ethtool_coalesce,
        _kernel_coalesce: *mut bindings::kernel_ethtool_coalesce,
        _extack: *mut bindings::netlink_ext_ack,
    ) -> c_int {
        // SAFETY: See the type.
        let (dev, coalesce) = unsafe { (Device::<T>::from_raw(dev), &mut *coalesce) };
        let now = T::coalesce(dev);
        coalesce.rx_coalesce_usecs = now.rx_usecs;
        coalesce.rx_max_coalesced_frames = now.rx_frames;
        coalesce.use_adaptive_rx_coalesce = now.adaptive_rx.into();
        coalesce.tx_coalesce_usecs = now.tx_usecs;
        coalesce.tx_max_coalesced_frames = now.tx_frames;
        0
    }

    unsafe extern "C" fn set_coalesce(
        dev: *mut bindings::net_device,
        coalesce: *mut bindings::ethtool_coalesce,
        _kernel_coalesce: *mut bindings::kernel_ethtool_coalesce,
        _extack: *mut bindings::netlink_ext_ack,
    ) -> c_int {
        // SAFETY: See the type.
        let (dev, rtnl, coalesce) =
            unsafe { (Device::<T>::from_raw(dev), Rtnl::held(), &*coalesce) };
        let wanted = Coalesce {
            rx_usecs: coalesce.rx_coalesce_usecs,
            rx_frames: coalesce.rx_max_coalesced_frames,
            adaptive_rx: coalesce.use_adaptive_rx_coalesce != 0,
            tx_usecs: coalesce.tx_coalesce_usecs,
            tx_frames: coalesce.tx_max_coalesced_frames,
        };
        from_result(|| T::set_coalesce(dev, &rtnl, wanted).map(|()| 0))
    }

    /// The table, one per driver.
    pub(in crate::net) const OPS: &'static bindings::ethtool_ops = &bindings::ethtool_ops {
        supported_coalesce_params: bindings::nk_const_NK_COALESCE_RX_USECS
            | bindings::nk_const_NK_COALESCE_RX_MAX_FRAMES
            | bindings::nk_const_NK_COALESCE_TX_USECS
            | bindings::nk_const_NK_COALESCE_TX_MAX_FRAMES
            | bindings::nk_const_NK_COALESCE_ADAPTIVE_RX,
        get_drvinfo: Some(Self::get_drvinfo),
        get_link: Some(bindings::ethtool_op_get_link),
        get_link_ksettings: Some(Self::get_link_ksettings),
        get_ts_info: Some(bindings::ethtool_op_get_ts_info),
        get_sset_count: Some(Self::get_sset_count),
        get_strings: Some(Self::get_strings),
        get_ethtool_stats: Some(Self::get_ethtool_stats),
        get_ringparam: Some(Self::get_ringparam),
        set_ringparam: Some(Self::set_ringparam),
        get_channels: Some(Self::get_channels),
        set_channels: Some(Self::set_channels),
        get_rx_ring_count: Some(Self::get_rx_ring_count),
        get_rxfh_indir_size: Some(Self::get_rxfh_indir_size),
        get_rxfh: Some(Self::get_rxfh),
        set_rxfh: Some(Self::set_rxfh),
        get_coalesce: Some(Self::get_coalesce),
        set_coalesce: Some(Self::set_coalesce),
        ..pin_init::zeroed()
    };
}
