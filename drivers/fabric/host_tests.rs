// SPDX-License-Identifier: GPL-2.0
//! Host tests of those parts of `nupa_fabric` that are pure logic (`cargo test`); the module itself is built by Kbuild.

#![forbid(unsafe_code)]
#![cfg(test)]

use core::fmt;

mod command;
mod event;
mod identity;
mod patience;
mod slots;
