// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Formatting and discarding a pool, while others may want to do the same. It is for programs that an administrator calls: drivers have none of
//! this.

use crate::{
    attach::{read_state, ATTEMPTS},
    geometry::{Format, Geometry},
    refusal::Refusal,
    window::zero,
    Pool, Survey, Time, Window, SETTLE_US,
};
use nupa_proto::pool::{
    crc32, state_word, Class, PoolState, Superblock, LINE, LINK_WORDS, MAGIC, PAGE,
    POOL_NON_COHERENT, STATE_OFFSET,
};
use zerocopy::{FromZeros, IntoBytes};

/// What a pool that is formatted is to be.
#[derive(Clone, Copy, Debug)]
pub struct FormatOptions {
    /// Node slots.
    pub max_nodes: u16,
    /// What the pool is to have behind them.
    pub format: Format,
    /// A random number.
    pub token: u64,
}

impl FormatOptions {
    /// A pool for so many nodes, with rings for every two of them.
    pub fn new(max_nodes: u16, token: u64) -> Self {
        Self {
            max_nodes,
            format: Format::Areas,
            token,
        }
    }
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
        let geometry = Geometry::choose(mapped, nodes, options.format)
            .ok_or(Refusal::TooSmall { mapped, nodes })?;
        let formatter = Formatter { window, options };
        formatter.format(time, &geometry, self.state)?;
        Pool::attach(window, time)
    }
}

impl Survey {
    /// Makes memory hold no pool: its first 4 KiB are zero then. Neither version nor size of the pool matters. [`Refusal::Busy`] if it
    /// holds something else by now. Sleeps.
    ///
    /// Nodes that use the pool are evicted, if it is of this version; [`Pool::nodes`] tells which do. `token` is a random number.
    pub fn discard(
        &self,
        window: &impl Window,
        time: &impl Time,
        token: u64,
    ) -> Result<(), Refusal> {
        if let Err(refusal @ (Refusal::Unformatted | Refusal::Poisoned { .. } | Refusal::Busy)) =
            self.pool()
        {
            return Err(refusal);
        }
        let mine = claim_memory(window, time, self.state, token)?;
        // From the superblock on that is no pool; who formats it anew at once finds the state word changed, or changes it.
        zero(window, 0..STATE_OFFSET);
        zero(window, STATE_OFFSET.saturating_add(LINE)..PAGE);
        match replace_state(window, mine, 0) {
            true => Ok(()),
            false => Err(Refusal::Busy),
        }
    }
}

impl Pool {
    /// Checks the pool, or formats memory that holds none if `may` says so. Of hosts that do this at once one formats.
    /// [`Refusal::Busy`] if others keep changing it. Sleeps.
    pub fn attach_or_format(
        window: &impl Window,
        time: &impl Time,
        options: &FormatOptions,
        may: impl Fn(&Refusal) -> bool,
    ) -> Result<Self, Refusal> {
        for _ in 0..ATTEMPTS {
            let survey = Survey::new(window, time);
            match survey.pool() {
                Err(refusal) if may(&refusal) && refusal.can_format() => {}
                // What `may` has looked at may be what another host has begun to write since.
                Err(refusal) if refusal.can_format() && read_state(window) != Ok(survey.state) => {
                    continue;
                }
                found => return found,
            }
            match survey.format(window, time, options) {
                Err(Refusal::Busy) => {}
                formatted => return formatted,
            }
        }
        Err(Refusal::Busy)
    }
}

/// Claims memory whose state word is still `state`, for who formats or discards it; the state word then. Sleeps.
fn claim_memory(
    window: &impl Window,
    time: &impl Time,
    state: u64,
    token: u64,
) -> Result<u64, Refusal> {
    let mine = state_word(token, PoolState::Formatting);
    if !replace_state(window, state, mine) {
        return Err(Refusal::Busy);
    }
    time.sleep_us(SETTLE_US);
    match read_state(window) == Ok(mine) {
        true => Ok(mine),
        false => Err(Refusal::Busy),
    }
}

fn replace_state(window: &impl Window, current: u64, new: u64) -> bool {
    // As for a claim word.
    if read_state(window) != Ok(current) {
        return false;
    }
    let done = window.compare_exchange(STATE_OFFSET, current, new);
    window.publish(STATE_OFFSET, size_of::<u64>() as u64);
    done == Ok(true)
}

/// Formats a pool.
struct Formatter<'a, W> {
    window: &'a W,
    options: &'a FormatOptions,
}

impl<W: Window> Formatter<'_, W> {
    /// Formats the pool if its state word is still `state`.
    fn format(&self, time: &impl Time, geometry: &Geometry, state: u64) -> Result<(), Refusal> {
        let mine = claim_memory(self.window, time, state, self.options.token)?;
        self.clear(geometry);
        self.describe(geometry);
        let valid = state_word(self.options.token, PoolState::Valid);
        match replace_state(self.window, mine, valid) {
            true => Ok(()),
            false => Err(Refusal::Busy),
        }
    }

    /// Clears what must not be mistaken for something: node slots, and the words of all rings, or what nodes say about each other. The words of an inbox
    /// who has it clears before it lends it.
    fn clear(&self, geometry: &Geometry) {
        zero(self.window, geometry.slots());
        if let Some(rows) = geometry.rows() {
            return zero(self.window, rows);
        }
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
