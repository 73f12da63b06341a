// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A node's place in the fabric: it shows that it lives, and sees who else does.

use crate::{
    attach::Pool,
    demand::NONE_CHANGED,
    events::Events,
    geometry::Geometry,
    grants::{self, Grants},
    heartbeat::Heartbeat,
    join::{next_epoch, JoinOptions, TakenSlot},
    link::{Ends, Link},
    peer::{knows_lines, Change, Peer, Standing},
    window::zero,
    Poisoned, Window,
};
use core::borrow::BorrowMut;
use nupa_proto::pool::{
    Claim, ClaimState, Presence, Slot, AREA_NODES, CAP_POOL_LINES, HEARTBEAT_US, LINE,
    PRESENCE_POLLING, PRESENCE_UP,
};

/// What is known of another node that is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerInfo {
    /// Its epoch.
    pub epoch: u32,
    /// What it says of its host; 0 if nothing.
    pub identity: u64,
    /// `CAP_*` of [`nupa_proto::regs`] that its engine serves, and [`CAP_POOL_LINES`].
    pub capabilities: u64,
    /// How to wake it when it sleeps; 0 if it cannot be woken.
    pub bell: u64,
}

/// A node's place in the fabric. What it knows of the others is in `P`, by their ids; a node that has no place there is never seen.
#[derive(Debug)]
pub struct Membership<P = [Peer; AREA_NODES as usize]> {
    pool: Pool,
    node: u16,
    claim: Claim,
    presence: Presence,
    dead_after_us: u64,
    /// It knows entries of lines.
    in_lines: bool,
    /// When it last looked around.
    looked_us: u64,
    evicted: bool,
    /// In a pool with inboxes: how often this node has changed what it says of others, ...
    pub(crate) changes: u64,
    /// ... the first node with whose link something may have [become of](crate::pair::Pair::changed), ...
    pub(crate) first_changed: u16,
    /// ... and that there was no inbox left, and none has come back since.
    pub(crate) all_lent: bool,
    /// An inbox was wanted, here or by another node, and there was none.
    pub(crate) short: bool,
    peers: P,
}

impl<P: BorrowMut<[Peer]>> Membership<P> {
    /// What holds a slot that was taken, for [`Membership::enter`].
    pub(crate) fn new(slot: &TakenSlot, peers: P) -> Self {
        Self {
            pool: slot.pool,
            node: slot.node,
            claim: slot.claim,
            presence: Presence {
                flags: PRESENCE_POLLING,
                epoch: slot.claim.epoch,
            },
            dead_after_us: slot
                .options
                .dead_after_us
                .max(HEARTBEAT_US.saturating_mul(2)),
            in_lines: slot.options.capabilities & CAP_POOL_LINES != 0,
            looked_us: slot.taken_us,
            evicted: false,
            changes: 0,
            first_changed: NONE_CHANGED,
            all_lent: false,
            short: false,
            peers,
        }
    }

    /// Writes to the slot what others have to know. Comes first, and once.
    pub(crate) fn enter(&mut self, window: &impl Window, options: &JoinOptions) {
        let heartbeat = core::mem::offset_of!(Slot, heartbeat);
        window.refresh(self.owner(), LINE);
        // Of a line that cannot be read the heartbeat goes on from anywhere, and all of it is written.
        let before = window.load(self.field(heartbeat));
        let changes = window.load(self.field(core::mem::offset_of!(Slot, changes)));
        self.changes = changes.unwrap_or(options.token);
        if before.is_err() {
            zero(window, self.owner()..self.owner().saturating_add(LINE));
        }
        let next = before.unwrap_or(options.token).wrapping_add(1);
        for (offset, value) in [
            (heartbeat, next),
            (core::mem::offset_of!(Slot, token), options.token),
            (core::mem::offset_of!(Slot, identity), options.identity),
            (
                core::mem::offset_of!(Slot, capabilities),
                options.capabilities,
            ),
            (core::mem::offset_of!(Slot, bell), options.bell),
        ] {
            window.store(self.field(offset), value);
        }
        for peer in self.others() {
            if let Some(ends) = self.ends(peer) {
                ends.clear(window);
            }
        }
        if let Some(directory) = self.pool.geometry().directory(self.node) {
            zero(window, directory);
        }
        self.begin_pairs(window);
        self.show(window);
    }

    /// Whether another node writes with a grant of the slot's former owner: that write may have been under way when the grant ended. A node
    /// that has no slot has ended all that it did.
    pub(crate) fn has_writers(&self, window: &impl Window) -> bool {
        // The directory was zeroed before, so of the two one sees the other.
        window.fence();
        let geometry = self.pool.geometry();
        if geometry.inboxes().is_some() {
            return self.has_lent_writers(window);
        }
        self.others().any(|peer| {
            self.has_slot(window, peer) && grants::is_writing(window, geometry, peer, self.node)
        })
    }

    /// Whether a node's slot is taken.
    pub(crate) fn has_slot(&self, window: &impl Window, node: u16) -> bool {
        let claim = self.pool.read_claim(window, node).map(Claim::from_wire);
        claim.is_ok_and(|claim| claim.is_ok_and(|claim| claim.state == ClaimState::Taken))
    }

    /// This node.
    pub fn node(&self) -> u16 {
        self.node
    }

    /// This node's epoch.
    pub fn epoch(&self) -> u32 {
        self.claim.epoch
    }

    /// What shows that it lives, until it has another epoch.
    pub fn heartbeat(&self) -> Heartbeat {
        Heartbeat::new(self.pool, self.node, self.claim.to_wire())
    }

    /// The pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Whether the slot is still this node's, and the pool the one that it joined, looking at both.
    pub fn is_valid(&self, window: &impl Window) -> bool {
        !self.evicted && self.is_ours(window) == Ok(true)
    }

    /// Whether pool and slot are what they were when the slot was taken.
    fn is_ours(&self, window: &impl Window) -> Result<bool, Poisoned> {
        let there = self.pool.is_there(window)?;
        let claim = self.pool.read_claim(window, self.node)?;
        Ok(there && claim == self.claim.to_wire())
    }

    /// Takes part from now on: the others see this node come up.
    pub fn enable(&mut self, window: &impl Window) {
        self.presence.flags |= PRESENCE_UP;
        self.show(window);
    }

    /// Leaves the fabric and comes back under another epoch, not enabled yet. All links are dead; each peer that is up is reported
    /// anew. False if the membership is void, see [`Events::evicted`].
    pub fn renew(&mut self, window: &impl Window) -> bool {
        let claim = Claim {
            epoch: next_epoch(self.claim.epoch),
            ..self.claim
        };
        // What was stored in inboxes of others reaches them before they hear that they have them back.
        self.write_back(window, |geometry| geometry.inboxes().is_some());
        if self.evicted || !self.replace(window, claim) {
            return false;
        }
        self.clear_grants(window);
        self.stop_all(window);
        self.begin_pairs(window);
        self.refuse_anew(window);
        self.presence = Presence {
            flags: self.presence.flags & !PRESENCE_UP,
            epoch: claim.epoch,
        };
        self.show(window);
        self.peers.borrow_mut().iter_mut().for_each(Peer::forget);
        true
    }

    /// Leaves for good; the slot is free, and this membership void.
    pub fn leave(&mut self, window: &impl Window) {
        self.write_back(window, |_| true);
        // Of large rings that may have taken so long that another host has the slot by now: the heartbeat has stopped.
        let ours = self.is_valid(window);
        self.evicted |= !ours;
        if !ours {
            return;
        }
        self.presence.flags = 0;
        self.show(window);
        self.clear_grants(window);
        self.end_pairs(window);
        let free = Claim {
            state: ClaimState::Free,
            ..self.claim
        };
        self.replace(window, free);
        self.evicted = true;
    }

    /// Moves the heartbeat on and looks at the others, each [`HEARTBEAT_US`]; to be called at least as often. `now_us`
    /// counts from some start and never goes back. What this shows is added to `events`; false if there was no look.
    #[inline]
    pub fn look_around(&mut self, window: &impl Window, now_us: u64, events: &mut Events) -> bool {
        let elapsed = now_us.saturating_sub(self.looked_us);
        if elapsed < HEARTBEAT_US {
            return false;
        }
        self.looked_us = now_us;
        self.look_at_all(window, now_us, elapsed, events);
        true
    }

    /// As [`Membership::look_around`], for those with large stacks.
    #[cfg(not(MODULE))]
    pub fn tick(&mut self, window: &impl Window, now_us: u64) -> Events {
        let mut events = Events::default();
        self.look_around(window, now_us, &mut events);
        events
    }

    fn look_at_all(
        &mut self,
        window: &impl Window,
        now_us: u64,
        elapsed: u64,
        events: &mut Events,
    ) {
        let ours = self.is_ours(window);
        if let (Err(poisoned), Some(own)) = (ours, self.known_mut(self.node)) {
            own.poisoned = Some(poisoned);
        }
        self.evicted |= ours != Ok(true);
        if self.evicted {
            events.evicted = true;
            return;
        }
        self.heartbeat().beat(window);
        // While this node did not look, the others may have been as lively as ever.
        let unseen = elapsed.saturating_sub(HEARTBEAT_US.saturating_mul(2));
        for node in self.others() {
            let slot = self.pool.geometry().slot(node);
            let dead_after_us = self.dead_after_us;
            let Some(peer) = self.known_mut(node) else {
                continue;
            };
            peer.forgive(unseen);
            match peer.look(window, slot, now_us, dead_after_us) {
                Change::Up => events.up.insert(node),
                change @ (Change::Down | Change::Dead) => {
                    match change {
                        Change::Dead => events.silent.insert(node),
                        _ => events.silent.remove(node),
                    }
                    events.up.remove(node);
                    self.refuse(window, node);
                    events.down.insert(node);
                }
                Change::None if peer.standing == Standing::Up => {
                    let ends = self.pool.geometry().ends(self.node, node);
                    let refused = ends.map(|ends| ends.is_refused(window, self.epoch()));
                    match refused.unwrap_or(Ok(false)) {
                        Ok(false) => {}
                        Ok(true) => events.refused_by.insert(node),
                        Err(poisoned) => self.lost(window, node, poisoned, events),
                    }
                }
                Change::None => {}
            }
            self.hear_news(window, node, events);
        }
    }

    /// What is the peer's cannot be read.
    fn lost(&mut self, window: &impl Window, node: u16, poisoned: Poisoned, events: &mut Events) {
        if let Some(peer) = self.known_mut(node) {
            peer.lose(poisoned);
        }
        self.refuse(window, node);
        events.up.remove(node);
        events.down.insert(node);
    }

    /// In a pool with inboxes, looks at what a node says of links if it says that there is something new.
    fn hear_news(&mut self, window: &impl Window, node: u16, events: &mut Events) {
        let came = events.up.contains(node);
        let on_demand = self.pool.geometry().inboxes().is_some();
        let Some(peer) = self.known_mut(node).filter(|_| on_demand) else {
            return;
        };
        if !came && peer.said_changes == peer.pair.changes {
            if peer.standing == Standing::Up && peer.pair.refuses {
                events.refused_by.insert(node);
            }
            return;
        }
        // It was read before what follows is: what changes meanwhile is new later.
        peer.pair.changes = peer.said_changes;
        if peer.standing != Standing::Up {
            return self.hear_held(window, node);
        }
        match self.hear(window, node) {
            Ok(false) => {}
            Ok(true) => events.refused_by.insert(node),
            Err(poisoned) => self.lost(window, node, poisoned, events),
        }
    }

    /// Makes the link to a node that is up in `place`, where nothing changes if there is none; the node's epoch. There is one for each time that it comes up;
    /// where links are made on demand, one for each time that it is [there](Membership::link_state).
    pub fn open_in(
        &mut self,
        window: &impl Window,
        node: u16,
        place: &mut Option<Link>,
    ) -> Option<u32> {
        if !self.is_valid(window) {
            return None;
        }
        let peer = self.known_mut(node)?;
        if peer.standing != Standing::Up || peer.opened {
            return None;
        }
        let epoch = peer.epoch;
        // Where links are made on demand, there may be none.
        self.ends(node)?;
        // It is in the line that says that the peer is up, and was written before that. If it cannot be read, the next tick finds that.
        let slot = self.pool.geometry().slot(node);
        let in_lines = self.in_lines && knows_lines(window, slot).ok()?;
        self.known_mut(node)?.opened = true;
        let geometry = self.pool.geometry();
        // Before the peer can find this node's side of the link.
        grants::clear(window, geometry, self.node, node);
        let ends = match in_lines {
            true => self.ends(node)?.in_lines(),
            false => self.ends(node)?,
        };
        let grants = match self.inboxes(node) {
            None => Grants::new(window, geometry, self.node, node),
            Some((own, peer)) => Grants::in_inboxes(window, geometry, own, peer),
        };
        ends.open(window, self.claim.epoch, epoch, grants, place);
        Some(epoch)
    }

    /// As [`Membership::open_in`], for those with large stacks.
    #[cfg(not(MODULE))]
    pub fn open(&mut self, window: &impl Window, node: u16) -> Option<Link> {
        let mut link = None;
        self.open_in(window, node, &mut link)?;
        link
    }

    /// Has no more to do with a node until it comes back with another epoch: it broke the rules. True if it was up; it is not
    /// reported as gone then.
    pub fn isolate(&mut self, window: &impl Window, node: u16) -> bool {
        let Some(peer) = self.known_mut(node) else {
            return false;
        };
        if peer.standing != Standing::Up {
            return false;
        }
        peer.standing = Standing::Refused;
        if self.is_valid(window) {
            self.refuse(window, node);
        }
        true
    }

    /// What of a node that went down could not be read, if that was why; of this node, if it was evicted for that.
    pub fn poisoned(&self, node: u16) -> Option<Poisoned> {
        self.known(node)?.poisoned
    }

    /// A node that is up.
    pub fn peer(&self, window: &impl Window, node: u16) -> Option<PeerInfo> {
        let peer = self.known(node)?;
        if peer.standing != Standing::Up {
            return None;
        }
        let slot = self.pool.geometry().slot(node);
        let field = |offset: usize| window.load(slot.wrapping_add(offset as u64));
        Some(PeerInfo {
            epoch: peer.epoch,
            identity: field(core::mem::offset_of!(Slot, identity)).ok()?,
            capabilities: field(core::mem::offset_of!(Slot, capabilities)).ok()?,
            bell: field(core::mem::offset_of!(Slot, bell)).ok()?,
        })
    }

    /// Says whether this node looks at its rings by itself. Before it stops to, it says so and looks once more; this ends with
    /// a full fence.
    pub fn set_polling(&mut self, window: &impl Window, polling: bool) {
        let flag = if polling { PRESENCE_POLLING } else { 0 };
        self.presence.flags = (self.presence.flags & !PRESENCE_POLLING) | flag;
        self.show(window);
        window.fence();
    }

    /// Whether a node must be woken to see what was published to it. Begins with a full fence.
    pub fn must_wake(&self, window: &impl Window, node: u16) -> bool {
        window.fence();
        let slot = self.pool.geometry().slot(node);
        let at = slot.wrapping_add(core::mem::offset_of!(Slot, presence) as u64);
        window.refresh(at, size_of::<u64>() as u64);
        let presence = window.load(at).map(Presence::from_wire);
        presence.is_ok_and(|presence| presence.flags & PRESENCE_POLLING == 0)
    }

    /// Writes this node's own line. Of a machine that was stopped for long the slot may be another host's by now: then nothing is written,
    /// and the next tick says so.
    fn show(&self, window: &impl Window) {
        if !self.is_valid(window) {
            return;
        }
        let presence = core::mem::offset_of!(Slot, presence);
        window.store(self.field(presence), self.presence.to_wire());
        window.publish(self.owner(), LINE);
    }

    /// Replaces the claim word if it is still this node's.
    fn replace(&mut self, window: &impl Window, claim: Claim) -> bool {
        let (old, new) = (self.claim.to_wire(), claim.to_wire());
        let done = self.pool.replace_claim(window, self.node, old, new);
        if done {
            self.claim = claim;
        }
        self.evicted |= !done;
        done
    }

    /// Leaves nothing of what this node has stored in rings in its caches, where these are not coherent.
    fn write_back(&self, window: &impl Window, applies: impl Fn(&Geometry) -> bool) {
        if window.is_coherent() || !applies(self.pool.geometry()) || !self.is_valid(window) {
            return;
        }
        for ends in self.others().filter_map(|peer| self.ends(peer)) {
            ends.write_back(window);
        }
    }

    /// Says that no process of this node has mapped what another node has granted in a slot, also if there is no link to that any more.
    pub fn end_mapping(&self, window: &impl Window, node: u16, slot: u16) {
        if self.is_valid(window) {
            grants::unmap(window, self.pool.geometry(), self.node, node, slot);
        }
    }

    /// Lets nobody write to this node's memory any more.
    fn clear_grants(&self, window: &impl Window) {
        for peer in self.others() {
            grants::clear(window, self.pool.geometry(), self.node, peer);
        }
    }

    fn refuse(&mut self, window: &impl Window, node: u16) {
        if self.pool.geometry().inboxes().is_some() {
            return self.refuse_pair(window, node);
        }
        grants::clear(window, self.pool.geometry(), self.node, node);
        if let Some((peer, ends)) = self.known(node).zip(self.ends(node)) {
            ends.refuse(window, peer.epoch);
        }
    }

    /// What is known of a node.
    pub(crate) fn known(&self, node: u16) -> Option<&Peer> {
        self.peers.borrow().get(usize::from(node))
    }

    /// The same, to be changed.
    pub(crate) fn known_mut(&mut self, node: u16) -> Option<&mut Peer> {
        self.peers.borrow_mut().get_mut(usize::from(node))
    }

    fn ends(&self, peer: u16) -> Option<Ends> {
        let ends = self.pool.geometry().ends(self.node, peer);
        ends.or_else(|| self.lent_ends(peer))
    }

    pub(crate) fn others(&self) -> impl Iterator<Item = u16> {
        self.others_from(0)
    }

    /// Those from `first` on.
    pub(crate) fn others_from(&self, first: u16) -> impl Iterator<Item = u16> {
        let own = self.node;
        (first..self.pool.geometry().max_nodes()).filter(move |node| *node != own)
    }

    /// Offset of this node's own line.
    pub(crate) fn owner(&self) -> u64 {
        self.field(core::mem::offset_of!(Slot, token))
    }

    pub(crate) fn field(&self, offset: usize) -> u64 {
        let slot = self.pool.geometry().slot(self.node);
        slot.wrapping_add(offset as u64)
    }
}
