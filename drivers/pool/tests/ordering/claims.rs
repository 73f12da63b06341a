// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Node slots: of hosts that claim one at the same time, exactly one gets it.

use crate::{
    memory::{cold, heat, Memory, Sleeps},
    model, spawn,
};
use nupa_pool::{JoinOptions, Pool};
use nupa_proto::pool::{PAGE, SLOT_SIZE};
use std::{cell::Cell, sync::Arc};

fn sleeps(memory: &Arc<Memory>) -> Sleeps {
    Sleeps {
        memory: memory.clone(),
        now: Cell::new(0),
    }
}

/// Hosts join at the same time, each of which would take the first slot.
fn join(memory: Memory, pool: &Pool) {
    let claims = [PAGE, PAGE + SLOT_SIZE as u64];
    let memory = Arc::new(heat(memory, &claims));
    let enter = |token| {
        let (memory, pool) = (memory.clone(), *pool);
        spawn(move || {
            let options = JoinOptions::new(token);
            let joined = pool.join(&*memory, &sleeps(&memory), &options);
            joined.unwrap().node()
        })
    };
    let [first, second] = [1, 2].map(enter).map(|host| host.join().unwrap());
    assert_ne!(first, second, "both have the same slot");
}

#[test]
fn a_slot_is_taken_by_one_host() {
    model(|bytes, pool| join(cold(bytes.to_vec()), pool));
}

#[test]
fn a_slot_is_taken_by_one_host_without_atomic_exchange() {
    model(|bytes, pool| join(cold(bytes.to_vec()).torn(), pool));
}
