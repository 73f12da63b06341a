// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Taking a node slot.

use crate::{
    attach::Pool,
    membership::{Membership, NodeSet},
    peer::Peer,
    refusal::Refusal,
    Poisoned, Time, Window, SETTLE_US,
};
use core::borrow::BorrowMut;
use nupa_proto::pool::{Claim, ClaimState, Slot, DEAD_AFTER_US, LINE, MAX_NODES};

/// What a node that joins says of itself.
#[derive(Clone, Copy, Debug)]
pub struct JoinOptions {
    /// A random number.
    pub token: u64,
    /// Stays the same over restarts of the host; a slot that had it before is taken again. 0: nothing to say.
    pub identity: u64,
    /// How others wake it when it sleeps; 0: they cannot. See [`Slot::bell`].
    pub bell: u64,
    /// Node id that it wants, if it can be had.
    pub prefer: Option<u16>,
    /// `CAP_*` of [`nupa_proto::regs`] that its engine serves.
    pub capabilities: u64,
    /// Microseconds without a heartbeat after which this node takes another for dead.
    pub dead_after_us: u64,
}

impl JoinOptions {
    /// No wishes.
    pub fn new(token: u64) -> Self {
        Self {
            token,
            identity: 0,
            bell: 0,
            prefer: None,
            capabilities: 0,
            dead_after_us: DEAD_AFTER_US,
        }
    }
}

/// How often a slot may be lost to others who want it as well.
const ATTEMPTS: u32 = 100;
/// Steps in which heartbeats are watched.
const STEP_US: u64 = 20_000;

/// A slot that was taken, for a [`Membership`].
pub(crate) struct TakenSlot {
    pub(crate) pool: Pool,
    pub(crate) node: u16,
    pub(crate) claim: Claim,
    pub(crate) options: JoinOptions,
    pub(crate) taken_us: u64,
}

/// A slot as it was found.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    /// All of it can be read. One that cannot be is not taken.
    readable: bool,
    claim: u64,
    heartbeat: u64,
    identity: u64,
}

impl Found {
    fn read(window: &impl Window, slot: u64) -> Self {
        window.refresh(slot, LINE.wrapping_mul(2));
        let field = |offset: usize| window.load(slot.wrapping_add(offset as u64));
        let fields = || -> Result<Self, Poisoned> {
            Ok(Self {
                readable: true,
                claim: field(core::mem::offset_of!(Slot, claim))?,
                heartbeat: field(core::mem::offset_of!(Slot, heartbeat))?,
                identity: field(core::mem::offset_of!(Slot, identity))?,
            })
        };
        fields().unwrap_or_default()
    }

    /// Nobody has it. What is no claim is nobody's.
    fn is_free(&self) -> bool {
        let claim = Claim::from_wire(self.claim);
        self.readable && !claim.is_ok_and(|claim| claim.state != ClaimState::Free)
    }

    /// Whether whoever has it has not shown since.
    fn is_same(&self, later: &Self) -> bool {
        (self.readable && later.readable)
            && self.claim == later.claim
            && self.heartbeat == later.heartbeat
    }
}

impl Pool {
    /// Takes a node slot: the one that the node wants or had before, else one that nobody had, else any that is free, else one
    /// whose node is dead. Sleeps until it is certain that the slot is its own, and begins to watch the others.
    pub fn join(
        &self,
        window: &impl Window,
        time: &impl Time,
        options: &JoinOptions,
    ) -> Result<Membership, Refusal> {
        let peers = [Peer::UNKNOWN; MAX_NODES as usize];
        self.join_with(window, time, options, peers)
    }

    /// As [`Pool::join`], but what is known of the others is kept in `peers`, of which each is [`Peer::UNKNOWN`]: a place for each
    /// [node](crate::Geometry::max_nodes) of the pool.
    pub fn join_with<P: BorrowMut<[Peer]>>(
        &self,
        window: &impl Window,
        time: &impl Time,
        options: &JoinOptions,
        peers: P,
    ) -> Result<Membership<P>, Refusal> {
        let slot = self.take_slot(window, time, options)?;
        let mut membership = Membership::new(&slot, peers);
        membership.enter(window, options);
        Ok(membership)
    }

    fn take_slot(
        &self,
        window: &impl Window,
        time: &impl Time,
        options: &JoinOptions,
    ) -> Result<TakenSlot, Refusal> {
        for _ in 0..ATTEMPTS {
            let (node, found) = self.pick(window, time, options)?;
            if let Some(claim) = self.claim(window, time, node, &found, options.token) {
                return Ok(TakenSlot {
                    pool: *self,
                    node,
                    claim,
                    options: *options,
                    taken_us: time.now_us(),
                });
            }
        }
        Err(Refusal::Busy)
    }

    /// Picks a slot, which is watched for as long as a node may be silent if it is not free.
    ///
    /// By itself because of the space that it takes on the stack.
    #[inline(never)]
    fn pick(
        &self,
        window: &impl Window,
        time: &impl Time,
        options: &JoinOptions,
    ) -> Result<(u16, Found), Refusal> {
        let read = |node| Found::read(window, self.geometry().slot(node));
        let mut first = [read(0); MAX_NODES as usize];
        let nodes = || 0..self.geometry().max_nodes();
        for (slot, node) in first.iter_mut().zip(nodes()) {
            *slot = read(node);
        }
        let slots = || nodes().zip(first.iter().copied());
        let own = |node: u16, slot: &Found| {
            options.prefer == Some(node)
                || (options.identity != 0 && slot.identity == options.identity)
        };
        let free = || slots().filter(|(_, slot)| slot.is_free());
        let wanted = slots().any(|(node, slot)| own(node, &slot) && !slot.is_free());
        if wanted || free().next().is_none() {
            watch(time, options.dead_after_us, || {
                slots().all(|(node, slot)| !slot.is_same(&read(node)))
            });
        }
        let dead = || slots().filter(|(node, slot)| !slot.is_free() && slot.is_same(&read(*node)));
        free()
            .find(|(node, slot)| own(*node, slot))
            .or_else(|| dead().find(|(node, slot)| own(*node, slot)))
            .or_else(|| free().find(|(_, slot)| slot.identity == 0))
            .or_else(|| free().next())
            .or_else(|| dead().next())
            .ok_or(Refusal::Full {
                nodes: self.geometry().max_nodes(),
            })
    }

    /// Nodes that have a slot: those that live, and those that have given no sign of it for as long as a node may be silent,
    /// which this waits for. Writes nothing.
    #[inline(never)]
    pub fn nodes(&self, window: &impl Window, time: &impl Time) -> (NodeSet, NodeSet) {
        let read = |node| Found::read(window, self.geometry().slot(node));
        let mut first = [read(0); MAX_NODES as usize];
        let nodes = || 0..self.geometry().max_nodes();
        for (slot, node) in first.iter_mut().zip(nodes()) {
            *slot = read(node);
        }
        let slots = || {
            nodes()
                .zip(first.iter())
                .filter(|(_, slot)| !slot.is_free())
        };
        watch(time, DEAD_AFTER_US, || {
            slots().all(|(node, slot)| !slot.is_same(&read(node)))
        });
        let (mut live, mut silent) = (NodeSet::default(), NodeSet::default());
        for (node, slot) in slots() {
            match slot.is_same(&read(node)) {
                true => silent.insert(node),
                false => live.insert(node),
            }
        }
        (live, silent)
    }

    /// Claims a slot. `None` if somebody else has it now.
    fn claim(
        &self,
        window: &impl Window,
        time: &impl Time,
        node: u16,
        found: &Found,
        token: u64,
    ) -> Option<Claim> {
        let epoch = next_epoch(found.claim as u32);
        let claim = Claim {
            state: ClaimState::Claiming,
            token: token as u32,
            epoch,
        };
        let mine = claim.to_wire();
        if !self.replace_claim(window, node, found.claim, mine) {
            return None;
        }
        time.sleep_us(SETTLE_US);
        let claim = Claim {
            state: ClaimState::Taken,
            ..claim
        };
        if self.read_claim(window, node) != Ok(mine) {
            return None;
        }
        self.replace_claim(window, node, mine, claim.to_wire())
            .then_some(claim)
    }

    /// The claim word of a slot as it is in the pool.
    pub(crate) fn read_claim(&self, window: &impl Window, node: u16) -> Result<u64, Poisoned> {
        let slot = self.geometry().slot(node);
        window.refresh(slot, size_of::<u64>() as u64);
        window.load(slot)
    }

    /// Replaces a claim word; false if another is there.
    pub(crate) fn replace_claim(
        &self,
        window: &impl Window,
        node: u16,
        current: u64,
        new: u64,
    ) -> bool {
        let slot = self.geometry().slot(node);
        let done = window.compare_exchange(slot, current, new);
        window.publish(slot, size_of::<u64>() as u64);
        done == Ok(true)
    }
}

/// Waits for as long as a node may be silent, or until `done`.
fn watch(time: &impl Time, dead_after_us: u64, done: impl Fn() -> bool) {
    let start = time.now_us();
    while !done() && time.now_us().saturating_sub(start) < dead_after_us {
        time.sleep_us(STEP_US);
    }
}

/// The epoch after another; never 0.
pub(crate) fn next_epoch(epoch: u32) -> u32 {
    epoch.wrapping_add(1).max(1)
}
