// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Links between hosts: rings of few entries, so that they are full often.

use super::{machine::POOL, pool::Map, shared::Shared, LONGEST_FRAME};
use nupa_engine::{
    link::{Arrival, DirectLink, Link},
    PoolLink, Shown,
};
use nupa_pool::{Body, Outgoing, Violation};
use nupa_proto::{
    pool::{
        message::{max_payload, Reply, MAX_FRAGMENT},
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
    entries: VecDeque<Arrival>,
    /// Entries that were ever put in.
    produced: usize,
    /// Address of the first payload.
    payloads: u64,
    /// Payload of the entry that is reserved.
    reserved: Option<u32>,
    /// Bytes of the last message, and how many of them were put in; both 0 if it has ended.
    total: u32,
    offset: u32,
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
pub fn link(pool: &Shared) -> [TestLink; 2] {
    let rings = || {
        [(); CLASSES].map(|()| {
            let payloads = POOL + pool.grow(ENTRIES * STRIDE) as u64;
            Rc::new(RefCell::new(Ring {
                entries: VecDeque::new(),
                produced: 0,
                payloads,
                reserved: None,
                total: 0,
                offset: 0,
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
            (ring.reserved, ring.total, ring.offset) = (None, 0, 0);
        }
        self.refused = false;
    }

    /// Bytes of a message that goes on, and how many of them are still to come.
    pub fn left(&self, class: Class) -> Option<(u32, u32)> {
        let ring = self.out[class as usize].borrow();
        (ring.total != 0).then(|| (ring.total, ring.total - ring.offset))
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

    fn commit(&mut self, class: Class, message: &Outgoing<'_>, total: u32) {
        self.committed = true;
        let mut ring = self.out[class as usize].borrow_mut();
        let len = ring.reserved.take().expect("it was reserved");
        let body = body(message);
        let follows = matches!(body, Body::Data | Body::Abort);
        assert_eq!(follows, ring.total != 0, "messages are whole: {body:?}");
        let (offset, end) = (ring.offset, ring.offset + len);
        assert!(follows || end <= total, "no more than the whole");
        assert!(
            !follows || total == ring.total,
            "of the same length: {body:?}"
        );
        let last = end == total || matches!(body, Body::Abort);
        (ring.offset, ring.total) = if last { (0, 0) } else { (end, total) };
        let payload = ring.payloads + (ring.produced % ENTRIES * STRIDE) as u64;
        ring.produced += 1;
        ring.entries.push_back(Arrival {
            body,
            payload,
            len,
            offset,
            last,
        });
    }

    fn next(&mut self, class: Class) -> Option<Arrival> {
        let ring = self.back[class as usize].borrow();
        ring.entries.front().cloned().filter(|_| !self.refused)
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
                link.set(open);
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

    fn commit(&mut self, class: Class, message: &Outgoing<'_>, total: u32) {
        if let Self::Pool { committed, .. } = self {
            *committed = true;
        }
        self.get().commit(class, message, total);
    }

    fn next(&mut self, class: Class) -> Option<Arrival> {
        self.get().next(class)
    }

    fn release(&mut self, class: Class) {
        self.get().release(class);
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
        Outgoing::Data => Body::Data,
        Outgoing::Notify(body) => Body::Notify(**body),
        Outgoing::Abort => Body::Abort,
    }
}
