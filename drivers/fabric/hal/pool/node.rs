// SPDX-License-Identifier: GPL-2.0
//! What the function's lock protects: the model of the function, and the node's membership of the pool.

use super::{
    heartbeat::HeartbeatTimer,
    joined::Joined,
    kicks::Kicks,
    memory::NodeMemory,
    nodes::Nodes,
    rate_limit::RateLimit,
    storage::KernelStorage,
    window::{HostClock, PoolWindow},
};
use kernel::{
    device::Device,
    fmt::Arguments,
    prelude::*,
    sync::{aref::ARef, Arc},
};
use nupa_engine::{NodeTable, Volume};
use nupa_function::{FetchedCommand, Kick, Model};
use nupa_pool::{Events, NodeSet, Poisoned, Sharing, Violation};
use nupa_proto::{pool::DEAD_AFTER_US, regs::FAULT_POOL};

/// Interrupts hosts whose function does not poll.
pub(super) trait Bell: Send + Sync {
    /// Interrupts the host that wrote this value to the pool as its bell. Any context.
    fn ring(&self, bell: u64);
}

/// The function at work.
pub(super) struct PoolNode {
    pub(super) device: ARef<Device>,
    pub(super) window: PoolWindow,
    pub(super) clock: HostClock,
    pub(super) membership: Joined,
    /// Writes the heartbeat that peers look for.
    pub(super) heartbeat: Arc<HeartbeatTimer>,
    /// Device memory that it shares.
    pub(super) sharing: Sharing,
    pub(super) model: Model<Nodes>,
    /// Peers with an open link.
    pub(super) linked: NodeSet,
    /// Interrupts peers that do not poll, where there is a way to.
    pub(super) bell: Option<Arc<dyn Bell>>,
    /// Limits resets after peers refused this node.
    pub(super) resets: RateLimit,
    /// Limits the log messages about each node's faults.
    pub(super) faults: KVVec<RateLimit>,
    /// Limits those that say that a node went.
    pub(super) departures: KVVec<RateLimit>,
    /// Peers have been told that the function is enabled.
    pub(super) enabled_announced: bool,
    /// It polls so often that peers need not interrupt this host; they have been told.
    pub(super) awake: bool,
    /// It polls doorbells, so that drivers of this host need not kick; they have been told.
    pub(super) polled: bool,
    /// Time of the last membership tick.
    pub(super) ticked_us: u64,
}

/// Microseconds between two membership ticks: a fraction of the heartbeat interval.
const TICK_US: u64 = 1000;

/// What a peer has to do whose lines cannot be read.
const COME_BACK: &str = "it is ignored until it comes back";

/// What a turn did.
#[derive(Clone, Copy)]
pub(super) struct Turn {
    /// Something was done.
    pub(super) busy: bool,
    /// It polled the pool: membership, and what peers sent.
    pub(super) polled_pool: bool,
    /// It found something from a peer.
    pub(super) arrived: bool,
    /// Vectors that were raised, one bit each.
    pub(super) raised: u64,
    /// Frames, messages and bytes received and sent since the function was reset; the counts wrap around.
    pub(super) moved: [Volume; 2],
    /// Microseconds after which the next turn is needed.
    pub(super) due_us: Option<u64>,
    /// Peers do not interrupt this host.
    pub(super) awake: bool,
}

impl PoolNode {
    /// Does all work that is due: kicks, arrivals, timers, membership. `spins`: another turn follows at once, so drivers need not kick.
    /// `awake`: another one follows soon enough that peers need not interrupt this host.
    pub(super) fn turn(&mut self, kicks: &Kicks, spins: bool, awake: bool) -> Turn {
        // This comes before the polls: a peer that sends something after them sees the new flag, and interrupts this host.
        self.announce_polling(awake);
        let rung = self.set_doorbell_polling(spins) && self.model.poll_doorbells();
        let work = self.work(kicks);
        Turn {
            busy: rung || work.busy,
            raised: self.model.functions.own.host.take_raised(),
            ..work
        }
    }

    /// As [`PoolNode::turn`], but does not change what it has announced, and leaves interrupts raised.
    pub(super) fn work(&mut self, kicks: &Kicks) -> Turn {
        self.tick(TICK_US);
        let arrived = self.model.engine.receive(&mut self.model.functions);
        let rung = self.polled && self.model.poll_doorbells();
        let posted = self.post(kicks);
        Turn {
            busy: arrived || rung || posted.busy,
            polled_pool: true,
            arrived,
            ..posted
        }
    }

    /// As [`PoolNode::work`], for a program that polls again soon: peers need not interrupt this host.
    pub(super) fn poll_for_program(&mut self, kicks: &Kicks) -> Turn {
        self.announce_polling(true);
        self.work(kicks)
    }

    /// Runs a membership tick if the last one is at least `interval_us` ago.
    fn tick(&mut self, interval_us: u64) {
        let now = self.clock.now_us();
        if now.saturating_sub(self.ticked_us) >= interval_us {
            self.ticked_us = now;
            let events = self.membership.tick(&self.window, now);
            self.apply_events(&events);
        }
    }

    /// Does what this host has kicked, and what is due, without polling the pool.
    pub(super) fn send(&mut self, kicks: &Kicks) -> Turn {
        // A machine that was stopped for long may have lost its slot, and with that its rings.
        self.tick(DEAD_AFTER_US / 2);
        self.post(kicks)
    }

    fn post(&mut self, kicks: &Kicks) -> Turn {
        let id = self.id();
        let busy = kicks.take(|page, slot| self.model.kick(id, Kick::Plain(page, slot)));
        let next = self.model.run();
        self.isolate_refused();
        self.publish();
        let now = self.clock.now_us();
        Turn {
            busy,
            polled_pool: false,
            arrived: false,
            raised: self.model.functions.own.host.raised(),
            moved: self.model.functions.own.node.moved(),
            due_us: next.map(|next| next.saturating_sub(now)),
            awake: self.awake,
        }
    }

    /// Tells the drivers of this host whether it polls doorbells from now on. True if a doorbell may have been rung without a kick just
    /// before.
    fn set_doorbell_polling(&mut self, spins: bool) -> bool {
        if spins == self.polled {
            return false;
        }
        self.polled = spins;
        self.model.set_polling(spins)
    }

    /// Tells peers whether this host polls, so that they need not interrupt it.
    fn announce_polling(&mut self, awake: bool) {
        if awake != self.awake {
            self.awake = awake;
            self.membership.set_polling(&self.window, awake);
        }
    }

    /// This node.
    pub(super) fn id(&self) -> u16 {
        self.model.functions.own.node.id()
    }

    /// Writes a control register. Admin commands that this sets off are to be [fetched](PoolNode::fetch_command).
    pub(super) fn write_register(&mut self, register: usize, data: &[u8]) {
        let (id, epoch_before) = (self.id(), self.model.functions.own.node.epoch());
        self.model.begin_write(id, register as u64, data);
        if self.model.functions.own.node.epoch() != epoch_before {
            self.renew();
        }
        if self.model.functions.own.is_ready() && !self.enabled_announced {
            self.enabled_announced = true;
            self.membership.enable(&self.window);
        }
    }

    /// Takes the next admin command that waits, and the memory that it is about.
    pub(super) fn fetch_command(&mut self) -> Option<(FetchedCommand<KernelStorage>, NodeMemory)> {
        let command = self.model.fetch_command(self.id())?;
        Some((command, self.model.functions.own.host.memory.clone()))
    }

    /// Whether the node still has its place in the pool.
    pub(super) fn is_member(&self) -> bool {
        self.membership.is_valid(&self.window)
    }

    /// Leaves the fabric for good. Sleeps.
    pub(super) fn leave(&mut self) {
        self.drop_links();
        self.membership.leave(&self.window);
    }

    /// Takes a new epoch. If there is none, the function stops as soon as it is enabled.
    fn renew(&mut self) {
        self.enabled_announced = false;
        self.drop_links();
        if self.membership.renew(&self.window) {
            self.heartbeat.target().set(self.membership.heartbeat());
            self.model
                .functions
                .own
                .node
                .set_epoch(self.membership.epoch());
        }
    }

    fn drop_links(&mut self) {
        for id in self.linked.iter() {
            self.down(id);
        }
    }

    /// Tells the engine which nodes came and went.
    fn apply_events(&mut self, events: &Events) {
        for id in events.down.iter() {
            match self.membership.poisoned(id) {
                Some(poisoned) => self.lost(id, poisoned, COME_BACK),
                None if events.silent.contains(id) => {
                    self.log_departure(id, "is dead: no heartbeat");
                }
                None => self.log_departure(id, "has left"),
            }
            self.down(id);
        }
        for id in events.up.iter() {
            self.up(id);
        }
        if events.evicted {
            return self.evicted();
        }
        if !events.refused_by.is_empty() {
            self.refused(events.refused_by);
        }
    }

    /// The slot belongs to another host, or the pool was formatted anew. Nothing in the pool is touched any more.
    fn evicted(&mut self) {
        if self.model.functions.own.is_ready() {
            let id = self.id();
            match self.membership.poisoned(id) {
                None => dev_err!(
                    self.device,
                    "node {id} of the pool is not this host any more\n"
                ),
                Some(poisoned) => self.lost(id, poisoned, "it has to join anew"),
            }
            self.drop_links();
            self.model.fail(id, FAULT_POOL);
        }
    }

    /// Peers have declared this node dead.
    fn refused(&mut self, by: NodeSet) {
        for id in by.iter() {
            let peer = self.model.functions.peer_mut(id);
            if peer.is_some_and(|peer| peer.epoch().is_some()) {
                self.log_fault(id, fmt!("has taken this one for dead"));
                self.down(id);
            }
        }
        let now = self.clock.now_us();
        if self.model.functions.own.is_ready() && self.resets.allow(now).is_some() {
            let id = self.id();
            self.model.fail(id, FAULT_POOL);
        }
    }

    /// Memory of the pool is poisoned: the node that wrote there is lost.
    #[cold]
    fn lost(&mut self, id: u16, Poisoned { offset }: Poisoned, so: &str) {
        let area = self.membership.pool().geometry().area(offset);
        self.log_fault(
            id,
            fmt!(
                "is lost to a memory error in the pool: {} (offset {offset:#x}); {so}",
                format_args!("{area}")
            ),
        );
    }

    /// Logs a fault of a node, within its rate limit.
    #[cold]
    fn log_fault(&mut self, id: u16, what: Arguments<'_>) {
        let now = self.clock.now_us();
        let rate_limit = self.faults.get_mut(usize::from(id));
        let Some(suppressed) = rate_limit.and_then(|rate_limit| rate_limit.allow(now)) else {
            return;
        };
        if suppressed != 0 {
            dev_err!(
                self.device,
                "node {id}: {suppressed} faults before this one are not logged\n"
            );
        }
        dev_err!(self.device, "node {id} {what}\n");
    }

    /// Logs that a node went, within its rate limit.
    #[cold]
    fn log_departure(&mut self, id: u16, how: &str) {
        let now = self.clock.now_us();
        let rate_limit = self.departures.get_mut(usize::from(id));
        let Some(suppressed) = rate_limit.and_then(|rate_limit| rate_limit.allow(now)) else {
            return;
        };
        if suppressed != 0 {
            dev_info!(
                self.device,
                "node {id}: {suppressed} departures before this one are not logged\n"
            );
        }
        dev_info!(self.device, "node {id} {how}\n");
    }

    fn up(&mut self, id: u16) {
        let Some(link) = self.membership.open(&self.window, id) else {
            return;
        };
        let epoch = link.epoch;
        if let Some(peer) = self.model.functions.peer_mut(id) {
            peer.link_mut().set(Some(link));
            self.linked.insert(id);
        }
        let functions = &mut self.model.functions;
        self.model.engine.peer_up(functions, id, epoch);
    }

    fn down(&mut self, id: u16) {
        self.linked.remove(id);
        if let Some(peer) = self.model.functions.peer_mut(id) {
            peer.link_mut().set(None);
        }
        self.model.engine.peer_down(&mut self.model.functions, id);
    }

    /// Isolates peers that broke a rule.
    fn isolate_refused(&mut self) {
        for id in self.linked.iter() {
            let peer = self.model.functions.peer_mut(id);
            let Some((true, violation)) = peer.map(|peer| peer.link().is_refused()) else {
                continue;
            };
            match violation {
                Some(Violation::Poisoned { offset }) => {
                    self.lost(id, Poisoned { offset }, COME_BACK);
                }
                Some(violation) => {
                    self.log_fault(id, fmt!("breaks the pool's rules: {violation:?}"));
                }
                None => self.log_fault(id, fmt!("sends what no node may send")),
            }
            self.membership.isolate(&self.window, id);
            self.down(id);
        }
    }

    /// Publishes what peers are to see, and interrupts those that do not poll.
    fn publish(&mut self) {
        for id in self.linked.iter() {
            let peer = self.model.functions.peer_mut(id);
            if !peer.is_some_and(|peer| peer.link_mut().publish().wakes) {
                continue;
            }
            let Some(bell) = &self.bell else {
                continue;
            };
            if self.membership.must_wake(&self.window, id) {
                if let Some(info) = self.membership.peer(&self.window, id) {
                    bell.ring(info.bell);
                }
            }
        }
    }
}
