// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Page addresses that a node stores for rings: they are counted with those of regions, until the queue is gone.

use nupa_engine::{hal::VecStorage, Engine, Limits, Node, NodeConfig, NodeTable, Resources};
use nupa_proto::{admin::*, status::AdminStatus};
use nupa_testing::{Host, Nodes, World};

/// Page addresses that the node may store.
const ROOM: u64 = 8;
/// log2 of the entries of a ring of two pages, whatever is in it: completions, blocks, events, receive entries.
const LOGS: [u8; 4] = [7, 7, 9, 8];
/// log2 of the bytes of a receive entry.
const STRIDE: u8 = 5;

/// A node that may store few page addresses.
struct Small {
    nodes: Nodes,
    host: Host,
    slot: u16,
    eqn: u32,
    pd: u32,
}

impl Small {
    fn new() -> Self {
        Self::with(ROOM)
    }

    /// One that may store so many page addresses.
    fn with(max_pages: u64) -> Self {
        let mut world = World::new(*crate::MODE, 1);
        let host = world.host(0);
        let limits = Limits {
            max_pages,
            ..Limits::default()
        };
        let node = Node::new(NodeConfig {
            limits,
            ..NodeConfig::default()
        });
        let machine = world.machine(0).clone();
        let mut small = Self {
            nodes: Nodes::new(*crate::MODE, vec![(node, machine)], &world.shared),
            host,
            slot: 0,
            eqn: 0,
            pd: 0,
        };
        let contiguous = small.contiguous();
        small.eqn = small.eq(contiguous).expect("an event queue");
        let (node, _) = small.nodes.node_mut(0).expect("node");
        small.pd = node.alloc_pd().expect("a domain");
        small
    }

    /// Page addresses that may be stored yet.
    fn left(&self) -> u64 {
        self.nodes.node(0).expect("node").0.pages_left()
    }

    /// So many pages, none of which is behind the one before it.
    fn scattered(&mut self, pages: u64) -> PageList {
        self.listed(pages, |page| pages - 1 - page)
    }

    /// So many pages in an order.
    fn listed(&mut self, pages: u64, order: impl Fn(u64) -> u64) -> PageList {
        let memory = self.host.alloc(pages * 4096);
        let list = self.host.alloc(pages * 8);
        for page in 0..pages {
            let at = memory + order(page) * 4096;
            self.host.write(list + page * 8, &at.to_le_bytes());
        }
        PageList {
            addr: list.into(),
            pages: (pages as u32).into(),
            page_shift: 12,
            ..PageList::default()
        }
    }

    /// Two pages without a list.
    fn contiguous(&mut self) -> PageList {
        PageList {
            addr: self.host.alloc(2 * 4096).into(),
            ..PageList::default()
        }
    }

    fn slot(&mut self) -> u16 {
        self.slot += 1;
        self.slot
    }

    fn eq(&mut self, ring: PageList) -> Result<u32, AdminStatus> {
        let body = CreateEq {
            ring,
            doorbell_slot: self.slot().into(),
            log_entries: LOGS[2],
            ..CreateEq::default()
        };
        let (node, machine) = self.nodes.node_mut(0).expect("node");
        node.create_eq(machine, &body)
    }

    fn cq_of(&mut self, ring: PageList, log_entries: u8) -> Result<u32, AdminStatus> {
        let body = CreateCq {
            ring,
            doorbell_slot: self.slot().into(),
            log_entries,
            eqn: self.eqn.into(),
            ..CreateCq::default()
        };
        let (node, machine) = self.nodes.node_mut(0).expect("node");
        node.create_cq(machine, &body)
    }

    fn cq(&mut self, ring: PageList) -> Result<u32, AdminStatus> {
        self.cq_of(ring, LOGS[0])
    }

    fn srq(&mut self, ring: PageList) -> Result<u32, AdminStatus> {
        let body = CreateSrq {
            ring,
            pd: self.pd.into(),
            doorbell_slot: self.slot().into(),
            log_entries: LOGS[3],
            log_stride: STRIDE,
            ..CreateSrq::default()
        };
        let (node, machine) = self.nodes.node_mut(0).expect("node");
        node.create_srq(machine, &body)
    }

    /// A queue pair that completes in `cqn`.
    fn qp(&mut self, cqn: u32, sq: PageList, rq: PageList) -> Result<u32, AdminStatus> {
        let body = CreateQp {
            sq,
            rq,
            qp_type: QpType::Rc.to_wire(),
            log_sq: LOGS[1],
            log_rq: LOGS[3],
            log_rq_stride: STRIDE,
            pd: self.pd.into(),
            send_cqn: cqn.into(),
            recv_cqn: cqn.into(),
            sq_slot: self.slot().into(),
            rq_slot: self.slot().into(),
            ..CreateQp::default()
        };
        let (node, machine) = self.nodes.node_mut(0).expect("node");
        node.create_qp(machine, &body)
    }

    /// A completion queue that stores nothing.
    fn light_cq(&mut self) -> u32 {
        let ring = self.contiguous();
        let cqn = self.cq(ring).expect("a completion queue");
        assert_eq!(self.left(), ROOM, "a contiguous ring stores nothing");
        cqn
    }

    fn resize(&mut self, cqn: u32, ring: PageList, log_entries: u8) -> Result<(), AdminStatus> {
        let body = ResizeCq {
            ring,
            cqn: cqn.into(),
            log_entries,
            ..ResizeCq::default()
        };
        let (node, machine) = self.nodes.node_mut(0).expect("node");
        let resized = node.resize_cq(machine, &body);
        let mut left = Resources::default();
        node.swap_resources(&mut left);
        assert!(!left.is_in_part(), "it is empty");
        resized
    }

    /// Makes queues of two scattered pages until there is no room for another one, and destroys them again.
    fn fill(
        &mut self,
        create: impl Fn(&mut Self, PageList) -> Result<u32, AdminStatus>,
        destroy: impl Fn(&mut Self, u32) -> Result<(), AdminStatus>,
    ) {
        for _ in 0..2 {
            let mut made = Vec::new();
            for left in (0..ROOM).rev().step_by(2) {
                let ring = self.scattered(2);
                made.push(create(self, ring).expect("room for it"));
                assert_eq!(self.left(), left - 1);
            }
            let (ring, light) = (self.scattered(2), self.contiguous());
            assert_eq!(create(self, ring), Err(AdminStatus::NoResources));
            made.push(create(self, light).expect("it stores nothing"));
            for number in made {
                assert_eq!(destroy(self, number), Ok(()));
            }
            assert_eq!(self.left(), ROOM);
        }
    }
}

fn node(small: &mut Small) -> &mut Node<VecStorage> {
    small.nodes.node_mut(0).expect("node").0
}

#[test]
fn rings_are_counted() {
    let mut small = Small::new();
    small.fill(Small::eq, |small, eqn| node(small).destroy_eq(eqn));
    small.fill(Small::cq, |small, cqn| node(small).destroy_cq(cqn));
    small.fill(Small::srq, |small, srqn| node(small).destroy_srq(srqn));
    let cqn = small.light_cq();
    let destroy = |small: &mut Small, qpn| Engine::new().destroy_qp(&mut small.nodes, 0, qpn);
    let with_send = |small: &mut Small, ring| {
        let light = small.contiguous();
        small.qp(cqn, ring, light)
    };
    small.fill(with_send, destroy);
    let with_recv = |small: &mut Small, ring| {
        let light = small.contiguous();
        small.qp(cqn, light, ring)
    };
    small.fill(with_recv, destroy);
}

#[test]
fn both_rings_of_a_queue_pair_have_to_fit() {
    let mut small = Small::new();
    let cqn = small.light_cq();
    let [ring, one, two] = [(); 3].map(|()| small.scattered(2));
    for _ in 0..3 {
        small.cq(ring).expect("room for it");
    }
    assert_eq!(small.qp(cqn, one, two), Err(AdminStatus::NoResources));
    assert_eq!(small.left(), 2);
    let light = small.contiguous();
    let qpn = small.qp(cqn, one, light).expect("room for one of them");
    assert_eq!(small.left(), 0);
    let destroyed = Engine::new().destroy_qp(&mut small.nodes, 0, qpn);
    assert_eq!((destroyed, small.left()), (Ok(()), 2));
}

/// What counts is what is stored: nothing of a ring whose pages lie one behind the other.
#[test]
fn a_ring_that_is_contiguous_needs_no_room() {
    let mut small = Small::new();
    let ring = small.scattered(2);
    for _ in 0..4 {
        small.cq(ring).expect("room for it");
    }
    assert_eq!(small.cq(ring), Err(AdminStatus::NoResources));
    let in_order = small.listed(2, |page| page);
    assert!(small.cq(in_order).is_ok());
    assert_eq!(small.left(), 0);
}

/// Who registers much memory leaves others room for their queues.
#[test]
fn keys_leave_room_for_rings() {
    let mut small = Small::with(32);
    let pd = small.pd;
    let key = |max_pages: u32| AllocKey {
        pd: pd.into(),
        max_pages: max_pages.into(),
        ..AllocKey::default()
    };
    let (node, machine) = small.nodes.node_mut(0).expect("node");
    let too_many = node.alloc_key(machine, &key(31));
    assert_eq!(too_many, Err(AdminStatus::NoResources));
    node.alloc_key(machine, &key(30)).expect("room for it");
    let one_more = node.alloc_key(machine, &key(1));
    assert_eq!(one_more, Err(AdminStatus::NoResources));
    let ring = small.scattered(2);
    small.cq(ring).expect("room for it");
    assert_eq!(small.left(), 0);
}

#[test]
fn what_is_refused_is_not_counted() {
    let mut small = Small::new();
    let ring = small.scattered(2);
    // Its slot is in use.
    let cqn = small.cq(ring).expect("room for it");
    small.slot -= 1;
    assert!(small.cq(ring).is_err());
    small.slot -= 1;
    assert!(small.eq(ring).is_err());
    small.slot -= 1;
    assert!(small.srq(ring).is_err());
    small.slot -= 1;
    assert!(small.qp(cqn, ring, ring).is_err());
    assert_eq!(small.left(), ROOM - 2);
}

#[test]
fn a_resized_queue_stores_its_new_ring() {
    let mut small = Small::new();
    let cqn = small.light_cq();
    let [two, four] = [2, 4].map(|pages| small.scattered(pages));
    assert_eq!(small.resize(cqn, two, 7), Ok(()));
    assert_eq!(small.left(), ROOM - 2);
    assert_eq!(small.resize(cqn, four, 8), Ok(()));
    assert_eq!(small.left(), ROOM - 4);
    // One that fails: the page is none.
    let mut bad = four;
    bad.addr = u64::MAX.into();
    assert_eq!(small.resize(cqn, bad, 8), Err(AdminStatus::BadAddress));
    assert_eq!(small.left(), ROOM - 4);
    // While it moves it has both.
    small.cq(two).expect("room for it");
    assert_eq!(small.resize(cqn, four, 8), Err(AdminStatus::NoResources));
    assert_eq!(small.resize(cqn, two, 7), Ok(()));
    assert_eq!(small.left(), ROOM - 4);
    assert_eq!(node(&mut small).destroy_cq(cqn), Ok(()));
    assert_eq!(small.left(), ROOM - 2);
}

/// Many queue pairs may complete in one completion queue.
#[test]
fn completion_queues_may_be_larger_than_other_queues() {
    let mut small = Small::new();
    let limits = *node(&mut small).limits();
    let (most, others) = (limits.max_log_cq, limits.max_log_ring);
    assert!(most > others);
    // What they lie in is not looked at.
    let ring = PageList::default();
    let cqn = small.cq_of(ring, most).expect("as large as is allowed");
    assert_eq!(small.cq_of(ring, most + 1), Err(AdminStatus::InvalidField));
    assert_eq!(small.resize(cqn, ring, most), Ok(()));
    let too_large = small.resize(cqn, ring, most + 1);
    assert_eq!(too_large, Err(AdminStatus::InvalidField));
    let wire = limits.to_wire();
    assert_eq!((wire.max_log_cq, wire.max_log_sq), (most, others));
}
