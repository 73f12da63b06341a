// SPDX-License-Identifier: GPL-2.0
//! Operations of a network device.
//!
//! C headers: `include/linux/netdevice.h` (`struct net_device_ops`), `include/net/netdev_queues.h` (`struct netdev_stat_ops`)

use super::{
    address::AddressList,
    skb::SkBuff,
    stats::{LinkStats, RxQueueStats, TxQueueStats},
    tx_queue::TxQueue,
    xdp::{ExtAck, Program, XdpFrames},
    Device, Features, Rtnl,
};
use crate::bindings;
use core::{marker::PhantomData, mem::ManuallyDrop, ptr::NonNull};
use kernel::{
    error::{from_result, VTABLE_DEFAULT_ERROR},
    prelude::*,
};

/// What became of a packet to send.
pub enum Transmit {
    /// The driver took it, or dropped it.
    Taken,
    /// No room: the core keeps it and tries again. The queue must have been stopped.
    Busy(SkBuff),
}

/// What a driver does for the network core.
///
/// The RTNL is held and the call may sleep where nothing else is said.
#[vtable]
pub trait Operations: Sized + Send + Sync + 'static {
    /// The driver's data of one transmit queue, protected by the queue's transmit lock.
    type TxQueue: Send;

    /// Brings the interface up: allocates rings, starts polling and queues.
    fn open(dev: &Device<Self>, rtnl: &Rtnl) -> Result;

    /// Takes the interface down. The core has stopped all queues and sends nothing any more.
    fn stop(dev: &Device<Self>, rtnl: &Rtnl);

    /// Sends one packet; `more` are about to follow at once on this queue. Softirqs are off (netpoll: interrupts as
    /// well), the transmit lock is held: must not sleep. Not called while no data is in place for the queue.
    fn start_xmit(
        dev: &Device<Self>,
        queue: TxQueue<'_, Self>,
        skb: SkBuff,
        more: bool,
    ) -> Transmit;

    /// Which of `features` may be used for a packet that is about to be sent; the stack does the rest before. `features` are
    /// those that are on for packets of its kind. Any context, any lock.
    fn features_check(dev: &Device<Self>, packet: &SkBuff, features: Features) -> Features;

    /// Takes the addresses to receive for beside the device's own, and the flags ([`Device::is_promiscuous`] and its
    /// like). On failure the core tries again later.
    fn set_rx_mode(
        dev: &Device<Self>,
        unicast: &AddressList<'_>,
        multicast: &AddressList<'_>,
    ) -> Result;

    /// The device's own address was changed.
    fn address_changed(_dev: &Device<Self>) {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Adds up statistics. Does not sleep; any context.
    fn stats(dev: &Device<Self>, stats: &mut LinkStats<'_>);

    /// Says what receive queue `queue`, which is in use, has received.
    fn rx_queue_stats(dev: &Device<Self>, queue: usize, stats: &mut RxQueueStats<'_>);

    /// Says what transmit queue `queue`, which is in use, has sent.
    fn tx_queue_stats(dev: &Device<Self>, queue: usize, stats: &mut TxQueueStats<'_>);

    /// Says what [`stats`](Self::stats) has beyond the queues that are in use. What is set here, if only to 0, is reported of
    /// the device as well, as the sum of this and those queues.
    fn base_stats(dev: &Device<Self>, rx: &mut RxQueueStats<'_>, tx: &mut TxQueueStats<'_>);

    /// Has a program see frames before the stack does, or none any more. On failure it stays as it was, and `extack` says why. May be
    /// called while the device is detached.
    fn set_program(
        dev: &Device<Self>,
        rtnl: &Rtnl,
        program: Option<Program>,
        extack: &mut ExtAck<'_>,
    ) -> Result;

    /// Sends frames of XDP, until one is not taken; it and those after it are dropped. All are to be on their way when this returns: that
    /// more follow (no `XDP_XMIT_FLUSH`) may turn out to be wrong, if a program drops them.
    /// Softirqs are off, the transmit lock is held: must not sleep. Not called while no data is in place for the queue.
    fn xdp_xmit(dev: &Device<Self>, queue: TxQueue<'_, Self>, frames: &mut XdpFrames<'_>);

    /// Queue `queue` has been stopped for longer than the watchdog's timeout. Softirq context, no RTNL, no sleep.
    fn tx_timeout(dev: &Device<Self>, queue: usize);
}

/// The table of C callbacks of `T`.
///
/// # Safety
///
/// They are for the core alone, which passes a registered device of this table.
pub(super) struct VTable<T>(PhantomData<T>);

#[expect(
    clippy::missing_safety_doc,
    reason = "the contract of all callbacks is that of the table"
)]
impl<T: Operations> VTable<T> {
    unsafe extern "C" fn open(dev: *mut bindings::net_device) -> c_int {
        // SAFETY: The core calls this for a registered device of this table.
        let dev = unsafe { Device::<T>::from_raw(dev) };
        // SAFETY: The core holds the RTNL for the time of the call.
        let rtnl = unsafe { Rtnl::held() };
        from_result(|| T::open(dev, &rtnl).map(|()| 0))
    }

    unsafe extern "C" fn stop(dev: *mut bindings::net_device) -> c_int {
        // SAFETY: As in `open`.
        let dev = unsafe { Device::<T>::from_raw(dev) };
        // SAFETY: The core holds the RTNL for the time of the call.
        T::stop(dev, &unsafe { Rtnl::held() });
        0
    }

    unsafe extern "C" fn start_xmit(
        skb: *mut bindings::sk_buff,
        dev: *mut bindings::net_device,
    ) -> bindings::netdev_tx_t {
        // SAFETY: The core passes a valid packet and its ownership.
        let skb = unsafe { SkBuff::from_raw(NonNull::new_unchecked(skb)) };
        // SAFETY: As in `open`.
        let device = unsafe { Device::<T>::from_raw(dev) };
        // SAFETY: The packet is valid.
        let index = usize::from(unsafe { (*skb.as_raw()).queue_mapping });
        let private = device.private().get_ref();
        let Some(slot) = private.tx.get(index) else {
            return bindings::netdev_tx_NETDEV_TX_OK;
        };
        // SAFETY: There are as many queues as slots.
        let txq = unsafe { (*dev)._tx.add(index) };
        // SAFETY: Both are of queue `index`, whose transmit lock the core holds (the device does not ask for lockless
        // transmit).
        let Some(queue) = (unsafe { TxQueue::locked(txq, slot, index) }) else {
            return bindings::netdev_tx_NETDEV_TX_OK;
        };
        // SAFETY: Softirqs are off, so this CPU's flag is ours.
        let more = unsafe { bindings::nk_xmit_more() };
        match T::start_xmit(device, queue, skb, more) {
            Transmit::Taken => bindings::netdev_tx_NETDEV_TX_OK,
            Transmit::Busy(skb) => {
                // The core keeps the packet that it passed.
                skb.into_raw();
                bindings::netdev_tx_NETDEV_TX_BUSY
            }
        }
    }

    unsafe extern "C" fn features_check(
        skb: *mut bindings::sk_buff,
        dev: *mut bindings::net_device,
        features: bindings::netdev_features_t,
    ) -> bindings::netdev_features_t {
        // SAFETY: As in `open`.
        let dev = unsafe { Device::<T>::from_raw(dev) };
        // SAFETY: The core passes a valid packet, which nobody frees or changes for the time of the call. It stays the core's: this is
        // not dropped.
        let packet = ManuallyDrop::new(unsafe { SkBuff::from_raw(NonNull::new_unchecked(skb)) });
        // SAFETY: As above.
        let features = unsafe { bindings::nk_vlan_features_check(skb, features) };
        T::features_check(dev, &packet, Features::from_raw(features)).as_raw()
    }

    unsafe extern "C" fn set_rx_mode(
        dev: *mut bindings::net_device,
        uc: *mut bindings::netdev_hw_addr_list,
        mc: *mut bindings::netdev_hw_addr_list,
    ) -> c_int {
        // SAFETY: As in `open`.
        let dev = unsafe { Device::<T>::from_raw(dev) };
        // SAFETY: The lists are snapshots that the core keeps for the time of the call.
        let (uc, mc) = unsafe { (AddressList::from_raw(uc), AddressList::from_raw(mc)) };
        from_result(|| T::set_rx_mode(dev, &uc, &mc).map(|()| 0))
    }

    unsafe extern "C" fn set_mac_address(
        dev: *mut bindings::net_device,
        addr: *mut c_void,
    ) -> c_int {
        // SAFETY: The core passes a socket address with a hardware address; the function checks it.
        let ret = unsafe { bindings::eth_mac_addr(dev, addr) };
        if ret == 0 && T::HAS_ADDRESS_CHANGED {
            // SAFETY: As in `open`.
            T::address_changed(unsafe { Device::<T>::from_raw(dev) });
        }
        ret
    }

    unsafe extern "C" fn stats(
        dev: *mut bindings::net_device,
        stats: *mut bindings::rtnl_link_stats64,
    ) {
        // SAFETY: As in `open`; the structure is the core's and ours for the time of the call.
        let (dev, stats) = unsafe { (Device::<T>::from_raw(dev), &mut *stats) };
        T::stats(dev, &mut LinkStats::new(stats));
    }

    unsafe extern "C" fn rx_queue_stats(
        dev: *mut bindings::net_device,
        queue: c_int,
        stats: *mut bindings::netdev_queue_stats_rx,
    ) {
        // SAFETY: As in `stats`.
        let (dev, stats) = unsafe { (Device::<T>::from_raw(dev), &mut *stats) };
        T::rx_queue_stats(dev, queue as usize, &mut RxQueueStats::new(stats));
    }

    unsafe extern "C" fn tx_queue_stats(
        dev: *mut bindings::net_device,
        queue: c_int,
        stats: *mut bindings::netdev_queue_stats_tx,
    ) {
        // SAFETY: As in `stats`.
        let (dev, stats) = unsafe { (Device::<T>::from_raw(dev), &mut *stats) };
        T::tx_queue_stats(dev, queue as usize, &mut TxQueueStats::new(stats));
    }

    unsafe extern "C" fn base_stats(
        dev: *mut bindings::net_device,
        rx: *mut bindings::netdev_queue_stats_rx,
        tx: *mut bindings::netdev_queue_stats_tx,
    ) {
        // SAFETY: As in `stats`; the two do not overlap.
        let (dev, rx, tx) = unsafe { (Device::<T>::from_raw(dev), &mut *rx, &mut *tx) };
        T::base_stats(dev, &mut RxQueueStats::new(rx), &mut TxQueueStats::new(tx));
    }

    unsafe extern "C" fn bpf(
        dev: *mut bindings::net_device,
        bpf: *mut bindings::netdev_bpf,
    ) -> c_int {
        // SAFETY: As in `open`; the structure is ours for the time of the call.
        let (dev, bpf) = unsafe { (Device::<T>::from_raw(dev), &mut *bpf) };
        if bpf.command != bindings::bpf_netdev_command_XDP_SETUP_PROG {
            return -(bindings::EINVAL as c_int);
        }
        // SAFETY: The command says which member of the union there is.
        let setup = unsafe { bpf.__bindgen_anon_1.__bindgen_anon_1 };
        // SAFETY: The core passes a program of the type, or null; the structure behind `extack` is ours for the time of the call.
        let (program, mut extack) =
            unsafe { (Program::get(setup.prog), ExtAck::from_raw(setup.extack)) };
        // SAFETY: The core holds the RTNL for the time of the call.
        let rtnl = unsafe { Rtnl::held() };
        from_result(|| {
            T::set_program(dev, &rtnl, program, &mut extack)?;
            if !setup.prog.is_null() {
                // SAFETY: The core gives us its reference if this succeeds; the driver has one of its own.
                unsafe { bindings::bpf_prog_put(setup.prog) };
            }
            Ok(0)
        })
    }

    unsafe extern "C" fn xdp_xmit(
        dev: *mut bindings::net_device,
        count: c_int,
        frames: *mut *mut bindings::xdp_frame,
        _flags: u32,
    ) -> c_int {
        // SAFETY: As in `open`.
        let device = unsafe { Device::<T>::from_raw(dev) };
        // SAFETY: No requirements. Softirqs are off, so it stays the same.
        let cpu = unsafe { bindings::nk_this_cpu() } as usize;
        let index = cpu.checked_rem(device.real_queues()).unwrap_or(0);
        let Some(queue) = device.tx_queue(index) else {
            return -(bindings::ENXIO as c_int);
        };
        let mut guard = queue.lock();
        let Some(queue) = guard.queue() else {
            return -(bindings::ENETDOWN as c_int);
        };
        // SAFETY: The core passes so many frames, of which it takes back those that are not sent.
        let mut frames = unsafe { XdpFrames::new(frames, usize::try_from(count).unwrap_or(0)) };
        T::xdp_xmit(device, queue, &mut frames);
        frames.taken() as c_int
    }

    unsafe extern "C" fn tx_timeout(dev: *mut bindings::net_device, queue: c_uint) {
        // SAFETY: As in `open`.
        T::tx_timeout(unsafe { Device::<T>::from_raw(dev) }, queue as usize);
    }

    /// The table, one per driver.
    pub(super) const OPS: &'static bindings::net_device_ops = &bindings::net_device_ops {
        ndo_open: Some(Self::open),
        ndo_stop: Some(Self::stop),
        ndo_start_xmit: Some(Self::start_xmit),
        ndo_features_check: Some(Self::features_check),
        ndo_set_rx_mode_async: Some(Self::set_rx_mode),
        ndo_set_mac_address: Some(Self::set_mac_address),
        ndo_validate_addr: Some(bindings::eth_validate_addr),
        ndo_get_stats64: Some(Self::stats),
        ndo_tx_timeout: Some(Self::tx_timeout),
        ndo_bpf: Some(Self::bpf),
        ndo_xdp_xmit: Some(Self::xdp_xmit),
        ..pin_init::zeroed()
    };

    /// The table of statistics of queues, one per driver.
    pub(super) const STAT_OPS: &'static bindings::netdev_stat_ops = &bindings::netdev_stat_ops {
        get_queue_stats_rx: Some(Self::rx_queue_stats),
        get_queue_stats_tx: Some(Self::tx_queue_stats),
        get_base_stats: Some(Self::base_stats),
    };
}
