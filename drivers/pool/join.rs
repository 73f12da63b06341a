// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Taking a node slot.

use crate::{
    attach::Pool, membership::Membership, node_set::NodeSet, peer::Peer, refusal::Refusal,
    Poisoned, Time, Window, SETTLE_US,
};
use core::borrow::BorrowMut;
#[cfg(not(MODULE))]
use nupa_proto::pool::MAX_NODES;
use nupa_proto::pool::{
    Claim, ClaimState, Slot, AREA_NODES, DEAD_AFTER_US, GRANT_TIMEOUT_US, LINE,
};

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
    /// `CAP_*` of [`nupa_proto::regs`] that its engine serves, and
    /// [`CAP_POOL_LINES`](nupa_proto::pool::CAP_POOL_LINES).
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
/// Steps in which it is waited for the end of direct writes.
const WRITERS_US: u64 = 1000;

/// A slot that was taken, for a [`Membership`].
pub(crate) struct TakenSlot {
    pub(crate) pool: Pool,
    pub(crate) node: u16,
    pub(crate) claim: Claim,
    pub(crate) options: JoinOptions,
    pub(crate) taken_us: u64,
}

/// What of a slot changes while its node lives.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Sign {
    claim: u64,
    heartbeat: u64,
}

/// A slot that can be read. One that cannot be is not taken.
pub(crate) struct Found {
    sign: Sign,
    pub(crate) identity: u64,
}

impl Found {
    fn read(window: &impl Window, slot: u64) -> Result<Self, Poisoned> {
        window.refresh(slot, LINE.wrapping_mul(2));
        let field = |offset: usize| window.load(slot.wrapping_add(offset as u64));
        Ok(Self {
            sign: Sign {
                claim: field(core::mem::offset_of!(Slot, claim))?,
                heartbeat: field(core::mem::offset_of!(Slot, heartbeat))?,
            },
            identity: field(core::mem::offset_of!(Slot, identity))?,
        })
    }

    /// Nobody has it. What is no claim is nobody's.
    fn is_free(&self) -> bool {
        let claim = Claim::from_wire(self.sign.claim);
        !claim.is_ok_and(|claim| claim.state != ClaimState::Free)
    }
}

/// All slots as they were found. What of each is compared later lies in what will be known of its node: a kernel's stack has no room for that.
pub(crate) struct Slots<'a> {
    peers: &'a mut [Peer],
    pub(crate) readable: NodeSet,
    /// Nobody has them.
    pub(crate) free: NodeSet,
}

impl<'a> Slots<'a> {
    /// None was looked at. Each of `peers` is [`Peer::UNKNOWN`].
    pub(crate) fn unread(peers: &'a mut [Peer]) -> Self {
        Self {
            peers,
            readable: NodeSet::EMPTY,
            free: NodeSet::EMPTY,
        }
    }

    /// Reads all slots, and shows each that can be read to `look`.
    pub(crate) fn read(
        &mut self,
        pool: &Pool,
        window: &impl Window,
        mut look: impl FnMut(u16, &Found),
    ) {
        for (node, peer) in (0..pool.geometry().max_nodes()).zip(self.peers.iter_mut()) {
            let Ok(found) = Found::read(window, pool.geometry().slot(node)) else {
                continue;
            };
            (peer.claim, peer.heartbeat) = (found.sign.claim, found.sign.heartbeat);
            self.readable.insert(node);
            if found.is_free() {
                self.free.insert(node);
            }
            look(node, &found);
        }
    }

    /// Those that somebody has.
    pub(crate) fn held(&self) -> impl Iterator<Item = u16> + '_ {
        self.readable
            .iter()
            .filter(|node| !self.free.contains(*node))
    }

    fn sign(&self, node: u16) -> Option<Sign> {
        self.peers.get(usize::from(node)).map(|peer| Sign {
            claim: peer.claim,
            heartbeat: peer.heartbeat,
        })
    }

    /// The claim word that a slot had.
    pub(crate) fn claim(&self, node: u16) -> u64 {
        self.sign(node).map_or(0, |sign| sign.claim)
    }

    /// Whether whoever has it has not shown since.
    pub(crate) fn is_same(&self, pool: &Pool, window: &impl Window, node: u16) -> bool {
        let later = Found::read(window, pool.geometry().slot(node));
        later.is_ok_and(|later| self.sign(node) == Some(later.sign))
    }
}

impl Pool {
    /// Takes a node slot: the one that the node wants or had before, else one that nobody had, else any that is free, else one
    /// whose node is dead. Sleeps until it is certain that the slot is its own, and begins to watch the others. It is for pools of no more than
    /// [`AREA_NODES`].
    pub fn join(
        &self,
        window: &impl Window,
        time: &impl Time,
        options: &JoinOptions,
    ) -> Result<Membership, Refusal> {
        let peers = [Peer::UNKNOWN; AREA_NODES as usize];
        self.join_with(window, time, options, peers)
    }

    /// As [`Pool::join`], but what is known of the others is kept in `peers`, of which each is [`Peer::UNKNOWN`]: a place for each
    /// [node](crate::Geometry::max_nodes) of the pool. A slot without a place there is not taken.
    pub fn join_with<P: BorrowMut<[Peer]>>(
        &self,
        window: &impl Window,
        time: &impl Time,
        options: &JoinOptions,
        mut peers: P,
    ) -> Result<Membership<P>, Refusal> {
        let slot = self.take_slot(window, time, options, peers.borrow_mut())?;
        let mut membership = Membership::new(&slot, peers);
        membership.enter(window, options);
        let start = time.now_us();
        while membership.has_writers(window)
            && time.now_us().saturating_sub(start) < GRANT_TIMEOUT_US
        {
            time.sleep_us(WRITERS_US);
        }
        Ok(membership)
    }

    fn take_slot(
        &self,
        window: &impl Window,
        time: &impl Time,
        options: &JoinOptions,
        peers: &mut [Peer],
    ) -> Result<TakenSlot, Refusal> {
        for _ in 0..ATTEMPTS {
            let picked = self.pick(window, time, options, peers);
            peers.fill(Peer::UNKNOWN);
            let (node, found) = picked?;
            if let Some(claim) = self.claim(window, time, node, found, options.token) {
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

    /// Picks a slot, which is watched for as long as a node may be silent if it is not free. Also returns its claim word.
    ///
    /// By itself because of the space that it takes on the stack.
    #[inline(never)]
    fn pick(
        &self,
        window: &impl Window,
        time: &impl Time,
        options: &JoinOptions,
        peers: &mut [Peer],
    ) -> Result<(u16, u64), Refusal> {
        let max_nodes = self.geometry().max_nodes();
        let (mut own, mut unused) = (NodeSet::default(), NodeSet::default());
        if let Some(node) = options.prefer.filter(|node| *node < max_nodes) {
            own.insert(node);
        }
        let mut slots = Slots::unread(peers);
        slots.read(self, window, |node, found| match found.identity {
            0 => unused.insert(node),
            identity if identity == options.identity => own.insert(node),
            _ => {}
        });
        let is_own = |node: &u16| own.contains(*node);
        let slots = &slots;
        let is_same = |node: u16| slots.is_same(self, window, node);
        if slots.free.is_empty() || own.iter().any(|node| !slots.free.contains(node)) {
            let shown = || !slots.readable.iter().any(is_same);
            watch(time, options.dead_after_us, shown);
        }
        let free = || slots.free.iter();
        let dead = || slots.held().filter(|node| is_same(*node));
        let node = free()
            .find(is_own)
            .or_else(|| dead().find(is_own))
            .or_else(|| free().find(|node| unused.contains(*node)))
            .or_else(|| free().next())
            .or_else(|| dead().next())
            .ok_or(Refusal::Full { nodes: max_nodes })?;
        Ok((node, slots.claim(node)))
    }

    /// Nodes that have a slot: those that live, and those that have given no sign of it for as long as a node may be silent,
    /// which this waits for. Writes nothing.
    #[cfg(not(MODULE))]
    pub fn nodes(&self, window: &impl Window, time: &impl Time) -> (NodeSet, NodeSet) {
        let mut peers = [Peer::UNKNOWN; MAX_NODES as usize];
        let mut slots = Slots::unread(&mut peers);
        slots.read(self, window, |_, _| {});
        let slots = &slots;
        let is_same = |node: u16| slots.is_same(self, window, node);
        watch(time, DEAD_AFTER_US, || !slots.held().any(is_same));
        let (mut live, mut silent) = (NodeSet::default(), NodeSet::default());
        for node in slots.held() {
            match is_same(node) {
                true => silent.insert(node),
                false => live.insert(node),
            }
        }
        (live, silent)
    }

    /// Claims a slot that was found with this claim word. `None` if somebody else has it now.
    pub(crate) fn claim(
        &self,
        window: &impl Window,
        time: &impl Time,
        node: u16,
        found: u64,
        token: u64,
    ) -> Option<Claim> {
        let epoch = next_epoch(found as u32);
        let claim = Claim {
            state: ClaimState::Claiming,
            token: token as u32,
            epoch,
        };
        let mine = claim.to_wire();
        if !self.replace_claim(window, node, found, mine) {
            return None;
        }
        time.sleep_us(SETTLE_US);
        let claim = Claim {
            state: ClaimState::Taken,
            ..claim
        };
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
        // An exchange compares with this host's copy, which may be from before it watched the others; and one that fails may write that back.
        if self.read_claim(window, node) != Ok(current) {
            return false;
        }
        let slot = self.geometry().slot(node);
        let done = window.compare_exchange(slot, current, new);
        window.publish(slot, size_of::<u64>() as u64);
        done == Ok(true)
    }
}

/// Waits for as long as a node may be silent, or until `done`.
pub(crate) fn watch(time: &impl Time, dead_after_us: u64, done: impl Fn() -> bool) {
    let start = time.now_us();
    while !done() && time.now_us().saturating_sub(start) < dead_after_us {
        time.sleep_us(STEP_US);
    }
}

/// The epoch after another; never 0.
pub(crate) fn next_epoch(epoch: u32) -> u32 {
    epoch.wrapping_add(1).max(1)
}
