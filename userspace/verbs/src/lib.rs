// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Connected (RC) queue pairs of RDMA devices, for programs that have to run on hosts without rdma-core as well.
//!
//! libibverbs is loaded when a device is opened ([`Context::open`]), and stays loaded. What the kernel or the library refuses is an
//! [`Error`]. Objects keep what they depend on; they are destroyed when the last of them is dropped.
//!
//! # Memory that others write
//!
//! A device, and by it a peer, writes to registered memory at any time. So it consists of atomics: there is no other reference to it, and a
//! caller that checks bytes copies them out first ([`Memory`]).

mod error;
#[expect(unsafe_code, reason = "the one module that calls libibverbs")]
mod ffi;
mod memory;

pub use error::{status_name, Error};
pub use ffi::{
    Completion, CompletionQueue, Context, Domain, Peer, QueuePair, Region, Remote, Sizes, Target,
};
pub use memory::Memory;
