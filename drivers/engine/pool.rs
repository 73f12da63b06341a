// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Nodes of other hosts: how they come and go, and what is sent to them and by them.

mod bypassed;
mod direct;
mod ending;
mod event;
mod fill;
mod frame;
pub(crate) mod grant;
pub(crate) mod link;
pub(crate) mod mapping;
mod notify;
mod process_ring;
mod read;
mod requester;
mod responder;
mod response;
mod timeout;
mod ud;

use crate::{
    link::{Arrival, Link},
    nodes::NodeTable,
    path::{budget::Share, engine::Engine},
    state::{
        check::{Check, WcError},
        qp::Wait,
        slice::Slice,
    },
};
use nupa_pool::NodeCursor;
use nupa_proto::{
    pool::{message::RequestBody, Class},
    status::WcStatus,
    wqe::Opcode,
};

/// The node is not there.
const GONE: WcError = WcError::new(WcStatus::RetryExceeded, Check::Node);

/// The oldest entry of a ring, and who it is from and for.
struct Incoming {
    /// The peer's epoch.
    epoch: u32,
    /// This host's node.
    home: u16,
    arrival: Arrival,
}

/// A request of a peer, or a part of it.
#[derive(Clone, Copy)]
struct Asked<'a> {
    /// The peer.
    id: u16,
    /// The ring for the response.
    class: Class,
    opcode: Opcode,
    body: &'a RequestBody,
}

/// Which rings a ring is served with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lane {
    /// Those of short messages, from and to all peers.
    Short,
    /// All others.
    Long,
}

impl Lane {
    /// What it may take of a turn.
    const fn share(self) -> Share {
        match self {
            Self::Short => Share::SHORT,
            Self::Long => Share::LONG,
        }
    }
}

/// What is left of a ring's or a line's share of a turn.
struct Turn {
    lane: Lane,
    left: Share,
}

impl Engine {
    /// A node of another host has come, with this epoch; of one that was there before, everything is over. Ids of pools' nodes are below
    /// [`MAX_NODES`](nupa_proto::pool::MAX_NODES); one that is not is never polled. If its link is opened later, that is to be
    /// [told](Engine::link_opened) as well.
    pub fn peer_up<N: NodeTable>(&mut self, nodes: &mut N, id: u16, epoch: u32) {
        self.peer_down(nodes, id);
        if let Some(peer) = nodes.peer_mut(id) {
            peer.set_up(epoch);
            if peer.is_open() {
                self.peers.insert(id);
            }
            self.tell_joined(nodes, id, epoch);
        }
    }

    /// The link to a node of another host that is up is open. Only those are polled.
    pub fn link_opened(&mut self, id: u16) {
        self.peers.insert(id);
    }

    /// A node of another host has gone, or was found dead: connections to it fail.
    pub fn peer_down<N: NodeTable>(&mut self, nodes: &mut N, id: u16) {
        let Some(peer) = nodes.peer_mut(id) else {
            return;
        };
        self.peers.remove(id);
        if let Some(epoch) = peer.set_down() {
            self.left(nodes, id, epoch);
        }
    }

    /// Takes what nodes of other hosts have sent, and lets send queues go on that waited for room in a ring. Returns whether
    /// anything was done. Calls to [`Engine::run`] are due after it as after any other.
    ///
    /// An entry that cannot be dealt with yet stays where it is, so this is to be called also after other calls that may have changed
    /// that, and when [`Engine::run`] says.
    pub fn receive<N: NodeTable>(&mut self, nodes: &mut N) -> bool {
        if self.is_held() {
            self.release_held(nodes);
        }
        // Most polls find nothing, and cost little for that.
        if !self.peers.iter().any(|id| is_due(nodes, id)) {
            return false;
        }
        let mut found = false;
        for lane in [Lane::Short, Lane::Long] {
            let (start, mut begun) = (*self.first_peer_of(lane), false);
            let mut cursor = NodeCursor::new(start);
            while let Some(id) = cursor.next(&self.peers) {
                let over = self.is_over(lane);
                found |= match lane {
                    Lane::Short => self.serve_short_rings(nodes, id, over),
                    Lane::Long => self.serve_long_rings(nodes, id, over),
                };
                if !over && self.is_over(lane) {
                    // The next turn begins with the one that was cut off; but behind it if it came first, and so had all.
                    *self.first_peer_of(lane) = id.wrapping_add(u16::from(!begun));
                }
                begun = true;
            }
        }
        found
    }

    fn first_peer_of(&mut self, lane: Lane) -> &mut u16 {
        match lane {
            Lane::Short => &mut self.first_short_peer,
            Lane::Long => &mut self.first_peer,
        }
    }

    /// Takes entries of each ring of short messages from a peer, and serves those who wait for room in those to it. Which one is the first
    /// changes, but for turns that were `over` before. What could not be said for want of room comes before.
    fn serve_short_rings<N: NodeTable>(&mut self, nodes: &mut N, id: u16, over: bool) -> bool {
        self.send_owed_response(nodes, id);
        self.send_owed_notify(nodes, id);
        self.wake_more_refused(nodes, id);
        self.make_more_events(nodes, id);
        let due = self.due(nodes, id, Lane::Short);
        let Some(peer) = nodes.peer_mut(id).filter(|_| due != 0) else {
            return false;
        };
        let first = &mut peer.transit.first_short_ring;
        *first = first.wrapping_add(u32::from(!over));
        let (first, mut found) = (*first, false);
        for ring in 0..3 {
            let ring = first.wrapping_add(ring) % 3;
            found |= match ring {
                _ if !is_set(due, ring) => false,
                0 => self.take_responses(nodes, id, Class::ShortResponse),
                1 => self.take_requests(nodes, id, Class::ShortRequest),
                _ => self.serve_ring_waiters(nodes, id, Class::ShortRequest),
            };
        }
        found
    }

    /// Takes entries of each ring of long messages and frames from a peer, and serves those who wait for room in those to it. Which one
    /// is the first changes, since few may use up what a turn has for all; but for turns that were `over` before.
    fn serve_long_rings<N: NodeTable>(&mut self, nodes: &mut N, id: u16, over: bool) -> bool {
        let due = self.due(nodes, id, Lane::Long);
        let Some(peer) = nodes.peer_mut(id).filter(|_| due != 0) else {
            return false;
        };
        let first = &mut peer.transit.first_ring;
        *first = first.wrapping_add(u32::from(!over));
        let (first, mut found) = (*first, false);
        for ring in 0..5 {
            let ring = first.wrapping_add(ring) % 5;
            found |= match ring {
                _ if !is_set(due, ring) => false,
                0 => self.take_responses(nodes, id, Class::Response),
                1 => self.take_requests(nodes, id, Class::Request),
                2 => self.take_frames(nodes, id),
                3 => self.serve_ring_waiters(nodes, id, Class::Request),
                _ => self.serve_ring_waiters(nodes, id, Class::Frame),
            };
        }
        found
    }

    /// Which rings from a peer have entries, and which rings to it have queue pairs that wait for room: a bit each, the rings from it
    /// first.
    fn due<N: NodeTable>(&self, nodes: &mut N, id: u16, lane: Lane) -> u32 {
        let (rings, awaited): (&[Class], &[Class]) = match lane {
            Lane::Short => (
                &[Class::ShortResponse, Class::ShortRequest],
                &[Class::ShortRequest],
            ),
            Lane::Long => (
                &[Class::Response, Class::Request, Class::Frame],
                &[Class::Request, Class::Frame],
            ),
        };
        let Some(peer) = nodes.peer_mut(id) else {
            return 0;
        };
        let home = peer.home();
        let (mut due, mut bit) = (0, 1u32);
        let mut add = |is_due: bool| {
            due |= bit.wrapping_mul(u32::from(is_due));
            bit = bit.wrapping_shl(1);
        };
        for class in rings {
            add(peer.has_next(*class));
        }
        if let Some((node, _)) = nodes.node_mut(home) {
            for class in awaited {
                add(node.has_ring_waiters(id, *class));
            }
        }
        due
    }

    /// Serves the send queues that wait for room in a ring, as far as there is room. Each puts in what it may in one turn, and goes to the
    /// tail of the queue if it has more.
    fn serve_ring_waiters<N: NodeTable>(&mut self, nodes: &mut N, id: u16, class: Class) -> bool {
        let (mut turn, mut found) = (Turn::of(class), false);
        let Some(peer) = nodes.peer_mut(id) else {
            return false;
        };
        let home = peer.home();
        // Of a link that is to end, each has a try once: those that have begun nothing go to the tail for that.
        let ends = !peer.may_begin();
        let line = nodes.node_mut(home);
        let mut tries = line.map_or(0, |(node, _)| node.ring_waiters(id, class));
        while let Some(need) = self.room_needed(nodes, home, id, class) {
            if ends {
                let Some(left) = tries.checked_sub(1) else {
                    break;
                };
                tries = left;
            }
            let room = nodes
                .peer_mut(id)
                .and_then(|peer| peer.reserve(class, need));
            if room.is_none() || !self.goes_on(&turn) {
                break;
            }
            // It would lose its place for nothing.
            self.budget.allow_one();
            let line = nodes.node_mut(home);
            let Some(qpn) = line.and_then(|(node, _)| node.pop_ring_waiter(id, class)) else {
                break;
            };
            let before = self.budget.left();
            self.serve_admitted(nodes, home, qpn, (id, class));
            let (requests, bytes) = self.budget.spent_since(before);
            // One that had nothing to do after all counts as well: there may be many.
            let spent = (requests.max(1), bytes);
            turn.left.spend_all(spent);
            self.share_of(turn.lane).spend_all(spent);
            found |= !ends || !self.waits_for_ring(nodes, home, qpn);
        }
        found
    }

    fn waits_for_ring<N: NodeTable>(&self, nodes: &N, home: u16, qpn: u32) -> bool {
        let qp = nodes.node(home).and_then(|(node, _)| node.qps.get(qpn));
        qp.is_some_and(|qp| matches!(qp.send.wait, Wait::RingSpace { .. }))
    }

    /// Serves a queue pair that was first of those that wait for a ring. How much room it finds is a matter of luck, so it has more the next
    /// time if that was not enough for its share, and less if the share was not enough for what it had begun.
    fn serve_admitted<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        home: u16,
        qpn: u32,
        ring: (u16, Class),
    ) {
        let there = nodes.node(home).and_then(|(node, _)| node.qps.get(qpn));
        self.slice = Slice::after(there.map_or(Slice::NONE, |qp| qp.send.rest));
        self.admitted = Some(ring);
        self.serve(nodes, home, qpn, None);
        self.admitted = None;
        let there = nodes.node_mut(home);
        if let Some(qp) = there.and_then(|(node, _)| node.qps.get_mut(qpn)) {
            let (node, class) = ring;
            qp.send.rest = match qp.links.is_listed() {
                true => self
                    .slice
                    .rest(qp.send.wait == Wait::RingSpace { node, class }),
                false => Slice::NONE,
            };
        }
    }

    /// How much room the queue pair that is first in a line needs.
    fn room_needed<N: NodeTable>(
        &self,
        nodes: &mut N,
        home: u16,
        id: u16,
        class: Class,
    ) -> Option<u32> {
        let (node, _) = nodes.node_mut(home)?;
        let qpn = node.first_ring_waiter(id, class)?;
        Some(node.qps.get(qpn)?.send.ring_need)
    }

    /// Whether the current request has to stand in line for a ring, because others do.
    fn must_wait_for_ring<N: NodeTable>(&self, nodes: &mut N, id: u16, class: Class) -> bool {
        if self.admitted == Some((id, class)) {
            return false;
        }
        let there = nodes.node_mut(self.request.source.node);
        there.is_some_and(|(node, _)| node.first_ring_waiter(id, class).is_some())
    }

    /// What is left of what a lane may take of the turn.
    fn share_of(&mut self, lane: Lane) -> &mut Share {
        match lane {
            Lane::Short => &mut self.short_share,
            Lane::Long => &mut self.long_share,
        }
    }

    /// Takes an entry with so many bytes off the turn, and off its ring's share of it.
    fn spend_on_peer<N: NodeTable>(&mut self, nodes: &N, home: u16, turn: &mut Turn, bytes: u32) {
        turn.left.spend(bytes);
        self.share_of(turn.lane).spend(bytes);
        if let Some((_, platform)) = nodes.node(home) {
            self.budget.spend(platform, bytes);
        }
    }

    /// Whether more is to be taken from a ring in this turn. Whatever else has spent it, one entry of each lane is, so that no entry starves.
    fn goes_on(&mut self, turn: &Turn) -> bool {
        let goes_on = !self.is_over(turn.lane) && !turn.left.is_spent();
        // There may be more.
        self.more |= !goes_on;
        goes_on
    }

    /// Whether a lane has had its part of the turn.
    fn is_over(&mut self, lane: Lane) -> bool {
        let share = *self.share_of(lane);
        let begins = share == lane.share();
        share.is_spent() || (self.budget.is_spent() && !begins)
    }

    /// Whether [`Engine::next`] may find another entry. Mostly there is none, and this costs less than to look for it.
    fn has_another<N: NodeTable>(&self, nodes: &mut N, id: u16, class: Class) -> bool {
        nodes.peer_mut(id).is_some_and(|peer| peer.has_next(class))
    }

    /// The oldest entry of a ring.
    fn next<N: NodeTable>(&self, nodes: &mut N, id: u16, class: Class) -> Option<Incoming> {
        let peer = nodes.peer_mut(id)?;
        Some(Incoming {
            epoch: peer.epoch()?,
            home: peer.home(),
            arrival: peer.next(class)?,
        })
    }

    /// Takes the entry at the head of a ring out.
    fn release<N: NodeTable>(&self, nodes: &mut N, id: u16, class: Class) {
        if let Some(peer) = nodes.peer_mut(id) {
            peer.release(class);
        }
    }

    /// A transfer from the payload of an entry failed. If the payload cannot be read, its peer is refused.
    #[cold]
    fn unreadable<N: NodeTable>(&self, nodes: &mut N, id: u16, arrival: &Arrival) {
        if let Some(peer) = nodes.peer_mut(id) {
            peer.link_mut().unreadable(arrival.payload, arrival.len);
        }
    }

    /// Refuses a peer that has put into a ring what does not belong there.
    #[cold]
    fn refuse<N: NodeTable>(&self, nodes: &mut N, id: u16) {
        if let Some(peer) = nodes.peer_mut(id) {
            peer.refuse();
        }
    }
}

impl Turn {
    fn of(class: Class) -> Self {
        Self {
            lane: match class {
                Class::ShortRequest | Class::ShortResponse => Lane::Short,
                Class::Request | Class::Response | Class::Frame => Lane::Long,
            },
            left: Share::RING,
        }
    }
}

/// Whether anything of a peer's, or for it, is to be looked at.
#[inline]
fn is_due<N: NodeTable>(nodes: &mut N, id: u16) -> bool {
    let Some(peer) = nodes.peer_mut(id) else {
        return false;
    };
    let home = peer.home();
    peer.is_due()
        || nodes
            .node(home)
            .is_some_and(|(node, _)| node.awaits_room(id))
}

/// Whether a bit is set.
fn is_set(bits: u32, bit: u32) -> bool {
    bits.wrapping_shr(bit) & 1 != 0
}
