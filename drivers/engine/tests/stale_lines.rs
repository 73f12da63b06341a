// SPDX-License-Identifier: GPL-2.0 OR MIT
//! As in `stale`, with entries of lines in the rings.

#![allow(clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "as above"
)]

mod links;
mod suite;

/// What lies between the nodes of all tests.
const MODE: nupa_testing::Mode = nupa_testing::Mode::StaleLines;
