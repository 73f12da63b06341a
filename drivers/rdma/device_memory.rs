// SPDX-License-Identifier: GPL-2.0
//! Device memory: pieces of the controller's own, for processes.

use crate::{access::region_rights, context::Mapping, device::Rdma, region::Region};
use kernel::{
    new_mutex,
    page::PAGE_SIZE,
    prelude::*,
    sync::{Arc, Mutex},
};
use nk_rdma::{error::unsupported, Access, Context, Device, Pd, Window};
use nupa_proto::{
    admin::{CreateMr, PageList},
    regs::DEVICE_MEMORY_BASE,
};

/// Bytes of a page, which is what pieces consist of: a process maps all of a page or nothing.
const PAGE: u64 = PAGE_SIZE as u64;

/// Which parts of the controller's memory are in use.
#[pin_data]
pub(crate) struct DeviceMemory {
    window: nupa_fabric::Window,
    /// Start and end of the pieces that are in use, in bytes, lowest first.
    #[pin]
    pieces: Mutex<KVec<(u64, u64)>>,
}

/// A piece that nobody else has; free again when dropped.
pub(crate) struct Piece {
    memory: Arc<DeviceMemory>,
    start: u64,
}

impl Drop for Piece {
    fn drop(&mut self) {
        let mut pieces = self.memory.pieces.lock();
        pieces.retain(|(start, _)| *start != self.start);
    }
}

/// Finds room for `len` bytes at a multiple of `align` between `pieces`, which are sorted: its place among them and its
/// start.
fn find(pieces: &[(u64, u64)], size: u64, len: u64, align: u64) -> Option<(usize, u64)> {
    let mut free = 0u64;
    for (place, &(start, end)) in pieces.iter().enumerate() {
        if free.checked_add(len)? <= start {
            return Some((place, free));
        }
        free = end.checked_next_multiple_of(align)?;
    }
    (free.checked_add(len)? <= size).then_some((pieces.len(), free))
}

impl DeviceMemory {
    /// All of it is free.
    pub(crate) fn new(window: nupa_fabric::Window) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                window,
                pieces <- new_mutex!(KVec::new()),
            }),
            GFP_KERNEL,
        )
    }

    /// Bytes in all.
    pub(crate) fn size(&self) -> u64 {
        self.window.len
    }

    fn take(self: &Arc<Self>, len: u64, align: u64) -> Result<Piece> {
        let mut pieces = self.pieces.lock();
        let (place, start) = find(&pieces, self.window.len, len, align).ok_or(ENOMEM)?;
        pieces.reserve(1, GFP_KERNEL)?;
        // The room is reserved, and the place is one of the list.
        pieces
            .insert_within_capacity(place, (start, start.saturating_add(len)))
            .map_err(|_| ENOMEM)?;
        Ok(Piece {
            memory: self.clone(),
            start,
        })
    }
}

impl Piece {
    /// Allocates `len` bytes, aligned to `1 << alignment`, for a process, and lets it map them. Returns the offset for
    /// `mmap()` too. `EOPNOTSUPP` without device memory, `ENOMEM` if there is no room.
    pub(crate) fn for_user(
        dev: &Device<Rdma>,
        context: &Context<Rdma>,
        len: u64,
        alignment: u32,
    ) -> Result<(Arc<Self>, u64)> {
        let memory = dev.device_memory().ok_or_else(unsupported)?;
        let align = 1u64.checked_shl(alignment).ok_or(EINVAL)?.max(PAGE);
        let len = len.checked_next_multiple_of(PAGE).filter(|len| *len != 0);
        let len = len.ok_or(EINVAL)?;
        let piece = Arc::new(memory.take(len, align)?, GFP_KERNEL)?;
        let window = Window {
            phys: memory.window.phys.checked_add(piece.start).ok_or(EINVAL)?,
            len: usize::try_from(len)?,
            cached: memory.window.memory,
        };
        let offset = context.offer(window, Mapping::memory(piece.clone()))?;
        Ok((piece, offset))
    }

    /// Registers `len` bytes at `offset` in the piece; the caller has checked that they lie inside.
    pub(crate) fn register(
        &self,
        dev: &Device<Rdma>,
        pd: &Pd<Rdma>,
        offset: u64,
        len: u64,
        access: Access,
    ) -> Result<Region> {
        let addr = DEVICE_MEMORY_BASE
            .checked_add(self.start)
            .and_then(|addr| addr.checked_add(offset))
            .ok_or(EINVAL)?;
        let parameters = CreateMr {
            pages: PageList {
                addr: addr.into(),
                ..PageList::default()
            },
            len: len.into(),
            access: region_rights(access)?.into(),
            ..CreateMr::default()
        };
        Region::create(dev, pd, &parameters)
    }
}
