// SPDX-License-Identifier: GPL-2.0
//! What `kernel::pci` lacks: error handlers, sleep, shutdown, managed enabling, bus mastering off, many vectors.
//!
//! C header: `include/linux/pci.h`.

mod adapter;
pub mod irq;
mod power;

pub use self::{
    adapter::{Adapter, ChannelState, ErrorHandler, Recovery},
    power::{PowerAdapter, PowerHandler},
};

use crate::bindings;
use kernel::{
    device::{Bound, Core},
    dma::{Device as _, DmaMask},
    error::to_result,
    pci,
    prelude::*,
    sync::aref::ARef,
};

pub(crate) fn as_raw(dev: &pci::Device) -> *mut bindings::pci_dev {
    core::ptr::from_ref(dev).cast_mut().cast()
}

/// Bytes of the longest piece of a scatterlist, as others say that have no limit: what works with pages takes pieces of any length.
const MAX_SEGMENT: u32 = 1 << 31;

/// Makes a device ready for use in its driver's `probe`: memory BARs on (off again when the driver is unbound or
/// `probe` fails), 64-bit DMA, pieces of scatterlists of any length. Its use of the bus is up to [`BusMaster`].
///
/// May sleep. To be called before anything is mapped or allocated for DMA.
pub fn enable(dev: &pci::Device<Core<'_>>) -> Result {
    // SAFETY: `dev` is a valid device that is being probed, so managed resources can be attached to it.
    to_result(unsafe { bindings::pcim_enable_device(as_raw(dev)) })?;
    // SAFETY: Both are only consulted by allocations and mappings of this device, of which there are none yet: the
    // `Core` context is that of a bus callback, so no other driver code runs.
    unsafe {
        dev.dma_set_max_seg_size(MAX_SEGMENT);
        dev.dma_set_mask_and_coherent(DmaMask::new::<64>())
    }
}

/// The right to say whether a device may read and write memory.
pub struct BusMaster {
    dev: ARef<pci::Device>,
}

impl BusMaster {
    /// Takes note of the device.
    pub fn new(dev: &pci::Device<Bound>) -> Self {
        Self { dev: dev.into() }
    }

    /// Lets the device use the bus. May sleep.
    pub fn allow(&self) {
        // SAFETY: `dev` is a valid device.
        unsafe { bindings::pci_set_master(as_raw(&self.dev)) }
    }

    /// Takes the bus from the device: from here on it neither reads nor writes memory nor raises message-signaled
    /// interrupts, however broken it is. May sleep.
    pub fn revoke(&self) {
        // SAFETY: `dev` is a valid device.
        unsafe { bindings::pci_clear_master(as_raw(&self.dev)) }
    }
}
