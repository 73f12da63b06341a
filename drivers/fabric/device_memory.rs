// SPDX-License-Identifier: GPL-2.0
//! The function's own memory: who has which part of it.

use crate::{
    hal::{unsupported, Function},
    port::ExportedMemory,
};
use core::ops::Range;
use kernel::{
    current, new_mutex,
    page::PAGE_SIZE,
    prelude::*,
    rbtree::RBTree,
    sync::{Arc, Mutex},
};
use nk::{
    mmap::MmapRange,
    user::{charged_user, may_exceed_limits},
};
use nupa_proto::{pool::sharing::RingOwner, process_ring::RING_SIZE, regs::DEVICE_MEMORY_BASE};

/// Bytes of a page, which is what parts consist of: a process maps all of a page or nothing.
const PAGE: u64 = PAGE_SIZE as u64;
/// Bytes of a huge page.
const HUGE_PAGE: u64 = 2 << 20;

/// The function's own memory, and which parts of it are in use. Outlives resets of the function.
#[pin_data]
pub struct DeviceMemory {
    function: Arc<dyn Function>,
    /// Where it begins in BAR 2.
    offset: usize,
    window: MmapRange,
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

/// Bytes that are zeroed between two looks at whether the process has a signal.
const CLEARED_AT_ONCE: usize = 64 << 20;

/// So many bytes rounded up to whole pages. `EINVAL` for none.
fn whole_pages(len: u64) -> Result<u64> {
    let pages = len.checked_next_multiple_of(PAGE);
    pages.filter(|pages| *pages != 0).ok_or(EINVAL)
}

/// Where a part may begin: `base` and its offset are a multiple of `align`, a power of 2.
#[derive(Clone, Copy)]
struct Alignment {
    align: u64,
    base: u64,
}

impl Alignment {
    /// The first such offset from this one on.
    fn next(self, offset: u64) -> Option<u64> {
        let place = self.base.checked_add(offset)?;
        place
            .checked_next_multiple_of(self.align)?
            .checked_sub(self.base)
    }
}

/// Finds room for `len` bytes between `used` parts of `size` bytes, which come by their starts.
fn find(
    used: impl Iterator<Item = Extent>,
    size: u64,
    len: u64,
    alignment: Alignment,
) -> Option<u64> {
    let mut free = alignment.next(0)?;
    for (start, end) in used {
        if free.checked_add(len)? <= start {
            return Some(free);
        }
        free = free.max(alignment.next(end)?);
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
    /// That of a function, which begins at `offset` of its BAR 2, and which the CPU has at `window`. All of it is free, but for
    /// what others hold.
    pub(crate) fn new(
        function: Arc<dyn Function>,
        offset: usize,
        window: MmapRange,
    ) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                function,
                offset,
                window,
                parts <- new_mutex!(KVVec::new()),
            }),
            GFP_KERNEL,
        )
    }

    /// Bytes in all. Does not sleep.
    pub fn size(&self) -> u64 {
        self.window.len()
    }

    /// `EOPNOTSUPP` where memory cannot be shared. Does not sleep.
    pub(crate) fn check_shareable(&self) -> Result {
        self.function.sharing().map(|_| ()).ok_or_else(unsupported)
    }

    /// Allocates `len` bytes of zeroes, rounded up to whole pages, at a multiple of `align`, a power of 2, for the user of the
    /// calling process. `EINVAL` for none, `ENOMEM` if there is no room or the user has its share, `ENODEV` if the function is lost.
    /// Sleeps.
    pub fn alloc(self: &Arc<Self>, len: u64, align: u64) -> Result<AllocatedMemory> {
        let align = align.max(PAGE);
        let taken = self.take(whole_pages(len)?, Alignment { align, base: 0 })?;
        taken.clear(0, taken.window.len())?;
        Ok(taken)
    }

    /// The same, where processors can map it by huge pages if it has that many bytes and there is room for it there. `EINTR` if the process
    /// gets a signal meanwhile.
    pub(crate) fn alloc_for_mapping(self: &Arc<Self>, len: u64) -> Result<AllocatedMemory> {
        let len = whole_pages(len)?;
        let pages = Alignment {
            align: PAGE,
            base: 0,
        };
        let huge = Alignment {
            align: HUGE_PAGE,
            base: self.window.start(),
        };
        let taken = match len < HUGE_PAGE {
            true => self.take(len, pages),
            false => self.take(len, huge).or_else(|_| self.take(len, pages)),
        }?;
        for start in (0..len).step_by(CLEARED_AT_ONCE) {
            if current!().signal_pending() {
                return Err(EINTR);
            }
            let left = len.saturating_sub(start);
            taken.clear(start, left.min(CLEARED_AT_ONCE as u64))?;
        }
        Ok(taken)
    }

    fn take(self: &Arc<Self>, len: u64, alignment: Alignment) -> Result<AllocatedMemory> {
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
        let start = find(used, self.size(), len, alignment).ok_or(ENOMEM)?;
        let window = self.window.slice(start, len).ok_or(EINVAL)?;
        let part = Part {
            start,
            end: start.saturating_add(len),
            user,
            freed: false,
        };
        let at = parts.partition_point(|part| part.start < start);
        // There is room: the list is the device's, and stays as long as it has grown when this process is gone.
        parts.insert_within_capacity(at, part).map_err(|_| ENOMEM)?;
        Ok(AllocatedMemory {
            memory: self.clone(),
            window,
            start,
        })
    }

    /// What is held by programs, of other nodes or of this one, that had it from those who have it or had it: ends by starts.
    fn held(&self) -> Result<RBTree<u64, u64>> {
        let mut found = RBTree::new();
        let mut kept = Ok(());
        if let Some(sharing) = self.function.sharing() {
            sharing.held(&mut |held: Range<u64>| {
                if kept.is_ok() {
                    kept = note(&mut found, held);
                }
            });
        }
        kept.map(|()| found)
    }
}

/// A part of the memory that nobody else has; free again when dropped, but for what others hold of it. Dropping it sleeps.
pub struct AllocatedMemory {
    memory: Arc<DeviceMemory>,
    window: MmapRange,
    start: u64,
}

impl AllocatedMemory {
    /// Zeroes `len` bytes at `offset`. When memory is allocated, and not when it is freed: an owner may have ended in any way, on any
    /// host, and others may have written to it since.
    fn clear(&self, offset: u64, len: u64) -> Result {
        let place = self.start.checked_add(offset).ok_or(EINVAL)?;
        let place = usize::try_from(place)?.checked_add(self.memory.offset);
        self.memory.function.clear(place.ok_or(EINVAL)?, len)
    }

    /// Where the CPU has it.
    pub fn window(&self) -> MmapRange {
        self.window.clone()
    }

    /// Where the function has it. `EINVAL` if that is nowhere.
    pub fn address(&self) -> Result<u64> {
        DEVICE_MEMORY_BASE.checked_add(self.start).ok_or(EINVAL)
    }

    /// Lets others use its first `len` bytes, until what this returns is dropped, which has to be before this is. `EOPNOTSUPP` where
    /// memory cannot be shared, `EINVAL` if it has less, `ENOSPC` if there is too much that is shared. Sleeps.
    pub fn export(&self, len: u64) -> Result<ExportedMemory> {
        self.export_for(len, &RingOwner::default())
    }

    /// The same with memory of [`RING_SIZE`] bytes that is the process ring of a connection: nobody but the sender may use it. `EINVAL` if it has
    /// another size, `EOPNOTSUPP` where there are no rings.
    pub fn export_ring(&self, ring: &RingOwner) -> Result<ExportedMemory> {
        if self.window.len() != RING_SIZE as u64 {
            return Err(EINVAL);
        }
        self.export_for(RING_SIZE as u64, ring)
    }

    fn export_for(&self, len: u64, ring: &RingOwner) -> Result<ExportedMemory> {
        if len > self.window.len() {
            return Err(EINVAL);
        }
        let function = &self.memory.function;
        let sharing = function.sharing().ok_or_else(unsupported)?;
        let (number, handle) = sharing.export(self.start, len, ring)?;
        let window = self.window.clone();
        Ok(ExportedMemory::new(
            function.clone(),
            number,
            handle,
            window,
        ))
    }
}

impl Drop for AllocatedMemory {
    fn drop(&mut self) {
        if let Some(sharing) = self.memory.function.sharing() {
            sharing.let_go(&self.window);
        }
        let mut parts = self.memory.parts.lock();
        let mut live = parts.iter_mut().filter(|part| !part.freed);
        if let Some(part) = live.find(|part| part.start == self.start) {
            part.freed = true;
        }
    }
}
