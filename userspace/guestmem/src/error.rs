// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What can go wrong.

use rustix::io::Errno;

/// An access that was refused. Nothing was transferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// No region covers this address, or the range runs past the end of what is mapped.
    #[error("no memory at {0:#x}")]
    Unmapped(u64),
    /// The region is known, but the VMM gave no file for it that we can map.
    #[error("memory at {0:#x} is out of reach of the device")]
    Unreachable(u64),
    /// The region does not permit this direction.
    #[error("memory at {0:#x} does not allow this access")]
    Denied(u64),
    /// An atomic access to an address that is not a multiple of its size.
    #[error("atomic access to {0:#x} is not naturally aligned")]
    Misaligned(u64),
}

/// Why a region was not added. The table is unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// Length zero, wrap-around, or not page-aligned.
    #[error("invalid range")]
    InvalidRange,
    /// Overlaps a region that is there already.
    #[error("overlaps an existing region")]
    Overlap,
    /// The file ends before the region does.
    #[error("file is shorter than the region")]
    FileTooShort,
    /// The table holds as many regions as it may.
    #[error("too many regions")]
    TooMany,
    /// The file is no device, so that whoever owns it could shorten it.
    #[error("not a device")]
    NotADevice,
    /// The system call failed.
    #[error("system call failed: {0}")]
    Os(#[from] Errno),
}

/// Why a region was not removed. The table is unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnmapError {
    /// Address and length do not name a mapped region exactly.
    #[error("no such region")]
    NoSuchRegion,
}
