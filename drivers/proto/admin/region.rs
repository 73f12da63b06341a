// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Memory regions, keys and their rights.

use super::PageList;
use zerocopy::little_endian::{U32, U64};
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Local writes allowed (receives, READ results).
pub const ACCESS_LOCAL_WRITE: u32 = 1 << 0;
/// Remote writes allowed.
pub const ACCESS_REMOTE_WRITE: u32 = 1 << 1;
/// Remote reads allowed.
pub const ACCESS_REMOTE_READ: u32 = 1 << 2;
/// Remote atomics allowed.
pub const ACCESS_REMOTE_ATOMIC: u32 = 1 << 3;
/// Memory windows may be bound to the region.
pub const ACCESS_MW_BIND: u32 = 1 << 4;
/// Remote FLUSH for global visibility allowed.
pub const ACCESS_FLUSH_GLOBAL: u32 = 1 << 5;
/// Remote FLUSH for persistence allowed.
pub const ACCESS_FLUSH_PERSISTENT: u32 = 1 << 6;
/// Addresses within a memory window start at zero (BIND_MW only).
pub const ACCESS_ZERO_BASED: u32 = 1 << 7;
/// All rights that a region can have.
pub const ACCESS_ALL: u32 = ACCESS_LOCAL_WRITE
    | ACCESS_REMOTE_WRITE
    | ACCESS_REMOTE_READ
    | ACCESS_REMOTE_ATOMIC
    | ACCESS_MW_BIND
    | ACCESS_FLUSH_GLOBAL
    | ACCESS_FLUSH_PERSISTENT;

/// Registers memory.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct CreateMr {
    /// Pages of the region; the first byte is `iova % page size` into the first page.
    pub pages: PageList,
    /// Address that descriptors use for the first byte.
    pub iova: U64,
    /// Bytes.
    pub len: U64,
    /// Protection domain.
    pub pd: U32,
    /// `ACCESS_*`.
    pub access: U32,
}
assert_size!(CreateMr, 40);

/// [`ModifyMr::mask`]: `region.pages`, `region.iova` and `region.len` are to be set (`IB_MR_REREG_TRANS`).
pub const MR_MASK_PAGES: u32 = 1 << 0;
/// [`ModifyMr::mask`]: `region.pd` is to be set (`IB_MR_REREG_PD`).
pub const MR_MASK_PD: u32 = 1 << 1;
/// [`ModifyMr::mask`]: `region.access` is to be set (`IB_MR_REREG_ACCESS`).
pub const MR_MASK_ACCESS: u32 = 1 << 2;

/// Changes a memory region as a whole: a request finds it as it was or as it is. The key gets a new variant if the
/// pages change.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ModifyMr {
    /// Key of the region.
    pub key: U32,
    /// `MR_MASK_*`: which fields count; the others are zero.
    pub mask: U32,
    /// What it is to be.
    pub mr: CreateMr,
}
assert_size!(ModifyMr, 48);

wire_enum! {
    /// What a key that `AllocKey` returns is for.
    KeyKind: u8 {
        /// FAST_REG gives it pages; a local and a remote key.
        FastReg = 0,
        /// BIND_MW gives it a range of a region (memory window type 2B); a remote key only.
        Window = 1,
    }
}

/// Allocates a key without memory.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct AllocKey {
    /// Protection domain.
    pub pd: U32,
    /// Most pages that FAST_REG will give it, 1 to [`super::DeviceLimits::max_fast_reg_pages`]; 0 for a window.
    pub max_pages: U32,
    /// A [`KeyKind`].
    pub kind: u8,
    /// Zero.
    pub reserved: [u8; 7],
}
assert_size!(AllocKey, 16);
