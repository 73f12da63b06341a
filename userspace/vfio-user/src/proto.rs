// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Message layouts.
//!
//! The protocol uses the host's byte order; these definitions are little-endian, which is
//! that of every host that QEMU's client and this server run on together.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Regions of a PCI device (`VFIO_PCI_*_REGION_INDEX`).
pub mod region_index {
    /// First of the six BARs.
    pub const BAR0: u32 = 0;
    /// Last of the six BARs.
    pub const BAR5: u32 = 5;
    /// Expansion ROM.
    pub const ROM: u32 = 6;
    /// Configuration space.
    pub const CONFIG: u32 = 7;
    /// Regions that a PCI device has, VGA included.
    pub const COUNT: u32 = 9;
}

/// Interrupts of a PCI device (`VFIO_PCI_*_IRQ_INDEX`).
pub mod irq_index {
    /// MSI-X vectors.
    pub const MSIX: u32 = 2;
    /// Kinds that a PCI device has: INTx, MSI, MSI-X, error, request.
    pub const COUNT: u32 = 5;
}

/// Bytes of [`Header`].
pub(crate) const HEADER_SIZE: usize = 16;
/// Most data bytes of one region access that we offer.
pub(crate) const MAX_DATA_XFER: usize = 16 * 1024;
/// Most file descriptors in one message; QEMU takes no more than 16 for an answer.
pub(crate) const MAX_MSG_FDS: usize = 16;

/// Requests that we know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Command {
    Version = 1,
    DmaMap = 2,
    DmaUnmap = 3,
    DeviceGetInfo = 4,
    DeviceGetRegionInfo = 5,
    DeviceGetIrqInfo = 7,
    DeviceSetIrqs = 8,
    RegionRead = 9,
    RegionWrite = 10,
    DeviceReset = 13,
}

impl TryFrom<u16> for Command {
    type Error = u16;

    fn try_from(value: u16) -> Result<Self, u16> {
        let all = [
            Self::Version,
            Self::DmaMap,
            Self::DmaUnmap,
            Self::DeviceGetInfo,
            Self::DeviceGetRegionInfo,
            Self::DeviceGetIrqInfo,
            Self::DeviceSetIrqs,
            Self::RegionRead,
            Self::RegionWrite,
            Self::DeviceReset,
        ];
        let found = all.into_iter().find(|command| *command as u16 == value);
        found.ok_or(value)
    }
}

/// [`Header::flags`]: type of the message.
pub(crate) const FLAG_TYPE_MASK: u32 = 0xf;
/// [`Header::flags`]: a request.
pub(crate) const FLAG_TYPE_COMMAND: u32 = 0;
/// [`Header::flags`]: a reply.
pub(crate) const FLAG_TYPE_REPLY: u32 = 1;
/// [`Header::flags`]: the sender wants no reply.
pub(crate) const FLAG_NO_REPLY: u32 = 1 << 4;
/// [`Header::flags`]: the reply is an error, `error` holds its number.
pub(crate) const FLAG_ERROR: u32 = 1 << 5;

/// In front of every message.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Header {
    /// Echoed in the reply.
    pub(crate) id: U16,
    /// A [`Command`].
    pub(crate) command: U16,
    /// Bytes of the message, this header included.
    pub(crate) size: U32,
    /// `FLAG_*`.
    pub(crate) flags: U32,
    /// Error number of a reply.
    pub(crate) error: U32,
}
const _: () = assert!(size_of::<Header>() == HEADER_SIZE);

/// `VFIO_USER_VERSION`; a NUL-terminated JSON object follows.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Version {
    pub(crate) major: U16,
    pub(crate) minor: U16,
}
const _: () = assert!(size_of::<Version>() == 4);

/// [`DmaMapBody::flags`]: the device may read.
pub(crate) const DMA_READ: u32 = 1 << 0;
/// [`DmaMapBody::flags`]: the device may write.
pub(crate) const DMA_WRITE: u32 = 1 << 1;

/// `VFIO_USER_DMA_MAP`.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct DmaMapBody {
    pub(crate) argsz: U32,
    pub(crate) flags: U32,
    pub(crate) offset: U64,
    pub(crate) iova: U64,
    pub(crate) size: U64,
}
const _: () = assert!(size_of::<DmaMapBody>() == 32);

/// [`DmaUnmapBody::flags`]: everything is unmapped, `iova` and `size` do not count.
pub(crate) const DMA_UNMAP_ALL: u32 = 1 << 1;

/// `VFIO_USER_DMA_UNMAP`, request and reply.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct DmaUnmapBody {
    pub(crate) argsz: U32,
    pub(crate) flags: U32,
    pub(crate) iova: U64,
    pub(crate) size: U64,
}
const _: () = assert!(size_of::<DmaUnmapBody>() == 24);

/// [`DeviceInfo::flags`]: `DEVICE_RESET` works.
pub(crate) const DEVICE_RESET: u32 = 1 << 0;
/// [`DeviceInfo::flags`]: a PCI device.
pub(crate) const DEVICE_PCI: u32 = 1 << 1;

/// `VFIO_USER_DEVICE_GET_INFO`.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct DeviceInfo {
    pub(crate) argsz: U32,
    pub(crate) flags: U32,
    pub(crate) num_regions: U32,
    pub(crate) num_irqs: U32,
}
const _: () = assert!(size_of::<DeviceInfo>() == 16);

/// [`RegionInfo::flags`]: reads are allowed.
pub(crate) const REGION_READ: u32 = 1 << 0;
/// [`RegionInfo::flags`]: writes are allowed.
pub(crate) const REGION_WRITE: u32 = 1 << 1;
/// [`RegionInfo::flags`]: a file to map comes with the reply.
pub(crate) const REGION_MMAP: u32 = 1 << 2;
/// [`RegionInfo::flags`]: capabilities follow.
pub(crate) const REGION_CAPS: u32 = 1 << 3;

/// `VFIO_USER_DEVICE_GET_REGION_INFO`.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct RegionInfo {
    pub(crate) argsz: U32,
    pub(crate) flags: U32,
    pub(crate) index: U32,
    pub(crate) cap_offset: U32,
    pub(crate) size: U64,
    pub(crate) offset: U64,
}
const _: () = assert!(size_of::<RegionInfo>() == 32);

/// [`SparseMmap::id`].
pub(crate) const CAP_SPARSE_MMAP: u16 = 1;

/// Region capability that lists which parts may be mapped; [`SparseArea`]s follow.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct SparseMmap {
    pub(crate) id: U16,
    pub(crate) version: U16,
    pub(crate) next: U32,
    pub(crate) nr_areas: U32,
    pub(crate) reserved: U32,
}
const _: () = assert!(size_of::<SparseMmap>() == 16);

/// One mappable part of a region.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct SparseArea {
    pub(crate) offset: U64,
    pub(crate) size: U64,
}
const _: () = assert!(size_of::<SparseArea>() == 16);

/// [`IrqInfo::flags`]: signalled through eventfds.
pub(crate) const IRQ_EVENTFD: u32 = 1 << 0;

/// `VFIO_USER_DEVICE_GET_IRQ_INFO`.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct IrqInfo {
    pub(crate) argsz: U32,
    pub(crate) flags: U32,
    pub(crate) index: U32,
    pub(crate) count: U32,
}
const _: () = assert!(size_of::<IrqInfo>() == 16);

/// `VFIO_USER_DEVICE_SET_IRQS`; with `DATA_BOOL`, `count` bytes follow.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct IrqSet {
    pub(crate) argsz: U32,
    pub(crate) flags: U32,
    pub(crate) index: U32,
    pub(crate) start: U32,
    pub(crate) count: U32,
}
const _: () = assert!(size_of::<IrqSet>() == 20);

/// `VFIO_USER_REGION_READ` and `VFIO_USER_REGION_WRITE`; data follows.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct RegionAccess {
    pub(crate) offset: U64,
    pub(crate) region: U32,
    pub(crate) count: U32,
}
const _: () = assert!(size_of::<RegionAccess>() == 16);
