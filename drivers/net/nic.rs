// SPDX-License-Identifier: GPL-2.0
//! The network device: state, opening and closing, what the network core asks of it.

use crate::{
    channel::Channel,
    filter::Filter,
    settings::{Settings, DEFAULT_MTU, MAX_MTU, MIN_MTU},
    stats::{self, ChannelStats},
    tx::{self, Tx},
};
use kernel::{
    device, new_mutex,
    prelude::*,
    sync::{aref::ARef, Mutex},
    time,
};
use nk::net::{
    AddressList, Config, Device, Features, LinkStats, Operations, Registration, Rtnl, RxQueueStats,
    SkBuff, Transmit, TxQueue, TxQueueStats, Unregistered,
};
use nupa_fabric::Port;

/// How long a queue may be stopped before someone looks.
const WATCHDOG_MS: u32 = 5000;

/// Features that can be switched off.
const FEATURES: Features = Features::SG
    .with(Features::HW_CSUM)
    .with(Features::TSO)
    .with(Features::TSO6)
    .with(Features::TSO_ECN)
    .with(Features::TSO_MANGLEID)
    .with(Features::GSO_UDP_L4)
    .with(Features::RXCSUM)
    .with(Features::RXHASH);
/// Features that cannot.
const FIXED: Features = Features::HIGHDMA
    .with(Features::VLAN_CTAG_TX)
    .with(Features::VLAN_CTAG_RX);

/// Private data of the network device.
#[pin_data]
pub(crate) struct Nic {
    port: Port,
    stats: KVec<ChannelStats>,
    #[pin]
    state: Mutex<State>,
}

/// What changes; all of it with the RTNL held as well.
struct State {
    settings: Settings,
    filter: Filter,
    /// Open channels: none while the interface is down or the controller is lost.
    channels: KVec<Channel>,
}

impl Nic {
    /// Registers the network device of `port`. May sleep.
    pub(crate) fn register(
        parent: &device::Device<device::Bound>,
        port: Port,
    ) -> Result<Registration<Self>> {
        let info = port.info();
        let settings = Settings::new(&info);
        let mut stats = KVec::with_capacity(info.vectors as usize, GFP_KERNEL)?;
        for _ in 0..info.vectors {
            stats.push(ChannelStats::default(), GFP_KERNEL)?;
        }
        let config = Config {
            name: c"nupanet%d",
            queues: info.vectors,
            mac: info.mac,
            mtu: DEFAULT_MTU,
            min_mtu: MIN_MTU,
            max_mtu: MAX_MTU,
            max_super_frame: info.limits.max_frame(),
            features: FEATURES,
            fixed_features: FIXED,
            vlan_features: FEATURES.with(Features::HIGHDMA),
            watchdog: time::msecs_to_jiffies(WATCHDOG_MS),
        };
        let data = try_pin_init!(Self {
            port,
            stats,
            state <- new_mutex!(State { settings, filter: Filter::new(), channels: KVec::new() }),
        }? Error);
        Unregistered::new(parent, &config, data)?.register()
    }

    /// The port below.
    pub(crate) fn port(&self) -> &Port {
        &self.port
    }

    /// Counters of channel `index`.
    #[inline]
    pub(crate) fn channel_stats(&self, index: usize) -> Option<&ChannelStats> {
        self.stats.get(index)
    }

    /// Counters of all channels, those not in use as well.
    pub(crate) fn stats(&self) -> &[ChannelStats] {
        &self.stats
    }

    /// Settings as they are now. May sleep.
    pub(crate) fn settings(&self) -> Settings {
        self.state.lock().settings
    }

    /// Creates the channels and lets frames in.
    pub(crate) fn open_channels(&self, dev: &Device<Self>, rtnl: &Rtnl) -> Result {
        self.state.lock().open(&self.port, dev, rtnl)
    }

    /// Stops the queues and drops the channels, if there are any.
    pub(crate) fn close_channels(&self, dev: &Device<Self>, rtnl: &Rtnl) {
        self.state.lock().close(&self.port, dev, rtnl);
    }

    /// Changes settings, restarting the channels if there are any. If that fails, the settings remain as they were, and the
    /// channels are tried with those.
    pub(crate) fn change_settings(
        &self,
        dev: &Device<Self>,
        rtnl: &Rtnl,
        settings: Settings,
    ) -> Result {
        let mut state = self.state.lock();
        let before = core::mem::replace(&mut state.settings, settings);
        if state.channels.is_empty() {
            return Ok(());
        }
        // Making large rings can take longer than the watchdog waits.
        let result = dev.while_detached(rtnl, || state.exchange(&self.port, dev, rtnl, before));
        if state.channels.is_empty() {
            dev.stop_all_queues();
        }
        result
    }
}

impl State {
    fn open(&mut self, port: &Port, dev: &Device<Nic>, rtnl: &Rtnl) -> Result {
        let dev: ARef<Device<Nic>> = dev.into();
        let count = self.settings.channels;
        dev.set_real_queues(rtnl, count, count)?;
        let mut channels = KVec::with_capacity(count as usize, GFP_KERNEL)?;
        let mut table = KVec::with_capacity(count as usize, GFP_KERNEL)?;
        for index in 0..count as usize {
            let channel = Channel::open(&dev, port, &self.settings, index)?;
            table.push(channel.number(), GFP_KERNEL)?;
            channels.push(channel, GFP_KERNEL)?;
        }
        self.filter.apply(port, dev.mac_address())?;
        port.set_rss(&table)?;
        for index in 0..count {
            // One channel per CPU if there are enough vectors; without a preference the core spreads by hash.
            let _ = dev.set_xps(u16::try_from(index)?, index);
        }
        for channel in &mut channels {
            channel.link(rtnl);
        }
        self.channels = channels;
        Ok(())
    }

    /// Makes the channels anew, with the settings or else those of before.
    fn exchange(
        &mut self,
        port: &Port,
        dev: &Device<Nic>,
        rtnl: &Rtnl,
        before: Settings,
    ) -> Result {
        self.close(port, dev, rtnl);
        let Err(e) = self.open(port, dev, rtnl) else {
            return Ok(());
        };
        self.settings = before;
        self.open(port, dev, rtnl)?;
        Err(e)
    }

    fn close(&mut self, port: &Port, dev: &Device<Nic>, rtnl: &Rtnl) {
        if self.channels.is_empty() {
            return;
        }
        dev.stop_all_queues();
        for channel in &mut self.channels {
            channel.unlink(rtnl);
        }
        // A lost controller does not spread any more.
        let _ = port.set_rss(&[]);
        self.channels.clear();
    }
}

#[vtable]
impl Operations for Nic {
    type TxQueue = Tx;

    fn open(dev: &Device<Self>, rtnl: &Rtnl) -> Result {
        dev.data().open_channels(dev, rtnl)?;
        dev.start_all_queues();
        Ok(())
    }

    fn stop(dev: &Device<Self>, rtnl: &Rtnl) {
        dev.data().close_channels(dev, rtnl);
    }

    #[inline]
    fn start_xmit(
        dev: &Device<Self>,
        mut queue: TxQueue<'_, Self>,
        skb: SkBuff,
        more: bool,
    ) -> Transmit {
        match dev.data().get_ref().channel_stats(queue.index()) {
            Some(stats) => tx::xmit(&mut queue, &stats.tx, skb, more),
            None => Transmit::Taken,
        }
    }

    fn set_rx_mode(
        dev: &Device<Self>,
        unicast: &AddressList<'_>,
        multicast: &AddressList<'_>,
    ) -> Result {
        let filter = Filter::wanted(dev, unicast, multicast)?;
        let nic = dev.data();
        let mut state = nic.state.lock();
        state.filter = filter;
        if state.channels.is_empty() {
            // It is applied when they are opened.
            return Ok(());
        }
        state.filter.apply(&nic.port, dev.mac_address())
    }

    fn address_changed(dev: &Device<Self>) {
        let nic = dev.data();
        let state = nic.state.lock();
        if !state.channels.is_empty() {
            if let Err(e) = state.filter.apply(&nic.port, dev.mac_address()) {
                pr_warn!(
                    "{}: cannot receive for the new address ({e:?})\n",
                    dev.name()
                );
            }
        }
    }

    fn stats(dev: &Device<Self>, stats: &mut LinkStats<'_>) {
        for channel in dev.data().get_ref().stats() {
            stats.add_tx_packets(channel.tx.sent.packets.get());
            stats.add_tx_bytes(channel.tx.sent.bytes.get());
            stats.add_tx_dropped(channel.tx.dropped.get());
            stats.add_tx_errors(channel.tx.errors.get());
            stats.add_rx_packets(channel.rx.received.packets.get());
            stats.add_rx_bytes(channel.rx.received.bytes.get());
            stats.add_rx_dropped(channel.rx.dropped.get());
            stats.add_rx_errors(channel.rx.errors.get());
            stats.add_multicast(channel.rx.multicast.get());
        }
    }

    fn rx_queue_stats(dev: &Device<Self>, queue: usize, stats: &mut RxQueueStats<'_>) {
        if let Some(channel) = dev.data().get_ref().channel_stats(queue) {
            stats::report_rx(core::slice::from_ref(channel), stats);
        }
    }

    fn tx_queue_stats(dev: &Device<Self>, queue: usize, stats: &mut TxQueueStats<'_>) {
        if let Some(channel) = dev.data().get_ref().channel_stats(queue) {
            stats::report_tx(core::slice::from_ref(channel), stats);
        }
    }

    fn base_stats(dev: &Device<Self>, rx: &mut RxQueueStats<'_>, tx: &mut TxQueueStats<'_>) {
        let nic = dev.data();
        let idle = nic.stats.get(dev.real_queues()..).unwrap_or_default();
        stats::report_rx(idle, rx);
        stats::report_tx(idle, tx);
    }

    fn tx_timeout(dev: &Device<Self>, queue: usize) {
        pr_warn!(
            "{}: queue {queue} is stuck, looking for lost completions\n",
            dev.name()
        );
        let Some(stats) = dev.data().get_ref().channel_stats(queue) else {
            return;
        };
        if let Some(queue) = dev.tx_queue(queue) {
            if let Some(mut queue) = queue.lock().queue() {
                tx::event(&mut queue, &stats.tx);
            }
        }
    }
}
