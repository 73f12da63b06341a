// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What a device model implements.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::Errno;

use crate::irq::IrqRequest;

/// A PCI device model.
///
/// [`Connection`](crate::Connection) calls it from the event loop's thread, one request at
/// a time, after it has checked sizes and bounds. An error number goes back to the VMM,
/// which shows the guest all ones for a read.
pub trait Device {
    /// Describes region `index` ([`region_index`](crate::region_index)). Size 0: not there.
    fn region(&self, index: u32) -> Region<'_>;

    /// Number of interrupts of kind `index` ([`irq_index`](crate::irq_index)).
    fn irq_count(&self, index: u32) -> u32;

    /// Reads `data.len()` bytes of a region. The range is inside the region.
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno>;

    /// Writes to a region. The range is inside the region.
    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno>;

    /// Takes note of memory that the device may reach.
    fn dma_map(&mut self, map: DmaMap) -> Result<(), Errno>;

    /// Forgets memory. When this returns, the device no longer touches it.
    fn dma_unmap(&mut self, iova: u64, size: u64) -> Result<(), Errno>;

    /// Forgets all memory.
    fn dma_unmap_all(&mut self);

    /// Connects, disconnects or raises interrupts.
    fn set_irqs(&mut self, request: IrqRequest) -> Result<(), Errno>;

    /// Resets the function, its configuration space included.
    fn reset(&mut self);
}

/// A region as the VMM is to see it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Region<'a> {
    /// Bytes; 0 if the device has no such region.
    pub size: u64,
    /// The part of it that may be mapped, if any. The rest is trapped.
    pub mmap: Option<Mmap<'a>>,
}

/// What may be mapped of a region.
#[derive(Debug, Clone, Copy)]
pub struct Mmap<'a> {
    /// File whose offset 0 is the region's offset 0.
    pub file: BorrowedFd<'a>,
    /// The parts, page-aligned.
    pub areas: &'a [Area],
}

/// A page-aligned part of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Area {
    /// First byte within the region.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
}

/// Memory that the VMM shows to the device.
#[derive(Debug)]
pub struct DmaMap {
    /// First address as the device sees it.
    pub iova: u64,
    /// Bytes.
    pub size: u64,
    /// File behind it. Absent for what the VMM cannot share, such as ROMs.
    pub file: Option<OwnedFd>,
    /// Where in the file it starts.
    pub offset: u64,
    /// Whether the device may write to it.
    pub writable: bool,
}
