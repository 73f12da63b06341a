// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a node is made of: objects, tables, requests, and what can be said of them without knowing the node.

pub(crate) mod access;
pub(crate) mod check;
pub(crate) mod copy;
pub(crate) mod counters;
pub(crate) mod cq;
pub(crate) mod deferred;
pub(crate) mod eq;
pub(crate) mod filter;
pub(crate) mod gid;
pub(crate) mod grant;
pub(crate) mod grh;
pub(crate) mod inflight;
pub(crate) mod kept;
pub(crate) mod latency;
pub(crate) mod limits;
pub(crate) mod list;
pub(crate) mod mr;
pub(crate) mod nak;
pub(crate) mod pages;
pub(crate) mod pd;
pub(crate) mod peer;
pub(crate) mod qp;
pub(crate) mod request;
pub(crate) mod resources;
pub(crate) mod ring;
pub(crate) mod round_robin;
pub(crate) mod rq;
pub(crate) mod slots;
pub(crate) mod sq;
pub(crate) mod srq;
pub(crate) mod stall;
pub(crate) mod table;
pub(crate) mod timer;
pub(crate) mod traffic;
pub(crate) mod wqe;
