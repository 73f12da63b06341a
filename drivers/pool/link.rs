// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The rings between this node and another.

use crate::{
    geometry::Rings,
    grants::Grants,
    message::{Body, Message, Outgoing, Violation},
    place::Place,
    receiver::Receiver,
    sender::{Blocked, Reservation, Sender, Stale},
    window::zero,
    Poisoned, Window,
};
use nupa_proto::pool::{epoch_tag, Class, LinkWord, LINE, TAG_NONE};

/// One of something for each class of messages.
#[derive(Clone, Copy, Debug)]
pub struct PerClass<T> {
    /// Of [`Class::Request`].
    pub request: T,
    /// Of [`Class::Response`].
    pub response: T,
    /// Of [`Class::Frame`].
    pub frame: T,
    /// Of [`Class::ShortRequest`].
    pub short_request: T,
    /// Of [`Class::ShortResponse`].
    pub short_response: T,
}

/// All classes, those of short messages first: what is in their rings must be seen before what lies behind it in the others.
const SHORT_FIRST: [Class; Class::ALL.len()] = [
    Class::ShortRequest,
    Class::ShortResponse,
    Class::Request,
    Class::Response,
    Class::Frame,
];

impl<T> PerClass<T> {
    /// What `make` makes for each class.
    pub fn new(mut make: impl FnMut(Class) -> T) -> Self {
        Self {
            request: make(Class::Request),
            response: make(Class::Response),
            frame: make(Class::Frame),
            short_request: make(Class::ShortRequest),
            short_response: make(Class::ShortResponse),
        }
    }

    /// The one of a class.
    #[inline]
    pub fn of(&mut self, class: Class) -> &mut T {
        match class {
            Class::Request => &mut self.request,
            Class::Response => &mut self.response,
            Class::Frame => &mut self.frame,
            Class::ShortRequest => &mut self.short_request,
            Class::ShortResponse => &mut self.short_response,
        }
    }

    /// All of them, those of short messages first: what is in their rings must be seen before what lies behind it in the others.
    #[inline]
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        [
            &mut self.short_request,
            &mut self.short_response,
            &mut self.request,
            &mut self.response,
            &mut self.frame,
        ]
        .into_iter()
    }
}

/// The link to another node, for as long as both keep their epochs.
#[derive(Debug)]
pub struct Link {
    /// The other node's epoch.
    pub epoch: u32,
    /// Rings to the other node.
    pub send: PerClass<Sender>,
    /// Rings from the other node.
    pub receive: PerClass<Receiver>,
    /// What was found last was no entry.
    done: PerClass<bool>,
    /// Where both say what the other may write directly, if there is such.
    pub grants: Option<Grants>,
}

impl Link {
    /// One whose rings nothing is known of.
    const NONE: Self = Self {
        epoch: 0,
        send: PerClass {
            request: Sender::NONE,
            response: Sender::NONE,
            frame: Sender::NONE,
            short_request: Sender::NONE,
            short_response: Sender::NONE,
        },
        receive: PerClass {
            request: Receiver::NONE,
            response: Receiver::NONE,
            frame: Receiver::NONE,
            short_request: Receiver::NONE,
            short_response: Receiver::NONE,
        },
        done: PerClass {
            request: false,
            response: false,
            frame: false,
            short_request: false,
            short_response: false,
        },
        grants: None,
    };

    /// Has all rings be as if so much had gone through them that their indices and positions are at `index`, for tests of what happens behind the largest
    /// one. Both nodes do so before anything is sent.
    #[cfg(not(MODULE))]
    pub fn begin_at(&mut self, window: &impl Window, index: u32) {
        for sender in self.send.iter_mut() {
            sender.begin_at(window, index);
        }
        for receiver in self.receive.iter_mut() {
            receiver.begin_at(window, index);
        }
    }

    /// As [`Sender::commit`], behind what is in the ring of short messages.
    #[inline]
    pub fn commit(
        &mut self,
        window: &impl Window,
        class: Class,
        reservation: Reservation,
        message: &Outgoing<'_>,
        offset: u32,
    ) -> Result<(), Stale> {
        let short = class.short();
        let behind = short.map_or(0, |short| self.send.of(short).written());
        let sender = self.send.of(class);
        sender.commit(window, reservation, message, offset, behind)
    }

    /// As [`Receiver::next`], but for an entry that others in the ring of short messages come before. In a ring of responses this also finds
    /// requests that are done because they were taken out ([`Body::Done`]).
    #[inline]
    pub fn next(
        &mut self,
        window: &impl Window,
        class: Class,
    ) -> Result<Option<Message>, Violation> {
        let acknowledged = |class: &Class| self.send.of(*class).is_acknowledged();
        let Some(requests) = class.requests().filter(acknowledged) else {
            return self.next_entry(window, class);
        };
        if self.send.of(requests).has_acks() {
            let done = self.next_done(window, class, requests)?;
            if done.is_some() {
                return Ok(done);
            }
        }
        let next = self.next_entry(window, class)?;
        // One that others come before is there, too.
        if next.is_none() && self.receive.of(class).has_next(window) {
            return Ok(None);
        }
        let indices = self.indices(class);
        if !self.send.of(requests).ask_for_acks(window, indices)? {
            return Ok(next);
        }
        // What was said before that index was written is there by now.
        let short = class.short();
        let said = match next {
            Some(_) => false,
            None => {
                !self.receive.of(class).has_next(window)
                    && !short.is_some_and(|short| self.receive.of(short).has_next(window))
            }
        };
        // Nobody waits for as long as there are responses: these are all that there can have been.
        let rings = core::iter::once(class).chain(short).zip(indices);
        let counted = self.send.of(requests).asked_at().is_some_and(|at| {
            rings.zip(at).all(|((class, index), at)| {
                index.wrapping_sub(at) >= self.receive.of(class).entries()
            })
        });
        if said || counted {
            self.send.of(requests).allow_acks();
        }
        match next {
            None if said => self.next_done(window, class, requests),
            _ if next.is_some() => Ok(next),
            _ => self.next_entry(window, class),
        }
    }

    /// Indices in the rings of responses of a class, and of short ones if those come before.
    fn indices(&mut self, class: Class) -> [u32; 2] {
        let short = class.short();
        let short = short.map_or(0, |short| self.receive.of(short).index());
        [self.receive.of(class).index(), short]
    }

    /// The oldest entry, if none in the ring of short messages comes before.
    #[inline]
    fn next_entry(
        &mut self,
        window: &impl Window,
        class: Class,
    ) -> Result<Option<Message>, Violation> {
        let next = self.receive.of(class).next(window)?;
        let Some(short) = class.short() else {
            return Ok(next);
        };
        let short = self.receive.of(short);
        Ok(next.filter(|message| !short.comes_before(message.behind)))
    }

    /// The next request that is done because it was taken out.
    fn next_done(
        &mut self,
        window: &impl Window,
        class: Class,
        requests: Class,
    ) -> Result<Option<Message>, Violation> {
        let next = self.send.of(requests).next_ack(window)?;
        *self.done.of(class) = next.is_some();
        Ok(next.map(|acknowledged| Message {
            body: Body::Done(acknowledged),
            payload: 0..0,
            offset: 0,
            piece: 0,
            behind: 0,
        }))
    }

    /// Whether [`Link::next`] may find something.
    #[inline]
    pub fn has_next(&mut self, window: &impl Window, class: Class) -> bool {
        if self.receive.of(class).has_next(window) {
            return true;
        }
        let Some(requests) = class.requests() else {
            return false;
        };
        self.send.of(requests).may_acknowledge(window)
    }

    /// Whether [`Link::next`] may find something in any ring.
    #[inline]
    pub fn has_any(&mut self, window: &impl Window) -> bool {
        let mut receivers = self.receive.iter_mut();
        let senders = [&self.send.short_request, &self.send.request];
        receivers.any(|receiver| receiver.has_next(window))
            || senders.iter().any(|sender| sender.may_acknowledge(window))
    }

    /// Whether the peer has taken out all requests and frames. Before that a node must not [finish](crate::Membership::finish) with it that may have
    /// forgotten what it has asked for, as that of a queue pair that is gone: there would be no room for the answers.
    pub fn is_drained(&mut self, window: &impl Window) -> bool {
        let send = &mut self.send;
        let mut asked = [&mut send.short_request, &mut send.request, &mut send.frame].into_iter();
        asked.all(|sender| match sender.is_drained(window) {
            Ok(drained) => drained,
            Err(Blocked::Down) => sender.written() == 0,
            // Nothing more is expected of one that breaks the rules.
            Err(_) => true,
        })
    }

    /// Tells the peer all that was put in and taken out.
    pub(crate) fn publish(&mut self, window: &impl Window) {
        for receiver in self.receive.iter_mut() {
            receiver.publish(window);
        }
        for sender in self.send.iter_mut() {
            sender.publish(window);
        }
    }

    /// As [`Receiver::release`], of what [`Link::next`] returned.
    #[inline]
    pub fn release(&mut self, window: &impl Window, class: Class) {
        if !core::mem::take(self.done.of(class)) {
            self.receive.of(class).release(window);
        }
    }
}

/// Where the rings between this node and another lie: as little of it as all follows from, because kernel stacks are small.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    sizes: Rings,
    /// Where those to the other node begin, and what the consumer's words are counted from.
    send: [u64; 2],
    /// The same for those from it.
    receive: [u64; 2],
    in_lines: bool,
}

impl Ends {
    /// Rings of these sizes at these [places](Rings::place).
    pub(crate) fn new(sizes: Rings, send: [u64; 2], receive: [u64; 2]) -> Self {
        Self {
            sizes,
            send,
            receive,
            in_lines: false,
        }
    }

    /// The ring of a class to the other node.
    pub(crate) fn to(&self, class: Class) -> Place {
        self.place(class, self.send)
    }

    /// The ring of a class from the other node.
    pub(crate) fn from(&self, class: Class) -> Place {
        self.place(class, self.receive)
    }

    fn place(&self, class: Class, links: [u64; 2]) -> Place {
        let place = self.sizes.place(class, links);
        match self.in_lines {
            true => place.in_lines(),
            false => place,
        }
    }

    /// The same rings with entries of lines.
    pub(crate) fn in_lines(self) -> Self {
        Self {
            in_lines: true,
            ..self
        }
    }

    /// Makes the link in `place`: what this node writes of each ring begins anew, under both epochs.
    pub(crate) fn open(
        &self,
        window: &impl Window,
        own_epoch: u32,
        epoch: u32,
        grants: Option<Grants>,
        place: &mut Option<Link>,
    ) {
        let (own, peer) = (epoch_tag(own_epoch), epoch_tag(epoch));
        // The rings one by one, because of the space that all of them take on the stack.
        let link = place.insert(Link::NONE);
        (link.epoch, link.grants) = (epoch, grants);
        for class in SHORT_FIRST {
            let sender = link.send.of(class);
            *sender = Sender::new(self.to(class), word(own, peer));
            sender.clear(window);
            *link.receive.of(class) = Receiver::new(self.from(class), own_epoch, word(peer, own));
        }
        self.store(window, word(own, peer), word(peer, own));
    }

    /// Says that there is no link. Whole lines are written, which can be read again then if they could not.
    pub(crate) fn clear(&self, window: &impl Window) {
        // The words of all rings are in the same lines, that of the first ring at their beginning.
        let (send, receive) = (self.to(Class::Request), self.from(Class::Request));
        let lines = [
            send.producer(),
            send.producer_want(),
            receive.consumer(),
            receive.consumer_bulk(),
        ];
        for line in lines {
            zero(window, line..line.saturating_add(LINE));
        }
    }

    /// Leaves nothing of this node's entries and payload in its caches: what was stored there and came to nothing is written back while the place
    /// is this node's.
    pub(crate) fn write_back(&self, window: &impl Window) {
        for class in SHORT_FIRST {
            let room = self.to(class).room();
            window.refresh(room.start, room.end.saturating_sub(room.start));
        }
    }

    /// Says that an epoch of the other node is refused.
    pub(crate) fn refuse(&self, window: &impl Window, epoch: u32) {
        let peer = epoch_tag(epoch);
        self.store(window, word(TAG_NONE, peer), word(peer, TAG_NONE));
    }

    /// Whether the other node refuses `own_epoch`.
    pub(crate) fn is_refused(
        &self,
        window: &impl Window,
        own_epoch: u32,
    ) -> Result<bool, Poisoned> {
        let at = self.to(Class::Request).consumer();
        window.refresh(at, size_of::<u64>() as u64);
        let found = LinkWord::from_wire(window.load(at)?);
        Ok(found == word(epoch_tag(own_epoch), TAG_NONE))
    }

    /// Stores all words that are this node's: the producer's and the consumer's.
    fn store(&self, window: &impl Window, producer: LinkWord, consumer: LinkWord) {
        for class in SHORT_FIRST {
            let place = self.to(class);
            window.store(place.producer_want(), LinkWord::default().to_wire());
            window.store(place.producer(), producer.to_wire());
        }
        for class in SHORT_FIRST {
            let place = self.from(class);
            window.store(place.consumer_bulk(), consumer.to_wire());
            window.store(place.consumer(), consumer.to_wire());
        }
        let (send, receive) = (self.to(Class::Request), self.from(Class::Request));
        window.publish(send.producer(), LINE.wrapping_mul(2));
        window.publish(receive.consumer(), LINE.wrapping_mul(2));
    }
}

/// The link word with which a link begins.
const fn word(source: u16, target: u16) -> LinkWord {
    LinkWord {
        source,
        target,
        index: 0,
    }
}
