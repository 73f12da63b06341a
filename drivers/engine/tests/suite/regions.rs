// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Memory regions: lists of pages, changes of regions, limits.

use nupa_engine::{
    rings::{Data, Operation},
    Engine, Limits, Node, NodeConfig, NodeTable,
};
use nupa_proto::{
    admin::*,
    status::{AdminStatus, WcStatus},
    wqe::WQE_SIGNALED,
};
use nupa_testing::{Cq, Host, Nodes, Qp, World, BASE};

const PAGE: u64 = 4096;
const IOVA: u64 = 0x7f00_0000_0000;

/// A node whose queue pair is connected to itself.
struct Alone {
    world: World,
    host: Host,
    cq: Cq,
    qp: Qp,
}

impl Alone {
    fn new() -> Self {
        let mut world = World::new(*crate::MODE, 1);
        let mut host = world.host(0);
        let eq = host.start(&mut world);
        let cq = host.cq(&mut world, eq.eqn, 6);
        let qp = host.qp(&mut world, QpType::Rc, &cq, 4);
        host.ready(&mut world, &qp, Some((0, qp.qpn, 1)));
        Self {
            world,
            host,
            cq,
            qp,
        }
    }

    fn create(&mut self, pages: PageList, len: u64) -> Result<u32, AdminStatus> {
        let body = self.body(pages, len);
        let (node, machine) = self.world.nodes.node_mut(0).expect("node");
        node.create_mr(machine, &body)
    }

    fn body(&self, pages: PageList, len: u64) -> CreateMr {
        CreateMr {
            pages,
            iova: IOVA.into(),
            len: len.into(),
            pd: self.host.pd.into(),
            access: ACCESS_ALL.into(),
        }
    }

    fn modify(&mut self, key: u32, mask: u32, region: CreateMr) -> Result<u32, AdminStatus> {
        let body = ModifyMr {
            key: key.into(),
            mask: mask.into(),
            mr: region,
        };
        let world = &mut self.world;
        world.engine.modify_mr(&mut world.nodes, 0, &body)
    }

    /// Writes inline bytes to an address of a region.
    fn write(&mut self, rkey: u32, addr: u64, bytes: &[u8]) -> u8 {
        let imm = None;
        self.qp.submit(
            7,
            WQE_SIGNALED,
            Operation::Write { addr, rkey, imm },
            Data::Inline(bytes),
        );
        self.world.pump();
        let cqe = self.cq.drain()[0];
        let index = cqe.queue_index.get();
        self.qp.send.completed(index).expect("what is posted");
        cqe.status
    }
}

fn direct(addr: u64) -> PageList {
    PageList {
        addr: addr.into(),
        ..PageList::default()
    }
}

/// A list of `count` pages: all are the same, but every 100th is another.
fn two_levels(host: &mut Host, count: u64) -> (PageList, u64, u64) {
    let (page, other) = (host.alloc(PAGE), host.alloc(PAGE));
    let lists = count.div_ceil(LIST_PAGE_ENTRIES as u64);
    let (list, top) = (host.alloc(lists * PAGE), host.alloc(lists * 8));
    for n in 0..count {
        let page = if n % 100 == 50 { other } else { page };
        // Pages of the list in reverse order.
        let (at, entry) = (n / 512, n % 512);
        let at = list + (lists - 1 - at) * PAGE + entry * 8;
        host.write(at, &page.to_le_bytes());
    }
    for n in 0..lists {
        let at = list + (lists - 1 - n) * PAGE;
        host.write(top + n * 8, &at.to_le_bytes());
    }
    let list = PageList {
        addr: top.into(),
        pages: (count as u32).into(),
        page_shift: 12,
        levels: 1,
        ..PageList::default()
    };
    (list, page, other)
}

#[test]
fn a_list_may_lie_in_pages_of_its_own() {
    let mut alone = Alone::new();
    for count in [2, 511, 512, 513, 1700] {
        let (list, page, other) = two_levels(&mut alone.host, count);
        let key = alone.create(list, count * PAGE).expect("a region");
        let last = IOVA + (count - 1) * PAGE;
        assert_eq!(alone.write(key, last + 8, b"end"), 0, "{count}");
        assert_eq!(alone.host.read(page + 8, 3), b"end");
        if count > 50 {
            assert_eq!(alone.write(key, IOVA + 50 * PAGE - 2, b"over"), 0);
            assert_eq!(alone.host.read(page + PAGE - 2, 2), b"ov");
            assert_eq!(alone.host.read(other, 2), b"er");
        }
    }
}

#[test]
fn a_region_may_have_64_gib_in_small_pages() {
    let mut alone = Alone::new();
    let len: u64 = 64 << 30;
    let count = len / PAGE;
    // A list of one page that stands for all of its pages: what counts is how many there are.
    let (page, list) = (alone.host.alloc(2 * PAGE), alone.host.alloc(PAGE));
    for entry in 0..LIST_PAGE_ENTRIES as u64 {
        let at = page + entry % 2 * PAGE;
        alone.host.write(list + entry * 8, &at.to_le_bytes());
    }
    let lists = (count / LIST_PAGE_ENTRIES as u64) as usize;
    let top = alone.host.alloc(lists as u64 * 8);
    alone.host.write(top, &list.to_le_bytes().repeat(lists));
    let pages = PageList {
        addr: top.into(),
        pages: (count as u32).into(),
        page_shift: 12,
        levels: 1,
        ..PageList::default()
    };
    let key = alone.create(pages, len).expect("a region");
    assert_eq!(alone.write(key, IOVA + len - 4, b"last"), 0);
    assert_eq!(alone.host.read(page + 2 * PAGE - 4, 4), b"last");
    let beyond = WcStatus::RemoteAccess as u8;
    assert_eq!(alone.write(key, IOVA + len - 3, b"last"), beyond);
}

#[test]
fn a_region_may_be_empty() {
    let mut alone = Alone::new();
    let at = alone.host.alloc(PAGE);
    let key = alone.create(direct(at), 0).expect("a region");
    assert_eq!(alone.write(key, IOVA, b""), 0);
    let (list, ..) = two_levels(&mut alone.host, 1);
    assert_eq!(alone.create(list, 0), Err(AdminStatus::InvalidField));
    assert_eq!(alone.write(key, IOVA, b"x"), WcStatus::RemoteAccess as u8);
    assert_eq!(alone.host.read(at, 1), [0]);
}

#[test]
fn malformed_lists_are_refused() {
    type Spoil = fn(&mut Host, &mut PageList);
    let cases: [(Spoil, AdminStatus); 8] = [
        (|_, l| l.levels = 2, AdminStatus::InvalidField),
        (|_, l| l.reserved[1] = 1, AdminStatus::InvalidField),
        (|_, l| l.pages = 512.into(), AdminStatus::InvalidField),
        (|_, l| l.page_shift = 31, AdminStatus::InvalidField),
        (|_, l| l.addr = (BASE - 4).into(), AdminStatus::BadAddress),
        (
            |h, l| h.write(l.addr.get() + 8, &(BASE + 8).to_le_bytes()),
            AdminStatus::InvalidField,
        ),
        (
            |h, l| h.write(l.addr.get() + 8, &(BASE - PAGE).to_le_bytes()),
            AdminStatus::BadAddress,
        ),
        (
            |_, l| (l.pages, l.page_shift) = (0.into(), 0),
            AdminStatus::InvalidField,
        ),
    ];
    for (n, (spoil, status)) in cases.into_iter().enumerate() {
        let mut alone = Alone::new();
        let (mut list, ..) = two_levels(&mut alone.host, 513);
        spoil(&mut alone.host, &mut list);
        assert_eq!(alone.create(list, 513 * PAGE), Err(status), "case {n}");
    }
}

#[test]
fn a_region_gets_other_pages_rights_and_domain() {
    let mut alone = Alone::new();
    let (one, two) = (alone.host.alloc(2 * PAGE), alone.host.alloc(PAGE));
    let key = alone.create(direct(one), 2 * PAGE).expect("a region");
    assert_eq!(alone.write(key, IOVA, b"one"), 0);
    let region = CreateMr {
        pages: direct(two),
        iova: (IOVA + 512).into(),
        len: PAGE.into(),
        ..CreateMr::default()
    };
    let moved = alone.modify(key, MR_MASK_PAGES, region).expect("changed");
    assert!(moved != key && nupa_proto::ident::same_key_slot(moved, key));
    assert_eq!(alone.write(moved, IOVA + 512, b"two"), 0);
    assert_eq!(alone.host.read(one, 3), b"one");
    assert_eq!(alone.host.read(two, 3), b"two");
    let again = alone.modify(key, MR_MASK_PAGES, region);
    assert_eq!(again, Err(AdminStatus::NoSuchObject));

    let pd = {
        let node = alone.world.nodes.node_mut(0).expect("node").0;
        node.alloc_pd().expect("a domain")
    };
    let region = CreateMr {
        pd: pd.into(),
        access: ACCESS_REMOTE_READ.into(),
        ..CreateMr::default()
    };
    let both = MR_MASK_PD | MR_MASK_ACCESS;
    let last = alone.modify(moved, both, region).expect("changed");
    let denied = WcStatus::RemoteAccess as u8;
    assert_eq!(alone.write(last, IOVA + 512, b"three"), denied);
    let node = alone.world.nodes.node_mut(0).expect("node").0;
    assert_eq!(node.dealloc_pd(pd), Err(AdminStatus::Busy));
    let world = &mut alone.world;
    let destroyed = world.engine.destroy_mr(&mut world.nodes, 0, last);
    assert_eq!(destroyed, Ok(()));
    let node = alone.world.nodes.node_mut(0).expect("node").0;
    assert_eq!(node.dealloc_pd(pd), Ok(()));
}

#[test]
fn changes_that_are_refused_change_nothing() {
    type Spoil = fn(&mut CreateMr, &mut u32);
    let cases: [(Spoil, AdminStatus); 7] = [
        (|_, mask| *mask = 0, AdminStatus::InvalidField),
        (|_, mask| *mask |= 8, AdminStatus::InvalidField),
        (|_, mask| *mask &= !MR_MASK_PD, AdminStatus::InvalidField),
        (|_, mask| *mask &= !MR_MASK_PAGES, AdminStatus::InvalidField),
        (
            |region, _| region.access = (ACCESS_ALL + 1).into(),
            AdminStatus::InvalidField,
        ),
        (
            |region, _| region.pd = 999.into(),
            AdminStatus::NoSuchObject,
        ),
        (
            |region, _| region.len = u64::MAX.into(),
            AdminStatus::InvalidField,
        ),
    ];
    for (n, (spoil, status)) in cases.into_iter().enumerate() {
        let mut alone = Alone::new();
        // Of two domains, the second is not number 0, which an empty field names.
        let node = alone.world.nodes.node_mut(0).expect("node").0;
        let pd = node.alloc_pd().expect("a domain");
        let at = alone.host.alloc(PAGE);
        let key = alone.create(direct(at), PAGE).expect("a region");
        let mut region = alone.body(direct(at + 64), 64);
        region.pd = pd.into();
        let mut mask = MR_MASK_PAGES | MR_MASK_PD | MR_MASK_ACCESS;
        spoil(&mut region, &mut mask);
        assert_eq!(alone.modify(key, mask, region), Err(status), "case {n}");
        assert_eq!(alone.write(key, IOVA, b"still there"), 0, "case {n}");
        assert_eq!(alone.host.read(at, 11), b"still there");
    }
}

#[test]
fn what_regions_store_is_limited() {
    let alone = Alone::new();
    let mut host = alone.host;
    let limits = Limits {
        max_pages: 10,
        ..Limits::default()
    };
    let node = Node::new(NodeConfig {
        limits,
        ..NodeConfig::default()
    });
    let machine = alone.world.machine(0);
    let mut nodes = Nodes::new(
        *crate::MODE,
        vec![(node, machine.clone())],
        &alone.world.shared,
    );
    let destroy = |nodes: &mut Nodes, key| Engine::new().destroy_mr(nodes, 0, key);
    let (node, _) = nodes.node_mut(0).expect("node");
    let pd = node.alloc_pd().expect("a domain");
    let (list, ..) = two_levels(&mut host, 60);
    let body = |pages: u32| CreateMr {
        pages: PageList {
            pages: pages.into(),
            addr: list.addr,
            page_shift: 12,
            levels: 1,
            ..PageList::default()
        },
        len: (u64::from(pages) * PAGE).into(),
        pd: pd.into(),
        ..CreateMr::default()
    };
    let key = |pages: u32| AllocKey {
        pd: pd.into(),
        max_pages: pages.into(),
        ..AllocKey::default()
    };
    let full = Err(AdminStatus::NoResources);
    assert_eq!(node.create_mr(machine, &body(11)), full);
    let first = node.create_mr(machine, &body(6)).expect("a region");
    let second = node.alloc_key(machine, &key(4)).expect("a key");
    assert_eq!(node.alloc_key(machine, &key(1)), full);
    assert_eq!(destroy(&mut nodes, first), Ok(()));
    let (node, _) = nodes.node_mut(0).expect("node");
    assert!(node.create_mr(machine, &body(6)).is_ok());
    assert_eq!(destroy(&mut nodes, second), Ok(()));
    let (node, _) = nodes.node_mut(0).expect("node");
    assert!(node.alloc_key(machine, &key(4)).is_ok());
    assert_eq!(node.create_mr(machine, &body(2)), full);
}
