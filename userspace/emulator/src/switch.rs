// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The event loop.

use std::fs::DirBuilder;
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{ensure, Context};
use nupa_controller::{Clock, Fabric, FabricConfig, MonotonicClock};
use rustix::process::{getrlimit, setrlimit, Resource};
use rustix::rand::{getrandom, GetRandomFlags};

use crate::cli::Args;
use crate::control::{stats, Control};
use crate::holdoff::HoldOff;
use crate::pacing::Pacing;
use crate::poller::{Poller, Ready, Source};
use crate::port::Port;
use crate::priority;
use crate::signals::Signals;

/// The switch with everything that it waits on.
pub(crate) struct Switch {
    poller: Poller,
    signals: Signals,
    control: Control,
    /// Port `i` is node `i + 1`.
    ports: Vec<Port>,
    fabric: Fabric,
    clock: Rc<dyn Clock>,
    pacing: Pacing,
    hold_off: HoldOff,
    stopping: bool,
}

impl Switch {
    /// Opens all sockets.
    pub(crate) fn new(args: &Args) -> anyhow::Result<Self> {
        let clock: Rc<dyn Clock> = Rc::new(MonotonicClock::new());
        let config = FabricConfig {
            max_nodes: args.nodes.saturating_add(1),
            fabric_id: random_id()?,
            link_speed_mbps: args.link_speed,
            doorbells: args.doorbells.into(),
            device_memory: args.device_memory,
            ..FabricConfig::default()
        };
        let mut fabric = Fabric::new(&config, &clock)?;
        for fault in &args.faults {
            let known = (1..=args.nodes).contains(&fault.node);
            ensure!(known, "--fault: there is no node {}", fault.node);
            fabric.set_fault(fault.node, fault.fault)?;
        }
        raise_file_limit();
        let poller = Poller::new().context("epoll")?;
        let signals = Signals::new().context("signals")?;
        poller.add(&signals, Source::Signal).context("signals")?;
        make_dir(&args.dir)?;
        let ports = (1..=args.nodes).map(|node| Port::open(&args.dir, node, &poller));
        let ports = ports.collect::<Result<_, _>>()?;
        let control = Control::open(&args.dir, &poller)?;
        if args.realtime {
            priority::raise();
        }
        announce(args)?;
        let pacing = Pacing::new(args.poll);
        Ok(Self {
            poller,
            signals,
            control,
            ports,
            fabric,
            clock,
            pacing,
            hold_off: HoldOff::default(),
            stopping: false,
        })
    }

    /// Serves until told to end.
    pub(crate) fn run(mut self) -> anyhow::Result<()> {
        let mut ready = Ready::new();
        let mut timeout = None;
        while !self.stopping {
            self.poller.wait(&mut ready, timeout).context("epoll")?;
            let mut worked = false;
            for source in ready.drain() {
                worked |= matches!(source, Source::Guest(_));
                self.serve(source);
            }
            let look = self.pacing.is_polling() || self.hold_off.is_due(self.clock.now_us());
            worked |= look && self.fabric.poll_doorbells();
            let deadline = self.fabric.run();
            timeout = self.pace(worked, deadline);
        }
        tracing::info!("ending");
        Ok(())
    }

    /// Serves one source.
    fn serve(&mut self, source: Source) {
        match source {
            Source::Guest(node) => {
                if let Some(port) = port(&mut self.ports, node) {
                    port.serve(&mut self.fabric, &self.poller);
                }
            }
            Source::Listener(node) => {
                if let Some(port) = port(&mut self.ports, node) {
                    port.accept(&mut self.fabric, &self.poller);
                }
            }
            Source::Control => self.control.accept(&self.poller),
            Source::Client(index) => self.control.serve(index, &mut self.fabric),
            Source::Signal => {
                let requests = self.signals.take();
                self.stopping |= requests.stop;
                if requests.report {
                    let nodes = serde_json::to_string(&stats(&self.fabric)).unwrap_or_default();
                    tracing::info!(%nodes, "counters");
                }
            }
        }
    }

    /// How long the loop may sleep; none: until something happens. Starts and ends polling and
    /// hold-off, during both of which guests need not kick.
    fn pace(&mut self, worked: bool, deadline: Option<u64>) -> Option<Duration> {
        let now = self.clock.now_us();
        let guests = self.ports.iter().filter(|port| port.is_connected()).count();
        let was_quiet = self.pacing.is_polling() || self.hold_off.is_holding();
        let polling = self.pacing.round(worked, guests, now);
        let look = if self.pacing.holds_off(guests) {
            let requests = || self.fabric.requests();
            self.hold_off.round(worked, now, requests)
        } else {
            self.hold_off.reset();
            None
        };
        let quiet = polling || look.is_some();
        if quiet != was_quiet && self.fabric.set_polling(quiet) {
            // A doorbell was rung while polling was switched: that is work, not sleep.
            self.fabric.poll_doorbells();
            return Some(Duration::ZERO);
        }
        if polling {
            return Some(Duration::ZERO);
        }
        let next = [deadline, look].into_iter().flatten().min();
        next.map(|at| Duration::from_micros(at.saturating_sub(now)))
    }
}

/// The port of a node.
fn port(ports: &mut [Port], node: u16) -> Option<&mut Port> {
    ports.get_mut(usize::from(node.checked_sub(1)?))
}

/// Makes the directory for the sockets, for its owner only.
fn make_dir(dir: &Path) -> anyhow::Result<()> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.with_context(|| format!("cannot make directory {}", dir.display()))
}

/// Raises the limit of open files as far as we may: with many guests, eventfds (one per
/// vector) soon exceed the usual 1024.
fn raise_file_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
}

/// A random non-zero identity.
fn random_id() -> anyhow::Result<u64> {
    let mut bytes = [0; 8];
    let filled = getrandom(&mut bytes, GetRandomFlags::empty()).context("random numbers")?;
    ensure!(filled == bytes.len(), "random numbers: only {filled} bytes");
    Ok(u64::from_le_bytes(bytes).max(1))
}

/// Tells whoever started us that guests may connect.
fn announce(args: &Args) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "nupa-switch: ready, {} nodes at {}",
        args.nodes,
        args.dir.display()
    )?;
    out.flush().context("standard output")
}
