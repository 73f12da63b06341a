// SPDX-License-Identifier: GPL-2.0 OR MIT
//! As in `pooled`, but the hosts' caches are not coherent: lines move when told to, or at random.

#![allow(clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "as above"
)]

mod links;
mod suite;

/// What lies between the nodes of all tests.
const MODE: nupa_testing::Mode = nupa_testing::Mode::Stale;
