// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Links between hosts: rings of few entries, so that they are full often.

use crate::{memory::POOL, pool::Map, shared::Shared, LONGEST_FRAME};
use nupa_engine::{
    link::{Arrival, DirectLink, Link},
    PoolLink, Shown,
};
use nupa_pool::{Body, Outgoing, Violation};
use nupa_proto::{
    pool::{
        message::{max_payload, Reply, MAX_FRAGMENT, READ_PIECE},
        Class, CLASSES, MIN_LOG_BULK,
    },
    status::WcStatus,
    wqe::Opcode,
};
use std::{cell::RefCell, collections::VecDeque, rc::Rc};

/// Entries of a ring.
const ENTRIES: usize = 4;
/// Bytes from the payload of one entry to that of the next.
const STRIDE: usize = LONGEST_FRAME as usize;
const _: () = assert!(LONGEST_FRAME > MAX_FRAGMENT);

/// A ring, as both ends have it.
struct Ring {
    /// Each with the entries that were put into the ring of short messages before it.
    entries: VecDeque<(Arrival, usize)>,
    /// Entries that were ever put in.
    produced: usize,
    /// Address of the first payload.
    payloads: u64,
    /// Payload of the entry that is reserved.
    reserved: Option<u32>,
}

impl Ring {
    /// Entries that were ever taken out.
    fn consumed(&self) -> usize {
        self.produced - self.entries.len()
    }
}

/// One end of a link.
#[derive(Clone)]
pub struct TestLink {
    out: [Rc<RefCell<Ring>>; CLASSES],
    back: [Rc<RefCell<Ring>>; CLASSES],
    refused: bool,
    /// Something was put into a ring since the last [`RigLink::publish`].
    committed: bool,
}

/// The two ends of a new link, with payloads in `pool`.
pub(crate) fn link(pool: &Shared) -> [TestLink; 2] {
    let rings = || {
        [(); CLASSES].map(|()| {
            let payloads = POOL + pool.grow(ENTRIES * STRIDE) as u64;
            Rc::new(RefCell::new(Ring {
                entries: VecDeque::new(),
                produced: 0,
                payloads,
                reserved: None,
            }))
        })
    };
    let (out, back) = (rings(), rings());
    let end = TestLink {
        out,
        back,
        refused: false,
        committed: false,
    };
    let other = TestLink {
        out: end.back.clone(),
        back: end.out.clone(),
        refused: false,
        committed: false,
    };
    [end, other]
}

impl TestLink {
    /// Forgets everything that is under way in both directions.
    pub fn clear(&mut self) {
        for ring in self.out.iter().chain(&self.back) {
            let mut ring = ring.borrow_mut();
            ring.entries.clear();
            ring.reserved = None;
        }
        self.refused = false;
    }

    /// Whether the other end was refused.
    pub fn is_refused(&self) -> bool {
        self.refused
    }
}

impl Link for TestLink {
    fn reserve(&mut self, class: Class, len: u32) -> Option<u64> {
        let most = max_payload(class, MIN_LOG_BULK);
        assert!(len <= most, "a fragment is no longer than that");
        let mut ring = self.out[class as usize].borrow_mut();
        if ring.entries.len() >= ENTRIES || self.refused {
            return None;
        }
        ring.reserved = Some(len);
        Some(ring.payloads + (ring.produced % ENTRIES * STRIDE) as u64)
    }

    fn commit(&mut self, class: Class, message: &Outgoing<'_>, offset: u32) {
        self.committed = true;
        let short = class.short();
        let behind = short.map_or(0, |short| self.out[short as usize].borrow().produced);
        let mut ring = self.out[class as usize].borrow_mut();
        let len = ring.reserved.take().expect("it was reserved");
        let body = body(message);
        let last = match &body {
            Body::Request(Opcode::Read, body) => {
                assert_eq!((len, offset % READ_PIECE), (0, 0), "a piece of a READ");
                offset + body.piece_len(offset, READ_PIECE) >= body.len.get()
            }
            Body::Request(_, body) => {
                assert!(offset + len <= body.payload_len(), "no more than the whole");
                offset + len == body.payload_len()
            }
            _ => true,
        };
        let payload = ring.payloads + (ring.produced % ENTRIES * STRIDE) as u64;
        ring.produced += 1;
        let arrival = Arrival {
            body,
            payload,
            len,
            offset,
            piece: READ_PIECE,
            last,
        };
        ring.entries.push_back((arrival, behind));
    }

    fn has_next(&mut self, class: Class) -> bool {
        !self.refused && !self.back[class as usize].borrow().entries.is_empty()
    }

    fn next(&mut self, class: Class) -> Option<Arrival> {
        let ring = self.back[class as usize].borrow();
        let (arrival, behind) = ring.entries.front().filter(|_| !self.refused)?;
        let short = class.short();
        let taken = short.map_or(0, |short| self.back[short as usize].borrow().consumed());
        (taken >= *behind).then(|| arrival.clone())
    }

    fn taken(&mut self) -> u32 {
        let taken = self.out.iter().map(|ring| ring.borrow().consumed());
        taken.sum::<usize>() as u32
    }

    fn release(&mut self, class: Class) {
        let mut ring = self.back[class as usize].borrow_mut();
        ring.entries.pop_front().expect("it is there");
    }

    fn unreadable(&mut self, _: u64, _: u32) {}

    fn refuse(&mut self) {
        self.refused = true;
    }
}

/// A link of either kind.
#[allow(clippy::large_enum_variant, reason = "there are few")]
pub enum RigLink {
    Queues(TestLink),
    Pool {
        link: PoolLink<Map>,
        /// Something was put into a ring since the last [`RigLink::publish`].
        committed: bool,
    },
}

impl RigLink {
    /// Of queues: the end.
    pub fn queues(&mut self) -> &mut TestLink {
        match self {
            Self::Queues(link) => link,
            Self::Pool { .. } => panic!("it is of the other kind"),
        }
    }

    /// Of a pool: opens or closes it.
    pub fn set(&mut self, open: Option<nupa_pool::Link>) {
        match self {
            Self::Queues(_) => panic!("it is of the other kind"),
            Self::Pool { link, committed } => {
                *committed = false;
                link.close();
                link.open(|place| {
                    *place = open;
                    place.as_ref().map(|_| ())
                });
            }
        }
    }

    /// Shows the other end what is new, if there is anything. It is woken for all that is put into rings.
    pub fn publish(&mut self) -> Shown {
        match self {
            Self::Queues(link) => Shown {
                any: std::mem::take(&mut link.committed),
                wakes: false,
            },
            Self::Pool { link, committed } => {
                let shown = link.publish();
                assert!(shown.wakes || !*committed, "nobody is woken for it");
                *committed = false;
                shown
            }
        }
    }

    /// Of a pool: whether the other end is refused, and what it did.
    pub fn refused(&self) -> (bool, Option<Violation>) {
        match self {
            Self::Queues(_) => panic!("it is of the other kind"),
            Self::Pool { link, .. } => link.is_refused(),
        }
    }

    fn get(&mut self) -> &mut dyn Link {
        match self {
            Self::Queues(link) => link,
            Self::Pool { link, .. } => link,
        }
    }
}

impl Link for RigLink {
    fn reserve(&mut self, class: Class, len: u32) -> Option<u64> {
        self.get().reserve(class, len)
    }

    fn is_open(&mut self) -> bool {
        self.get().is_open()
    }

    fn may_begin(&mut self) -> bool {
        self.get().may_begin()
    }

    fn prefers_nontemporal(&mut self, len: u32) -> bool {
        self.get().prefers_nontemporal(len)
    }

    fn note_nontemporal(&mut self, class: Class) {
        self.get().note_nontemporal(class);
    }

    fn commit(&mut self, class: Class, message: &Outgoing<'_>, offset: u32) {
        if let Self::Pool { committed, .. } = self {
            *committed = true;
        }
        self.get().commit(class, message, offset);
    }

    fn has_next(&mut self, class: Class) -> bool {
        self.get().has_next(class)
    }

    fn has_any(&mut self) -> bool {
        self.get().has_any()
    }

    fn next(&mut self, class: Class) -> Option<Arrival> {
        self.get().next(class)
    }

    fn release(&mut self, class: Class) {
        self.get().release(class);
    }

    fn is_acknowledged(&mut self) -> bool {
        self.get().is_acknowledged()
    }

    fn taken(&mut self) -> u32 {
        self.get().taken()
    }

    fn unreadable(&mut self, payload: u64, len: u32) {
        self.get().unreadable(payload, len);
    }

    fn refuse(&mut self) {
        self.get().refuse();
    }

    fn direct(&mut self) -> Option<&mut dyn DirectLink> {
        self.get().direct()
    }
}

/// What the other end finds.
fn body(message: &Outgoing<'_>) -> Body {
    match message {
        Outgoing::Request(body) => {
            let opcode = Opcode::try_from(body.opcode).expect("it is one");
            Body::Request(opcode, **body)
        }
        Outgoing::Response(body) => {
            let reply = Reply::try_from(body.reply).expect("it is one");
            let status = WcStatus::try_from(body.status).expect("it is one");
            Body::Response(reply, status, **body)
        }
        Outgoing::Frame(body) => Body::Frame(**body),
        Outgoing::Notify(body) => Body::Notify(**body),
    }
}
