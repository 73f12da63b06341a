// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The rings between this node and another.

use crate::{
    geometry::{Geometry, Place},
    grants::Grants,
    receiver::Receiver,
    sender::Sender,
    window::zero,
    Poisoned, Window,
};
use nupa_proto::pool::{epoch_tag, Class, LinkWord, CONSUMER_BULK, LINE, TAG_NONE};

/// One of something for each class of messages.
#[derive(Clone, Copy, Debug)]
pub struct PerClass<T> {
    /// Of [`Class::Request`].
    pub request: T,
    /// Of [`Class::Response`].
    pub response: T,
    /// Of [`Class::Frame`].
    pub frame: T,
}

impl<T> PerClass<T> {
    fn new(mut make: impl FnMut(Class) -> T) -> Self {
        Self {
            request: make(Class::Request),
            response: make(Class::Response),
            frame: make(Class::Frame),
        }
    }

    /// The one of a class.
    #[inline]
    pub fn of(&mut self, class: Class) -> &mut T {
        match class {
            Class::Request => &mut self.request,
            Class::Response => &mut self.response,
            Class::Frame => &mut self.frame,
        }
    }

    fn iter(&self) -> impl Iterator<Item = &T> {
        [&self.request, &self.response, &self.frame].into_iter()
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
    /// Where both say what the other may write directly, if there is such.
    pub grants: Option<Grants>,
}

/// Where the rings between this node and another lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    send: PerClass<Place>,
    receive: PerClass<Place>,
}

/// The rings between `own` and `peer`.
pub(crate) fn ends(geometry: &Geometry, own: u16, peer: u16) -> Ends {
    Ends {
        send: PerClass::new(|class| geometry.ring(own, peer, class)),
        receive: PerClass::new(|class| geometry.ring(peer, own, class)),
    }
}

impl Ends {
    /// Makes the link: what this node writes of each ring begins anew, under both epochs.
    pub(crate) fn open(&self, window: &impl Window, own_epoch: u32, epoch: u32) -> Link {
        let (own, peer) = (epoch_tag(own_epoch), epoch_tag(epoch));
        self.store(window, word(own, peer), word(peer, own));
        Link {
            epoch,
            send: PerClass {
                request: Sender::new(self.send.request, Class::Request, word(own, peer)),
                response: Sender::new(self.send.response, Class::Response, word(own, peer)),
                frame: Sender::new(self.send.frame, Class::Frame, word(own, peer)),
            },
            receive: PerClass {
                request: Receiver::new(self.receive.request, Class::Request, word(peer, own)),
                response: Receiver::new(self.receive.response, Class::Response, word(peer, own)),
                frame: Receiver::new(self.receive.frame, Class::Frame, word(peer, own)),
            },
            grants: None,
        }
    }

    /// Says that there is no link. Whole lines are written, which can be read again then if they could not.
    pub(crate) fn clear(&self, window: &impl Window) {
        let lines = self.send.iter().map(Place::producer);
        for line in lines.chain(self.receive.iter().map(Place::consumer)) {
            zero(window, line..line.saturating_add(LINE));
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
        let at = self.send.request.consumer();
        window.refresh(at, size_of::<u64>() as u64);
        let found = LinkWord::from_wire(window.load(at)?);
        Ok(found == word(epoch_tag(own_epoch), TAG_NONE))
    }

    /// Stores all words that are this node's: the producer's and the consumer's.
    fn store(&self, window: &impl Window, producer: LinkWord, consumer: LinkWord) {
        let len = CONSUMER_BULK.wrapping_mul(2);
        for place in self.send.iter() {
            window.store(place.producer_want(), LinkWord::default().to_wire());
            window.store(place.producer(), producer.to_wire());
            window.publish(place.producer(), len);
        }
        for place in self.receive.iter() {
            window.store(place.consumer_bulk(), consumer.to_wire());
            window.store(place.consumer(), consumer.to_wire());
            window.publish(place.consumer(), len);
        }
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
