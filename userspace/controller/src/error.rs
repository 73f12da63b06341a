// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the owner of a fabric can do wrong. Guests never cause these: they get an admin status or an error completion.

use guestmem::MapError;

/// Why a request to the fabric was refused. Nothing has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FabricError {
    /// The fabric would have no node or more than a process serves.
    #[error("{0} node ids are out of range, a fabric in one process has 2 to {max}", max = crate::config::MAX_NODES)]
    NodeCount(u16),
    /// A controller would have no doorbell page or more than it can.
    #[error("{0} doorbell page pairs are out of range, a controller has 1 to {max}", max = crate::config::MAX_DOORBELL_PAGES)]
    DoorbellPages(u32),
    /// A controller's memory would not consist of whole pages, or be larger than it can.
    #[error("{0} bytes of device memory: not whole pages of 4 KiB, or more than {max}", max = crate::config::MAX_DEVICE_MEMORY)]
    DeviceMemory(u64),
    /// This fabric has no such node id.
    #[error("no node {0} in this fabric")]
    NoSuchNode(u16),
    /// The node has a guest already.
    #[error("node {0} is in use by another guest")]
    Connected(u16),
    /// Doorbell pages or device memory could not be made.
    #[error("doorbell pages or device memory: {0}")]
    Memory(#[from] MapError),
}
