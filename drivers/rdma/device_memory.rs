// SPDX-License-Identifier: GPL-2.0
//! Device memory: pieces of the controller's own, for processes, and pieces that nodes share.

use crate::{access::device_rights, context::Mapping, device::Rdma, region::Region};
use core::ops::Range;
use kernel::{
    new_mutex,
    page::PAGE_SIZE,
    prelude::*,
    rbtree::RBTree,
    sync::{Arc, Mutex},
};
use nk::{
    mmap::MmapRange,
    user::{charged_user, may_exceed_limits},
};
use nk_rdma::{error::unsupported, Access, Context, Device, DmHandle, Pd};
use nupa_fabric::{Charge, ExportedMemory, ImportedMemory, Port, Quota};
use nupa_proto::{
    admin::{CreateMr, PageList},
    pool::sharing,
    regs::DEVICE_MEMORY_BASE,
};
use zerocopy::{FromBytes, IntoBytes};

/// Bytes of a page, which is what pieces consist of: a process maps all of a page or nothing.
const PAGE: u64 = PAGE_SIZE as u64;

/// Which parts of the controller's memory are in use.
#[pin_data]
pub(crate) struct DeviceMemory {
    port: Port,
    window: MmapRange,
    /// Counts exports.
    exports: Arc<Quota>,
    /// Parts that are in use, by their starts.
    #[pin]
    parts: Mutex<KVVec<Part>>,
}

/// Where a part begins, and what is behind it.
type Extent = (u64, u64);

/// A part that is in use.
struct Part {
    /// Offset of its first byte, and of what is behind it.
    start: u64,
    end: u64,
    /// Who asked for it.
    user: u32,
    /// Its owner has freed it. It counts as the owner's as long as others hold some of it.
    freed: bool,
}

/// A part of the memory that nobody else has; free again when dropped, but for what others hold of it.
struct Taken {
    memory: Arc<DeviceMemory>,
    start: u64,
}

impl Drop for Taken {
    fn drop(&mut self) {
        let mut parts = self.memory.parts.lock();
        let mut live = parts.iter_mut().filter(|part| !part.freed);
        if let Some(part) = live.find(|part| part.start == self.start) {
            part.freed = true;
        }
    }
}

/// Finds room for `len` bytes at a multiple of `align` between `used` parts of `size` bytes, which come by their starts.
fn find(used: impl Iterator<Item = Extent>, size: u64, len: u64, align: u64) -> Option<u64> {
    let mut free = 0u64;
    for (start, end) in used {
        if free.checked_add(len)? <= start {
            return Some(free);
        }
        free = free.max(end.checked_next_multiple_of(align)?);
    }
    (free.checked_add(len)? <= size).then_some(free)
}

/// Two lists that are sorted by starts as one.
fn merge(
    a: impl Iterator<Item = Extent>,
    b: impl Iterator<Item = Extent>,
) -> impl Iterator<Item = Extent> {
    let (mut a, mut b) = (a.peekable(), b.peekable());
    core::iter::from_fn(move || match (a.peek(), b.peek()) {
        (Some(first), Some(second)) if first.0 > second.0 => b.next(),
        (Some(_), _) => a.next(),
        (None, _) => b.next(),
    })
}

/// Notes a part that is held; several may hold the same.
fn note(found: &mut RBTree<u64, u64>, held: Range<u64>) -> Result {
    match found.get_mut(&held.start) {
        Some(end) => *end = held.end.max(*end),
        None => drop(found.try_create_and_insert(held.start, held.end, GFP_KERNEL)?),
    }
    Ok(())
}

/// Whether a user with some of these parts may have `len` bytes more: at most half of all `size` bytes are an ordinary user's.
/// `ENOMEM` if not.
fn check_share(parts: &[Part], size: u64, user: u32, len: u64) -> Result {
    let own = parts.iter().filter(|part| part.user == user);
    let had = own.fold(0u64, |sum, part| {
        sum.saturating_add(part.end.saturating_sub(part.start))
    });
    if had.saturating_add(len) > size / 2 && !may_exceed_limits() {
        return Err(ENOMEM);
    }
    Ok(())
}

impl DeviceMemory {
    /// All of it is free, but for what others hold.
    pub(crate) fn new(port: &Port, window: MmapRange, exports: &Arc<Quota>) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                port: port.clone(),
                window,
                exports: exports.clone(),
                parts <- new_mutex!(KVVec::new()),
            }),
            GFP_KERNEL,
        )
    }

    /// Bytes in all.
    pub(crate) fn size(&self) -> u64 {
        self.window.len()
    }

    fn take(self: &Arc<Self>, len: u64, align: u64) -> Result<Taken> {
        let user = charged_user();
        let mut parts = self.parts.lock();
        let held = self.held()?;
        let is_held = |part: &Part| {
            held.iter()
                .any(|(start, end)| *start < part.end && part.start < *end)
        };
        parts.reserve(1, GFP_KERNEL)?;
        parts.retain(|part| !part.freed || is_held(part));
        check_share(&parts, self.size(), user, len)?;
        let live = parts.iter().filter(|part| !part.freed);
        let live = live.map(|part| (part.start, part.end));
        let used = merge(live, held.iter().map(|(start, end)| (*start, *end)));
        let start = find(used, self.size(), len, align).ok_or(ENOMEM)?;
        let part = Part {
            start,
            end: start.saturating_add(len),
            user,
            freed: false,
        };
        let at = parts.partition_point(|part| part.start < start);
        // There is room: the list is the device's, and stays as long as it has grown when this process is gone.
        parts.insert_within_capacity(at, part).map_err(|_| ENOMEM)?;
        Ok(Taken {
            memory: self.clone(),
            start,
        })
    }

    /// What is held by programs, of other nodes or of this one, that had it from those who have it or had it: ends by starts.
    fn held(&self) -> Result<RBTree<u64, u64>> {
        let mut found = RBTree::new();
        let mut kept = Ok(());
        self.port.held_memory(&mut |held: Range<u64>| {
            if kept.is_ok() {
                kept = note(&mut found, held);
            }
        });
        kept.map(|()| found)
    }
}

/// Device memory that a process has.
pub(crate) struct Piece {
    memory: Memory,
    /// Bytes of it, as the process sees it.
    len: u64,
}

/// Whose memory it is.
enum Memory {
    /// The node's own.
    Own(Pin<KBox<Own>>),
    /// Some process's, that has exported it.
    Imported {
        memory: ImportedMemory,
        handle: sharing::DmHandle,
        /// Dropped after `memory`.
        _charge: Charge,
    },
}

/// A part of the node's own memory.
#[pin_data]
struct Own {
    /// Once it is exported. Taken back before the memory is free.
    #[pin]
    exported: Mutex<Option<Exported>>,
    taken: Taken,
}

/// An export. Fields are dropped in order.
struct Exported {
    memory: ExportedMemory,
    _charge: Charge,
}

impl Piece {
    /// Allocates `len` bytes of zeroes, aligned to `1 << alignment`, for a process, and lets it map them. Returns the offset for
    /// `mmap()` too. `EOPNOTSUPP` without device memory, `ENOMEM` if there is no room or the user has its share.
    pub(crate) fn for_user(
        dev: &Device<Rdma>,
        context: &Context<Rdma>,
        len: u64,
        alignment: u32,
    ) -> Result<(Arc<Self>, u64)> {
        let memory = dev.device_memory().ok_or_else(unsupported)?;
        let align = 1u64.checked_shl(alignment).ok_or(EINVAL)?.max(PAGE);
        let pages = len.checked_next_multiple_of(PAGE);
        let pages = pages.filter(|pages| *pages != 0).ok_or(EINVAL)?;
        let own = try_pin_init!(Own {
            exported <- new_mutex!(None),
            taken: memory.take(pages, align)?,
        });
        let own = KBox::try_pin_init(own, GFP_KERNEL_ACCOUNT)?;
        // Now, and not when memory is freed: an owner may have ended in any way, on any host, and others may have written to it
        // since.
        dev.port().clear_device_memory(own.taken.start, pages)?;
        let window = memory.window.slice(own.taken.start, pages).ok_or(EINVAL)?;
        Self::offer(context, Memory::Own(own), len, window)
    }

    /// The same with memory of `len` bytes that is exported under `handle`. `EOPNOTSUPP` where none can be, `EINVAL` if it has
    /// another length or the handle is none, `EDQUOT` if the user has its share of imports, else as
    /// [`Port::import_memory`] says.
    pub(crate) fn import(
        dev: &Device<Rdma>,
        context: &Context<Rdma>,
        len: u64,
        handle: &DmHandle,
    ) -> Result<(Arc<Self>, u64)> {
        let handle = sharing::DmHandle::read_from_bytes(handle).map_err(|_| EINVAL)?;
        let charge = dev.limits().imports.charge_user()?;
        let memory = dev.port().import_memory(&handle)?;
        if memory.size() != len {
            return Err(EINVAL);
        }
        let window = memory.window();
        let memory = Memory::Imported {
            memory,
            handle,
            _charge: charge,
        };
        Self::offer(context, memory, len, window)
    }

    /// Lets a process map a piece.
    fn offer(
        context: &Context<Rdma>,
        memory: Memory,
        len: u64,
        window: MmapRange,
    ) -> Result<(Arc<Self>, u64)> {
        let piece = Arc::new(Self { memory, len }, GFP_KERNEL_ACCOUNT)?;
        let offset = context.offer(window, Mapping::memory(piece.clone()))?;
        Ok((piece, offset))
    }

    /// Lets whoever has the handle that this returns use the memory, for as long as the piece exists. `EDQUOT` if the user has
    /// its share of exports, else as [`Port::export_memory`] says.
    pub(crate) fn export(&self) -> Result<DmHandle> {
        let own = match &self.memory {
            Memory::Own(own) => own,
            // Who may use it may pass it on.
            Memory::Imported { handle, .. } => return bytes(handle),
        };
        let mut exported = own.exported.lock();
        if let Some(exported) = &*exported {
            return bytes(exported.memory.handle());
        }
        let DeviceMemory { port, exports, .. } = &*own.taken.memory;
        let charge = exports.charge_user()?;
        let export = Exported {
            memory: port.export_memory(own.taken.start, self.len)?,
            _charge: charge,
        };
        bytes(exported.insert(export).memory.handle())
    }

    /// Where the controller has it.
    fn address(&self) -> Result<u64> {
        match &self.memory {
            Memory::Own(own) => DEVICE_MEMORY_BASE
                .checked_add(own.taken.start)
                .ok_or(EINVAL),
            Memory::Imported { memory, .. } => Ok(memory.address()),
        }
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
        let addr = self.address()?.checked_add(offset).ok_or(EINVAL)?;
        let parameters = CreateMr {
            pages: PageList {
                addr: addr.into(),
                ..PageList::default()
            },
            len: len.into(),
            access: device_rights(dev.port(), access)?.into(),
            ..CreateMr::default()
        };
        Region::create(dev, pd, &parameters)
    }
}

/// A handle as the RDMA core passes it.
fn bytes(handle: &sharing::DmHandle) -> Result<DmHandle> {
    handle.as_bytes().try_into().map_err(|_| EINVAL)
}
