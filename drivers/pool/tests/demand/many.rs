// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A thousand nodes in 4 GiB, of which each talks to 16; and nodes that talk to others all the time, die and return.

use crate::station::{wishes, Station};
use nupa_pool::{check, Format, FormatOptions, LinkState, Peer, Poisoned, Pool, Time, Window};
use nupa_proto::pool::{DEAD_AFTER_US, HEARTBEAT_US};
use nupa_testing::caches::Random;
use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

/// Bytes of a page.
const PAGE: usize = 4096;

/// Memory of which there is only what was written to, and a clock.
pub struct Sparse {
    pages: RefCell<Vec<Option<Box<[u8; PAGE]>>>>,
    now: Cell<u64>,
}

/// A host that has it.
#[derive(Clone)]
pub struct SparseHost(Rc<Sparse>);

impl SparseHost {
    pub fn new(size: u64) -> Self {
        let pages = (0..size as usize / PAGE).map(|_| None).collect();
        Self(Rc::new(Sparse {
            pages: RefCell::new(pages),
            now: Cell::new(0),
        }))
    }

    /// Bytes that there are.
    pub fn used(&self) -> usize {
        let pages = self.0.pages.borrow();
        pages.iter().flatten().count() * PAGE
    }

    pub fn pass(&self, us: u64) {
        self.0.now.set(self.0.now.get() + us);
    }
}

/// The pieces of a range that are in one page each: number of the page, where the piece begins in it and in the range, and its bytes.
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (usize, usize, usize, usize)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let place = offset as usize + at;
        let count = (PAGE - place % PAGE).min(len - at);
        let piece = (place / PAGE, place % PAGE, at, count);
        at += count;
        (count != 0).then_some(piece)
    })
}

impl Window for SparseHost {
    fn len(&self) -> u64 {
        (self.0.pages.borrow().len() * PAGE) as u64
    }

    fn is_coherent(&self) -> bool {
        true
    }

    fn load(&self, offset: u64) -> Result<u64, Poisoned> {
        let pages = self.0.pages.borrow();
        let (page, at) = (offset as usize / PAGE, offset as usize % PAGE);
        let word = |page: &[u8; PAGE]| u64::from_le_bytes(page[at..at + 8].try_into().unwrap());
        Ok(pages[page].as_deref().map_or(0, word))
    }

    fn store(&self, offset: u64, value: u64) {
        self.write(offset, &value.to_le_bytes());
    }

    fn compare_exchange(&self, offset: u64, current: u64, new: u64) -> Result<bool, Poisoned> {
        let same = self.load(offset)? == current;
        if same {
            self.store(offset, new);
        }
        Ok(same)
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Poisoned> {
        let pages = self.0.pages.borrow();
        for (page, start, at, count) in pieces(offset, buf.len()) {
            let target = &mut buf[at..at + count];
            match &pages[page] {
                Some(page) => target.copy_from_slice(&page[start..start + count]),
                None => target.fill(0),
            }
        }
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        let mut pages = self.0.pages.borrow_mut();
        for (page, start, at, count) in pieces(offset, bytes.len()) {
            let bytes = &bytes[at..at + count];
            let page = &mut pages[page];
            if page.is_some() || bytes.iter().any(|byte| *byte != 0) {
                let page = page.get_or_insert_with(|| Box::new([0; PAGE]));
                page[start..start + count].copy_from_slice(bytes);
            }
        }
    }

    fn publish(&self, _: u64, _: u64) {}

    fn refresh(&self, _: u64, _: u64) {}

    fn fence(&self) {}
}

impl Time for SparseHost {
    fn now_us(&self) -> u64 {
        self.0.now.get()
    }

    fn sleep_us(&self, us: u64) {
        self.pass(us);
    }
}

type Nodes = Vec<Station<SparseHost>>;

fn formatted(size: u64, nodes: u16) -> (SparseHost, Pool) {
    let host = SparseHost::new(size);
    let options = FormatOptions {
        format: Format::Inboxes,
        ..FormatOptions::new(nodes, 9)
    };
    let pool = Pool::attach_or_format(&host, &host, &options, |_| true).unwrap();
    (host, pool)
}

fn rounds(host: &SparseHost, nodes: &mut Nodes, count: usize) {
    for _ in 0..count {
        host.pass(HEARTBEAT_US);
        for station in nodes.iter_mut() {
            let events = station.step();
            assert!(!events.evicted && events.refused_by.is_empty());
        }
    }
}

/// What one node has for another.
fn letter(from: u16, to: u16, number: usize) -> Vec<u8> {
    let len = 60 + usize::from(from ^ to) % 200 + number;
    let byte = |at: usize| (at * 31 + usize::from(from) * 7 + usize::from(to) * 13 + number) as u8;
    let head = [from.to_le_bytes(), to.to_le_bytes()].concat();
    head.into_iter().chain((4..len).map(byte)).collect()
}

#[test]
fn a_thousand_nodes_of_which_each_talks_to_sixteen() {
    const NODES: u16 = 1000;
    let (host, pool) = formatted(4 << 30, NODES);
    assert_eq!(pool.geometry().inboxes(), Some(16));
    let join = |token: u64| Station::join(&host, &pool, &wishes(token, token));
    let mut nodes: Nodes = (1..=NODES.into()).map(join).collect();
    rounds(&host, &mut nodes, 2);
    // 8 on either side; the last ones are asked by both.
    let peer = |node: u16, distance: u16| (node + distance) % NODES;
    for node in 0..NODES {
        for distance in 1..=8 {
            let station = &mut nodes[usize::from(node)];
            station.member.ask(&host, peer(node, distance));
            let other = peer(node, distance);
            if other % 3 == 0 {
                nodes[usize::from(other)].member.ask(&host, node);
            }
        }
    }
    rounds(&host, &mut nodes, 3);
    for station in &mut nodes {
        assert_eq!(station.links.len(), 16);
        // All its inboxes are lent.
        let stranger = peer(station.id(), 100);
        assert_eq!(station.member.ask(&host, stranger), LinkState::NoRoom);
        let own = station.id();
        let peers: Vec<u16> = station.links.keys().copied().collect();
        for to in peers {
            for number in 0..3 {
                station.send(to, &letter(own, to, number)).unwrap();
            }
        }
    }
    for station in &mut nodes {
        station.take_all();
        let own = station.id();
        let from = |number: usize| {
            let way = |peer: u16| (0..3).map(move |number| (peer, letter(peer, own, number)));
            way(number as u16)
        };
        let mut expected: Vec<_> = station
            .links
            .keys()
            .flat_map(|peer| from(usize::from(*peer)))
            .collect();
        expected.sort();
        station.taken.sort();
        assert!(station.taken == expected, "node {own}");
    }
    let mut problems = 0;
    check(&host, |_| problems += 1);
    assert_eq!(problems, 0);
    assert!(host.used() < 1 << 30, "{} bytes", host.used());
}

/// A node and what it has sent that may not have arrived yet.
struct Churn {
    host: SparseHost,
    pool: Pool,
    nodes: Nodes,
    random: Random,
    /// Frames from one node to another so far, and those that have arrived.
    counts: std::collections::BTreeMap<(u16, u16), [usize; 2]>,
    links: usize,
}

impl Churn {
    fn new(nodes: u16, size: u64, seed: u64) -> Self {
        let (host, pool) = formatted(size, nodes);
        let join = |token: u64| Station::join(&host, &pool, &wishes(token, token));
        let nodes = (1..=nodes.into()).map(join).collect();
        Self {
            host,
            pool,
            nodes,
            random: Random(seed),
            counts: Default::default(),
            links: 0,
        }
    }

    /// One node asks for some links, sends by those that it has, and ends some.
    fn act(&mut self, number: usize) {
        let count = self.nodes.len() as u64;
        let station = &mut self.nodes[number];
        let own = station.id();
        let other = self.random.below(count) as u16;
        station.member.ask(&self.host, other);
        let peers: Vec<u16> = station.links.keys().copied().collect();
        for to in peers {
            let sends = station.state(to) == LinkState::Open;
            let sent = &mut self.counts.entry((own, to)).or_default()[0];
            for _ in 0..self.random.below(4) * u64::from(sends) {
                if station.send(to, &letter(own, to, *sent % 1000)).is_ok() {
                    *sent += 1;
                }
            }
            if self.random.below(6) == 0 {
                self.links += usize::from(station.member.withdraw(&self.host, to));
            }
        }
    }

    /// What has arrived is what was sent, in order.
    fn compare(&mut self) {
        for station in &mut self.nodes {
            let own = station.id();
            for (from, bytes) in station.taken.drain(..) {
                let arrived = &mut self.counts.get_mut(&(from, own)).unwrap()[1];
                assert!(
                    bytes == letter(from, own, *arrived % 1000),
                    "{from} to {own}"
                );
                *arrived += 1;
            }
        }
    }

    /// Forgets what was under way from and to a node.
    fn forget(&mut self, node: u16) {
        self.counts
            .retain(|(from, to), _| ![*from, *to].contains(&node));
        for station in &mut self.nodes {
            station.taken.retain(|(from, _)| *from != node);
        }
    }

    /// A node dies, or leaves, or begins anew; it is back when all have seen that.
    fn replace(&mut self, number: usize) {
        let node = self.nodes[number].id();
        let way = self.random.below(3);
        if way == 2 {
            self.nodes[number].renew();
        } else {
            let mut gone = self.nodes.remove(number);
            if way == 1 {
                gone.leave();
            }
            drop(gone);
            let silent = 2 + (DEAD_AFTER_US / HEARTBEAT_US) as usize;
            rounds(&self.host, &mut self.nodes, silent);
            self.compare();
            let token = self.random.below(1000) + 1;
            let identity = u64::from(node) + 1;
            let back = Station::join(&self.host, &self.pool, &wishes(token, identity));
            assert_eq!(back.id(), node);
            self.nodes.insert(number, back);
        }
        self.compare_and_settle();
        self.forget(node);
    }

    fn compare_and_settle(&mut self) {
        for _ in 0..3 {
            rounds(&self.host, &mut self.nodes, 1);
        }
    }

    /// Ends all links, and sees that everything has arrived and all inboxes are back.
    fn end(&mut self) {
        for station in &mut self.nodes {
            let peers: Vec<u16> = station.links.keys().copied().collect();
            for to in peers {
                station.member.withdraw(&self.host, to);
            }
        }
        rounds(&self.host, &mut self.nodes, 6);
        self.compare();
        for (way, [sent, arrived]) in &self.counts {
            assert_eq!(sent, arrived, "{way:?}");
        }
        let mut problems = Vec::new();
        check(&self.host, |problem| problems.push(problem.to_string()));
        assert_eq!(problems, Vec::<String>::new());
        let inboxes = self.pool.geometry().inboxes().unwrap();
        for number in 0..self.nodes.len() {
            let own = self.nodes[number].id();
            assert!(self.nodes[number].links.is_empty());
            let others = (0..self.nodes.len() as u16).filter(|other| *other != own);
            let asked = others.map(|other| self.nodes[number].member.ask(&self.host, other));
            let opening = asked.filter(|state| *state == LinkState::Opening).count();
            assert_eq!(opening, usize::from(inboxes), "node {own}");
            // They find out, and none of them is asked for longer than that.
            self.nodes[number].renew();
            rounds(&self.host, &mut self.nodes, 4);
            self.nodes
                .iter_mut()
                .for_each(|station| station.links.clear());
            for station in &mut self.nodes {
                station.renew();
            }
            rounds(&self.host, &mut self.nodes, 3);
        }
    }
}

#[test]
fn more_peers_than_inboxes_are_served_over_time() {
    for seed in 0..4 {
        let mut churn = Churn::new(12, 13 << 20, seed);
        assert_eq!(churn.pool.geometry().inboxes(), Some(4));
        rounds(&churn.host, &mut churn.nodes, 3);
        for round in 0..250 {
            for number in 0..churn.nodes.len() {
                churn.act(number);
            }
            rounds(&churn.host, &mut churn.nodes, 1);
            churn.compare();
            if round % 40 == 39 {
                let number = churn.random.below(12) as usize;
                churn.replace(number);
            }
        }
        assert!(churn.links > 300, "{} links have ended", churn.links);
        churn.end();
    }
}

#[test]
fn who_has_no_place_for_a_node_lends_nothing_that_it_may_use() {
    let (host, pool) = formatted(3 << 20, 3);
    let join = |number| Station::join(&host, &pool, &wishes(number, number));
    let mut nodes: Nodes = vec![join(1), join(2), join(3)];
    rounds(&host, &mut nodes, 3);
    nodes[0].member.ask(&host, 2);
    rounds(&host, &mut nodes, 3);
    assert_eq!(nodes[2].links.len(), 1);
    drop(nodes.remove(0));
    let peers = vec![Peer::UNKNOWN; 2];
    let mut member = pool.join_with(&host, &host, &wishes(3, 1), peers).unwrap();
    assert_eq!(member.node(), 0);
    assert_eq!(member.ask(&host, 2), LinkState::Closed);
    member.enable(&host);
    for _ in 0..3 {
        rounds(&host, &mut nodes, 1);
        assert!(!member.tick(&host, host.now_us()).evicted);
    }
    assert!(member.peer(&host, 1).is_some());
    assert_eq!(member.ask(&host, 1), LinkState::NoRoom);
}
