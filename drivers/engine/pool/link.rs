// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The way to a peer through a shared memory pool.

use crate::link::{Arrival, DirectLink, Link};
use nupa_pool::{
    Blocked, Body, Grant, Grants, InUse, Outgoing, PerClass, Poisoned, Reservation, Violation,
    Window,
};
use nupa_proto::{
    ident::MULTICAST_QPN,
    pool::{message::FRAME_FLOOD, Class},
};

/// Bytes per read while searching for what cannot be read.
const PIECE: usize = 256;
/// Payload from which on an entry is shown to the peer at once, so that it can take it while the next one is written.
const SHOW_AT_ONCE: u32 = 4096;
/// Payload from which on non-temporal stores are used where it is to be written back at once, in bytes. They take two thirds of the time of ordinary stores
/// and write-backs, also for less; but less may lie in an entry, whose other parts are stored as ever.
const NONTEMPORAL_FROM: u32 = 256;
/// How long the host tries to open a link that was wanted once, in microseconds.
const WANTED_US: u64 = 1_000_000;
/// How long a new link counts as used, in microseconds. The frame for all nodes that it may have been opened for was lost: its sender asks
/// again after a second.
const NEW_US: u64 = 1_200_000;

/// What a peer was shown.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shown {
    /// There was something.
    pub any: bool,
    /// It is to be woken if it does not look by itself: there is work for it, or room that it waits for.
    pub wakes: bool,
}

/// A [`Link`] through a pool. Its host opens it when membership tells that the peer is up, and calls
/// [`PoolLink::publish`] after each call to the engine.
#[derive(Debug)]
pub struct PoolLink<W> {
    window: W,
    /// Where the pool begins in the DMA address space of this host's node.
    base: u64,
    /// Where the device memory that this host's node offers begins there.
    own: u64,
    /// Longest part of a message.
    piece: u32,
    open: Option<nupa_pool::Link>,
    reserved: PerClass<Option<Reservation>>,
    /// Entries were shown to the peer, and it was not woken for them.
    shown: bool,
    /// What the peer did that no sound one does.
    violation: Option<Violation>,
    refused: bool,
    /// Something was to be put in while it was not open, or was to end, since the host looked last, ...
    wanted: bool,
    /// ... and until when the host is to try to open it for that.
    wanted_until_us: u64,
    /// It is to end.
    ends: bool,
    /// It was opened since the host looked last.
    is_new: bool,
    /// It was used since the host looked last, ...
    used: bool,
    /// ... and when it was last found to be; of a new one, later than that.
    used_at_us: u64,
}

impl<W: Window> PoolLink<W> {
    /// A link that is not open, in the pool that lies at `base` in the DMA address space of this host's node. What that one offers
    /// as device memory, it has at `own`. Parts of messages are no longer than `piece` ([`Geometry::piece`](nupa_pool::Geometry::piece)).
    pub fn new(window: W, base: u64, own: u64, piece: u32) -> Self {
        Self {
            window,
            base,
            own,
            piece,
            open: None,
            reserved: PerClass::new(|_| None),
            shown: false,
            violation: None,
            refused: false,
            wanted: false,
            wanted_until_us: 0,
            ends: false,
            is_new: false,
            used: false,
            used_at_us: 0,
        }
    }

    /// Opens it: the peer is up. `make` makes the link in its place; if there is none, nothing changes.
    pub fn open<T>(
        &mut self,
        make: impl FnOnce(&mut Option<nupa_pool::Link>) -> Option<T>,
    ) -> Option<T> {
        let made = make(&mut self.open)?;
        self.begin_anew();
        Some(made)
    }

    /// Closes it: the peer is down.
    pub fn close(&mut self) {
        self.open = None;
        self.begin_anew();
    }

    /// Lets nothing begin any more, until it is closed.
    pub fn end(&mut self) {
        self.ends = true;
    }

    /// Has `finish`, which is [`Membership::finish`](nupa_pool::Membership::finish), say whether a link that is open has ended, and closes it
    /// then. What was wanted meanwhile still is.
    pub fn finish(&mut self, finish: impl FnOnce(&mut nupa_pool::Link) -> bool) -> bool {
        let wanted = self.wanted;
        let ended = self.open.as_mut().is_some_and(finish);
        if ended {
            self.close();
            self.wanted = wanted;
        }
        ended
    }

    /// Takes note of whether it was used since this was called before, which is to be often. Frames and datagrams for many nodes are no use.
    pub fn note_use(&mut self, now_us: u64) {
        // Of direct writes, the peer's engine has no part in which this would be noted.
        let used = core::mem::take(&mut self.used) || self.in_use().serial != 0;
        if core::mem::take(&mut self.is_new) {
            self.used_at_us = now_us.saturating_add(NEW_US);
        }
        if used {
            self.used_at_us = now_us;
        }
    }

    /// How long it was not used, in microseconds. That of a new one counts later, for the answer to a frame for all nodes.
    pub fn idle_us(&self, now_us: u64) -> u64 {
        now_us.saturating_sub(self.used_at_us)
    }

    fn begin_anew(&mut self) {
        (self.ends, self.is_new, self.used) = (false, true, false);
        self.reserved = PerClass::new(|_| None);
        (self.shown, self.violation, self.refused) = (false, None, false);
        (self.wanted, self.wanted_until_us) = (false, 0);
    }

    /// Whether something was to be put in not long ago, and it was not open. What waits for room keeps saying so; a frame for all nodes, which
    /// does not wait, has said so once.
    pub fn is_wanted(&mut self, now_us: u64) -> bool {
        if core::mem::take(&mut self.wanted) {
            self.wanted_until_us = now_us.saturating_add(WANTED_US);
        }
        now_us < self.wanted_until_us
    }

    /// Shows the peer what was put into its rings, and what was taken out of those to this host.
    pub fn publish(&mut self) -> Shown {
        let Some(link) = &mut self.open else {
            return Shown::default();
        };
        let (mut any, mut wakes) = (false, core::mem::take(&mut self.shown));
        // To a peer that is refused, nothing is said of what it has asked for: that it was taken out would say that it is done.
        let refused = self.refused;
        for receive in link.receive.iter_mut().filter(|_| !refused) {
            any |= receive.publish(&self.window);
            wakes |= receive.take_wanted();
        }
        for send in link.send.iter_mut() {
            wakes |= send.publish(&self.window);
        }
        Shown {
            any: any || wakes,
            wakes,
        }
    }

    /// Whether the peer is to have nothing more to do with this host until it comes back with another epoch, and what it did if
    /// that is known here.
    pub fn is_refused(&self) -> (bool, Option<Violation>) {
        (self.refused, self.violation)
    }

    fn violated(&mut self, violation: Violation) {
        self.violation = self.violation.or(Some(violation));
        self.refused = true;
    }
}

impl<W: Window> Link for PoolLink<W> {
    #[inline]
    fn reserve(&mut self, class: Class, len: u32) -> Option<u64> {
        if self.refused {
            return None;
        }
        let Some(link) = self.open.as_mut() else {
            self.wanted = true;
            return None;
        };
        match link.send.of(class).reserve(&self.window, len) {
            Ok(reservation) => {
                let place = self.base.wrapping_add(reservation.payload.start);
                *self.reserved.of(class) = Some(reservation);
                Some(place)
            }
            Err(Blocked::Full | Blocked::Down | Blocked::TooLong) => None,
            Err(Blocked::Violation(violation)) => {
                self.violated(violation);
                None
            }
        }
    }

    #[inline]
    fn is_open(&mut self) -> bool {
        self.open.is_some()
    }

    #[inline]
    fn prefers_nontemporal(&mut self, len: u32) -> bool {
        len >= NONTEMPORAL_FROM && !self.window.is_coherent()
    }

    fn note_nontemporal(&mut self, class: Class) {
        if let Some(reservation) = self.reserved.of(class) {
            reservation.set_published();
        }
    }

    #[inline]
    fn may_begin(&mut self) -> bool {
        self.wanted |= self.ends;
        !self.ends
    }

    #[inline]
    fn commit(&mut self, class: Class, message: &Outgoing<'_>, offset: u32) {
        self.used |= match message {
            Outgoing::Frame(body) => body.flags & FRAME_FLOOD == 0,
            Outgoing::Request(body) => body.target_qpn.get() != MULTICAST_QPN,
            _ => true,
        };
        let reservation = self.reserved.of(class).take();
        let Some((reservation, link)) = reservation.zip(self.open.as_mut()) else {
            return;
        };
        let payload = &reservation.payload;
        let long = payload.end.wrapping_sub(payload.start) >= u64::from(SHOW_AT_ONCE);
        // It is the one that was reserved last, so nothing else took its place.
        let committed = link.commit(&self.window, class, reservation, message, offset);
        if committed.is_ok() && long {
            // It is taken only behind these.
            if let Some(short) = class.short() {
                self.shown |= link.send.of(short).publish(&self.window);
            }
            self.shown |= link.send.of(class).publish(&self.window);
        }
    }

    #[inline]
    fn has_next(&mut self, class: Class) -> bool {
        let link = self.open.as_mut().filter(|_| !self.refused);
        link.is_some_and(|link| link.has_next(&self.window, class))
    }

    #[inline]
    fn has_any(&mut self) -> bool {
        // Where caches are not coherent each look goes to memory, and those who then ask for each ring look again.
        let asks = self.window.is_coherent();
        let link = self.open.as_mut().filter(|_| !self.refused);
        link.is_some_and(|link| !asks || link.has_any(&self.window))
    }

    #[inline]
    fn next(&mut self, class: Class) -> Option<Arrival> {
        if self.refused {
            return None;
        }
        let link = self.open.as_mut()?;
        match link.next(&self.window, class) {
            Ok(message) => message.map(|message| {
                self.used |= match &message.body {
                    Body::Frame(body) => body.flags & FRAME_FLOOD == 0,
                    Body::Request(_, body) => body.target_qpn.get() != MULTICAST_QPN,
                    _ => true,
                };
                Arrival {
                    payload: self.base.wrapping_add(message.payload.start),
                    len: message.payload_len(),
                    offset: message.offset,
                    piece: message.piece,
                    last: message.is_last(),
                    body: message.body,
                }
            }),
            Err(violation) => {
                self.violated(violation);
                None
            }
        }
    }

    #[inline]
    fn release(&mut self, class: Class) {
        if let Some(link) = self.open.as_mut().filter(|_| !self.refused) {
            link.release(&self.window, class);
        }
    }

    #[inline]
    fn piece(&self) -> u32 {
        self.piece
    }

    #[inline]
    fn is_acknowledged(&mut self) -> bool {
        self.open
            .as_mut()
            .is_some_and(|link| link.send.request.is_acknowledged())
    }

    #[cold]
    fn taken(&mut self) -> u32 {
        let Some(link) = self.open.as_mut().filter(|_| !self.refused) else {
            return 0;
        };
        let (mut taken, mut violation) = (0u32, None);
        for send in link.send.iter_mut() {
            match send.freed(&self.window) {
                Ok(freed) => taken = taken.wrapping_add(freed),
                Err(Blocked::Violation(found)) => violation = Some(found),
                Err(_) => {}
            }
        }
        if let Some(violation) = violation {
            self.violated(violation);
        }
        taken
    }

    #[cold]
    fn refuse(&mut self) {
        self.refused = true;
    }

    #[cold]
    fn unreadable(&mut self, payload: u64, len: u32) {
        let start = payload.wrapping_sub(self.base);
        let end = start.saturating_add(u64::from(len));
        let mut piece = [0; PIECE];
        for at in (start..end).step_by(PIECE) {
            let left = usize::try_from(end.saturating_sub(at)).unwrap_or(PIECE);
            let piece = piece.get_mut(..left.min(PIECE)).unwrap_or_default();
            let read = self.window.read(at, piece);
            if self.readable(read).is_none() {
                return;
            }
        }
    }

    #[inline]
    fn direct(&mut self) -> Option<&mut dyn DirectLink> {
        // Of a peer that is refused, too: what it has been granted is still to be taken back.
        self.grants()?;
        Some(self)
    }
}

impl<W: Window> PoolLink<W> {
    /// What was read of the peer's; none, and the peer is refused, if it could not be.
    fn readable<T>(&mut self, read: Result<T, Poisoned>) -> Option<T> {
        read.map_err(|poisoned| self.violated(poisoned.into())).ok()
    }

    fn grants(&self) -> Option<&Grants> {
        self.open.as_ref()?.grants.as_ref()
    }

    /// What is so of grants of a peer that is not refused; false without any.
    #[inline]
    fn ask(&mut self, about: impl FnOnce(&Grants, &W) -> Result<bool, Poisoned>) -> bool {
        let grants = self.grants().filter(|_| !self.refused);
        let answer = grants.map(|grants| about(grants, &self.window));
        self.readable(answer.unwrap_or(Ok(false))).unwrap_or(false)
    }
}

impl<W: Window> DirectLink for PoolLink<W> {
    fn offset_of(&self, addr: u64, len: u64) -> Option<u64> {
        if self.refused {
            return None;
        }
        let memory = self.grants()?.memory();
        let start = memory.start.checked_add(addr.checked_sub(self.own)?)?;
        let end = start.checked_add(len)?;
        (end <= memory.end).then_some(start)
    }

    fn give(&mut self, slot: u16, serial: u64) {
        if let Some(grants) = self.grants() {
            grants.give(&self.window, slot, serial);
        }
    }

    fn in_use(&mut self) -> InUse {
        let used = self.grants().map(|grants| grants.in_use(&self.window));
        let used = used.unwrap_or(Ok(InUse::NOTHING));
        self.readable(used).unwrap_or(InUse::NOTHING)
    }

    fn take(&mut self, grant: &Grant) -> Option<u64> {
        let (offset, len) = (grant.offset, grant.len);
        if !self.grants()?.is_sound(grant) {
            self.violated(Violation::Grant { offset, len });
            return None;
        }
        Some(self.base.wrapping_add(offset))
    }

    #[inline]
    fn begin(&mut self, grant: &Grant) -> bool {
        self.used = true;
        self.ask(|grants, window| grants.begin(window, grant))
    }

    #[inline]
    fn end(&mut self) {
        if let Some(grants) = self.grants() {
            grants.end(&self.window);
        }
    }

    fn map(&mut self, grant: &Grant) -> bool {
        self.ask(|grants, window| grants.map(window, grant))
    }

    fn holds(&mut self, grant: &Grant) -> bool {
        // A link that is to end waits for those who have mapped something.
        !self.ends && self.ask(|grants, window| grants.holds(window, grant))
    }

    fn unmap(&mut self, slot: u16) {
        let done = self.grants().map(|grants| grants.unmap(&self.window, slot));
        self.readable(done.unwrap_or(Ok(())));
    }
}
