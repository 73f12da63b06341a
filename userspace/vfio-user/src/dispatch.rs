// SPDX-License-Identifier: GPL-2.0 OR MIT

//! From a request's bytes to a call of the device, and back.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use zerocopy::{FromBytes, IntoBytes};

use crate::device::{Device, DmaMap, Region};
use crate::irq::IrqRequest;
use crate::proto::{
    irq_index, region_index, Command, DeviceInfo, DmaMapBody, DmaUnmapBody, IrqInfo, RegionAccess,
    RegionInfo, SparseArea, SparseMmap, CAP_SPARSE_MMAP, DEVICE_PCI, DEVICE_RESET, DMA_READ,
    DMA_UNMAP_ALL, DMA_WRITE, IRQ_EVENTFD, MAX_DATA_XFER, REGION_CAPS, REGION_MMAP, REGION_READ,
    REGION_WRITE,
};
use crate::version::negotiate;

/// File that goes with a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileOf {
    /// None.
    Nothing,
    /// The one that region's pages are mapped from.
    Region(u32),
}

/// Serves one request. Appends the body of the reply to `reply`, which holds the header.
///
/// `ready` tells whether versions were negotiated, which has to come first.
pub(crate) fn dispatch(
    command: u16,
    body: &[u8],
    fds: Vec<OwnedFd>,
    ready: &mut bool,
    reply: &mut Vec<u8>,
    device: &mut impl Device,
) -> Result<FileOf, Errno> {
    let command = Command::try_from(command).map_err(|_| Errno::OPNOTSUPP)?;
    if *ready == (command == Command::Version) {
        return Err(Errno::PROTO);
    }
    match command {
        Command::Version => {
            negotiate(body, reply)?;
            *ready = true;
        }
        Command::RegionWrite => region_write(body, reply, device)?,
        Command::RegionRead => region_read(body, reply, device)?,
        Command::DmaMap => dma_map(body, fds, device)?,
        Command::DmaUnmap => dma_unmap(body, reply, device)?,
        Command::DeviceGetInfo => device_info(body, reply)?,
        Command::DeviceGetRegionInfo => return region_info(body, reply, device),
        Command::DeviceGetIrqInfo => irq_info(body, reply, device)?,
        Command::DeviceSetIrqs => {
            let request = IrqRequest::decode(body, fds, |index| device.irq_count(index))?;
            device.set_irqs(request)?;
        }
        Command::DeviceReset => device.reset(),
    }
    Ok(FileOf::Nothing)
}

/// Reads a structure from the front of `body`.
fn parse<T: FromBytes>(body: &[u8]) -> Result<(T, &[u8]), Errno> {
    T::read_from_prefix(body).map_err(|_| Errno::INVAL)
}

/// Decodes a region access and checks it against the region.
fn access<'b>(
    body: &'b [u8],
    device: &impl Device,
) -> Result<(RegionAccess, usize, &'b [u8]), Errno> {
    let (access, data) = parse::<RegionAccess>(body)?;
    let count = usize::try_from(access.count.get()).map_err(|_| Errno::INVAL)?;
    let end = access
        .offset
        .get()
        .checked_add(u64::from(access.count.get()));
    let size = device.region(access.region.get()).size;
    if count > MAX_DATA_XFER || end.is_none_or(|end| end > size) {
        return Err(Errno::INVAL);
    }
    Ok((access, count, data))
}

fn region_read(body: &[u8], reply: &mut Vec<u8>, device: &mut impl Device) -> Result<(), Errno> {
    let (access, count, _) = access(body, device)?;
    reply.extend_from_slice(access.as_bytes());
    let at = reply.len();
    reply.resize(at.saturating_add(count), 0);
    let data = reply.get_mut(at..).unwrap_or_default();
    device.region_read(access.region.get(), access.offset.get(), data)
}

fn region_write(body: &[u8], reply: &mut Vec<u8>, device: &mut impl Device) -> Result<(), Errno> {
    let (access, count, data) = access(body, device)?;
    let data = data.get(..count).ok_or(Errno::INVAL)?;
    device.region_write(access.region.get(), access.offset.get(), data)?;
    reply.extend_from_slice(access.as_bytes());
    Ok(())
}

fn dma_map(body: &[u8], mut fds: Vec<OwnedFd>, device: &mut impl Device) -> Result<(), Errno> {
    let (map, _) = parse::<DmaMapBody>(body)?;
    let flags = map.flags.get();
    if flags & !(DMA_READ | DMA_WRITE) != 0 || flags & DMA_READ == 0 || fds.len() > 1 {
        return Err(Errno::INVAL);
    }
    device.dma_map(DmaMap {
        iova: map.iova.get(),
        size: map.size.get(),
        file: fds.pop(),
        offset: map.offset.get(),
        writable: flags & DMA_WRITE != 0,
    })
}

fn dma_unmap(body: &[u8], reply: &mut Vec<u8>, device: &mut impl Device) -> Result<(), Errno> {
    let (unmap, _) = parse::<DmaUnmapBody>(body)?;
    match unmap.flags.get() {
        0 => device.dma_unmap(unmap.iova.get(), unmap.size.get())?,
        DMA_UNMAP_ALL => device.dma_unmap_all(),
        _ => return Err(Errno::INVAL),
    }
    reply.extend_from_slice(unmap.as_bytes());
    Ok(())
}

fn device_info(body: &[u8], reply: &mut Vec<u8>) -> Result<(), Errno> {
    let (request, _) = parse::<DeviceInfo>(body)?;
    let argsz = u32_size::<DeviceInfo>();
    if request.argsz.get() < argsz {
        return Err(Errno::INVAL);
    }
    let info = DeviceInfo {
        argsz: argsz.into(),
        flags: (DEVICE_PCI | DEVICE_RESET).into(),
        num_regions: region_index::COUNT.into(),
        num_irqs: irq_index::COUNT.into(),
    };
    reply.extend_from_slice(info.as_bytes());
    Ok(())
}

/// Describes a region. If the list of mappable parts does not fit into what the client has
/// room for, only the size it takes is told; the client asks again (as with the ioctl).
fn region_info(body: &[u8], reply: &mut Vec<u8>, device: &impl Device) -> Result<FileOf, Errno> {
    let (request, _) = parse::<RegionInfo>(body)?;
    let index = request.index.get();
    if index >= region_index::COUNT || request.argsz.get() < u32_size::<RegionInfo>() {
        return Err(Errno::INVAL);
    }
    let region = device.region(index);
    let argsz = u32_size::<RegionInfo>().saturating_add(capability_size(&region));
    let mut info = RegionInfo {
        argsz: argsz.into(),
        flags: if region.size == 0 {
            0
        } else {
            REGION_READ | REGION_WRITE
        }
        .into(),
        index: index.into(),
        cap_offset: 0.into(),
        size: region.size.into(),
        offset: 0.into(),
    };
    let fits = argsz <= request.argsz.get();
    let Some(mmap) = region.mmap.filter(|_| fits) else {
        reply.extend_from_slice(info.as_bytes());
        return Ok(FileOf::Nothing);
    };
    info.flags = (info.flags.get() | REGION_MMAP | REGION_CAPS).into();
    info.cap_offset = u32_size::<RegionInfo>().into();
    reply.extend_from_slice(info.as_bytes());
    let sparse = SparseMmap {
        id: CAP_SPARSE_MMAP.into(),
        version: 1.into(),
        next: 0.into(),
        nr_areas: u32::try_from(mmap.areas.len())
            .map_err(|_| Errno::INVAL)?
            .into(),
        reserved: 0.into(),
    };
    reply.extend_from_slice(sparse.as_bytes());
    for area in mmap.areas {
        let area = SparseArea {
            offset: area.offset.into(),
            size: area.size.into(),
        };
        reply.extend_from_slice(area.as_bytes());
    }
    Ok(FileOf::Region(index))
}

/// Bytes of the capability that lists a region's mappable parts.
fn capability_size(region: &Region<'_>) -> u32 {
    let areas = region.mmap.map_or(0, |mmap| mmap.areas.len());
    match u32::try_from(areas) {
        Ok(0) if region.mmap.is_none() => 0,
        Ok(n) => {
            u32_size::<SparseMmap>().saturating_add(n.saturating_mul(u32_size::<SparseArea>()))
        }
        Err(_) => u32::MAX,
    }
}

fn irq_info(body: &[u8], reply: &mut Vec<u8>, device: &impl Device) -> Result<(), Errno> {
    let (request, _) = parse::<IrqInfo>(body)?;
    let argsz = u32_size::<IrqInfo>();
    if request.argsz.get() < argsz || request.index.get() >= irq_index::COUNT {
        return Err(Errno::INVAL);
    }
    let count = device.irq_count(request.index.get());
    let info = IrqInfo {
        argsz: argsz.into(),
        flags: if count == 0 { 0 } else { IRQ_EVENTFD }.into(),
        index: request.index,
        count: count.into(),
    };
    reply.extend_from_slice(info.as_bytes());
    Ok(())
}

/// Size of a wire structure; all are far below 4 GiB.
#[expect(
    clippy::cast_possible_truncation,
    reason = "sizes of wire structures are small"
)]
const fn u32_size<T>() -> u32 {
    size_of::<T>() as u32
}
