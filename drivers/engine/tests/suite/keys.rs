// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Memory keys that requests bind and invalidate: fast registration, windows, SEND with invalidate.

mod windows;

use nupa_engine::{
    rings::{Data, Operation},
    NodeTable,
};
use nupa_proto::{
    admin::*,
    cqe::{Cqe, CqeOpcode, CQE_INVALIDATED},
    doorbell::{SLOTS, SLOT_NONE},
    eqe::EventType,
    status::{AdminStatus, WcStatus},
    wqe::{page_shift, BindSegment, FastRegSegment, WQE_SIGNALED},
};
use nupa_testing::{Cq, Eq, Host, Mr, Qp, World, BASE};
use zerocopy::little_endian::{U16, U32, U64};

const PAGE: u64 = 4096;
/// The queue pair number after which the first ones are given again.
const LAST_NUMBER: u32 = 4096;
/// Where bound keys begin, for whoever uses them.
const IOVA: u64 = 0x1234_5000;
const SUCCESS: u8 = WcStatus::Success as u8;
const REFUSED: u8 = WcStatus::MwBind as u8;
const DENIED: u8 = WcStatus::RemoteAccess as u8;
const REMOTE: u32 = ACCESS_REMOTE_WRITE | ACCESS_REMOTE_READ;

struct Side {
    host: Host,
    eq: Eq,
    cq: Cq,
    qp: Qp,
    mr: Mr,
}

/// Two nodes with a connected, privileged queue pair and a region of 16 pages each.
struct Pair {
    world: World,
    a: Side,
    b: Side,
}

fn side(world: &mut World, id: u16, flags: u8) -> Side {
    let mut host = world.host(id);
    let eq = host.start(world);
    let cq = host.cq(world, eq.eqn, 6);
    let qp = host.qp_with(world, QpType::Rc, flags, &cq, 4);
    let mr = host.mr(world, 16 * PAGE, true);
    Side {
        host,
        eq,
        cq,
        qp,
        mr,
    }
}

impl Pair {
    fn new() -> Self {
        Self::with(QP_FLAG_PRIVILEGED)
    }

    fn with(flags: u8) -> Self {
        let mut world = World::new(*crate::MODE, 2);
        let (a, b) = (side(&mut world, 0, flags), side(&mut world, 1, flags));
        a.host.ready(&mut world, &a.qp, Some((1, b.qp.qpn, 1)));
        b.host.ready(&mut world, &b.qp, Some((0, a.qp.qpn, 1)));
        Self { world, a, b }
    }

    /// What a request of node 1 comes to.
    fn own(&mut self, operation: Operation) -> u8 {
        post(&mut self.b, operation, 0);
        self.world.pump();
        finish(&mut self.b).status
    }

    /// What a request of node 0 on `len` bytes comes to.
    fn peer(&mut self, operation: Operation, len: u32) -> u8 {
        post(&mut self.a, operation, len);
        // A queue pair in the error state does not answer, and the request waits for it.
        self.world.pump();
        self.world.advance(500_000);
        finish(&mut self.a).status
    }

    /// What writing 8 bytes through a key of node 1 comes to.
    fn write(&mut self, rkey: u32, addr: u64) -> u8 {
        let imm = None;
        self.peer(Operation::Write { addr, rkey, imm }, 8)
    }

    fn alloc(&mut self, kind: KeyKind, max_pages: u32) -> Result<u32, AdminStatus> {
        let body = AllocKey {
            pd: self.b.host.pd.into(),
            max_pages: max_pages.into(),
            kind: kind.to_wire(),
            ..AllocKey::default()
        };
        let (node, machine) = self.world.nodes.node_mut(1).expect("node");
        node.alloc_key(machine, &body)
    }

    fn destroy(&mut self, key: u32) -> Result<(), AdminStatus> {
        let world = &mut self.world;
        world.engine.destroy_mr(&mut world.nodes, 1, key)
    }

    fn modify(&mut self, key: u32, mask: u32, region: CreateMr) -> Result<u32, AdminStatus> {
        let body = ModifyMr {
            key: key.into(),
            mask: mask.into(),
            mr: region,
        };
        let world = &mut self.world;
        world.engine.modify_mr(&mut world.nodes, 1, &body)
    }

    /// Pages of node 1 in reverse order, `len` bytes from `skip` on.
    fn pages(&mut self, count: u32, skip: u64, len: u64) -> (u64, FastRegSegment) {
        let host = &mut self.b.host;
        let (addr, list) = (host.alloc(u64::from(count) * PAGE), host.alloc(PAGE));
        for n in 0..u64::from(count) {
            let page = addr + (u64::from(count) - 1 - n) * PAGE;
            host.write(list + n * 8, &page.to_le_bytes());
        }
        let segment = FastRegSegment {
            iova: (IOVA + skip).into(),
            len: len.into(),
            list: list.into(),
            pages: count.into(),
            access: (REMOTE | ACCESS_LOCAL_WRITE).into(),
            page_shift: 12,
            ..FastRegSegment::default()
        };
        (addr, segment)
    }

    /// A window of node 1, bound to the second page of its region; returns its key.
    fn window(&mut self, access: u32) -> u32 {
        let key = self.alloc(KeyKind::Window, 0).expect("a window");
        let bind = self.second_page(access);
        assert_eq!(self.own(Operation::BindMw { key, bind }), SUCCESS);
        key
    }

    fn second_page(&self, access: u32) -> BindSegment {
        BindSegment {
            addr: (self.b.mr.iova + PAGE).into(),
            len: PAGE.into(),
            mr_key: self.b.mr.key.into(),
            access: access.into(),
        }
    }
}

fn post(side: &mut Side, operation: Operation, len: u32) {
    let entry = [side.mr.sge(0, len)];
    side.qp.submit(
        7,
        WQE_SIGNALED,
        operation,
        Data::Sges(if len == 0 { &[] } else { &entry }),
    );
}

/// The first send completion.
fn finish(side: &mut Side) -> Cqe {
    let all = side.cq.drain();
    let mine = all.iter().find(|cqe| cqe.opcode & 0x80 == 0);
    let cqe = *mine.expect("a completion");
    let index = cqe.queue_index.get();
    side.qp.send.completed(index).expect("what is posted");
    cqe
}

#[test]
fn a_key_follows_its_registrations() {
    let mut pair = Pair::new();
    let key = pair.alloc(KeyKind::FastReg, 4).expect("a key");
    let (addr, pages) = pair.pages(3, 100, 2 * PAGE);
    assert_eq!(pair.own(Operation::FastReg { key, pages }), SUCCESS);
    pair.a.host.write(pair.a.mr.addr + 15 * PAGE, b"12345678");
    // The first page lies last in memory.
    assert_eq!(pair.write(key, IOVA + 100), SUCCESS);
    assert_eq!(pair.b.host.read(addr + 2 * PAGE + 100, 8), b"12345678");
    // Over the border of the first page.
    assert_eq!(pair.write(key, IOVA + PAGE - 4), SUCCESS);
    assert_eq!(pair.b.host.read(addr + 3 * PAGE - 4, 4), b"1234");
    assert_eq!(pair.b.host.read(addr + PAGE, 4), b"5678");
    assert_eq!(pair.own(Operation::LocalInv { key }), SUCCESS);
    // It may be invalidated twice, and comes back with another variant and other pages.
    assert_eq!(pair.own(Operation::LocalInv { key }), SUCCESS);
    let (addr, pages) = pair.pages(4, 0, 4 * PAGE);
    let next = key ^ 0x55;
    let register = Operation::FastReg { key: next, pages };
    assert_eq!(pair.own(register), SUCCESS);
    assert_eq!(pair.write(next, IOVA), SUCCESS);
    assert_eq!(pair.b.host.read(addr + 3 * PAGE, 8), b"12345678");
    assert_eq!(pair.write(key, IOVA), DENIED);
    // Its owner may know it by the variant that it was allocated with.
    assert_eq!(pair.destroy(key), Ok(()));
    assert_eq!(pair.destroy(next), Err(AdminStatus::NoSuchObject));
}

#[test]
fn pages_may_be_larger_than_4_kib() {
    const LARGE: u64 = 4 * PAGE;
    let mut pair = Pair::new();
    let key = pair.alloc(KeyKind::FastReg, 2).expect("a key");
    let (_, mut pages) = pair.pages(2, 0, 2 * LARGE);
    let host = &mut pair.b.host;
    let addr = host.alloc(3 * LARGE).next_multiple_of(LARGE);
    for (n, page) in [addr + LARGE, addr].iter().enumerate() {
        host.write(pages.list.get() + n as u64 * 8, &page.to_le_bytes());
    }
    pages.page_shift = page_shift(LARGE as u32).expect("a page size");
    let start = IOVA.next_multiple_of(LARGE);
    pages.iova = start.into();
    assert_eq!(pair.own(Operation::FastReg { key, pages }), SUCCESS);
    pair.a.host.write(pair.a.mr.addr + 15 * PAGE, b"12345678");
    // Over the border of the first page, which lies last in memory.
    assert_eq!(pair.write(key, start + LARGE - 4), SUCCESS);
    assert_eq!(pair.b.host.read(addr + 2 * LARGE - 4, 4), b"1234");
    assert_eq!(pair.b.host.read(addr, 4), b"5678");
}

#[test]
fn page_sizes_are_powers_of_two_within_limits() {
    let sizes = [4096, 65536, 1 << 30, 0, 1, 2048, 4095, 4097, 12288, 1 << 31];
    let shifts = [12, 16, 30].map(Some).into_iter().chain([None; 7]);
    assert!(sizes.map(page_shift).into_iter().eq(shifts));
}

#[test]
fn completions_say_what_was_done() {
    let mut pair = Pair::new();
    let key = pair.alloc(KeyKind::FastReg, 1).expect("a key");
    let (_, pages) = pair.pages(1, 0, PAGE);
    let window = pair.alloc(KeyKind::Window, 0).expect("a window");
    let bind = pair.second_page(REMOTE);
    let requests = [
        (Operation::FastReg { key, pages }, CqeOpcode::FastReg),
        (Operation::LocalInv { key }, CqeOpcode::LocalInv),
        (Operation::BindMw { key: window, bind }, CqeOpcode::BindMw),
    ];
    for (operation, opcode) in requests {
        post(&mut pair.b, operation, 0);
        pair.world.pump();
        let cqe = finish(&mut pair.b);
        assert_eq!((cqe.status, cqe.opcode), (SUCCESS, opcode.to_wire()));
    }
    assert_eq!(pair.world.node(1).counters().tx_messages.get(), 0);
}

#[test]
fn registrations_that_do_not_fit_leave_the_key_unbound() {
    type Spoil = fn(&mut FastRegSegment);
    let cases: [(&str, Spoil); 11] = [
        ("more pages than allocated", |s| {
            (s.pages, s.len) = (5.into(), (5 * PAGE).into());
        }),
        ("pages that are not needed", |s| s.pages = 4.into()),
        ("no pages", |s| s.pages = 0.into()),
        ("no bytes", |s| s.len = 0.into()),
        ("a small page size", |s| s.page_shift = 11),
        ("a huge page size", |s| s.page_shift = 31),
        ("an odd page", |s| s.list = (s.list.get() + 1).into()),
        ("a list out of reach", |s| s.list = (BASE - 8).into()),
        ("the end of the address space", |s| {
            s.iova = (u64::MAX - 100).into()
        }),
        ("unknown rights", |s| s.access = ACCESS_ZERO_BASED.into()),
        ("reserved bytes", |s| s.reserved[3] = 1),
    ];
    for (what, spoil) in cases {
        let mut pair = Pair::new();
        let key = pair.alloc(KeyKind::FastReg, 4).expect("a key");
        let (_, mut pages) = pair.pages(3, 0, 3 * PAGE);
        spoil(&mut pages);
        let status = pair.own(Operation::FastReg { key, pages });
        let expected = match what {
            "reserved bytes" => WcStatus::LocalQpOperation as u8,
            _ => REFUSED,
        };
        assert_eq!(status, expected, "{what}");
        assert_eq!(
            pair.write(key, IOVA),
            WcStatus::RetryExceeded as u8,
            "{what}"
        );
        assert_eq!(pair.destroy(key), Ok(()), "{what}");
    }
}

#[test]
fn only_the_kernel_registers_by_address() {
    let mut pair = Pair::with(0);
    let key = pair.alloc(KeyKind::FastReg, 4).expect("a key");
    let (_, pages) = pair.pages(1, 0, PAGE);
    let status = pair.own(Operation::FastReg { key, pages });
    assert_eq!(status, WcStatus::LocalQpOperation as u8);
}

#[test]
fn keys_that_cannot_be_bound_or_invalidated_are_refused() {
    type Request = fn(&mut Pair) -> Operation;
    let cases: [(&str, Request); 7] = [
        ("invalidate a region", |p| Operation::LocalInv {
            key: p.b.mr.key,
        }),
        ("invalidate nothing", |_| Operation::LocalInv {
            key: 0x4321,
        }),
        ("register a region", |p| {
            let (_, pages) = p.pages(1, 0, PAGE);
            let key = p.b.mr.key;
            Operation::FastReg { key, pages }
        }),
        ("register what is registered", |p| {
            let key = p.alloc(KeyKind::FastReg, 1).expect("a key");
            let (_, pages) = p.pages(1, 0, PAGE);
            assert_eq!(p.own(Operation::FastReg { key, pages }), SUCCESS);
            Operation::FastReg { key, pages }
        }),
        ("bind a region as a window", |p| Operation::BindMw {
            key: p.b.mr.key,
            bind: p.second_page(REMOTE),
        }),
        ("bind what is bound", |p| {
            let key = p.window(REMOTE);
            let bind = p.second_page(REMOTE);
            Operation::BindMw { key, bind }
        }),
        ("register in another domain", |p| {
            let node = p.world.nodes.node_mut(1).expect("node").0;
            let pd = node.alloc_pd().expect("a domain");
            let own = core::mem::replace(&mut p.b.host.pd, pd);
            let key = p.alloc(KeyKind::FastReg, 1).expect("a key");
            p.b.host.pd = own;
            let (_, pages) = p.pages(1, 0, PAGE);
            Operation::FastReg { key, pages }
        }),
    ];
    for (what, request) in cases {
        let mut pair = Pair::new();
        let operation = request(&mut pair);
        assert_eq!(pair.own(operation), REFUSED, "{what}");
    }
}

#[test]
fn unbound_keys_and_windows_are_no_local_keys() {
    type Key = fn(&mut Pair) -> u32;
    let keys: [Key; 2] = [
        |pair| pair.alloc(KeyKind::FastReg, 1).expect("a key"),
        |pair| pair.window(REMOTE),
    ];
    for key in keys {
        let mut pair = Pair::new();
        pair.b.mr.key = key(&mut pair);
        post(&mut pair.b, Operation::Send { imm: None }, 8);
        pair.world.pump();
        let status = finish(&mut pair.b).status;
        assert_eq!(status, WcStatus::LocalProtection as u8);
    }
}

#[test]
fn a_send_invalidates_the_receivers_key() {
    let mut pair = Pair::new();
    let key = pair.alloc(KeyKind::FastReg, 1).expect("a key");
    let (_, pages) = pair.pages(1, 0, PAGE);
    assert_eq!(pair.own(Operation::FastReg { key, pages }), SUCCESS);
    let entry = pair.b.mr.sge(0, 64);
    pair.b.qp.recv.post(3, &[entry]).expect("room");
    pair.b.qp.recv.ring();
    assert_eq!(pair.peer(Operation::SendInv { key }, 16), SUCCESS);
    let cqe = pair.b.cq.drain()[0];
    assert_eq!(cqe.opcode, CqeOpcode::Recv.to_wire());
    assert_eq!(cqe.flags & CQE_INVALIDATED, CQE_INVALIDATED);
    assert_eq!((cqe.imm_or_key.get(), cqe.byte_len.get()), (key, 16));
    assert_eq!(pair.write(key, IOVA), DENIED);
}

#[test]
fn a_send_may_not_invalidate_what_is_not_its_own_to() {
    for pick in [|p: &mut Pair| p.b.mr.key, |_: &mut Pair| 0x4321] {
        let mut pair = Pair::new();
        let key = pick(&mut pair);
        let entry = pair.b.mr.sge(0, 64);
        pair.b.qp.recv.post(3, &[entry]).expect("room");
        pair.b.qp.recv.ring();
        pair.b.eq.drain();
        assert_eq!(pair.peer(Operation::SendInv { key }, 16), DENIED);
        let events = pair.b.eq.drain();
        let access = (EventType::QpAccess.to_wire(), 0, pair.b.qp.qpn);
        assert!(events.contains(&access), "{events:?}");
        // Nothing was written, the entry is flushed.
        assert_eq!(pair.b.cq.drain()[0].status, WcStatus::WrFlush as u8);
        assert_eq!(pair.b.host.read(pair.b.mr.addr + 15 * PAGE, 16), [0; 16]);
    }
}
