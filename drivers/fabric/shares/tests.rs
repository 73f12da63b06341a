// SPDX-License-Identifier: GPL-2.0
//! Tests of what users get.

use super::*;
use std::collections::HashMap;

/// A table in memory of the test, with room for so many at most.
#[derive(Debug)]
struct Room<const MOST: usize>(Vec<Option<UserCount>>);

impl<const MOST: usize> Default for Room<MOST> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<const MOST: usize> Table<UserCount> for Room<MOST> {
    fn slots(&self) -> &[Option<UserCount>] {
        &self.0
    }

    fn slots_mut(&mut self) -> &mut [Option<UserCount>] {
        &mut self.0
    }

    fn grow(&mut self, len: usize) -> Result<(), NoMemory> {
        if len > MOST {
            return Err(NoMemory);
        }
        while self.0.len() < len {
            self.0.push(None);
        }
        Ok(())
    }
}

type Counts = Shares<Room<1000>>;

const ALL: u32 = 512;

fn counts(all: u32) -> Counts {
    Shares::new(all, kernel_reserve(all))
}

/// Takes for a user until it is refused; how many it got, and why not one more.
fn exhaust<T: Table<UserCount>>(counts: &mut Shares<T>, user: u32) -> (u32, Refused) {
    for count in 0.. {
        if let Err(refused) = counts.take(user, || false) {
            return (count, refused);
        }
    }
    unreachable!("there is a limit")
}

#[test]
fn a_user_leaves_as_much_as_it_has() {
    let mut counts = counts(ALL);
    assert_eq!(exhaust(&mut counts, 1), (240, Refused::UserLimit));
    assert_eq!(exhaust(&mut counts, 2), (120, Refused::UserLimit));
    assert_eq!(exhaust(&mut counts, 3), (60, Refused::UserLimit));
    // What one gives back another can have.
    for _ in 0..100 {
        counts.give(Some(1));
    }
    assert_eq!(exhaust(&mut counts, 4), (80, Refused::UserLimit));
}

#[test]
fn all_that_is_given_back_can_be_had_again() {
    let mut counts = counts(ALL);
    for user in 0..20 {
        let (count, _) = exhaust(&mut counts, user);
        (0..count).for_each(|_| counts.give(Some(user)));
        counts.take_for_kernel();
        counts.give(None);
        assert_eq!(count, 240);
    }
    // Users that have nothing take no memory.
    assert_eq!(counts.counts.0.len(), 1);
}

#[test]
fn nobody_but_the_kernel_gets_its_reserve() {
    let mut counts = counts(ALL);
    let users = (0..).take_while(|user| counts.take(*user, || true).is_ok());
    assert_eq!(users.count(), 480);
    assert_eq!(exhaust(&mut counts, 1000), (0, Refused::NoneLeft));
    counts.give(Some(0));
    (0..32).for_each(|_| counts.take_for_kernel());
    assert_eq!(counts.take(1000, || true), Ok(()));
    counts.give(Some(1000));
    // What it has beyond its reserve is not the users'.
    counts.take_for_kernel();
    assert_eq!(counts.take(1000, || true), Err(Refused::NoneLeft));
}

#[test]
fn without_a_reserve_users_get_all() {
    let mut counts = Counts::new(256, 0);
    assert_eq!(exhaust(&mut counts, 1), (128, Refused::UserLimit));
    for _ in 0..128 {
        assert_eq!(counts.take(1, || true), Ok(()));
    }
    assert_eq!(exhaust(&mut counts, 2), (0, Refused::NoneLeft));
}

#[test]
fn the_last_one_is_a_user_s() {
    assert_eq!(exhaust(&mut counts(0), 1), (0, Refused::NoneLeft));
    assert_eq!(exhaust(&mut counts(1), 1), (0, Refused::NoneLeft));
    assert_eq!(exhaust(&mut counts(2), 1), (1, Refused::NoneLeft));
    assert_eq!(exhaust(&mut counts(3), 1), (1, Refused::UserLimit));
}

#[test]
fn what_cannot_be_counted_is_not_taken() {
    let mut counts = Shares::<Room<2>>::new(ALL, 0);
    assert_eq!(counts.take(1, || false), Ok(()));
    assert_eq!(counts.take(2, || false), Ok(()));
    assert_eq!(counts.take(3, || false), Err(Refused::NoMemory));
    assert_eq!(counts.users, 2);
    counts.give(Some(1));
    assert_eq!(counts.take(3, || false), Ok(()));
}

#[test]
fn what_nobody_has_taken_changes_nothing() {
    let mut counts = counts(ALL);
    counts.take(1, || false).unwrap();
    counts.give(Some(2));
    counts.give(None);
    assert_eq!((counts.users, counts.kernel), (1, 0));
    counts.give(Some(1));
    counts.give(Some(1));
    assert_eq!(counts.users, 0);
}

proptest::proptest! {
    #[test]
    fn counts_are_those_of_the_holders(
        steps in proptest::collection::vec((0u32..5, proptest::bool::ANY, proptest::bool::ANY), 0..400),
    ) {
        let mut counts = counts(40);
        let mut model = HashMap::<u32, u32>::new();
        for (user, take, unlimited) in steps {
            let users: u32 = model.iter().filter(|(user, _)| **user != 0).map(|(_, count)| count).sum();
            let had = model.entry(user).or_default();
            match (user, take) {
                (0, true) => {
                    counts.take_for_kernel();
                    *had += 1;
                }
                (_, true) => {
                    if counts.take(user, || unlimited).is_ok() {
                        assert!(users < 40);
                        *had += 1;
                    }
                }
                (_, false) if *had > 0 => {
                    counts.give((user != 0).then_some(user));
                    *had -= 1;
                }
                _ => {}
            }
        }
        let kernel = model.remove(&0).unwrap_or(0);
        assert_eq!(counts.kernel, kernel);
        assert_eq!(counts.users, model.values().sum::<u32>());
        model.retain(|_, count| *count > 0);
        let found = counts.counts.0.iter().flatten().map(|entry| (entry.user, entry.count));
        assert_eq!(found.collect::<HashMap<_, _>>(), model);
    }
}
