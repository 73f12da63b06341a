// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The function of a host that shares a pool of memory with others, and its place in that pool.
//!
//! [`PoolNode`] is one host's node: its function, its membership, and the links to the nodes of other hosts. It is the same in a kernel and in a
//! process; what differs is behind [`PoolHal`].

mod copy_queue;
mod demand;
mod hal;
mod node;
mod nodes;
mod peers;
mod rate_limit;

pub use self::{
    copy_queue::{CopyQueue, Counter, Piece, Word},
    hal::{Fault, Kicks, Notice, PoolHal, Vectors},
    node::{NodeState, PoolNode, Turn},
    nodes::PoolNodes,
    rate_limit::{RateLimit, DEPARTURES, FAULTS},
};
