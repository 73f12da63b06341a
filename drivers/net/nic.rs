// SPDX-License-Identifier: GPL-2.0
//! The network device: state, opening and closing, what the network core asks of it.

use crate::{
    channel::Channel,
    filter::Filter,
    frame,
    settings::{Settings, DEFAULT_MTU, MAX_MTU, MIN_MTU},
    spread::{self, Spread},
    stats::{self, ChannelStats},
    tx::{self, Tx},
    xdp,
};
use kernel::{
    device, new_mutex,
    prelude::*,
    sync::{aref::ARef, Mutex},
    time,
};
use nk::net::{
    xdp::{ExtAck, Program, XdpFrames},
    AddressList, Config, Device, Features, LinkStats, Operations, Registration, Rtnl, RxQueueStats,
    SkBuff, Transmit, TxQueue, TxQueueStats, Unregistered,
};
use nupa_fabric::Port;

/// How long a queue may be stopped before someone looks.
const WATCHDOG_MS: u32 = 5000;

/// Features that can be switched off.
const FEATURES: Features = Features::SG
    .with(Features::HW_CSUM)
    .with(frame::SEGMENTATION)
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

/// What channels are made by.
#[derive(Clone)]
struct Setup {
    settings: Settings,
    /// The program that sees frames before the stack does.
    program: Option<Program>,
}

/// What changes; all of it with the RTNL held as well.
struct State {
    setup: Setup,
    filter: Filter,
    spread: Spread,
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
            devlink_port: port.devlink_port(),
            name: c"nupanet%d",
            queues: info.vectors,
            indirection: spread::entries(&info),
            mac: info.mac,
            mtu: DEFAULT_MTU,
            min_mtu: MIN_MTU,
            max_mtu: MAX_MTU,
            max_super_frame: info.limits.max_frame(),
            max_segments: xdp::MAX_SEGMENTS,
            features: FEATURES,
            fixed_features: FIXED,
            vlan_features: FEATURES.with(Features::HIGHDMA),
            watchdog: time::msecs_to_jiffies(WATCHDOG_MS),
        };
        let state = State {
            setup: Setup {
                settings,
                program: None,
            },
            filter: Filter::new(),
            spread: Spread::new(config.indirection)?,
            channels: KVec::new(),
        };
        let data = try_pin_init!(Self {
            port,
            stats,
            state <- new_mutex!(state),
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
        self.state.lock().setup.settings
    }

    /// Fills in which channel takes frames of which hash. May sleep.
    pub(crate) fn spread(&self, dev: &Device<Self>, table: &mut [u32]) {
        let state = self.state.lock();
        let now = state.spread.table(dev, state.setup.settings.channels);
        for (to, entry) in table.iter_mut().zip(now) {
            *to = entry;
        }
    }

    /// Has channels take frames by this table from now on. On failure it stays as it was. May sleep.
    pub(crate) fn set_spread(&self, _rtnl: &Rtnl, table: &[u32]) -> Result {
        let mut state = self.state.lock();
        if table
            .iter()
            .any(|entry| *entry >= state.setup.settings.channels)
        {
            return Err(EINVAL);
        }
        if !state.channels.is_empty() {
            let numbers = spread::queue_pairs(&state.channels, table.iter().copied())?;
            self.port.set_rss(&numbers)?;
        }
        state.spread.keep(table);
        Ok(())
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
        let setup = Setup {
            settings,
            ..state.setup.clone()
        };
        let before = state.setup.clone();
        self.change(dev, rtnl, &mut state, setup, before)
    }

    /// The same for the program. To remove it does not fail, because the network core takes it for gone: if the channels cannot be made
    /// anew, there are none.
    fn change_program(&self, dev: &Device<Self>, rtnl: &Rtnl, program: Option<Program>) -> Result {
        let mut state = self.state.lock();
        if let (Some(_), Some(program)) = (&state.setup.program, &program) {
            // Buffers are the same.
            for channel in &state.channels {
                channel.replace_program(program)?;
            }
            state.setup.program = Some(program.clone());
            return Ok(());
        }
        if state.setup.program.is_none() && program.is_none() {
            return Ok(());
        }
        let before = state.setup.clone();
        let setup = Setup {
            program,
            ..before.clone()
        };
        if setup.program.is_some() {
            return self.change(dev, rtnl, &mut state, setup, before);
        }
        if let Err(e) = self.change(dev, rtnl, &mut state, setup.clone(), setup) {
            if state.channels.is_empty() {
                pr_err!(
                    "{}: cannot make the queues anew without a program ({e:?}): set the interface down and up again\n",
                    dev.name()
                );
            }
        }
        Ok(())
    }

    /// Goes over to a setup, or `otherwise` to another one.
    fn change(
        &self,
        dev: &Device<Self>,
        rtnl: &Rtnl,
        state: &mut State,
        setup: Setup,
        otherwise: Setup,
    ) -> Result {
        state.setup = setup;
        if state.channels.is_empty() {
            return Ok(());
        }
        // Making large rings can take longer than the watchdog waits.
        let result = dev.while_detached(rtnl, || state.exchange(&self.port, dev, rtnl, otherwise));
        if state.channels.is_empty() {
            dev.stop_all_queues();
        }
        result
    }
}

impl State {
    fn open(&mut self, port: &Port, dev: &Device<Nic>, rtnl: &Rtnl) -> Result {
        let dev: ARef<Device<Nic>> = dev.into();
        let Setup { settings, program } = &self.setup;
        let count = settings.channels;
        dev.set_real_queues(rtnl, count, count)?;
        let mut channels = KVec::with_capacity(count as usize, GFP_KERNEL)?;
        for index in 0..count as usize {
            let channel = Channel::open(&dev, port, settings, program.as_ref(), index, rtnl)?;
            channels.push(channel, GFP_KERNEL)?;
        }
        self.filter.apply(port, dev.mac_address())?;
        port.set_rss(&spread::queue_pairs(
            &channels,
            self.spread.table(&dev, count),
        )?)?;
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

    /// Makes the channels anew, by their setup or else another one.
    fn exchange(
        &mut self,
        port: &Port,
        dev: &Device<Nic>,
        rtnl: &Rtnl,
        otherwise: Setup,
    ) -> Result {
        self.close(port, dev, rtnl);
        let Err(e) = self.open(port, dev, rtnl) else {
            return Ok(());
        };
        self.setup = otherwise;
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

    #[inline]
    fn features_check(_dev: &Device<Self>, packet: &SkBuff, features: Features) -> Features {
        frame::features(packet, features)
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
            stats.add_rx_dropped(channel.rx.xdp.errors.get());
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

    fn set_program(
        dev: &Device<Self>,
        rtnl: &Rtnl,
        program: Option<Program>,
        extack: &mut ExtAck<'_>,
    ) -> Result {
        if let Some(program) = &program {
            xdp::check(program, dev.mtu(), extack)?;
        }
        let most = match &program {
            Some(program) if !program.takes_frags() => xdp::MAX_MTU_WITHOUT_FRAGS,
            _ => MAX_MTU,
        };
        dev.data()
            .change_program(dev, rtnl, program)
            .inspect_err(|_| {
                extack.set(c"cannot make the queues anew: the kernel log may say why");
            })?;
        dev.set_max_mtu(rtnl, most);
        Ok(())
    }

    fn xdp_xmit(dev: &Device<Self>, mut queue: TxQueue<'_, Self>, frames: &mut XdpFrames<'_>) {
        let Some(stats) = dev.data().get_ref().channel_stats(queue.index()) else {
            return;
        };
        while frames.next_to(|frame| tx::xmit_xdp(dev, &mut queue, &stats.tx, frame)) {}
        tx::flush(&mut queue, &stats.tx);
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
