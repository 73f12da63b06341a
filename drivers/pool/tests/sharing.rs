// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Device memory that programs of several nodes use: what is held is given to nobody, whatever nodes do and write.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]
#![allow(clippy::arithmetic_side_effects, clippy::panic, reason = "as above")]

mod rig;

use nupa_pool::{Import, JoinOptions, Sharing, Time, Unshared, Window};
use nupa_proto::{
    pool::{
        sharing::{DmHandle, RingOwner, EXPORTS, EXPORT_TABLE, HOLDS, HOLD_TABLE, MAX_RINGS},
        DEAD_AFTER_US, HEARTBEAT_US, LINE, PAGE,
    },
    process_ring::{RING_SIZE, STATE, STATE_ARMED, STATE_OPEN},
};
use rig::{options, settle, Host, Node, Random, Run, World, SMALL};
use std::{collections::BTreeMap, ops::Range, sync::Arc};

/// Bytes of a pool in which two nodes have device memory.
const SIZE: usize = SMALL + (1 << 20);

/// A node that shares.
struct Sharer {
    node: Node,
    sharing: Sharing,
    /// Where what was exported begins, by its index.
    places: BTreeMap<u16, u64>,
}

impl Sharer {
    fn new(host: &Host, token: u64) -> Self {
        let pool = host.attach(&options(true, 2, token)).unwrap();
        let mut options = JoinOptions::new(token);
        options.identity = token;
        Self {
            node: Node::join(host, &pool, &options),
            sharing: Sharing::new(),
            places: BTreeMap::new(),
        }
    }

    fn host(&self) -> Host {
        self.node.host.clone()
    }

    /// The node's own memory.
    fn memory(&self) -> Range<u64> {
        let member = &self.node.member;
        member.pool().device_memory(member.node())
    }

    fn export(&mut self, page: u64, len: u64, secret: u64) -> Result<DmHandle, Unshared> {
        self.export_for(page, len, &RingOwner::default(), secret)
    }

    fn export_for(
        &mut self,
        page: u64,
        len: u64,
        ring: &RingOwner,
        secret: u64,
    ) -> Result<DmHandle, Unshared> {
        let offset = self.memory().start + page * PAGE;
        let host = self.host();
        let place = (offset, len);
        let handle = self
            .sharing
            .export(&host, &self.node.member, place, ring, secret)?;
        self.places.insert(handle.index.get(), offset);
        Ok(handle)
    }

    /// Exports an open ring.
    fn export_ring(&mut self, page: u64, ring: &RingOwner) -> Result<DmHandle, Unshared> {
        let state = self.memory().start + page * PAGE + STATE as u64;
        self.host().store(state, STATE_OPEN.into());
        self.export_for(page, RING_SIZE as u64, ring, 7 + page)
    }

    fn withdraw(&mut self, handle: &DmHandle) {
        let host = self.host();
        let index = handle.index.get();
        let exported = (index, self.places[&index]);
        self.sharing.withdraw(&host, &self.node.member, exported);
    }

    fn import_ring(&mut self, node: u16, ring: &RingOwner) -> Result<Import, Unshared> {
        let host = self.host();
        let member = &self.node.member;
        let own = (node == member.node()).then(|| member.epoch());
        let epoch = own.or_else(|| Some(member.peer(&host, node)?.epoch));
        let epoch = epoch.ok_or(Unshared::Stale)?;
        let handle = member.pool().find_ring(&host, node, epoch, ring)?;
        self.sharing.import_ring(&host, member, &handle, ring)
    }

    fn import(&mut self, handle: &DmHandle) -> Result<Import, Unshared> {
        let host = self.host();
        self.sharing.import(&host, &self.node.member, handle)
    }

    fn release(&mut self, import: Import) {
        let host = self.host();
        self.sharing.release(&host, &self.node.member, import.line);
    }

    /// What of the node's own memory is held: first page and pages.
    fn held(&self) -> Vec<(u64, u64)> {
        let (member, memory) = (&self.node.member, self.memory());
        let mut found = Vec::new();
        member.pool().held(&self.host(), member.node(), |range| {
            assert!(range.start >= memory.start && range.end <= memory.end);
            let first = (range.start - memory.start) / PAGE;
            found.push((first, (range.end - range.start) / PAGE));
        });
        found
    }

    /// Where a table of this node lies.
    fn table(&self, table: u64) -> u64 {
        let member = &self.node.member;
        let directory = member.pool().geometry().directory(member.node()).unwrap();
        directory.start + table
    }
}

fn sharers(coherent: bool, seed: u64) -> (Arc<World>, Sharer, Sharer) {
    let world = World::new(SIZE, 3, coherent, seed);
    let mut a = Sharer::new(&world.host(0), 1);
    let mut b = Sharer::new(&world.host(1), 2);
    settle(&mut [&mut a.node, &mut b.node]);
    (world, a, b)
}

#[test]
fn memory_is_held_from_import_to_release_whoever_frees_it() {
    let (_, mut a, mut b) = sharers(true, 1);
    let handle = a.export(3, 2 * PAGE - 7, 99).unwrap();
    assert_eq!(a.held(), []);
    let import = b.import(&handle).unwrap();
    let start = a.memory().start + 3 * PAGE;
    assert_eq!((import.offset, import.len), (start, 2 * PAGE - 7));
    assert_eq!(a.held(), [(3, 2)]);
    // Once more, and by the owner's own node.
    let (again, own) = (b.import(&handle).unwrap(), a.import(&handle).unwrap());
    a.withdraw(&handle);
    assert_eq!(b.import(&handle), Err(Unshared::Unknown));
    assert_eq!(a.held().len(), 3);
    b.release(import);
    a.release(own);
    assert_eq!(a.held(), [(3, 2)]);
    b.release(again);
    assert_eq!(a.held(), []);
    // What was given back is not given back again.
    b.release(again);
    a.withdraw(&handle);
    assert_eq!(b.held(), []);
}

#[test]
fn a_handle_that_names_nothing_is_refused() {
    let (_, mut a, mut b) = sharers(true, 2);
    let handle = a.export(0, PAGE, 7).unwrap();
    let with = |change: fn(&mut DmHandle)| {
        let mut handle = handle;
        change(&mut handle);
        handle
    };
    for (handle, why) in [
        (with(|h| h.secret.set(8)), Unshared::Unknown),
        (with(|h| h.secret.set(0)), Unshared::Unknown),
        (with(|h| h.index.set(1)), Unshared::Unknown),
        (with(|h| h.index.set(EXPORTS)), Unshared::Unknown),
        (with(|h| h.index.set(u16::MAX)), Unshared::Unknown),
        (with(|h| h.len.set(PAGE - 1)), Unshared::Unknown),
        (with(|h| h.len.set(u64::MAX)), Unshared::Unknown),
        (with(|h| h.node.set(1)), Unshared::Unknown),
        (with(|h| h.node.set(2)), Unshared::Invalid),
        (with(|h| h.node.set(u16::MAX)), Unshared::Invalid),
        (with(|h| h.fabric_id.set(0)), Unshared::Invalid),
        (with(|h| h.epoch.set(2)), Unshared::Stale),
    ] {
        assert_eq!(b.import(&handle), Err(why), "{handle:?}");
    }
    assert_eq!(a.held(), []);
    assert!(b.import(&handle).is_ok());
    // Nor does a node give what is not its own.
    let pages = (a.memory().end - a.memory().start) / PAGE;
    for (page, len) in [(0, 0), (pages, 1), (0, pages * PAGE + 1), (1, u64::MAX)] {
        assert_eq!(a.export(page, len, 1), Err(Unshared::Invalid));
    }
}

#[test]
fn tables_have_an_end() {
    let (_, mut a, mut b) = sharers(true, 3);
    let handles: Vec<_> = (0..u64::from(EXPORTS))
        .map(|number| a.export(0, PAGE, number).unwrap())
        .collect();
    assert_eq!(a.export(0, PAGE, 1), Err(Unshared::Full));
    let mut imports: Vec<_> = (0..HOLDS)
        .map(|number| b.import(&handles[usize::from(number)]).unwrap())
        .collect();
    assert_eq!(b.import(&handles[0]), Err(Unshared::Full));
    b.release(imports.swap_remove(70));
    a.withdraw(&handles[200]);
    assert_eq!(b.import(&handles[200]), Err(Unshared::Unknown));
    assert!(b.import(&handles[0]).is_ok());
    let last = a.export(1, PAGE, 1).unwrap();
    assert_eq!(last.index.get(), 200);
}

#[test]
fn who_was_reset_left_or_died_exports_nothing_and_what_was_held_stays() {
    let (world, mut a, mut b) = sharers(true, 4);
    let [first, second] = [0, 1].map(|page| a.export(page, PAGE, 5 + page).unwrap());
    b.import(&first).unwrap();
    let host = a.host();
    a.node.member.renew(&host);
    a.node.member.enable(&host);
    settle(&mut [&mut a.node, &mut b.node]);
    assert_eq!(b.import(&second), Err(Unshared::Stale));
    assert_eq!(a.import(&second), Err(Unshared::Stale));
    let third = a.export(2, PAGE, 9).unwrap();
    b.import(&third).unwrap();
    assert_eq!(a.held(), [(0, 1), (2, 1)]);
    // It dies, and another host gets its slot.
    for _ in 0..DEAD_AFTER_US / HEARTBEAT_US + 2 {
        world.pass(HEARTBEAT_US);
        b.node.tick();
    }
    assert_eq!(b.import(&third), Err(Unshared::Stale));
    let mut c = Sharer::new(&world.host(2), 1);
    assert_eq!(c.node.member.node(), 0);
    settle(&mut [&mut c.node, &mut b.node]);
    assert_eq!(b.import(&third), Err(Unshared::Stale));
    assert_eq!(c.held(), [(0, 1), (2, 1)]);
    // The one that was dead can do nothing any more.
    assert_eq!(a.export(3, PAGE, 9), Err(Unshared::Void));
    assert_eq!(a.import(&first), Err(Unshared::Void));
    a.withdraw(&first);
    // Nothing is held by a node that has left.
    let host = b.host();
    b.node.member.leave(&host);
    assert_eq!(c.held(), []);
}

#[test]
fn a_node_that_joins_anew_holds_nothing() {
    let (world, mut a, mut b) = sharers(true, 5);
    let handle = a.export(0, PAGE, 5).unwrap();
    b.import(&handle).unwrap();
    for _ in 0..DEAD_AFTER_US / HEARTBEAT_US + 2 {
        world.pass(HEARTBEAT_US);
        a.node.tick();
    }
    assert_eq!(a.held(), [(0, 1)], "it may be asleep only");
    let mut b = Sharer::new(&world.host(2), 2);
    assert_eq!(a.held(), []);
    settle(&mut [&mut a.node, &mut b.node]);
    assert!(b.import(&handle).is_ok());
}

/// That of queue pair 5 of node 0, to which queue pair 9 of node 1 sends.
fn ring() -> RingOwner {
    RingOwner {
        qpn: 5.into(),
        peer_qpn: 9.into(),
        psn: 0x12_3456.into(),
        peer: 1.into(),
        is_ring: 1.into(),
    }
}

/// Bytes of a ring, as pages.
const RING_PAGES: u64 = RING_SIZE as u64 / PAGE;

#[test]
fn a_ring_is_found_by_the_connection_that_it_is_for() {
    let (_, mut a, mut b) = sharers(true, 7);
    assert_eq!(b.import_ring(0, &ring()), Err(Unshared::Unknown));
    a.export(0, RING_SIZE as u64, 3).unwrap();
    a.export_ring(40, &ring()).unwrap();
    let with = |change: fn(&mut RingOwner)| {
        let mut ring = ring();
        change(&mut ring);
        ring
    };
    for (ring, why) in [
        (with(|ring| ring.qpn.set(4)), Unshared::Unknown),
        (with(|ring| ring.peer_qpn.set(8)), Unshared::Unknown),
        (with(|ring| ring.psn.set(0x12_3457)), Unshared::Unknown),
        (with(|ring| ring.peer.set(0)), Unshared::Unknown),
        (with(|ring| ring.is_ring.set(2)), Unshared::Unknown),
        (with(|ring| ring.is_ring.set(0)), Unshared::Invalid),
        (RingOwner::default(), Unshared::Invalid),
    ] {
        assert_eq!(b.import_ring(0, &ring), Err(why), "{ring:?}");
    }
    assert_eq!(b.import_ring(1, &ring()), Err(Unshared::Unknown));
    for nobody in [2, u16::MAX] {
        let (host, pool) = (b.host(), *b.node.member.pool());
        let found = pool.find_ring(&host, nobody, 1, &ring());
        assert_eq!(found, Err(Unshared::Invalid));
    }
    assert_eq!(a.held(), []);
    let import = b.import_ring(0, &ring()).unwrap();
    let start = a.memory().start + 40 * PAGE;
    assert_eq!((import.offset, import.len), (start, RING_SIZE as u64));
    assert_eq!(a.held(), [(40, RING_PAGES)]);
    // Queue pairs of one node, too.
    let own = with(|ring| ring.peer.set(0));
    a.export_ring(80, &own).unwrap();
    assert!(a.import_ring(0, &own).is_ok());
    // Whatever has another length is none.
    let short = with(|ring| ring.psn.set(1));
    let made = a.export_for(120, PAGE, &short, 1);
    assert_eq!(made, Err(Unshared::Invalid));
}

#[test]
fn a_ring_is_nobodys_who_has_its_handle() {
    let (_, mut a, mut b) = sharers(true, 8);
    let handle = a.export_ring(0, &ring()).unwrap();
    assert_eq!(b.import(&handle), Err(Unshared::Unknown));
    assert_eq!(a.import(&handle), Err(Unshared::Unknown));
    a.withdraw(&handle);
    // Its line is another export's then, which is no ring.
    let shared = a.export(40, PAGE, 8).unwrap();
    assert_eq!(shared.index, handle.index);
    assert_eq!(b.import_ring(0, &ring()), Err(Unshared::Unknown));
    assert!(b.import(&shared).is_ok());
}

#[test]
fn a_ring_is_closed_when_it_is_withdrawn_and_stays_its_senders() {
    for coherent in [true, false] {
        let (_, mut a, mut b) = sharers(coherent, 9);
        let handle = a.export_ring(0, &ring()).unwrap();
        let import = b.import_ring(0, &ring()).unwrap();
        let state = |host: &Host| {
            let at = import.offset + STATE as u64;
            host.refresh(at, LINE);
            host.load(at)
        };
        a.host()
            .store(import.offset, (STATE_OPEN | STATE_ARMED).into());
        a.host().publish(import.offset, LINE);
        assert_ne!(state(&b.host()), Ok(0));
        a.withdraw(&handle);
        assert_eq!(state(&b.host()), Ok(0));
        assert_eq!(b.import_ring(0, &ring()), Err(Unshared::Unknown));
        assert_eq!(a.held(), [(0, RING_PAGES)]);
        // What is withdrawn already is another one's.
        a.host().store(import.offset, 1);
        a.withdraw(&handle);
        assert_eq!(a.host().load(import.offset), Ok(1));
        b.release(import);
        assert_eq!(a.held(), []);
    }
}

#[test]
fn other_memory_stays_as_it_is_when_it_is_withdrawn() {
    let (_, mut a, _) = sharers(true, 10);
    let handle = a.export(0, RING_SIZE as u64, 3).unwrap();
    let start = a.memory().start;
    a.host().store(start, 77);
    a.withdraw(&handle);
    assert_eq!(a.host().load(start), Ok(77));
}

#[test]
fn rings_leave_room_for_what_programs_share() {
    let (_, mut a, mut b) = sharers(true, 11);
    let numbered = |number: u16| RingOwner {
        qpn: u32::from(number).into(),
        ..ring()
    };
    let rings: Vec<_> = (0..MAX_RINGS)
        .map(|number| a.export_ring(0, &numbered(number)).unwrap())
        .collect();
    assert_eq!(a.export_ring(0, &ring()), Err(Unshared::Full));
    let mut holds: Vec<_> = (0..MAX_RINGS)
        .map(|number| b.import_ring(0, &numbered(number)).unwrap())
        .collect();
    assert_eq!(b.import_ring(0, &numbered(0)), Err(Unshared::Full));
    // What is no ring has the rest.
    let shared = a.export(40, PAGE, 1).unwrap();
    for number in 1..u64::from(EXPORTS - MAX_RINGS) {
        a.export(40, PAGE, number).unwrap();
    }
    for _ in 0..HOLDS - MAX_RINGS {
        b.import(&shared).unwrap();
    }
    assert_eq!(a.export(40, PAGE, 1), Err(Unshared::Full));
    assert_eq!(b.import(&shared), Err(Unshared::Full));
    // And what one gives back another takes.
    b.release(holds.swap_remove(3));
    a.withdraw(&rings[100]);
    assert!(b.import_ring(0, &numbered(0)).is_ok());
    let last = a.export_ring(0, &numbered(500)).unwrap();
    assert_eq!(last.index, rings[100].index);
}

#[test]
fn a_ring_of_a_node_that_was_reset_or_is_older_is_none() {
    let (_, mut a, mut b) = sharers(true, 12);
    let old = a.export_ring(0, &ring()).unwrap();
    let host = a.host();
    a.node.member.renew(&host);
    a.node.member.enable(&host);
    settle(&mut [&mut a.node, &mut b.node]);
    assert_eq!(b.import_ring(0, &ring()), Err(Unshared::Unknown));
    // The next one of the connection is found behind it.
    a.export_ring(40, &ring()).unwrap();
    let import = b.import_ring(0, &ring()).unwrap();
    assert_eq!(import.offset, a.memory().start + 40 * PAGE);
    a.withdraw(&old);
    // A node that knows no rings leaves zeroes there.
    let handle = a.export(80, RING_SIZE as u64, 9).unwrap();
    let line = a.table(EXPORT_TABLE) + u64::from(handle.index.get()) * LINE;
    assert_eq!((host.load(line + 32), host.load(line + 40)), (Ok(0), Ok(0)));
    let none = RingOwner {
        is_ring: 1.into(),
        ..RingOwner::default()
    };
    assert_eq!(b.import_ring(0, &none), Err(Unshared::Unknown));
}

#[test]
fn nonsense_of_a_peer_gives_no_memory_away() {
    let (_, mut a, mut b) = sharers(true, 6);
    let good = a.export(0, PAGE, 5).unwrap();
    let (mine, share) = (b.memory(), a.memory());
    let random = &mut Random(1);
    let (line, bounds) = (a.table(EXPORT_TABLE), [0, 1, PAGE, share.start, mine.start]);
    for _ in 0..3000 {
        let mut number = || match random.below(4) {
            0 => random.draw(),
            1 => bounds[random.below(5) as usize].wrapping_sub(random.below(3)),
            2 => share.start + random.below(share.end - share.start + 2 * PAGE),
            _ => random.below(300) * PAGE,
        };
        // Whoever writes an export of the node's chooses all of the handle, too.
        let (offset, len) = (number(), number());
        for (at, value) in [(0, 5), (8, offset), (16, len), (24, 1)] {
            a.host().store(line + at, value);
        }
        let mut handle = good;
        handle.len.set(len);
        match b.import(&handle) {
            Ok(import) => {
                assert!(import.len > 0 && import.offset >= share.start);
                assert!(import.offset % PAGE == 0 && import.offset + import.len <= share.end);
                b.release(import);
            }
            Err(why) => assert_eq!(why, Unshared::Invalid),
        }
        // And any hold may be told.
        let hold = b.table(HOLD_TABLE) + random.below(u64::from(HOLDS)) * LINE;
        a.host().store(hold, len);
        a.host().store(hold + 8, offset);
        a.held();
        b.held();
    }
}

/// One of the two nodes imports while the other frees: the memory is never the importer's and free.
#[test]
fn who_frees_and_who_imports_do_not_miss_each_other() {
    for seed in 0..300 {
        let (world, mut a, mut b) = sharers(seed % 2 == 0, seed);
        let handle = a.export(1, PAGE, seed + 1).unwrap();
        let frees: Run<'_, bool> = Box::new(|host| {
            host.sleep_us(seed % 40);
            a.withdraw(&handle);
            // Free if nobody holds it.
            a.held().is_empty()
        });
        let imports: Run<'_, bool> = Box::new(|host| {
            host.sleep_us(seed % 37);
            b.import(&handle).is_ok()
        });
        let results = world.run(vec![frees, imports]);
        let (free, imported) = (results[0], results[1]);
        assert!(!(free && imported), "seed {seed}");
    }
}
