// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A hostile guest: random registers, commands, rings, doorbells and DMA maps.
//!
//! Whatever it does, the process lives, memory that it did not share stays as it was, and its neighbours' frames arrive
//! unharmed.
//!
//! `PROPTEST_CASES=100000 cargo test --release -p nupa-fuzz --test hostile` looks longer.

#![allow(
    clippy::arithmetic_side_effects,
    reason = "test code: a panic is a failed test"
)]

mod strategies;

use nupa_fuzz::storm;
use proptest::collection::vec;
use proptest::prelude::*;

use strategies::action;

/// How many hostile guests there are: enough for each change, or as many as the environment asks for.
fn cases() -> u32 {
    let asked = std::env::var("PROPTEST_CASES").ok();
    asked.and_then(|cases| cases.parse().ok()).unwrap_or(400)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_hostile_guest_hurts_only_itself(actions in vec(action(), 1..150)) {
        storm(&actions);
    }
}
