// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The queue engine of the NUPA fabric controller.
//!
//! It takes work requests off send queues, checks them on both sides, moves the data once, from source to destination,
//! and reports completions and events. It owns the objects of each node ([`node::Node`]) and knows nothing of where
//! it runs: a host lends it memory, doorbells, interrupts and time through [`hal`], and containers through
//! [`storage`]. Hosts are the emulated controller in user space, the soft engine inside the kernel module, and tests.
//!
//! [`client`] is the other end of the same rings: what a driver, a user-space provider or a benchmark uses to post work
//! and to poll completions.
//!
//! Nothing here allocates on the data path, panics on what a guest or peer wrote, or needs `unsafe`.

#![cfg_attr(not(MODULE), no_std)]
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod client;
pub mod hal;
pub mod storage;
