// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Shared device memory: what is in use is not free.

use crate::{
    check,
    coherent::{Coherent, Memory},
    of_all_hosts, Hosts, Setup,
};
use nupa_pool::{JoinOptions, Pool, Sharing, Window};
use nupa_proto::pool::{
    sharing::{RingOwner, EXPORT_TABLE, HOLD_TABLE},
    LINE, PAGE,
};

of_all_hosts! {
    #[test]
    fn memory_is_not_free_and_imported() { share }

    #[test]
    fn memory_of_a_former_owner_is_not_free_and_imported() { take_over }

    #[test]
    fn memory_is_free_behind_all_that_its_holder_stored() { give_back }

    #[test]
    fn what_is_imported_is_as_it_was_exported() { export }
}

#[test]
fn memory_is_free_behind_all_that_its_holder_stored_past_the_caches() {
    check::<Coherent<false>>(|setup| {
        let store = |memory: &Memory, at| memory.stream(at, HOLDERS);
        hand_out::<Coherent<false>>(setup, store);
    });
}

/// What the holder of memory stores there, and its owner when it hands it out anew.
const HOLDERS: u64 = 0x1111_1111;
const OWNERS: u64 = 0x2222_2222;

/// The first line of a table of a node. Its first word is a secret or a length.
fn first_line(setup: &Setup, node: u16, table: u64) -> u64 {
    setup.pool.geometry().directory(node).unwrap().start + table
}

/// Node 0 frees memory that node 1 imports.
fn share<H: Hosts>(setup: &Setup) {
    let memory = setup.memory();
    let pool = setup.pool;
    let [owner, user] = setup.joined(&memory, 0);
    let mut exports = Sharing::new();
    let place = (pool.device_memory(0).start, PAGE);
    let handle = exports
        .export(&memory, &owner, place, &RingOwner::default(), 7)
        .unwrap();
    let lines = [(0, EXPORT_TABLE), (1, HOLD_TABLE)];
    let hosts = H::map(
        memory,
        &lines.map(|(node, table)| first_line(setup, node, table)),
    );
    let (imported, held) = H::run(
        &hosts,
        move |memory| Sharing::new().import(memory, &user, &handle).is_ok(),
        move |memory| {
            exports.withdraw(memory, &owner, (handle.index.get(), place.0));
            !is_free(pool, memory)
        },
    );
    assert!(held || !imported, "it is free, and in use");
}

/// Node 0 has left, and another host gets its slot and asks what of its memory is free, while node 1 imports some that the former one exports.
fn take_over<H: Hosts>(setup: &Setup) {
    let memory = setup.memory();
    let pool = setup.pool;
    let [mut owner, user] = setup.joined(&memory, 0);
    let place = (pool.device_memory(0).start, PAGE);
    let handle = Sharing::new()
        .export(&memory, &owner, place, &RingOwner::default(), 7)
        .unwrap();
    owner.leave(&memory);
    // All of the export is zeroed, and not only its secret.
    let export = first_line(setup, 0, EXPORT_TABLE);
    let [secret, offset, len, epoch] = [0, 8, 16, 24].map(|word| export + word);
    let hold = first_line(setup, 1, HOLD_TABLE);
    let hosts = H::map(memory, &[secret, offset, len, epoch, hold]);
    let clock = H::clock(&hosts[1]);
    let (imported, held) = H::run(
        &hosts,
        move |memory| Sharing::new().import(memory, &user, &handle).is_ok(),
        move |memory| {
            let options = JoinOptions {
                prefer: Some(0),
                ..JoinOptions::new(3)
            };
            let next = pool.join(memory, &clock, &options).unwrap();
            assert_eq!(next.node(), 0);
            !is_free(pool, memory)
        },
    );
    assert!(held || !imported, "it is free, and in use");
}

/// Whether nobody holds any of node 0's memory.
fn is_free(pool: Pool, memory: &impl Window) -> bool {
    let mut free = true;
    pool.held(memory, 0, |_| free = false);
    free
}

/// Node 1 gives memory back that it has used.
fn give_back<H: Hosts>(setup: &Setup) {
    hand_out::<H>(setup, |memory, at| {
        memory.store(at, HOLDERS);
        // As its driver does with all of it.
        memory.refresh(at, PAGE);
    });
}

/// Node 1 stores to memory that it holds, and gives it back. Node 0 hands the memory out anew once nobody holds it.
fn hand_out<H: Hosts>(setup: &Setup, store: fn(&H::Host, u64)) {
    let memory = setup.memory();
    let pool = setup.pool;
    let [owner, user] = setup.joined(&memory, 0);
    let place = pool.device_memory(0).start;
    let (mut exports, mut holds) = (Sharing::new(), Sharing::new());
    let exported = exports.export(&memory, &owner, (place, PAGE), &RingOwner::default(), 7);
    let handle = exported.unwrap();
    let import = holds.import(&memory, &user, &handle).unwrap();
    exports.withdraw(&memory, &owner, (handle.index.get(), place));
    let hosts = H::map(memory, &[first_line(setup, 1, HOLD_TABLE), place]);
    let ((), free) = H::run(
        &hosts,
        move |memory| {
            store(memory, place);
            holds.release(memory, &user, import.line);
        },
        move |memory| {
            let free = is_free(pool, memory);
            if free {
                memory.refresh(place, LINE);
                assert_eq!(memory.load(place), Ok(HOLDERS), "the holder's is missing");
                memory.store(place, OWNERS);
                memory.publish(place, LINE);
            }
            free
        },
    );
    assert!(is_free(pool, &*hosts[1]), "it stays held");
    let last = if free { OWNERS } else { HOLDERS };
    for host in &hosts {
        host.refresh(place, LINE);
        assert_eq!(host.load(place), Ok(last), "it is written over");
    }
}

/// Node 0 exports memory that it has stored to, while node 1, which knows the handle, tries to import it.
fn export<H: Hosts>(setup: &Setup) {
    let memory = setup.memory();
    let [owner, user] = setup.joined(&memory, 0);
    let place = setup.pool.device_memory(0).start;
    // It is the same as that of an export in another pool like this one.
    let other = setup.memory();
    let [same, _] = setup.joined(&other, 0);
    let handle = Sharing::new().export(&other, &same, (place, PAGE), &RingOwner::default(), 7);
    let handle = handle.unwrap();
    // What an earlier export has left in the line.
    let mut exports = Sharing::new();
    let earlier = exports.export(
        &memory,
        &owner,
        (place + PAGE, PAGE),
        &RingOwner::default(),
        6,
    );
    exports.withdraw(
        &memory,
        &owner,
        (earlier.unwrap().index.get(), place + PAGE),
    );
    let export = first_line(setup, 0, EXPORT_TABLE);
    let words = [0, 8, 16, 24].map(|word| export + word);
    let hosts = H::map(memory, &words);
    let mut holds = Sharing::new();
    let ((), imported) = H::run(
        &hosts,
        move |memory| {
            let exported = exports.export(memory, &owner, (place, PAGE), &RingOwner::default(), 7);
            assert_eq!(exported.map(|handle| handle.index.get()), Ok(0));
        },
        |memory| holds.import(memory, &user, &handle),
    );
    // It is there now, if it was not then.
    let later = holds.import(&*hosts[1], &user, &handle).unwrap();
    for import in [imported.unwrap_or(later), later] {
        assert_eq!((import.offset, import.len), (place, PAGE));
    }
}
