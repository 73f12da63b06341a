// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Nodes of other hosts: how they come and go, and what is sent to them and by them.

mod direct;
mod frame;
pub(crate) mod grant;
pub(crate) mod link;
mod notify;
mod read;
mod requester;
mod responder;
mod response;
mod timeout;
mod ud;

use crate::{
    link::{Arrival, Link},
    nodes::NodeTable,
    path::{
        budget::{REQUESTS, SLICE},
        engine::Engine,
        schedule::around,
    },
    state::{
        check::{Check, WcError},
        copy::{CopyError, Span},
        peer::Peer,
    },
};
use nupa_proto::{pool::Class, status::WcStatus};

/// Payload of one entry of a message that is longer.
const FRAGMENT: u32 = 65536;

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

/// What is left of a ring's share of a turn.
struct Share {
    entries: u32,
    bytes: u32,
}

impl Share {
    const fn new() -> Self {
        Self {
            entries: REQUESTS,
            bytes: SLICE,
        }
    }
}

impl Engine {
    /// A node of another host has come, with this epoch; of one that was there before, everything is over.
    pub fn peer_up<N: NodeTable>(&mut self, nodes: &mut N, id: u16, epoch: u32) {
        self.peer_down(nodes, id);
        if let Some(peer) = nodes.peer_mut(id) {
            peer.set_up(epoch);
            self.tell_joined(nodes, id, epoch);
        }
    }

    /// A node of another host has gone, or was found dead: connections to it fail.
    pub fn peer_down<N: NodeTable>(&mut self, nodes: &mut N, id: u16) {
        let Some(peer) = nodes.peer_mut(id) else {
            return;
        };
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
        let mut found = false;
        for id in around(self.first_peer, nodes.max_nodes()) {
            if nodes.peer_mut(id).is_none_or(|peer| peer.epoch().is_none()) {
                continue;
            }
            if !self.budget.is_half_spent() {
                // If this one uses up what a turn has for peers, the next one begins behind it.
                self.first_peer = id.wrapping_add(1);
            }
            found |= self.clear_way(nodes, id);
            found |= self.take_entries(nodes, id);
        }
        found
    }

    /// Takes entries of each ring from a peer. Which one is the first changes, since two may use up what a turn has for peers.
    fn take_entries<N: NodeTable>(&mut self, nodes: &mut N, id: u16) -> bool {
        let Some(peer) = nodes.peer_mut(id) else {
            return false;
        };
        peer.transit.first_ring = peer.transit.first_ring.wrapping_add(1);
        let (first, mut found) = (peer.transit.first_ring, false);
        for ring in 0..3 {
            let mut share = Share::new();
            found |= match first.wrapping_add(ring) % 3 {
                0 => self.take_responses(nodes, id, &mut share),
                1 => self.take_requests(nodes, id, &mut share),
                _ => self.take_frames(nodes, id, &mut share),
            };
        }
        found
    }

    /// Takes an entry with so many bytes off the turn, and off its ring's share of it.
    fn spend_on_peer<N: NodeTable>(&mut self, nodes: &N, home: u16, share: &mut Share, bytes: u32) {
        share.entries = share.entries.saturating_sub(1);
        share.bytes = share.bytes.saturating_sub(bytes);
        if let Some((_, platform)) = nodes.node(home) {
            self.budget.spend(platform, bytes);
        }
    }

    /// Whether a ring has more of its share left. Half of a turn is for this host's queues.
    fn goes_on(&mut self, share: &Share) -> bool {
        let goes_on = share.entries != 0 && share.bytes != 0 && !self.budget.is_half_spent();
        // There may be more.
        self.more |= !goes_on;
        goes_on
    }

    /// Ends what the ring to a peer was held up by: lets those go on that waited for room, gives up a message whose sender does not
    /// go on, and tells the peer's queue pairs what they were not told for want of room.
    fn clear_way<N: NodeTable>(&mut self, nodes: &mut N, id: u16) -> bool {
        self.abandon_message(nodes, id);
        self.send_owed_notify(nodes, id);
        let again = nodes.peer_mut(id).is_some_and(Peer::has_room_again);
        if again {
            self.note_progress(nodes, id);
            self.wake_ring(nodes, id);
        }
        again
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

    /// Copies the first `len` bytes of the current request to where they are handed over to another host.
    fn fill<N: NodeTable>(&mut self, nodes: &N, place: u64, len: u32) -> Result<(), WcError> {
        self.accepted.set(Span::direct(place, len));
        let moved = self.move_data(nodes, self.request.home, len);
        moved.map_err(|fault| match fault {
            CopyError::Source => WcError::new(WcStatus::LocalProtection, Check::LocalMemory),
            // The pool is gone, and with it everyone there.
            CopyError::Destination => GONE,
        })
    }
}
