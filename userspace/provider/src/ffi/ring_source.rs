// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Process rings of queue pairs, as the kernel makes and finds them.

use core::ffi::c_int;
use std::env;
use std::sync::Arc;

use super::object::Plain;
use super::ring_memory::{find, make, map, RingObject};
use super::{kick, sys};
use crate::queue::{Keeper, MappedRegion, Owner, Ring, RingSource};

/// Environment variable that says which messages go past the engine.
const VARIABLE: &str = "NUPA_PROCESS_RINGS";

/// Which messages go past the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// None.
    Off,
    /// Those of queue pairs whose completion queues are polled only: they have no completion channel.
    Polled,
    /// Those that can.
    All,
    /// Some of those, at random: for tests.
    Mixed,
}

impl Mode {
    /// What the program's environment asks for.
    pub(super) fn of_environment() -> Self {
        match env::var(VARIABLE).as_deref() {
            Ok("0") => Self::Off,
            Ok("polled") => Self::Polled,
            Ok("mixed") => Self::Mixed,
            _ => Self::All,
        }
    }
}

/// A queue pair.
///
/// # Invariants
///
/// The kernel made it for this provider, and it exists whenever it is named.
#[derive(Clone, Copy, Debug)]
struct Pair(*mut sys::ibv_qp);

// SAFETY: the pointer is to an object that any thread may name in a command.
unsafe impl Send for Pair {}
// SAFETY: as above; the commands do not change it.
unsafe impl Sync for Pair {}

/// The memory of a ring that a queue pair receives with.
#[derive(Debug)]
struct Made {
    object: RingObject,
    pair: Pair,
}

/// The memory of a ring that its peer receives with, or of a region of its peer's.
#[derive(Debug)]
struct Found {
    #[expect(dead_code, reason = "keeps the memory")]
    object: RingObject,
}

/// The rings of a queue pair.
///
/// # Safety
///
/// The kernel made it for this provider. It exists for as long as it is posted to and polled, and its context is open for as long as there is
/// something of its rings.
pub(super) unsafe fn rings_of(qp: *mut sys::ibv_qp) -> Arc<dyn RingSource> {
    // INVARIANT: the caller's word.
    Arc::new(Pair(qp))
}

impl RingSource for Pair {
    fn find(&self) -> Option<Ring> {
        // SAFETY: the pair exists (invariant), and its context is open (`rings_of`).
        let (pages, object) = unsafe { find(self.0) }.ok()?;
        Some(Ring::new(pages, Box::new(Found { object })))
    }

    fn make(&self) -> Option<Ring> {
        // SAFETY: as above.
        let (pages, object) = unsafe { make(self.0) }.ok()?;
        let pair = *self;
        Some(Ring::new(pages, Box::new(Made { object, pair })))
    }

    fn map_region(&self, key: u32) -> Option<MappedRegion> {
        // SAFETY: as above.
        let (pages, place, object) = unsafe { map(self.0, key) }.ok()?;
        Some(MappedRegion {
            pages,
            addr: place.addr.get(),
            len: place.len.get(),
            owner: Box::new(Found { object }),
        })
    }

    fn kick_peer(&self) {
        // SAFETY: as above.
        unsafe { kick::kick_peer(self.0) };
    }

    fn make_event(&self) {
        // SAFETY: as above.
        unsafe { kick::make_event(self.0) };
    }

    fn fail(&self) {
        let mut request = sys::ibv_modify_qp::zeroed();
        let size = size_of_val(&request);
        // SAFETY: integers and arrays of integers.
        let mut attr: sys::ibv_qp_attr = unsafe { std::mem::zeroed() };
        attr.qp_state = sys::IBV_QPS_ERR;
        let mask = c_int::from_ne_bytes(sys::IBV_QP_STATE.to_ne_bytes());
        // SAFETY: the pair exists (invariant); ours live across the call. If it fails the pair is in error, or the device is gone.
        unsafe { sys::ibv_cmd_modify_qp(self.0, &raw mut attr, mask, &raw mut request, size) };
    }
}

impl Owner for Made {
    fn publish(&self) -> bool {
        // SAFETY: the pair exists (invariant); the memory was made for it.
        unsafe { self.object.publish(self.pair.0) }.is_ok()
    }
}

impl Keeper for Found {}

impl Owner for Found {
    fn publish(&self) -> bool {
        false
    }
}
