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
// Not where speed is measured: there tests have what programs have.
#[cfg(all(test, debug_assertions))]
pub(crate) mod modelled;
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
#[cfg(all(test, debug_assertions))]
pub(crate) use modelled::{fence, fence_after_cas, yield_now, RingPages};
pub(crate) use process_bytes::ProcessBytes;
#[cfg(not(all(test, debug_assertions)))]
pub(crate) use std::{sync::atomic::fence, thread::yield_now};

/// A full fence behind a compare and swap. A locked instruction of x86 is one by itself.
#[cfg(not(all(test, debug_assertions)))]
#[inline(always)]
pub(crate) fn fence_after_cas() {
    use std::sync::atomic::{compiler_fence, Ordering};
    match cfg!(target_arch = "x86_64") {
        true => compiler_fence(Ordering::SeqCst),
        false => fence(Ordering::SeqCst),
    }
}

/// Memory of a process ring.
#[cfg(not(all(test, debug_assertions)))]
pub(crate) type RingPages = Pages;

#[cfg(all(test, target_arch = "x86_64"))]
pub(crate) mod steps;
#[cfg(test)]
pub(crate) mod testing;
