// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A node of another host, as far as the engine of this one keeps account of it.

use crate::{
    link::{Arrival, Link},
    state::grant::{GrantHeld, GrantsGiven},
};
use nupa_pool::Outgoing;
use nupa_proto::pool::{
    message::{RequestBody, ResponseBody},
    Class, CLASSES, GRANT_SLOTS,
};

/// What this host has of messages to and from a peer that are not complete.
#[derive(Debug, Default)]
pub(crate) struct InTransit {
    /// A request that is in the ring in part.
    pub(crate) sending: Option<Sending>,
    /// Others had to wait for that.
    pub(crate) others_blocked: bool,
    /// A request that has arrived in part.
    pub(crate) receiving: Option<Receiving>,
    /// A READ that is answered in part.
    pub(crate) serving: Option<Serving>,
    /// Slices that are done of the flush at the head of its ring.
    pub(crate) slices: u32,
    /// An answer that is still to be given.
    pub(crate) owed_response: Option<ResponseBody>,
    /// Some of those who were refused have not been told that they may try again.
    pub(crate) owes_notify: bool,
    /// An answer that has arrived in part: that of this request, or one that nobody waits for.
    pub(crate) response: Option<ResponseBody>,
    /// When the frame at the head of its ring is dropped for want of receive buffers.
    pub(crate) frame_deadline: Option<u64>,
    /// When what is asked of it is given up, unless it was heard of.
    pub(crate) times_out_at: Option<u64>,
    /// While queue pairs are looked at because that time is over: whether it was heard of.
    pub(crate) checked: Option<bool>,
    /// Which of its rings comes first when they are looked at: counted up.
    pub(crate) first_ring: u32,
    /// It has answered, or taken something out of its rings, since the time was set.
    pub(crate) progressed: bool,
}

/// A request that is in the ring in part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sending {
    /// Queue pair that it comes from.
    pub(crate) qpn: u32,
    /// Bytes of its payload.
    pub(crate) total: u32,
}

/// A request that has arrived in part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Receiving {
    pub(crate) body: RequestBody,
    /// It was answered already: what is still to come of it does not count.
    pub(crate) answered: bool,
}

/// A READ that is answered in part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Serving {
    pub(crate) body: RequestBody,
    /// Bytes that are in the ring.
    pub(crate) done: u32,
}

/// A node of another host, and the way to it.
///
/// The host makes one for each node id that it may have a link to, and tells the engine when the node comes and goes
/// ([`Engine::peer_up`](crate::Engine::peer_up), [`Engine::peer_down`](crate::Engine::peer_down)).
#[derive(Debug)]
pub struct Peer<L> {
    link: L,
    /// This host's node, which the link begins at.
    home: u16,
    /// Epoch of the peer while it is up.
    epoch: Option<u32>,
    /// The shortest payload that there was no room for, in each ring to the peer.
    blocked: [Option<u32>; CLASSES],
    /// Frames to it were given up because its ring was full, and none got in since.
    pub(crate) stalled: bool,
    pub(crate) transit: InTransit,
    /// What it may write to here.
    pub(crate) grants_given: GrantsGiven,
    /// What may be written to there.
    pub(crate) grants_held: [Option<GrantHeld>; GRANT_SLOTS as usize],
}

impl<L: Link> Peer<L> {
    /// A peer that is not up, of this host's node `home`.
    pub fn new(home: u16, link: L) -> Self {
        Self {
            link,
            home,
            epoch: None,
            blocked: [None; CLASSES],
            stalled: false,
            transit: InTransit::default(),
            grants_given: GrantsGiven::default(),
            grants_held: [None; GRANT_SLOTS as usize],
        }
    }

    /// The way to it.
    pub fn link(&self) -> &L {
        &self.link
    }

    /// The way to it, for its host to attend to. Its rings are the engine's.
    pub fn link_mut(&mut self) -> &mut L {
        &mut self.link
    }

    /// Its epoch, if it is up.
    pub fn epoch(&self) -> Option<u32> {
        self.epoch
    }

    pub(crate) fn home(&self) -> u16 {
        self.home
    }

    /// It has come, or come again: nothing of what was before counts.
    pub(crate) fn set_up(&mut self, epoch: u32) {
        self.set_down();
        self.epoch = Some(epoch);
    }

    /// It has gone. Returns the epoch that it had, if it was up.
    pub(crate) fn set_down(&mut self) -> Option<u32> {
        self.blocked = [None; CLASSES];
        (self.stalled, self.transit) = (false, InTransit::default());
        self.grants_given.clear();
        self.grants_held.fill(None);
        self.epoch.take()
    }

    /// As [`Link::reserve`]. If there is no room, [`Peer::has_room_again`] tells when there is.
    pub(crate) fn reserve(&mut self, class: Class, len: u32) -> Option<u64> {
        self.epoch?;
        let place = self.link.reserve(class, len);
        if place.is_none() {
            if let Some(blocked) = self.blocked.get_mut(usize::from(class.to_wire())) {
                *blocked = Some(blocked.map_or(len, |before| before.min(len)));
            }
        }
        place
    }

    /// As [`Link::commit`].
    pub(crate) fn commit(&mut self, class: Class, message: &Outgoing<'_>, total: u32) {
        self.link.commit(class, message, total);
    }

    /// Whether there is room in a ring now for what there was none for.
    pub(crate) fn has_room_again(&mut self) -> bool {
        let mut again = false;
        for class in Class::ALL {
            let blocked = self.blocked.get_mut(usize::from(class.to_wire()));
            if let Some(len) = blocked.and_then(Option::take) {
                again |= self.reserve(*class, len).is_some();
            }
        }
        again
    }

    /// Whether the way is free that others had to wait for, because of a message that was in the ring in part.
    pub(crate) fn is_clear_again(&mut self) -> bool {
        let clear = self.transit.sending.is_none();
        clear && core::mem::take(&mut self.transit.others_blocked)
    }

    /// As [`Link::next`].
    pub(crate) fn next(&mut self, class: Class) -> Option<Arrival> {
        self.epoch?;
        self.link.next(class)
    }

    /// As [`Link::release`].
    pub(crate) fn release(&mut self, class: Class) {
        self.link.release(class);
    }

    /// As [`Link::refuse`]. What was sent before is not looked at any more; its host will say that it is gone.
    #[cold]
    pub(crate) fn refuse(&mut self) {
        self.link.refuse();
    }
}
