// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The queue engine of the NUPA fabric controller.
//!
//! It takes work requests off send queues, checks them on both sides, moves the data once, from source to destination,
//! and reports completions and events. It owns the objects of each node ([`node::Node`]) and knows nothing of where
//! it runs: a host provides memory, doorbells, interrupts, time and containers through [`hal`]. Hosts are the emulated controller in user space, the pool back end inside the kernel module, and tests.
//!
//! [`rings`] is the other end of the same rings: what a driver, a user-space provider or a benchmark uses to post work
//! and to poll completions.
//!
//! On the data path functions are small and inlined by force where Rust 1.85 would not: that is 5 % of a small request.
//!
//! Nothing here allocates on the data path, panics on what a guest or peer wrote, or needs `unsafe`.

#![cfg_attr(not(MODULE), no_std)]
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod hal;
pub mod link;
pub mod node;
pub mod rings;

mod admin;
mod nodes;
mod path;
mod pool;
mod state;

pub use self::{
    link::{DirectLink, Link, NoLink},
    node::{Node, NodeConfig},
    nodes::NodeTable,
    path::engine::Engine,
    pool::{
        grant::WRITERS_PAUSE_US,
        link::{PoolLink, Shown},
        mapping::MappedGrant,
    },
    state::{
        check::{Check, WcError},
        counters::Volume,
        limits::Limits,
        peer::Peer,
        resources::Resources,
    },
};
