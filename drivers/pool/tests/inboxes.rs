// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Pools with inboxes: how they are formatted, who refuses them, and what is found wrong in them.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]
#![allow(clippy::arithmetic_side_effects, clippy::panic, reason = "as above")]

mod rig;

use nupa_pool::{check, Format, FormatOptions, Pool, Problem};
use nupa_proto::pool::{
    crc32,
    inbox::{InboxSuperblock, Offer, OfferState, VERSION_INBOXES},
};
use rig::{Host, World, MEDIUM};
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

/// Nodes of the pool.
const NODES: u16 = 3;

/// Something done to a superblock.
type Change = dyn Fn(&mut InboxSuperblock);

fn formatted(coherent: bool) -> (Arc<World>, Host, Pool) {
    let world = World::new(MEDIUM, 3, coherent, 1);
    let host = world.host(0);
    let options = FormatOptions {
        format: Format::Inboxes,
        ..FormatOptions::new(NODES, 9)
    };
    let pool = Pool::attach_or_format(&host, &host, &options, |_| true).unwrap();
    (world, host, pool)
}

fn problems(host: &Host) -> Vec<String> {
    let mut found = Vec::new();
    check(host, |problem: Problem| found.push(problem.to_string()));
    found
}

#[test]
fn such_a_pool_has_a_version_of_its_own() {
    for coherent in [true, false] {
        let (_, host, pool) = formatted(coherent);
        assert_eq!(pool.geometry().version(), VERSION_INBOXES);
        assert_eq!(pool.geometry().inboxes(), Some(NODES - 1));
        let pool = Pool::attach(&host, &host).unwrap();
        assert_eq!(pool.fabric_id(), 9);
        assert_eq!(problems(&host), Vec::<String>::new());
    }
}

#[test]
fn what_is_wrong_with_the_superblock_is_found() {
    let (world, host, _) = formatted(true);
    let sound = InboxSuperblock::read_from_bytes(&world.peek::<128>(0)).unwrap();
    let with = |change: &Change| {
        let mut block = sound;
        change(&mut block);
        block.check.set(0);
        block.check.set(crc32(block.as_bytes()));
        world.poke(0, block.as_bytes());
        let found = problems(&host);
        world.poke(0, sound.as_bytes());
        found
    };
    let damages: [(&Change, &str); 5] = [
        (
            &|block| block.inboxes.set(NODES),
            "offset 0x50, superblock: inboxes is 0x3, and has to be 0x1 to 0x2",
        ),
        (
            &|block| block.log_bulk = 16,
            "offset 0x27, superblock: log_bulk is 0x10, and has to be 0x11 to 0x1e",
        ),
        (
            &|block| block.regions.set(0x1000),
            "offset 0x40, superblock: regions is 0x1000, and has to be 0x3000",
        ),
        (
            &|block| block.reserved[45] = 1,
            "offset 0x52, superblock: reserved is 0x1, and has to be 0x0",
        ),
        (
            &|block| block.version.set(0x0004_0000),
            "offset 0x8, superblock: version is 0x40000, and has to be 0x20000 or 0x30000",
        ),
    ];
    for (change, expected) in damages {
        assert_eq!(with(change), [expected]);
    }
}

#[test]
fn what_is_wrong_with_offers_is_found() {
    let (world, host, pool) = formatted(true);
    let block = InboxSuperblock::read_from_bytes(&world.peek::<128>(0)).unwrap();
    let pair =
        |own: u64, other: u64| block.pairs.get() + own * block.pair_stride.get() + 16 * other;
    let offer = Offer {
        owner: 1,
        writer: 1,
        inbox: 1,
        serial: 1,
        state: OfferState::Open,
    };
    let found = |at: u64, word: u64| {
        world.poke(at, &word.to_le_bytes());
        let found = problems(&host);
        world.poke(at, &[0; 8]);
        found
    };
    assert!(found(pair(0, 1), offer.to_wire()).is_empty());
    let outside = Offer { inbox: 2, ..offer };
    let told = found(pair(0, 1), outside.to_wire());
    assert!(
        told[0].contains("what node 0 says about node 1: offer"),
        "{told:?}"
    );
    assert_eq!(found(pair(0, 1), 7).len(), 1);
    assert_eq!(found(pair(0, 1) + 8, 9).len(), 1);
    assert_eq!(found(pair(2, 2), offer.to_wire()).len(), 1);
    // The same inbox to two nodes.
    world.poke(pair(1, 0), &offer.to_wire().to_le_bytes());
    let told = found(pair(1, 2), offer.to_wire());
    assert!(told[0].contains("not lent to another"), "{told:?}");
    // In the directory there are no grants.
    world.poke(pair(1, 0), &[0; 8]);
    let directory = pool.geometry().directory(1).unwrap();
    assert!(problems(&host).is_empty());
    world.poke(directory.start + 0x1000, &[1]);
    // Of a node that has no slot it may hold anything.
    assert!(problems(&host).is_empty());
}
