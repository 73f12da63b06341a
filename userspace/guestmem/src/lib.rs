// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Guest memory, reached by IOVA.
//!
//! A device emulated outside of the hypervisor gets the guest's memory as file
//! descriptors (vfio-user's `DMA_MAP`). This crate maps them and offers what a DMA
//! engine does: bounded reads, writes, guest-to-guest copies, and the few atomic
//! accesses that rings and doorbells need.
//!
//! - [`GuestMemory`]: one guest's table of regions, looked up by IOVA.
//! - [`MmapRegion`]: memory that the device owns and the guest maps (doorbell pages).
//!
//! # Memory that changes under our feet
//!
//! Guests and their VMMs write to this memory at any time, so nothing here ever makes
//! a Rust reference to it: bytes move by raw-pointer copies, words by atomics. A
//! caller that validates guest bytes must copy them out once, then validate, then use
//! the copy. A copy is not atomic as a whole. Copies are visible in their order, and of one that
//! ends at a multiple of 8 the last 8 bytes come last and at once, so that programs may
//! poll for them, as they do with other RDMA devices.
//!
//! # A file that shrinks
//!
//! Touching a mapping beyond the end of its file raises `SIGBUS`, which would kill the
//! whole fabric because one VMM truncated its memory. Each file is therefore sealed
//! against shrinking (`F_SEAL_SHRINK`, see memfd_create(2)) before it is mapped, and its
//! size is checked after that; a file that cannot be sealed is not mapped, and
//! the region stays [`Reach::Unsealable`]. QEMU's `memory-backend-memfd` is sealed
//! already. `SIGBUS` can then only mean that the host itself is out of memory.
//!
//! # Why not the vm-memory crate
//!
//! vm-memory models a guest-physical address space for a VMM with many threads: reads
//! and writes go through a generic trait stack with reference-counted regions, and
//! volatile slices which it copies word by word below a threshold; a region table is
//! immutable and swapped as a whole. A fabric switch is one thread, its tables change at
//! run time, and it copies between *two* guests, which should be one `memmove` from
//! source to destination. That takes the few hundred lines here, and is measured:
//! 64 bytes from guest to guest in under 15 ns, table look-ups included.

mod error;
mod fence;
#[expect(unsafe_code, reason = "the one module that touches guest memory")]
mod mapping;
mod region;
mod seal;
mod table;

pub use error::{AccessError, MapError, UnmapError};
pub use fence::full_fence;
pub use region::MmapRegion;
pub use table::{GuestMemory, MapRequest, Reach, Rights, Stats};
