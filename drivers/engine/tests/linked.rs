// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Each node on a host of its own, with rings of the rig's own between them: few entries, so that they are full often. What is
//! different then is tested as well.

#![allow(clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "as above"
)]

#[path = "links/hostile_peer.rs"]
mod hostile_peer;
mod links;
mod suite;

/// What lies between the nodes of all tests.
const MODE: nupa_testing::Mode = nupa_testing::Mode::Linked;
