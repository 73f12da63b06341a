// SPDX-License-Identifier: GPL-2.0 OR MIT
//! All nodes on one host.

#![allow(clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "as above"
)]

mod suite;

/// What lies between the nodes of all tests.
const MODE: nupa_testing::Mode = nupa_testing::Mode::Local;
