// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Node slots: of hosts that claim one at the same time, exactly one gets it.

use crate::{check, coherent::Coherent, of_all_hosts, Hosts, Setup};
use nupa_pool::{JoinOptions, Pool};
use nupa_proto::pool::{PAGE, SLOT_SIZE};
use std::sync::Arc;

of_all_hosts! {
    #[test]
    fn a_slot_is_taken_by_one_host() { join }
}

#[test]
fn a_slot_is_taken_by_one_host_without_atomic_exchange() {
    check::<Coherent<true>>(join::<Coherent<true>>);
}

/// Hosts join at the same time, each of which would take the first slot.
fn join<H: Hosts>(setup: &Setup) {
    let claims = [PAGE, PAGE + SLOT_SIZE as u64];
    let hosts = H::map(setup.memory(), &claims);
    let pool = setup.pool;
    let [one, other] = hosts.clone();
    let (first, second) = H::run(
        &hosts,
        move |_| enter::<H>(&one, &pool, 1),
        move |_| enter::<H>(&other, &pool, 2),
    );
    assert_ne!(first, second, "both have the same slot");
}

/// Takes a slot, and says which.
fn enter<H: Hosts>(host: &Arc<H::Host>, pool: &Pool, token: u64) -> u16 {
    let options = JoinOptions::new(token);
    let joined = pool.join(&**host, &H::clock(host), &options);
    joined.unwrap().node()
}
