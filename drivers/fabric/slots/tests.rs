// SPDX-License-Identifier: GPL-2.0
//! Tests of the pages' table.

use super::*;
use std::collections::{HashMap, HashSet};

type Table = PageTable<u32, Vec<Option<TakenPage<u32>>>>;

const KERNEL: Holder<u32> = Holder::Kernel;

fn table(pages: u32) -> Table {
    PageTable::new((0..pages).map(|_| None).collect())
}

fn process(process: u32, user: u32) -> Holder<u32> {
    Holder::Process { process, user }
}

/// Takes slots with the rights of an ordinary user.
fn take(table: &mut Table, holder: &Holder<u32>, wanted: Wanted) -> Result<TakenSlots, Refused> {
    table.take(holder, wanted, || false)
}

/// Has processes of a user take a slot each until one is refused; how many have one, and why not one more.
fn exhaust(table: &mut Table, user: u32) -> (u32, Refused) {
    for count in 0.. {
        let holder = process(user * 10_000 + count, user);
        if let Err(refused) = take(table, &holder, Wanted::Queue) {
            return (count, refused);
        }
    }
    unreachable!("a table has an end")
}

#[test]
fn every_slot_once_then_another_page() {
    let mut table = table(64);
    let holder = process(1, 1);
    let mut slots = HashSet::new();
    for number in 0..SLOTS {
        let taken = take(&mut table, &holder, Wanted::Queue).unwrap();
        assert_eq!((taken.page, taken.fresh), (0, number == 0));
        assert!(slots.insert(taken.slot));
    }
    assert_eq!(slots, (0..SLOTS).collect());
    let next = take(&mut table, &holder, Wanted::Queue).unwrap();
    assert_eq!((next.page, next.fresh), (1, true));
    table.give(0, Some(7));
    let again = take(&mut table, &holder, Wanted::Send).unwrap();
    assert_eq!((again.page, again.slot), (0, 7));
}

#[test]
fn slots_with_a_push_slot_are_kept_for_who_wants_them() {
    let mut table = table(64);
    let mut slot = |wanted| take(&mut table, &KERNEL, wanted).unwrap().slot;
    assert_eq!(slot(Wanted::Send), 0);
    assert_eq!(slot(Wanted::Queue), PUSH_SLOTS);
    assert_eq!(slot(Wanted::Send), 1);
}

#[test]
fn a_pair_is_on_one_page() {
    let mut table = table(64);
    let holder = process(1, 1);
    for _ in 0..SLOTS - 1 {
        take(&mut table, &holder, Wanted::Queue).unwrap();
    }
    let pair = take(&mut table, &holder, Wanted::Pair).unwrap();
    assert_eq!(pair.page, 1);
    assert!(pair.recv_slot.is_some_and(|recv| recv != pair.slot));
    // The slot that was left of the first page is there still.
    assert_eq!(take(&mut table, &holder, Wanted::Send).unwrap().page, 0);
}

#[test]
fn processes_and_the_kernel_share_no_page() {
    let mut table = table(64);
    let holders = [KERNEL, process(1, 1), process(2, 1), process(3, 2)];
    let pages: HashSet<_> = holders
        .iter()
        .map(|holder| take(&mut table, holder, Wanted::Pair).unwrap().page)
        .collect();
    assert_eq!(pages.len(), holders.len());
    // The same process after it has become another user.
    let taken = take(&mut table, &process(1, 9), Wanted::Queue).unwrap();
    assert!(!taken.fresh);
}

#[test]
fn a_page_is_free_when_its_last_use_ends() {
    let mut table = table(64);
    let taken = take(&mut table, &process(1, 1), Wanted::Pair).unwrap();
    table.keep(taken.page);
    table.give(taken.page, Some(taken.slot));
    table.give(taken.page, taken.recv_slot);
    assert_ne!(
        take(&mut table, &process(2, 1), Wanted::Queue)
            .unwrap()
            .page,
        taken.page
    );
    table.give(taken.page, None);
    let next = take(&mut table, &process(3, 1), Wanted::Queue).unwrap();
    assert_eq!((next.page, next.fresh), (taken.page, true));
    table.give(u32::MAX, Some(u16::MAX));
    table.keep(u32::MAX);
}

#[test]
fn a_user_leaves_as_much_as_it_has() {
    let mut table = table(MAX_PAGES);
    assert_eq!(exhaust(&mut table, 1), (240, Refused::UserLimit));
    assert_eq!(exhaust(&mut table, 2), (120, Refused::UserLimit));
    assert_eq!(exhaust(&mut table, 3), (60, Refused::UserLimit));
    // What one gives back another can have.
    for page in 0..100 {
        table.give(page, None);
    }
    assert_eq!(exhaust(&mut table, 4), (80, Refused::UserLimit));
}

#[test]
fn nobody_but_the_kernel_gets_its_reserve() {
    let mut table = table(MAX_PAGES);
    let mut users = 0;
    while table
        .take(&process(users, 0), Wanted::Queue, || true)
        .is_ok()
    {
        users += 1;
    }
    assert_eq!(users, 480);
    assert_eq!(exhaust(&mut table, 1), (0, Refused::NoneLeft));
    let kernels = (0..).take_while(|_| take(&mut table, &KERNEL, Wanted::Queue).is_ok());
    assert_eq!(kernels.count(), 32 * usize::from(SLOTS));
}

#[test]
fn what_the_kernel_has_is_of_its_reserve() {
    let mut table = table(MAX_PAGES);
    for _ in 0..10 * u32::from(SLOTS) {
        take(&mut table, &KERNEL, Wanted::Queue).unwrap();
    }
    assert_eq!(exhaust(&mut table, 1).0, 240);
    for _ in 0..52 * u32::from(SLOTS) {
        take(&mut table, &KERNEL, Wanted::Queue).unwrap();
    }
    assert_eq!(exhaust(&mut table, 2).0, (MAX_PAGES - 62 - 240) / 2);
}

#[test]
fn of_few_pages_the_kernel_has_one() {
    for pages in [0, 1] {
        assert_eq!(exhaust(&mut table(pages), 1), (0, Refused::NoneLeft));
    }
    assert_eq!(exhaust(&mut table(2), 1), (1, Refused::NoneLeft));
    assert_eq!(exhaust(&mut table(3), 1), (1, Refused::UserLimit));
    let mut only = table(1);
    assert_eq!(take(&mut only, &KERNEL, Wanted::Pair).unwrap().page, 0);
}

proptest::proptest! {
    #[test]
    fn no_slot_is_two_holders_at_once(
        steps in proptest::collection::vec((0u32..6, 0u32..4, 0usize..1000), 0..400),
    ) {
        let mut table = table(20);
        let mut taken = Vec::new();
        let mut holders = HashMap::new();
        for (step, number, which) in steps {
            let holder = if number == 0 { KERNEL } else { process(number, number / 2) };
            let wanted = [Wanted::Queue, Wanted::Send, Wanted::Pair].get(step as usize);
            if let Some(&wanted) = wanted {
                let Ok(slots) = take(&mut table, &holder, wanted) else {
                    continue;
                };
                if slots.fresh {
                    assert!(!taken.iter().any(|&(page, _)| page == slots.page));
                    holders.insert(slots.page, holder.clone());
                }
                assert_eq!(holders.get(&slots.page), Some(&holder));
                for slot in [Some(slots.slot), slots.recv_slot].into_iter().flatten() {
                    assert!(!taken.contains(&(slots.page, slot)));
                    taken.push((slots.page, slot));
                }
            } else if !taken.is_empty() {
                let (page, slot) = taken.swap_remove(which % taken.len());
                table.give(page, Some(slot));
            }
        }
    }
}
