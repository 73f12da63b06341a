// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A PCI Express function's configuration space.
//!
//! [`ConfigBuilder`] lays out a type 0 header, BARs and capabilities; [`ConfigSpace`] then
//! answers the VMM's accesses: each bit is writable or not, and a write that means more
//! than its bits is reported as [`Effects`].
//!
//! QEMU copies the whole space when it attaches the device and emulates BARs, the MSI-X
//! table and the link registers itself; writes to everything else reach us. Function-level
//! reset is one of those.

mod builder;
mod space;

pub use builder::{Bar, ConfigBuilder, ConfigError, Identity, Msix};
pub use space::{ConfigSpace, Effects, CONFIG_SIZE};
