// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Formatting a pool, while others may want to do the same.

use crate::{attach::read_state, geometry::Geometry, refusal::Refusal, Options, Time, Window};
use core::ops::Range;
use nupa_proto::pool::{
    crc32, state_word, Class, PoolState, Superblock, LINE, MAGIC, POOL_NON_COHERENT, STATE_OFFSET,
    VERSION,
};
use zerocopy::{FromZeros, IntoBytes};

/// How long a claim is left alone before it counts. More than anybody takes from reading such a word to seeing their own claim in
/// the pool: whoever read it before and claims later shows within this time.
pub(crate) const SETTLE_US: u64 = 100_000;
/// How long somebody who is formatting may take.
const PATIENCE_US: u64 = 2_000_000;
/// Steps in which it is waited.
const STEP_US: u64 = 10_000;

/// Formats a pool.
pub(crate) struct Formatter<'a, W, T> {
    window: &'a W,
    time: &'a T,
    options: &'a Options,
}

impl<'a, W: Window, T: Time> Formatter<'a, W, T> {
    pub(crate) fn new(window: &'a W, time: &'a T, options: &'a Options) -> Self {
        Self {
            window,
            time,
            options,
        }
    }

    /// Waits as long as the state word stays what it is, and tells whether that is too long.
    pub(crate) fn is_stuck(&self, state: u64) -> bool {
        let start = self.time.now_us();
        while read_state(self.window) == state {
            if self.time.now_us().saturating_sub(start) >= PATIENCE_US {
                return true;
            }
            self.time.sleep_us(STEP_US);
        }
        false
    }

    /// Formats the pool if its state word is still `state`; the caller looks at what there is then.
    pub(crate) fn format(&self, state: u64) -> Result<(), Refusal> {
        let (mapped, nodes) = (self.window.len(), self.options.max_nodes);
        let geometry =
            Geometry::choose(mapped, nodes).ok_or(Refusal::TooSmall { mapped, nodes })?;
        let mine = state_word(self.options.token, PoolState::Formatting);
        if !self.replace_state(state, mine) {
            return Ok(());
        }
        self.time.sleep_us(SETTLE_US);
        if read_state(self.window) != mine {
            return Ok(());
        }
        self.clear(&geometry);
        self.describe(&geometry);
        let valid = state_word(self.options.token, PoolState::Valid);
        self.replace_state(mine, valid);
        Ok(())
    }

    fn replace_state(&self, current: u64, new: u64) -> bool {
        let done = self.window.compare_exchange(STATE_OFFSET, current, new);
        self.window.publish(STATE_OFFSET, size_of::<u64>() as u64);
        done
    }

    /// Clears what must not be mistaken for something: node slots, and both lines of each ring.
    fn clear(&self, geometry: &Geometry) {
        zero(self.window, geometry.slots());
        for source in 0..geometry.max_nodes() {
            for target in (0..geometry.max_nodes()).filter(|target| *target != source) {
                for class in Class::ALL {
                    let place = geometry.ring(source, target, *class);
                    for line in [place.producer(), place.consumer()] {
                        zero(self.window, line..line.saturating_add(LINE));
                    }
                }
            }
        }
    }

    fn describe(&self, geometry: &Geometry) {
        let mut block = Superblock::new_zeroed();
        block.magic.set(MAGIC);
        block.version.set(VERSION);
        block.fabric_id.set(self.options.token);
        let flags = if self.window.is_coherent() {
            0
        } else {
            POOL_NON_COHERENT
        };
        block.flags.set(flags);
        geometry.describe(&mut block);
        block.check.set(crc32(block.as_bytes()));
        self.window.write(0, block.as_bytes());
        self.window.publish(0, size_of::<Superblock>() as u64);
    }
}

/// Zeroes lines, and lets others see that.
pub(crate) fn zero(window: &impl Window, range: Range<u64>) {
    let zeroes = [0; LINE as usize];
    for line in range.clone().step_by(LINE as usize) {
        window.write(line, &zeroes);
    }
    let len = range.end.saturating_sub(range.start);
    window.publish(range.start, len);
}
