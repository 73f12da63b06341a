// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The data path: from a doorbell to completions on both sides.

pub(crate) mod atomic;
pub(crate) mod bind;
pub(crate) mod budget;
pub(crate) mod engine;
pub(crate) mod events;
pub(crate) mod flush;
pub(crate) mod frame;
pub(crate) mod multicast;
pub(crate) mod poll;
pub(crate) mod recv;
pub(crate) mod requester;
pub(crate) mod responder;
pub(crate) mod rnr;
pub(crate) mod schedule;
mod shared;
pub(crate) mod srq;
pub(crate) mod sweep;
pub(crate) mod ud;
pub(crate) mod wait;
