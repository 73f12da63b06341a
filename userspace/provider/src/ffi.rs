// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Everything that C demands, and all unsafe code of the provider.
//!
//! What the entry points rely on is the contract of verbs, which is the program's to keep: pointers that it passes are
//! those of objects that it has and does not destroy meanwhile, lists and buffers are as long as they say. Objects that
//! depend on others are destroyed first; the kernel refuses anything else before this provider frees anything.

mod abi;
mod address;
mod called;
mod clock;
mod command;
mod context;
mod cq;
mod cq_ex;
mod device_memory;
mod direct;
mod domain;
mod doorbells;
mod driver;
mod empty_polls;
mod errno;
mod ioctl;
mod kick;
mod lock;
mod memory;
mod object;
mod post;
mod post_recv;
mod process_bytes;
mod qp;
mod qp_ex;
mod region;
mod ring_memory;
mod ring_source;
mod srq;
pub(crate) mod sys;
mod wc;
mod window;

#[cfg(test)]
pub(crate) use kick::Kick;
pub(crate) use kick::{Called, Calls};
pub(crate) use lock::Lock;
#[cfg(test)]
pub(crate) use memory::DoorbellPair;
pub(crate) use memory::{Pages, Slot};
pub(crate) use process_bytes::ProcessBytes;

#[cfg(all(test, target_arch = "x86_64"))]
pub(crate) mod steps;
#[cfg(test)]
pub(crate) mod testing;
