// SPDX-License-Identifier: GPL-2.0
//! The function as a PCI device: the fabric controller itself.

mod driver;

pub(crate) use self::driver::Driver;

use super::{in_steps, Function, Sharing};
use kernel::{device::Bound, devres::Devres, io::Io, pci, prelude::*};
use nk::{mmap::MmapRange, pci::BusMaster};
use nupa_proto::{
    doorbell::{kick_offset, PAGE_SIZE, PAIR_SIZE},
    regs::{BAR_CONTROL, BAR_DOORBELL, CONTROL_SIZE},
};

/// A function with BARs.
struct PciFunction {
    control: Devres<pci::Bar<'static, CONTROL_SIZE>>,
    doorbells: Devres<pci::Bar<'static>>,
    /// The doorbell BAR, for processes to map parts of it.
    pages: MmapRange,
    /// Bytes of the doorbell BAR.
    bytes: usize,
    bus: BusMaster,
}

impl PciFunction {
    /// Maps the BARs of a function that is enabled. May sleep.
    fn new(pdev: &pci::Device<Bound>) -> Result<Self> {
        let control =
            pdev.iomap_region_sized::<CONTROL_SIZE>(u32::from(BAR_CONTROL), c"nupa_fabric")?;
        let doorbells = pdev.iomap_region(u32::from(BAR_DOORBELL), c"nupa_fabric")?;
        Ok(Self {
            bytes: doorbells.maxsize(),
            control: control.into_devres()?,
            doorbells: doorbells.into_devres()?,
            pages: MmapRange::of_bar(pdev, u32::from(BAR_DOORBELL))?,
            bus: BusMaster::new(pdev),
        })
    }
}

impl Function for PciFunction {
    fn read32(&self, register: usize) -> Result<u32> {
        let bar = self.control.try_access().ok_or(ENODEV)?;
        bar.try_read32(register)
    }

    fn read64(&self, register: usize) -> Result<u64> {
        let bar = self.control.try_access().ok_or(ENODEV)?;
        bar.try_read64(register)
    }

    fn write32(&self, register: usize, value: u32) -> Result {
        let bar = self.control.try_access().ok_or(ENODEV)?;
        bar.try_write32(value, register)
    }

    fn write64(&self, register: usize, value: u64) -> Result {
        let bar = self.control.try_access().ok_or(ENODEV)?;
        bar.try_write64(value, register)
    }

    fn allow_dma(&self) {
        self.bus.allow();
    }

    fn revoke_dma(&self) {
        self.bus.revoke();
    }

    fn doorbell_room(&self) -> u32 {
        let pairs = self.bytes.checked_div(PAIR_SIZE).unwrap_or(0);
        u32::try_from(pairs).unwrap_or(u32::MAX)
    }

    fn load32(&self, offset: usize) -> u32 {
        let bar = self.doorbells.try_access();
        let value = bar.map(|bar| bar.try_read32(offset));
        value.and_then(Result::ok).unwrap_or(0)
    }

    fn store32(&self, offset: usize, value: u32) {
        // After unbinding there is nobody to be told, and offsets of slots are inside of the BAR.
        let bar = self.doorbells.try_access();
        let _ = bar.map(|bar| bar.try_write32(value, offset));
    }

    fn store64(&self, offset: usize, value: u64) {
        // As above.
        let bar = self.doorbells.try_access();
        let _ = bar.map(|bar| bar.try_write64(value, offset));
    }

    fn kick(&self, page: u32, slot: u16, index: u32, push: bool) {
        let register = if push { size_of::<u32>() } else { 0 };
        self.store32(kick_offset(page, slot).wrapping_add(register), index);
    }

    fn window(&self, offset: usize, len: u64) -> Option<MmapRange> {
        self.pages.slice(u64::try_from(offset).ok()?, len)
    }

    // Nothing says so of a controller.
    fn is_persistent(&self) -> bool {
        false
    }

    // What is mapped for the device is what the platform lets it reach.
    fn can_reach(&self, _address: u64, _len: usize, _write: bool) -> bool {
        true
    }

    fn clear(&self, offset: usize, len: u64) -> Result {
        let window = self.window(offset, len).ok_or(EINVAL)?;
        let end = offset.saturating_add(usize::try_from(window.len())?);
        in_steps(offset..end, PAGE_SIZE, |piece| {
            let bar = self.doorbells.try_access().ok_or(ENODEV)?;
            let mut words = piece.step_by(size_of::<u64>());
            // What reads the memory afterwards, the controller after its next command or a process, comes behind them.
            words.try_for_each(|word| bar.try_write64(0, word))
        })
    }

    // Other hosts reach a controller's memory through theirs, with RDMA.
    fn sharing(&self) -> Option<&dyn Sharing> {
        None
    }
}
