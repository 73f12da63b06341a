// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Rings of a process's queues as its commands describe them: what of that may go to the controller.
//!
//! The bytes are any program's. Only what these functions return is pinned and handed on.

use super::{CreateCqRequest, CreateQpRequest, CreateSrqRequest, ResizeCqRequest};
use crate::{
    admin::DeviceLimits,
    cqe::CQE_SIZE,
    doorbell::PAGE_SIZE,
    wqe::{BLOCK_SIZE, MAX_RECV_STRIDE, MIN_RECV_STRIDE},
};

/// A request that no program of the interface's version makes; the verb fails with `EINVAL`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidRequest;

/// A ring that a queue may have: at the start of a page, of a size that the controller takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    addr: u64,
    log_entries: u8,
    log_stride: u8,
}

impl Ring {
    /// Checks a ring of `1 << log_entries` entries of `1 << log_stride` bytes, at least `wanted` entries.
    fn new(
        addr: u64,
        log_entries: u8,
        log_stride: u8,
        wanted: u32,
        max_log_entries: u8,
    ) -> Result<Self, InvalidRequest> {
        let ring = Self {
            addr,
            log_entries,
            log_stride,
        };
        let aligned = addr != 0 && addr % PAGE_SIZE as u64 == 0;
        let enough = 1u32
            .checked_shl(log_entries.into())
            .is_some_and(|entries| entries >= wanted);
        let fits = addr.checked_add(ring.bytes().ok_or(InvalidRequest)?);
        if aligned && enough && log_entries <= max_log_entries && fits.is_some() {
            Ok(ring)
        } else {
            Err(InvalidRequest)
        }
    }

    fn bytes(&self) -> Option<u64> {
        1u64.checked_shl(u32::from(self.log_entries).checked_add(self.log_stride.into())?)
    }

    /// Address in the process, page-aligned.
    pub const fn addr(&self) -> u64 {
        self.addr
    }

    /// Size in bytes; the ring does not go beyond the end of the address space.
    pub fn len(&self) -> u64 {
        self.bytes().unwrap_or(0)
    }

    /// Whether it has no entries, which no ring has.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// log2 of its entries (blocks, of a send ring).
    pub const fn log_entries(&self) -> u8 {
        self.log_entries
    }

    /// log2 of the bytes of an entry.
    pub const fn log_stride(&self) -> u8 {
        self.log_stride
    }
}

/// Refuses strides that receive entries cannot have.
fn check_stride(log_stride: u8) -> Result<(), InvalidRequest> {
    1usize
        .checked_shl(log_stride.into())
        .filter(|bytes| (MIN_RECV_STRIDE..=MAX_RECV_STRIDE).contains(bytes))
        .map_or(Err(InvalidRequest), |_| Ok(()))
}

/// Refuses what a later version of the interface may mean something by.
fn check_reserved(reserved: &[u8]) -> Result<(), InvalidRequest> {
    if reserved.iter().all(|&byte| byte == 0) {
        Ok(())
    } else {
        Err(InvalidRequest)
    }
}

fn cq_ring(
    addr: u64,
    log_entries: u8,
    entries: u32,
    limits: &DeviceLimits,
) -> Result<Ring, InvalidRequest> {
    let log_stride = CQE_SIZE.trailing_zeros() as u8;
    Ring::new(addr, log_entries, log_stride, entries, limits.max_log_cq)
}

impl CreateCqRequest {
    /// The ring of a completion queue that is to have at least `entries`.
    pub fn ring(&self, entries: u32, limits: &DeviceLimits) -> Result<Ring, InvalidRequest> {
        check_reserved(&self.reserved)?;
        cq_ring(self.ring.get(), self.log_entries, entries, limits)
    }
}

impl ResizeCqRequest {
    /// The ring in which a completion queue is to go on with at least `entries`.
    pub fn ring(&self, entries: u32, limits: &DeviceLimits) -> Result<Ring, InvalidRequest> {
        check_reserved(&self.reserved)?;
        cq_ring(self.ring.get(), self.log_entries, entries, limits)
    }
}

impl CreateSrqRequest {
    /// The ring of a shared receive queue that is to have at least `max_wr` entries.
    pub fn ring(&self, max_wr: u32, limits: &DeviceLimits) -> Result<Ring, InvalidRequest> {
        check_reserved(&self.reserved)?;
        check_stride(self.log_stride)?;
        Ring::new(
            self.ring.get(),
            self.log_entries,
            self.log_stride,
            max_wr,
            limits.max_log_srq,
        )
    }
}

impl CreateQpRequest {
    /// The send ring of a queue pair, of at least `blocks` blocks.
    pub fn send_ring(&self, blocks: u32, limits: &DeviceLimits) -> Result<Ring, InvalidRequest> {
        check_reserved(&self.reserved)?;
        Ring::new(
            self.send_ring.get(),
            self.log_send_blocks,
            BLOCK_SIZE.trailing_zeros() as u8,
            blocks,
            limits.max_log_sq,
        )
    }

    /// The receive ring of a queue pair without shared receive queue that is to have at least `max_wr` entries.
    pub fn recv_ring(&self, max_wr: u32, limits: &DeviceLimits) -> Result<Ring, InvalidRequest> {
        check_reserved(&self.reserved)?;
        check_stride(self.log_recv_stride)?;
        Ring::new(
            self.recv_ring.get(),
            self.log_recv_entries,
            self.log_recv_stride,
            max_wr,
            limits.max_log_rq,
        )
    }
}
