// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A node of another host, as far as the engine of this one keeps account of it.

use crate::{
    link::{Arrival, Link},
    state::{
        grant::{GrantHeld, GrantsGiven},
        stall::Stall,
    },
};
use nupa_pool::Outgoing;
use nupa_proto::pool::{message::ResponseBody, Class, GRANT_SLOTS};

/// What this host has begun with a peer and not finished.
#[derive(Debug, Default)]
pub(crate) struct InTransit {
    /// Slices that are done of the flush at the head of its ring.
    pub(crate) slices: u32,
    /// An answer that is still to be given, and the ring that it is for.
    pub(crate) owed_response: Option<(Class, ResponseBody)>,
    /// Some of those who were refused have not been told that they may try again.
    pub(crate) owes_notify: bool,
    /// Some of its queue pairs have not been told that there are messages in their process rings; then [`InTransit::owes_notify`] is set as well.
    pub(crate) owes_event: bool,
    /// Queue pairs that are still to be looked at because it has said that any of them may have messages (`u32::MAX`: all), the first of them, and how
    /// many there are.
    pub(crate) events_left: u32,
    pub(crate) events_at: u32,
    pub(crate) events_end: u32,
    /// When the frame at the head of its ring is dropped for want of receive buffers.
    pub(crate) frame_deadline: Option<u64>,
    /// When what is asked of it is given up, unless it was heard of.
    pub(crate) times_out_at: Option<u64>,
    /// Entries that it had taken out of its rings when that time was set, see [`Link::taken`].
    pub(crate) taken: u32,
    /// While queue pairs are looked at because that time is over: whether it was heard of.
    pub(crate) checked: Option<bool>,
    /// Which of its rings of long messages comes first when they are served: counted up. The same of short ones.
    pub(crate) first_ring: u32,
    pub(crate) first_short_ring: u32,
    /// Queue pairs that it refused, and that are still to have another try because it has said so.
    pub(crate) refused_left: u32,
    /// It has answered since the time was set.
    pub(crate) progressed: bool,
}

impl InTransit {
    /// Whether something was left to be told to it, or to those that it refused.
    #[inline]
    fn is_owed(&self) -> bool {
        self.owed_response.is_some()
            || self.owes_notify
            || self.refused_left != 0
            || self.events_left != 0
    }

    /// Whether the time that it has to do something is running, or was over just now.
    pub(crate) fn is_timed(&self) -> bool {
        self.times_out_at.is_some() || self.checked.is_some()
    }

    /// Whether nothing is left to be told over this link, or to be done with what lies in its rings. Those who may try again are told over the next one.
    pub(crate) fn is_clear(&self) -> bool {
        let told = self.owed_response.is_none() && self.refused_left == 0;
        told && self.events_left == 0 && self.slices == 0 && self.frame_deadline.is_none()
    }
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
    /// Something may still be stored where it has payload from.
    held: bool,
    /// Whether frames and datagrams wait for room in its rings.
    pub(crate) stall: Stall,
    pub(crate) transit: InTransit,
    /// What it may write to here.
    pub(crate) grants_given: GrantsGiven,
    /// What may be written to there.
    pub(crate) grants_held: [Option<GrantHeld>; GRANT_SLOTS as usize],
    /// A bit for each slot of those that a process has mapped something of, whatever became of the link meanwhile.
    pub(crate) mapped: u32,
    /// They are to give that back.
    pub(crate) recalled: bool,
}

impl<L: Link> Peer<L> {
    /// A peer that is not up, of this host's node `home`.
    pub fn new(home: u16, link: L) -> Self {
        Self {
            link,
            home,
            epoch: None,
            held: false,
            stall: Stall::default(),
            transit: InTransit::default(),
            grants_given: GrantsGiven::default(),
            grants_held: [None; GRANT_SLOTS as usize],
            mapped: 0,
            recalled: false,
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
        (self.stall, self.transit) = (Stall::default(), InTransit::default());
        self.grants_given.clear();
        self.grants_held.fill(None);
        self.epoch.take()
    }

    /// The link to it has ended, and it stays up. What waits for the next one has as much time as before.
    pub(crate) fn link_ended(&mut self) {
        self.transit = InTransit {
            times_out_at: self.transit.times_out_at,
            checked: self.transit.checked,
            owes_notify: self.transit.owes_notify,
            owes_event: self.transit.owes_event,
            progressed: true,
            ..InTransit::default()
        };
        self.grants_given.clear();
        self.grants_held.fill(None);
    }

    /// As [`Link::is_open`], of one that is up.
    pub(crate) fn is_open(&mut self) -> bool {
        self.epoch.is_some() && self.link.is_open()
    }

    /// As [`Link::may_begin`].
    pub(crate) fn may_begin(&mut self) -> bool {
        self.link.may_begin()
    }

    /// As [`Link::reserve`]. If there is no room the peer is asked to wake this host when there is.
    pub(crate) fn reserve(&mut self, class: Class, len: u32) -> Option<u64> {
        self.epoch?;
        if self.held {
            return None;
        }
        self.link.reserve(class, len)
    }

    /// As [`Peer::reserve`], for a message of which nothing was put in yet: there is no room on a link that is to end.
    pub(crate) fn reserve_first(&mut self, class: Class, len: u32) -> Option<u64> {
        match self.may_begin() {
            true => self.reserve(class, len),
            false => None,
        }
    }

    /// Whether nothing may be put anywhere for it.
    #[inline]
    pub(crate) fn is_held(&self) -> bool {
        self.held
    }

    /// Says whether that is so.
    pub(crate) fn set_held(&mut self, held: bool) {
        self.held = held;
    }

    /// As [`Link::prefers_nontemporal`].
    #[inline]
    pub(crate) fn prefers_nontemporal(&mut self, len: u32) -> bool {
        self.link.prefers_nontemporal(len)
    }

    /// As [`Link::note_nontemporal`].
    pub(crate) fn note_nontemporal(&mut self, class: Class) {
        self.link.note_nontemporal(class);
    }

    /// As [`Link::piece`].
    pub(crate) fn piece(&self) -> u32 {
        self.link.piece()
    }

    /// As [`Link::commit`].
    pub(crate) fn commit(&mut self, class: Class, message: &Outgoing<'_>, offset: u32) {
        self.link.commit(class, message, offset);
    }

    /// As [`Link::is_acknowledged`].
    #[inline]
    pub(crate) fn is_acknowledged(&mut self) -> bool {
        self.link.is_acknowledged()
    }

    /// As [`Link::taken`].
    pub(crate) fn taken(&mut self) -> u32 {
        self.link.taken()
    }

    /// Whether something was left for it to be told, or it may have sent something.
    #[inline]
    pub(crate) fn is_due(&mut self) -> bool {
        self.transit.is_owed() || self.link.has_any()
    }

    /// As [`Link::has_next`].
    pub(crate) fn has_next(&mut self, class: Class) -> bool {
        self.epoch.is_some() && self.link.has_next(class)
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
