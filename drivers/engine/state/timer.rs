// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Timers of objects of one kind: a wheel, in which setting, stopping and expiring one takes the same time however many there are
//! (the kernel's `kernel/time/timer.c` has the same idea).

use crate::{
    hal::{NoMemory, Storage, Table},
    state::{
        list::{Linked, List},
        table::Objects,
    },
};

/// log2 of the slots of a level.
const LOG_SLOTS: u32 = 6;
const SLOTS: usize = 1 << LOG_SLOTS;
const LAST_SLOT: u64 = SLOTS as u64 - 1;
/// Levels, whose slots are 1 us, 64 us, 4 ms and 260 ms long: 17 s in all. A timer that is later than that is looked at in between.
const LEVELS: usize = 4;

/// Marks the lists of a wheel.
#[derive(Debug)]
pub(crate) enum Timed {}

/// An object's timer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Timer {
    /// When it expires, in microseconds of the node's clock; nothing while it is not set.
    at_us: Option<u64>,
    /// Level and slot that it is in.
    place: (u8, u8),
}

impl Timer {
    /// When it expires, if it is set.
    pub(crate) fn at_us(&self) -> Option<u64> {
        self.at_us
    }
}

/// An object that has a timer.
pub(crate) trait HasTimer: Linked<Timed> {
    fn timer(&self) -> &Timer;
    fn timer_mut(&mut self) -> &mut Timer;
}

/// The timers of objects of one kind.
pub(crate) struct TimerWheel<S: Storage> {
    /// A list for each slot of each level; none before [`TimerWheel::prepare`].
    slots: S::Table<List<Timed>>,
    /// Slots of each level that hold timers, a bit each.
    used: [u64; LEVELS],
    /// Microseconds of the node's clock that are over: no timer is before them.
    now_us: u64,
}

impl<S: Storage> Default for TimerWheel<S> {
    fn default() -> Self {
        Self {
            slots: S::Table::default(),
            used: [0; LEVELS],
            now_us: 0,
        }
    }
}

/// log2 of the microseconds of a level's slots.
const fn shift(level: usize) -> u32 {
    LOG_SLOTS.wrapping_mul(level as u32)
}

impl<S: Storage> TimerWheel<S> {
    /// Makes room for its lists. May allocate.
    pub(crate) fn prepare(&mut self) -> Result<(), NoMemory> {
        if self.slots.slots().is_empty() {
            self.slots.grow(LEVELS * SLOTS)?;
            for slot in self.slots.slots_mut() {
                *slot = Some(List::default());
            }
        }
        Ok(())
    }

    /// Sets an object's timer, or sets it anew. One that is never to expire (`u64::MAX`) is stopped.
    pub(crate) fn set<T: HasTimer, L: Table<T>, M: Table<u64>>(
        &mut self,
        objects: &mut Objects<T, L, M>,
        number: u32,
        at_us: u64,
    ) {
        self.stop(objects, number);
        if at_us == u64::MAX {
            return;
        }
        let (level, slot) = self.place(at_us);
        let Some(object) = objects.get_mut(number) else {
            return;
        };
        *object.timer_mut() = Timer {
            at_us: Some(at_us),
            place: (level as u8, slot as u8),
        };
        if let Some(list) = self.list(level, slot) {
            list.push(objects, number);
        }
        if let Some(used) = self.used.get_mut(level) {
            *used |= 1 << slot;
        }
    }

    /// Stops an object's timer, if it is set.
    pub(crate) fn stop<T: HasTimer, L: Table<T>, M: Table<u64>>(
        &mut self,
        objects: &mut Objects<T, L, M>,
        number: u32,
    ) {
        let timer = objects.get_mut(number).map(T::timer_mut);
        let Some(timer) = timer.filter(|timer| timer.at_us.is_some()) else {
            return;
        };
        timer.at_us = None;
        let (level, slot) = (usize::from(timer.place.0), usize::from(timer.place.1));
        let Some(list) = self.list(level, slot) else {
            return;
        };
        list.remove(objects, number);
        if list.is_empty() {
            if let Some(used) = self.used.get_mut(level) {
                *used &= !(1 << slot);
            }
        }
    }

    /// Stops a timer that has expired, and returns its object. Looks at one or two others at most, so it may find none
    /// though there are some: [`TimerWheel::next_us`] says whether to ask again.
    pub(crate) fn expire<T: HasTimer, L: Table<T>, M: Table<u64>>(
        &mut self,
        objects: &mut Objects<T, L, M>,
        now_us: u64,
    ) -> Option<u32> {
        for _ in 0..=LEVELS {
            let Some((start, level, slot)) = self.first().filter(|first| first.0 <= now_us) else {
                self.now_us = self.now_us.max(now_us);
                return None;
            };
            // All that is before has expired.
            self.now_us = self.now_us.max(start);
            let number = self.list(level, slot)?.first()?;
            let at_us = objects.get(number)?.timer().at_us?;
            self.stop(objects, number);
            if at_us <= now_us {
                return Some(number);
            }
            self.set(objects, number, at_us);
        }
        None
    }

    /// Whether no timer is set.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.used == [0; LEVELS]
    }

    /// When to ask for what has expired, if a timer is set: not later than the first one expires.
    pub(crate) fn next_us(&self) -> Option<u64> {
        self.first().map(|(start_us, ..)| start_us)
    }

    /// Level and slot of a time.
    fn place(&self, at_us: u64) -> (usize, usize) {
        let at_us = at_us.max(self.now_us);
        let ahead =
            |level: usize| (at_us >> shift(level)).wrapping_sub(self.now_us >> shift(level));
        let level = (0..LEVELS).find(|level| ahead(*level) < SLOTS as u64);
        let (level, at) = match level {
            Some(level) => (level, at_us >> shift(level)),
            // As late as there is a slot for; it is set anew then.
            None => (
                LEVELS - 1,
                (self.now_us >> shift(LEVELS - 1)).wrapping_add(LAST_SLOT),
            ),
        };
        (level, (at as usize) & (SLOTS - 1))
    }

    /// Start, level and slot of the first slot that holds timers.
    fn first(&self) -> Option<(u64, usize, usize)> {
        let starts = self.used.iter().enumerate().filter(|(_, used)| **used != 0);
        let firsts = starts.map(|(level, used)| {
            let now = self.now_us >> shift(level);
            let ahead = used.rotate_right((now & LAST_SLOT) as u32).trailing_zeros();
            let at = now.wrapping_add(u64::from(ahead));
            let start = (at << shift(level)).max(self.now_us);
            (start, level, (at as usize) & (SLOTS - 1))
        });
        // Of those that start together the coarsest: what is in it goes into finer ones first.
        firsts.min_by_key(|(start, level, _)| (*start, core::cmp::Reverse(*level)))
    }

    fn list(&mut self, level: usize, slot: usize) -> Option<&mut List<Timed>> {
        let at = (level << LOG_SLOTS) | slot;
        self.slots.slots_mut().get_mut(at)?.as_mut()
    }
}

#[cfg(test)]
#[expect(clippy::arithmetic_side_effects, reason = "a test may fail loudly")]
mod tests {
    extern crate std;

    use super::*;
    use crate::{
        hal::{VecStorage, VecTable},
        state::list::Links,
    };
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[derive(Default)]
    struct Object {
        links: Links,
        timer: Timer,
    }

    impl Linked<Timed> for Object {
        fn place_in_list(&mut self) -> &mut Links {
            &mut self.links
        }
    }

    impl HasTimer for Object {
        fn timer(&self) -> &Timer {
            &self.timer
        }

        fn timer_mut(&mut self) -> &mut Timer {
            &mut self.timer
        }
    }

    type All = Objects<Object, VecTable<Object>, VecTable<u64>>;

    fn wheel(count: u32) -> (TimerWheel<VecStorage>, All) {
        let (mut wheel, mut all) = (TimerWheel::default(), All::new(0, count));
        assert_eq!(wheel.prepare(), Ok(()));
        for _ in 0..count {
            assert!(all.insert(|_| Object::default()).is_ok());
        }
        (wheel, all)
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Set(u32, u64),
        Stop(u32),
        Pass(u64),
    }

    /// From no time at all to ten minutes, all magnitudes alike.
    fn time() -> impl Strategy<Value = u64> {
        (0..30u32, any::<u64>()).prop_map(|(bits, value)| value & ((1 << bits) - 1))
    }

    fn step() -> impl Strategy<Value = Step> {
        let number = 0..16u32;
        prop_oneof![
            3 => (number.clone(), time()).prop_map(|(number, us)| Step::Set(number, us)),
            1 => number.prop_map(Step::Stop),
            2 => time().prop_map(Step::Pass),
        ]
    }

    proptest! {
        /// Against a map of when each expires.
        #[test]
        fn timers_expire_when_they_are_due(start: u32, steps in prop::collection::vec(step(), 1..200)) {
            let (mut wheel, mut all) = wheel(16);
            let (mut now, mut model) = (u64::from(start), BTreeMap::new());
            for step in steps {
                match step {
                    Step::Set(number, us) => {
                        wheel.set(&mut all, number, now + us);
                        model.insert(number, now + us);
                    }
                    Step::Stop(number) => {
                        wheel.stop(&mut all, number);
                        model.remove(&number);
                    }
                    Step::Pass(us) => now += us,
                }
                let earliest = model.values().min().copied();
                prop_assert_eq!(wheel.next_us().is_some(), earliest.is_some());
                prop_assert!(wheel.next_us() <= earliest.map(|at| at.max(now)));
                let mut asked = 0;
                while wheel.next_us().is_some_and(|next| next <= now) {
                    if let Some(number) = wheel.expire(&mut all, now) {
                        let at = model.remove(&number);
                        prop_assert!(at.is_some_and(|at| at <= now), "{number} expired early or twice: {at:?}");
                    }
                    asked += 1;
                    prop_assert!(asked < 1000, "it finds no end");
                }
                prop_assert!(model.values().all(|at| *at > now), "late: {model:?} at {now}");
            }
        }
    }
}
