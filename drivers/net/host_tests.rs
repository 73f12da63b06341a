// SPDX-License-Identifier: GPL-2.0
//! Host tests of those parts of `nupa_net` that are pure logic (`cargo test`); the module itself is built by Kbuild.

#![forbid(unsafe_code)]
#![cfg(test)]

mod adaptive;
mod offload;
mod offload_tests;
