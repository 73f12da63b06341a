// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Looking at what a pool is.

use crate::{format::Formatter, geometry::Geometry, refusal::Refusal, Time, Window};
use core::ops::Range;
use nupa_proto::pool::{
    crc32, state_word, PoolState, Superblock, MAGIC, POOL_NON_COHERENT, STATE_GENERATION_SHIFT,
    STATE_OFFSET, VERSION,
};
use zerocopy::{FromZeros, IntoBytes};

/// What to do with a pool that is not there yet.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Format it. One that is there is never formatted again.
    pub format: bool,
    /// Node slots that it gets then.
    pub max_nodes: u16,
    /// A random number.
    pub token: u64,
}

/// A pool that was checked. It is a description; the memory is the caller's [`Window`].
#[derive(Clone, Copy, Debug)]
pub struct Pool {
    geometry: Geometry,
    fabric_id: u64,
    /// State word that it must keep.
    state: u64,
}

/// Most often that a pool is looked at anew because others changed it.
const ATTEMPTS: u32 = 100;

impl Pool {
    /// Checks the pool, and formats it if it is not there and `options` say so. Waits for others that are formatting it.
    ///
    /// May sleep, for some seconds if somebody died while formatting.
    pub fn attach(
        window: &impl Window,
        time: &impl Time,
        options: &Options,
    ) -> Result<Self, Refusal> {
        let formatter = Formatter::new(window, time, options);
        for _ in 0..ATTEMPTS {
            let state = read_state(window);
            let refusal = match Self::inspect(window, state) {
                Ok(pool) => return Ok(pool),
                Err(refusal) => refusal,
            };
            // Who died while formatting is not waited for any longer.
            let formatting = is_formatting(state) && !formatter.is_stuck(state);
            if formatting || read_state(window) != state {
                continue;
            }
            if !options.format || !refusal.can_format() {
                return Err(refusal);
            }
            formatter.format(state)?;
        }
        Err(Refusal::Busy)
    }

    fn inspect(window: &impl Window, state: u64) -> Result<Self, Refusal> {
        let mut block = Superblock::new_zeroed();
        window.refresh(0, size_of::<Superblock>() as u64);
        window.read(0, block.as_mut_bytes());
        if block.magic.get() != MAGIC {
            return Err(Refusal::Unformatted);
        }
        let found = block.version.get();
        if found != VERSION {
            return Err(Refusal::Version { found });
        }
        let check = core::mem::take(&mut block.check).get();
        let geometry = Geometry::read(&block).ok_or(Refusal::Corrupt)?;
        let valid = state & 0xff == u64::from(PoolState::Valid.to_wire());
        if check != crc32(block.as_bytes()) || !valid {
            return Err(Refusal::Corrupt);
        }
        let (formatted, mapped) = (geometry.size(), window.len());
        if formatted != mapped {
            return Err(Refusal::Size { formatted, mapped });
        }
        let formatted = block.flags.get() & POOL_NON_COHERENT == 0;
        if formatted != window.is_coherent() {
            return Err(Refusal::Coherence { formatted });
        }
        Ok(Self {
            geometry,
            fabric_id: block.fabric_id.get(),
            state,
        })
    }

    /// What lies where.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Random identity of the fabric.
    pub fn fabric_id(&self) -> u64 {
        self.fabric_id
    }

    /// Where the device memory that a node offers to programs lies. Empty if there is none.
    pub fn device_memory(&self, node: u16) -> Range<u64> {
        self.geometry.device_memory(node)
    }

    /// Whether it was not formatted anew since.
    pub(crate) fn is_there(&self, window: &impl Window) -> bool {
        read_state(window) == self.state
    }
}

/// The state word as it is in the pool.
pub(crate) fn read_state(window: &impl Window) -> u64 {
    window.refresh(STATE_OFFSET, size_of::<u64>() as u64);
    window.load(STATE_OFFSET)
}

/// Whether somebody is formatting the pool.
pub(crate) fn is_formatting(state: u64) -> bool {
    state == state_word(state >> STATE_GENERATION_SHIFT, PoolState::Formatting)
}
