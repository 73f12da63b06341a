// SPDX-License-Identifier: GPL-2.0
//! Safe abstractions for what the `kernel` crate lacks, in the form in which it would take them.
//!
//! With the generated bindings below it this crate is the home of `unsafe` in the drivers; `nk_rdma` in `rdma/` has the
//! rest of it. It wraps what the drivers need of each subsystem, not more, and keeps differences between kernel versions to
//! itself.

pub mod auxiliary;
pub mod barrier;
pub mod bh;
pub mod bound;
pub mod counter;
pub mod dax;
pub mod devlink;
pub mod dma_channel;
pub mod genl;
pub mod host;
pub mod hostmem;
pub mod irq_work;
pub mod irqlock;
pub mod kthread;
pub mod memory_device;
pub mod mmap;
pub mod net;
pub mod pci;
pub mod power;
pub mod process;
pub mod random;
pub mod ring;
pub mod sched;
pub mod timer;
pub mod trace;
pub mod user;
pub mod version;
pub mod window;
pub mod work;

mod bindings;
pub mod raw;
