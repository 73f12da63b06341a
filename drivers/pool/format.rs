// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Formatting a pool, while others may want to do the same. It is for programs that an administrator calls: drivers have none of
//! this.

use crate::{
    attach::read_state, geometry::Geometry, refusal::Refusal, window::zero, Pool, Survey, Time,
    Window, SETTLE_US,
};
use nupa_proto::pool::{
    crc32, state_word, Class, PoolState, Superblock, LINK_WORDS, MAGIC, POOL_NON_COHERENT,
    STATE_OFFSET, VERSION,
};
use zerocopy::{FromZeros, IntoBytes};

/// What a pool that is formatted is to be.
#[derive(Clone, Copy, Debug)]
pub struct FormatOptions {
    /// Node slots.
    pub max_nodes: u16,
    /// A random number.
    pub token: u64,
}

impl Survey {
    /// Formats the memory as a pool, coherent or not as the window says. What it was found to hold is lost, unless it is a pool of
    /// another version or size, which is refused. [`Refusal::Busy`] if it holds something else by now. Sleeps.
    ///
    /// Whoever uses a pool that was there is evicted; [`Pool::nodes`] tells who they are.
    pub fn format(
        &self,
        window: &impl Window,
        time: &impl Time,
        options: &FormatOptions,
    ) -> Result<Pool, Refusal> {
        match self.pool() {
            Err(refusal) if !refusal.can_format() => return Err(refusal),
            _ => {}
        }
        let (mapped, nodes) = (window.len(), options.max_nodes);
        let geometry =
            Geometry::choose(mapped, nodes).ok_or(Refusal::TooSmall { mapped, nodes })?;
        let formatter = Formatter { window, options };
        formatter.format(time, &geometry, self.state)?;
        Pool::attach(window, time)
    }
}

impl Pool {
    /// Checks the pool, or formats memory that holds none if `may` says so. Of hosts that do this at once one formats. Sleeps.
    pub fn attach_or_format(
        window: &impl Window,
        time: &impl Time,
        options: &FormatOptions,
        may: impl Fn(&Refusal) -> bool,
    ) -> Result<Self, Refusal> {
        loop {
            let survey = Survey::new(window, time);
            match survey.pool() {
                Err(refusal) if may(&refusal) && refusal.can_format() => {}
                found => return found,
            }
            match survey.format(window, time, options) {
                Err(Refusal::Busy) => {}
                formatted => return formatted,
            }
        }
    }
}

/// Formats a pool.
struct Formatter<'a, W> {
    window: &'a W,
    options: &'a FormatOptions,
}

impl<W: Window> Formatter<'_, W> {
    /// Formats the pool if its state word is still `state`.
    fn format(&self, time: &impl Time, geometry: &Geometry, state: u64) -> Result<(), Refusal> {
        let mine = state_word(self.options.token, PoolState::Formatting);
        if !self.replace_state(state, mine) {
            return Err(Refusal::Busy);
        }
        time.sleep_us(SETTLE_US);
        if read_state(self.window) != Ok(mine) {
            return Err(Refusal::Busy);
        }
        self.clear(geometry);
        self.describe(geometry);
        let valid = state_word(self.options.token, PoolState::Valid);
        match self.replace_state(mine, valid) {
            true => Ok(()),
            false => Err(Refusal::Busy),
        }
    }

    fn replace_state(&self, current: u64, new: u64) -> bool {
        let done = self.window.compare_exchange(STATE_OFFSET, current, new);
        self.window.publish(STATE_OFFSET, size_of::<u64>() as u64);
        done == Ok(true)
    }

    /// Clears what must not be mistaken for something: node slots, and the words of all rings.
    fn clear(&self, geometry: &Geometry) {
        zero(self.window, geometry.slots());
        for source in 0..geometry.max_nodes() {
            for target in (0..geometry.max_nodes()).filter(|target| *target != source) {
                let words = geometry.ring(source, target, Class::Request).producer();
                zero(self.window, words..words.saturating_add(LINK_WORDS));
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
