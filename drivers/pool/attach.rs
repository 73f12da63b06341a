// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Looking at what a pool is.

use crate::{geometry::Geometry, refusal::Refusal, Poisoned, Time, Window};
use core::ops::Range;
use nupa_proto::pool::{
    crc32, inbox::VERSION_INBOXES, state_word, PoolState, Superblock, MAGIC, POOL_NON_COHERENT,
    STATE_GENERATION_SHIFT, STATE_OFFSET, VERSION,
};
use zerocopy::{FromZeros, IntoBytes};

/// A pool that was checked. It is a description; the memory is the caller's [`Window`].
#[derive(Clone, Copy, Debug)]
pub struct Pool {
    geometry: Geometry,
    fabric_id: u64,
    /// State word that it must keep.
    state: u64,
}

/// Most often that a pool is looked at anew because others changed it.
pub(crate) const ATTEMPTS: u32 = 100;
/// How long somebody who is formatting may take.
const FORMAT_TIMEOUT_US: u64 = 2_000_000;
/// Steps in which it is waited.
const STEP_US: u64 = 10_000;

/// What was found in memory that may hold a pool.
#[derive(Clone, Copy, Debug)]
pub struct Survey {
    /// State word that it was found with.
    #[cfg_attr(MODULE, expect(dead_code, reason = "for who formats"))]
    pub(crate) state: u64,
    found: Result<Pool, Refusal>,
}

impl Survey {
    /// Reads the memory's head, and writes nothing. Waits for whoever is formatting it, some seconds at most.
    pub fn new(window: &impl Window, time: &impl Time) -> Self {
        for _ in 0..ATTEMPTS {
            let state = match read_state(window) {
                Ok(state) => state,
                Err(Poisoned { offset }) => {
                    return Self {
                        state: 0,
                        found: Err(Refusal::Poisoned { offset }),
                    }
                }
            };
            let found = Pool::inspect(window, state);
            if found.is_ok() {
                return Self { state, found };
            }
            // Who died while formatting is not waited for any longer.
            let formatting = is_formatting(state) && !is_stuck(window, time, state);
            if !formatting && read_state(window) == Ok(state) {
                return Self { state, found };
            }
        }
        Self {
            state: 0,
            found: Err(Refusal::Busy),
        }
    }

    /// The pool, or why the memory holds none that can be used.
    pub fn pool(&self) -> Result<Pool, Refusal> {
        self.found
    }
}

impl Pool {
    /// Checks the pool, whichever of the known layouts it has. Waits for whoever is formatting it, some seconds at most.
    pub fn attach(window: &impl Window, time: &impl Time) -> Result<Self, Refusal> {
        Survey::new(window, time).pool()
    }

    fn inspect(window: &impl Window, state: u64) -> Result<Self, Refusal> {
        let mut block = Superblock::new_zeroed();
        window.refresh(0, size_of::<Superblock>() as u64);
        let read = window.read(0, block.as_mut_bytes());
        read.map_err(|Poisoned { offset }| Refusal::Poisoned { offset })?;
        if block.magic.get() != MAGIC {
            return Err(Refusal::Unformatted);
        }
        let found = block.version.get();
        if found != VERSION && found != VERSION_INBOXES {
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
    pub(crate) fn is_there(&self, window: &impl Window) -> Result<bool, Poisoned> {
        Ok(read_state(window)? == self.state)
    }
}

/// The state word as it is in the pool.
pub(crate) fn read_state(window: &impl Window) -> Result<u64, Poisoned> {
    window.refresh(STATE_OFFSET, size_of::<u64>() as u64);
    window.load(STATE_OFFSET)
}

/// Whether somebody is formatting the pool.
pub(crate) fn is_formatting(state: u64) -> bool {
    state == state_word(state >> STATE_GENERATION_SHIFT, PoolState::Formatting)
}

/// Waits as long as the state word stays what it is, and tells whether that is too long.
fn is_stuck(window: &impl Window, time: &impl Time, state: u64) -> bool {
    let start = time.now_us();
    while read_state(window) == Ok(state) {
        if time.now_us().saturating_sub(start) >= FORMAT_TIMEOUT_US {
            return true;
        }
        time.sleep_us(STEP_US);
    }
    false
}
