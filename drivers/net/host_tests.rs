// SPDX-License-Identifier: GPL-2.0
//! Those parts of `nupa_net` that are pure logic, for tests on the host (`cargo test`) and for `userspace/fuzz`; the module itself is
//! built by Kbuild.

#![forbid(unsafe_code)]

#[cfg(test)]
mod adaptive;
mod offload;
mod offload_fuzz;
#[cfg(test)]
mod offload_tests;

pub use offload_fuzz::frames;
