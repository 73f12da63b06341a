// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The model of the function, and the node's membership of the pool.

use super::{
    hal::{Kicks, PoolHal, Vectors},
    nodes::PoolNodes,
    rate_limit::{RateLimit, FAULTS},
};
use crate::model::{FetchedCommand, Kick, Model};
use nupa_engine::{hal::Platform, MappedGrant, Volume};
use nupa_pool::{Events, NodeSet, Sharing, Unshared};
use nupa_proto::pool::DEAD_AFTER_US;

/// Memory of a function's driver.
type MemoryOf<H> = <<H as PoolHal>::Host as Platform>::Memory;

/// The node at work.
pub struct PoolNode<H: PoolHal> {
    /// What it has of its host.
    pub hal: H,
    /// The pool.
    pub window: H::Window,
    /// Its place there.
    pub membership: H::Membership,
    /// Device memory that it shares.
    pub sharing: Sharing,
    /// Its function.
    pub model: Model<PoolNodes<H>>,
    /// What it remembers.
    pub state: NodeState<H::Limits>,
}

/// What a node remembers from one turn to the next.
pub struct NodeState<L> {
    /// Peers that are up, ...
    pub(super) up: NodeSet,
    /// ... and those of them with an open link.
    pub(super) linked: NodeSet,
    /// Those whose link is to end.
    pub(super) ending: NodeSet,
    /// What the last look around has shown, and was not dealt with yet.
    pub(super) events: Events,
    /// When nodes may be asked for a link again that had no inbox left.
    pub(super) retry_at_us: u64,
    /// Behind the node that was asked for a link last.
    pub(super) first_asked: u16,
    /// When another link may be ended.
    pub(super) end_again_us: u64,
    /// When links that are to end are looked at.
    pub(super) ending_due_us: u64,
    /// Limits resets after peers refused this node.
    pub(super) resets: RateLimit,
    /// Limits the notices that no inbox is left.
    pub(super) shortages: RateLimit,
    /// Limits the notices about each node's faults.
    pub(super) faults: L,
    /// Limits those that say that a node went.
    pub(super) departures: L,
    /// Peers have been told that the function is enabled.
    enabled_announced: bool,
    /// It polls so often that peers need not interrupt this host; they have been told.
    awake: bool,
    /// It polls doorbells, so that drivers of this host need not kick; they have been told.
    polled: bool,
    /// Time of the last membership tick.
    ticked_us: u64,
}

impl<L> NodeState<L> {
    /// Of a node that has just joined. A limit of [`FAULTS`] and one of [`DEPARTURES`](super::DEPARTURES) for each node of the
    /// pool.
    pub fn new(faults: L, departures: L) -> Self {
        Self {
            up: NodeSet::default(),
            linked: NodeSet::default(),
            ending: NodeSet::default(),
            events: Events::default(),
            retry_at_us: 0,
            first_asked: 0,
            end_again_us: 0,
            ending_due_us: 0,
            resets: RateLimit::new(1),
            shortages: RateLimit::new(FAULTS),
            faults,
            departures,
            enabled_announced: false,
            awake: false,
            polled: false,
            ticked_us: 0,
        }
    }
}

/// Microseconds between two membership ticks: a fraction of the heartbeat interval.
const TICK_US: u64 = 1000;

/// What a turn did.
#[derive(Clone, Copy)]
pub struct Turn {
    /// Something was done.
    pub busy: bool,
    /// It polled the pool: membership, and what peers sent.
    pub polled_pool: bool,
    /// It found something from a peer.
    pub arrived: bool,
    /// Vectors that were raised, one bit each.
    pub raised: u64,
    /// Frames, messages and bytes received and sent since the function was reset; the counts wrap around.
    pub moved: [Volume; 2],
    /// When the next turn is needed, in microseconds of the host's clock; a time that is over means at once.
    pub due_us: Option<u64>,
    /// Peers do not interrupt this host.
    pub awake: bool,
}

impl Turn {
    /// Microseconds after which the next turn is needed.
    pub fn due_in_us(&self, now_us: u64) -> Option<u64> {
        self.due_us.map(|due| due.saturating_sub(now_us))
    }
}

impl<H: PoolHal> PoolNode<H> {
    /// Does all work that is due: kicks, arrivals, timers, membership. `spins`: another turn follows at once, so drivers need not kick.
    /// `awake`: another one follows soon enough that peers need not interrupt this host.
    pub fn turn(&mut self, kicks: &impl Kicks, spins: bool, awake: bool) -> Turn {
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
    pub fn work(&mut self, kicks: &impl Kicks) -> Turn {
        let now_us = self.tick(TICK_US);
        let arrived = self.model.engine.receive(&mut self.model.functions);
        let rung = self.state.polled && self.model.poll_doorbells();
        let posted = self.post(kicks, now_us);
        Turn {
            busy: arrived || rung || posted.busy,
            polled_pool: true,
            arrived,
            ..posted
        }
    }

    /// As [`PoolNode::work`], for a program that polls again soon: peers need not interrupt this host.
    pub fn poll_for_program(&mut self, kicks: &impl Kicks) -> Turn {
        self.announce_polling(true);
        self.work(kicks)
    }

    /// Runs a membership tick if the last one is at least `interval_us` ago. Returns the time, for the rest of the turn: a look at the clock costs as much
    /// as one at all rings.
    fn tick(&mut self, interval_us: u64) -> u64 {
        let now = self.hal.now_us();
        if now.saturating_sub(self.state.ticked_us) >= interval_us && !self.model.engine.is_held() {
            self.state.ticked_us = now;
            self.look_around(now);
            self.serve_links(now);
        }
        now
    }

    /// Does what this host has kicked, and what is due, without polling the pool.
    pub fn send(&mut self, kicks: &impl Kicks) -> Turn {
        // A machine that was stopped for long may have lost its slot, and with that its rings.
        let now_us = self.tick(DEAD_AFTER_US / 2);
        self.post(kicks, now_us)
    }

    /// As [`PoolNode::send`], and has the peer of a connected queue pair of this node make the event that its program waits for: there is a message
    /// for it in a process ring.
    pub fn kick_peer(&mut self, kicks: &impl Kicks, qpn: u32) -> Turn {
        let id = self.id();
        let Model {
            engine, functions, ..
        } = &mut self.model;
        engine.send_event(functions, id, qpn);
        self.send(kicks)
    }

    /// As [`PoolNode::send`], and makes the event of a connected queue pair's receive completion queue, if that is armed: a message in its process ring
    /// has waited for a receive entry, and there is one.
    pub fn kick_event(&mut self, kicks: &impl Kicks, qpn: u32) -> Turn {
        let id = self.id();
        let Model {
            engine, functions, ..
        } = &mut self.model;
        engine.make_own_event(functions, id, qpn);
        self.send(kicks)
    }

    /// Lets a process map the memory that a queue pair has a grant for, by its key. The number of the hold on it is returned as well. `Unknown` if there is no
    /// grant (yet), or its memory cannot be mapped.
    pub fn map_grant(&mut self, qpn: u32, key: u32) -> Result<(u16, MappedGrant), Unshared> {
        let id = self.id();
        let Model {
            engine, functions, ..
        } = &mut self.model;
        let mapped = engine.map_grant(functions, id, qpn, key);
        let mapped = mapped.ok_or(Unshared::Unknown)?;
        let place = (mapped.offset(), mapped.len());
        let (window, member) = (&self.window, &self.membership);
        let hold = self
            .sharing
            .hold_granted(window, member, mapped.node(), place);
        let hold = match hold {
            Ok(hold) => hold,
            Err(why) => {
                engine.unmap_grant(functions, &mapped);
                return Err(why);
            }
        };
        // Its owner may have been reset since the grant was looked at, and have freed it before there was a hold.
        if engine.is_granted(functions, id, &mapped) {
            return Ok((hold, mapped));
        }
        self.unmap_grant(hold, &mapped);
        Err(Unshared::Unknown)
    }

    /// Whether the process may go on.
    pub fn is_granted(&mut self, mapped: &MappedGrant) -> bool {
        let id = self.id();
        let Model {
            engine, functions, ..
        } = &mut self.model;
        engine.is_granted(functions, id, mapped)
    }

    /// No process has the memory mapped any more.
    pub fn unmap_grant(&mut self, hold: u16, mapped: &MappedGrant) {
        let Model {
            engine, functions, ..
        } = &mut self.model;
        engine.unmap_grant(functions, mapped);
        self.membership
            .end_mapping(&self.window, mapped.node(), mapped.slot());
        self.sharing.release(&self.window, &self.membership, hold);
    }

    fn post(&mut self, kicks: &impl Kicks, now_us: u64) -> Turn {
        let id = self.id();
        let busy = kicks.take(|page, slot| self.model.kick(id, Kick::Plain(page, slot)));
        let due_us = self.model.run_at(Some(now_us));
        // What is stored late goes to memory that such a peer still counts on.
        if !self.model.engine.is_held() {
            self.isolate_refused();
        }
        self.publish();
        Turn {
            busy,
            polled_pool: false,
            arrived: false,
            raised: self.model.functions.own.host.raised(),
            moved: self.model.functions.own.node.moved(),
            due_us,
            awake: self.state.awake,
        }
    }

    /// Tells the drivers of this host whether it polls doorbells from now on. True if a doorbell may have been rung without a kick just
    /// before.
    fn set_doorbell_polling(&mut self, spins: bool) -> bool {
        if spins == self.state.polled {
            return false;
        }
        self.state.polled = spins;
        self.model.set_polling(spins)
    }

    /// Tells peers whether this host polls, so that they need not interrupt it.
    fn announce_polling(&mut self, awake: bool) {
        if awake != self.state.awake {
            self.state.awake = awake;
            self.membership.set_polling(&self.window, awake);
        }
    }

    /// This node.
    pub fn id(&self) -> u16 {
        self.model.functions.own.node.id()
    }

    /// Writes a control register. Admin commands that this sets off are to be [fetched](PoolNode::fetch_command).
    pub fn write_register(&mut self, register: usize, data: &[u8]) {
        let (id, epoch_before) = (self.id(), self.model.functions.own.node.epoch());
        self.model.begin_write(id, register as u64, data);
        if self.model.functions.own.node.epoch() != epoch_before {
            self.renew();
        }
        if self.model.functions.own.is_ready() && !self.state.enabled_announced {
            self.state.enabled_announced = true;
            self.membership.enable(&self.window);
        }
    }

    /// Takes the next admin command that waits, and the memory that it is about.
    pub fn fetch_command(&mut self) -> Option<(FetchedCommand<H::Storage>, MemoryOf<H>)>
    where
        MemoryOf<H>: Clone,
    {
        let command = self.model.fetch_command(self.id())?;
        Some((command, self.model.functions.own.host.memory().clone()))
    }

    /// Whether the node still has its place in the pool.
    pub fn is_member(&self) -> bool {
        self.membership.is_valid(&self.window)
    }

    /// Leaves the fabric for good. Sleeps.
    pub fn leave(&mut self) {
        self.drop_links();
        self.membership.leave(&self.window);
    }

    /// Takes a new epoch. If there is none, the function stops as soon as it is enabled.
    fn renew(&mut self) {
        self.state.enabled_announced = false;
        self.drop_links();
        if self.membership.renew(&self.window) {
            self.hal.set_heartbeat(self.membership.heartbeat());
            self.model
                .functions
                .own
                .node
                .set_epoch(self.membership.epoch());
        }
    }
}
