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
//! On the data path functions are small and inlined by force where Rust 1.85 would not: that is 5 % of a small request.
//!
//! Nothing here allocates on the data path, panics on what a guest or peer wrote, or needs `unsafe`.

#![cfg_attr(not(MODULE), no_std)]
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod check;
pub mod client;
pub mod engine;
pub mod fabric;
pub mod hal;
pub mod limits;
pub mod link;
pub mod node;
pub mod storage;

mod access;
mod atomic;
mod bind;
mod compose;
mod counters;
mod cq;
mod create;
mod create_mr;
mod create_qp;
mod create_srq;
mod datagram;
mod descriptor;
mod eq;
mod filter;
mod flight;
mod flush;
mod gid;
mod grh;
mod held;
mod initiator;
mod lending;
mod list;
mod membership;
mod modify_qp;
mod objects;
mod pages;
mod peer;
mod pool_link;
mod qp;
mod recv;
mod recv_queue;
mod region;
mod remote;
mod request;
mod resize_cq;
mod ring;
mod schedule;
mod slots;
mod span;
mod srq;
mod target;
mod wait;

pub use self::{
    counters::Volume,
    engine::Engine,
    fabric::Fabric,
    limits::Limits,
    link::{DirectLink, Link, NoLink},
    node::{Node, NodeConfig},
    peer::Peer,
    pool_link::{PoolLink, Shown},
};
