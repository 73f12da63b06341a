// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Pools are divided as the specification says.

extern crate std;

use super::*;
use nupa_proto::pool::{message::ENTRY_SIZE, DIRECTORY_SIZE, LINK_RINGS, MIN_LOG_BULK};
use std::vec::Vec;

const MIB: u64 = 1 << 20;

#[test]
fn usual_pools_can_be_divided() {
    for (size, nodes, log_bulk) in [(256, 8, 20), (64, 4, 20), (128, 8, 19), (1024, 8, 21)] {
        let geometry = Geometry::choose(size * MIB, nodes).unwrap();
        assert_eq!(
            (nodes, geometry.areas.sizes().log_frames),
            (nodes, log_bulk)
        );
        assert!(!geometry.device_memory(nodes - 1).is_empty());
    }
    assert_eq!(Geometry::choose(MIB, 8), None);
    assert_eq!(Geometry::choose(u64::MAX, 65), None);
    assert_eq!(Geometry::choose(u64::MAX, 1), None);
    assert!(Geometry::choose(u64::MAX, 64).is_some());
}

#[test]
fn parts_do_not_overlap_and_fill_the_pool() {
    let geometry = Geometry::choose(64 * MIB, 4).unwrap();
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
    assert_eq!(end, geometry.areas.share(0, 64 * MIB).start);
    for node in 0..4 {
        let (share, memory) = (
            geometry.areas.share(node, 64 * MIB),
            geometry.device_memory(node),
        );
        assert_eq!(geometry.directory(node), Some(share.start..memory.start));
        assert_eq!(memory.start, share.start + DIRECTORY_SIZE);
        assert_eq!(memory.end, share.end);
        assert_eq!(
            share.end,
            geometry
                .areas
                .share(node + 1, 64 * MIB)
                .start
                .min(share.end)
        );
    }
    assert!(geometry.device_memory(3).end <= 64 * MIB);
    assert!(geometry.device_memory(4).is_empty());
    assert_eq!(geometry.directory(4), None);
}

#[test]
fn a_small_share_has_no_directory_and_offers_nothing() {
    let rings = Geometry::new(1 << 30, 2, 8, MIN_LOG_BULK)
        .unwrap()
        .areas
        .share(0, 1 << 30)
        .start;
    for (share, room) in [(0, false), (0x1f000, false), (0x20000, true)] {
        let geometry = Geometry::new(rings + 2 * share, 2, 8, MIN_LOG_BULK).unwrap();
        assert_eq!(geometry.directory(1).is_some(), room);
        assert_eq!(geometry.device_memory(1).is_empty(), !room);
    }
}

#[test]
fn what_lies_where_is_told() {
    let geometry = Geometry::choose(64 * MIB, 4).unwrap();
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
    let geometry = Geometry::choose(64 * MIB, 4).unwrap();
    let mut block: Superblock = zerocopy::FromZeros::new_zeroed();
    assert_eq!(Geometry::read(&block), None);
    geometry.describe(&mut block);
    assert_eq!(Geometry::read(&block), Some(geometry));
    block.rings.set(block.rings.get() + PAGE);
    assert_eq!(Geometry::read(&block), None);
}
