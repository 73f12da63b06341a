// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The rdma-core provider of NUPA, `libnupa-rdmav34.so`, and of other numbers for other versions of rdma-core's interface.
//!
//! libibverbs loads it for devices of `nupa_rdma` and calls it through the tables of `infiniband/driver.h`. Making and
//! destroying objects goes through the kernel (uverbs); posting and polling does not: descriptors are written to rings in
//! this process's memory, and the controller is told through doorbell pages that belong to this context.
//!
//! `queue` is what the rings do, in safe code over `nupa_engine::rings`. `ffi` is everything that C demands: the
//! bindings, the objects that rdma-core holds pointers to, the mapped memory, the entry points.

#[expect(
    unsafe_code,
    reason = "the interface is C's, and so is the memory that the controller reads"
)]
mod ffi;
mod queue;
#[cfg(test)]
mod tests;
