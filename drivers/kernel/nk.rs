// SPDX-License-Identifier: GPL-2.0
//! Safe abstractions for what the `kernel` crate lacks.

mod bindings;

/// Size of net_device.
pub fn net_device_size() -> usize { core::mem::size_of::<bindings::net_device>() }
