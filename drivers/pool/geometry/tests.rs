// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Pools are divided as the specification says.

extern crate std;

use super::*;
use nupa_proto::pool::{message::ENTRY_SIZE, DIRECTORY_SIZE, LINK_RINGS, MIN_LOG_BULK};
use std::vec::Vec;

const MIB: u64 = 1 << 20;

fn choose(size: u64, nodes: u16) -> Option<Geometry> {
    Geometry::choose(size, nodes, Format::Areas)
}

fn areas(geometry: &Geometry) -> &Areas {
    match &geometry.layout {
        Layout::Areas(areas) => areas,
        Layout::Inboxes(_) => unreachable!("it has areas"),
    }
}

#[test]
fn usual_pools_can_be_divided() {
    for (size, nodes, log_bulk) in [(256, 8, 20), (64, 4, 20), (128, 8, 19), (1024, 8, 21)] {
        let geometry = choose(size * MIB, nodes).unwrap();
        assert_eq!(
            (nodes, areas(&geometry).sizes().log_frames),
            (nodes, log_bulk)
        );
        assert!(!geometry.device_memory(nodes - 1).is_empty());
    }
    assert_eq!(choose(MIB, 8), None);
    assert_eq!(choose(u64::MAX, 65), None);
    assert_eq!(choose(u64::MAX, 1), None);
    assert!(choose(u64::MAX, 64).is_some());
}

#[test]
fn parts_do_not_overlap_and_fill_the_pool() {
    let geometry = choose(64 * MIB, 4).unwrap();
    assert!(geometry.slots().end >= geometry.slot(3) + SLOT_SIZE as u64);
    let mut end = geometry.slots().end;
    for (source, target) in (0..4).flat_map(|s| (0..4).map(move |t| (s, t))) {
        if source == target {
            continue;
        }
        let places = Class::ALL
            .iter()
            .map(|class| geometry.ring(source, target, *class));
        let places: Vec<Place> = places.collect();
        // The words lie in a page, each kind in a line of its own.
        for (number, place) in (0..).zip(&places) {
            let words = [
                place.producer(),
                place.producer_want(),
                place.consumer(),
                place.consumer_bulk(),
            ];
            let expected = [0, 0x40, 0x80, 0xc0].map(|line| end + line + 8 * number);
            assert_eq!(words, expected);
        }
        end += LINK_RINGS;
        for place in &places {
            assert_eq!(place.entry(0), end);
            assert_eq!(place.entry(u32::MAX) + ENTRY_SIZE, place.bulk(0));
            end = place.bulk(place.bulk_len() - 1) + 1;
        }
    }
    assert_eq!(end, areas(&geometry).share(0, 64 * MIB).start);
    for node in 0..4 {
        let (share, memory) = (
            areas(&geometry).share(node, 64 * MIB),
            geometry.device_memory(node),
        );
        assert_eq!(geometry.directory(node), Some(share.start..memory.start));
        assert_eq!(memory.start, share.start + DIRECTORY_SIZE);
        assert_eq!(memory.end, share.end);
        let next = areas(&geometry).share(node + 1, 64 * MIB);
        assert_eq!(share.end, next.start.min(share.end));
    }
    assert!(geometry.device_memory(3).end <= 64 * MIB);
    assert!(geometry.device_memory(4).is_empty());
    assert_eq!(geometry.directory(4), None);
}

#[test]
fn a_small_share_has_no_directory_and_offers_nothing() {
    let end = slots_end(2).unwrap();
    let new = |size| Areas::new(size, 2, 8, MIN_LOG_BULK, end);
    let rings = new(1 << 30).unwrap().share(0, 1 << 30).start;
    for (share, room) in [(0, false), (0x1f000, false), (0x20000, true)] {
        let size = rings + 2 * share;
        let areas = new(size).unwrap();
        assert_eq!(areas.directory(1, size).is_some(), room);
        assert_eq!(areas.device_memory(1, size).is_empty(), !room);
    }
}

#[test]
fn what_lies_where_is_told() {
    let geometry = choose(64 * MIB, 4).unwrap();
    let told = |offset| std::format!("{}", geometry.area(offset));
    assert_eq!(told(0x80), "superblock");
    assert_eq!(told(geometry.slot(3) + 0x40), "slot of node 3");
    for (source, target) in (0..4).flat_map(|s| (0..4).map(move |t| (s, t))) {
        if source == target {
            continue;
        }
        let way = std::format!("from node {source} to node {target}");
        let names = [
            "requests",
            "responses",
            "frames",
            "short requests",
            "short responses",
        ];
        for (class, name) in Class::ALL.iter().zip(names) {
            let ring = geometry.ring(source, target, *class);
            let indices = std::format!("indices of the rings {way}");
            assert_eq!(told(ring.consumer_bulk()), indices);
            let entries = std::format!("ring of {name} {way}");
            assert_eq!(told(ring.entry(0)), entries);
            assert_eq!(told(ring.bulk(ring.bulk_len() - 1)), entries);
        }
    }
    let memory = geometry.device_memory(2);
    assert_eq!(told(memory.start - 1), "directory of node 2");
    assert_eq!(told(memory.start), "device memory of node 2");
}

#[test]
fn a_superblock_that_contradicts_itself_is_refused() {
    let geometry = choose(64 * MIB, 4).unwrap();
    let mut block: Superblock = zerocopy::FromZeros::new_zeroed();
    assert_eq!(Geometry::read(&block), None);
    geometry.describe(&mut block);
    assert_eq!(Geometry::read(&block), Some(geometry));
    block.rings.set(block.rings.get() + PAGE);
    assert_eq!(Geometry::read(&block), None);
}

#[test]
fn a_thousand_nodes_with_inboxes_for_sixteen_peers_fit_into_4_gib() {
    let smallest = Geometry::choose(4 << 30, 1000, Format::Inboxes).unwrap();
    assert_eq!((smallest.max_frame(), smallest.piece()), (67_584, 16_384));
    assert_eq!(choose(64 * MIB, 4).unwrap().piece(), 65_536);
    let inboxes = |size: u64, nodes| {
        let geometry = Geometry::choose(size, nodes, Format::Inboxes).unwrap();
        let logs = geometry.layout.sizes().log_frames;
        assert!(geometry.device_memory(nodes - 1).end <= size);
        (logs, geometry.inboxes().unwrap())
    };
    assert_eq!(inboxes(4 << 30, 1000), (17, 16));
    assert_eq!(inboxes(4 << 30, 1024), (17, 16));
    assert_eq!(inboxes(8 << 30, 1000), (17, 26));
    // As many as there are peers, with payload areas as large as in a pool with rings for every two.
    assert_eq!(inboxes(256 * MIB, 8), (20, 7));
    assert_eq!(inboxes(1 << 40, 2), (21, 1));
    assert_eq!(inboxes(640 << 10, 2), (17, 1));
    for (size, nodes) in [
        (256 << 10, 2),
        (1 << 40, 1),
        (1 << 40, 1025),
        (100 * MIB, 1000),
    ] {
        assert_eq!(Geometry::choose(size, nodes, Format::Inboxes), None);
    }
}

#[test]
fn parts_of_a_pool_with_inboxes_do_not_overlap() {
    let geometry = Geometry::choose(32 * MIB, 5, Format::Inboxes).unwrap();
    let count = geometry.inboxes().unwrap();
    assert!(count >= 2);
    let mut end = geometry.slots().end;
    for node in 0..5 {
        for other in 0..5 {
            assert_eq!(
                geometry.pair(node, other),
                Some(end + 16 * u64::from(other))
            );
        }
        let row = geometry.row(node).unwrap();
        assert_eq!((row.start, row.end % 64), (end, 0));
        end = row.end;
    }
    for node in 0..5 {
        let directory = geometry.directory(node).unwrap();
        assert!(directory.start >= end && directory.start < end + 5 * PAGE);
        end = directory.end;
        for number in 0..count {
            let inbox = Inbox { node, number };
            assert_eq!(geometry.inbox(inbox), Some(end));
            let peer = Inbox {
                node: (node + 1) % 5,
                number: 0,
            };
            // As the peer sees it, which writes there.
            let ends = geometry.inbox_ends(peer, inbox).unwrap();
            let back = geometry.inbox(peer).unwrap();
            for (class, number) in Class::ALL.iter().zip(0..) {
                let place = ends.to(*class);
                assert_eq!(
                    place.producer(),
                    geometry.inbox(inbox).unwrap() + 8 * number
                );
                assert_eq!(place.consumer(), back + 0x80 + 8 * number);
                let room = place.room();
                assert!(room.start == end + if number == 0 { PAGE } else { 0 });
                end = room.end.next_multiple_of(PAGE);
                // And the other way round.
                let place = ends.from(*class);
                assert_eq!(place.producer(), back + 8 * number);
                assert_eq!(
                    place.consumer(),
                    geometry.inbox(inbox).unwrap() + 0x80 + 8 * number
                );
            }
        }
        let memory = geometry.device_memory(node);
        assert!(memory.start == end && memory.end > end);
        end = memory.end;
    }
    assert!(end <= 32 * MIB);
    let own = Inbox { node: 0, number: 0 };
    for (node, number) in [(1, count), (5, 0), (u16::MAX, u16::MAX)] {
        assert!(geometry.inbox_ends(own, Inbox { node, number }).is_none());
    }
}

#[test]
fn what_lies_in_a_pool_with_inboxes_is_told() {
    let geometry = Geometry::choose(32 * MIB, 5, Format::Inboxes).unwrap();
    let told = |offset| std::format!("{}", geometry.area(offset));
    assert_eq!(told(geometry.slot(4)), "slot of node 4");
    let pair = geometry.pair(3, 1).unwrap();
    assert_eq!(told(pair + 8), "what node 3 says about node 1");
    let directory = geometry.directory(2).unwrap();
    assert_eq!(told(directory.start), "directory of node 2");
    let inbox = geometry.inbox(Inbox { node: 2, number: 1 }).unwrap();
    assert_eq!(
        told(inbox + 0x80),
        "indices of the rings in inbox 1 of node 2"
    );
    assert_eq!(told(inbox + PAGE), "ring of requests in inbox 1 of node 2");
    let memory = geometry.device_memory(2);
    assert_eq!(told(memory.start), "device memory of node 2");
}

#[test]
fn both_versions_are_read_from_a_superblock() {
    for format in [Format::Areas, Format::Inboxes] {
        let geometry = Geometry::choose(64 * MIB, 4, format).unwrap();
        let mut block: Superblock = zerocopy::FromZeros::new_zeroed();
        geometry.describe(&mut block);
        assert_eq!(Geometry::read(&block), Some(geometry));
        for damage in [0x28, 0x30, 0x38, 0x40, 0x48] {
            let mut block = block;
            zerocopy::IntoBytes::as_mut_bytes(&mut block)[damage] ^= 0x80;
            assert_eq!(Geometry::read(&block), None);
        }
        block.version.set(0x0004_0000);
        assert_eq!(Geometry::read(&block), None);
    }
}
