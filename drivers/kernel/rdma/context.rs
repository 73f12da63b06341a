// SPDX-License-Identifier: GPL-2.0
//! User contexts and what they map.

use crate::{bindings, revocable::Revocable, Driver};
use core::{
    mem::MaybeUninit,
    ptr::{addr_of, NonNull},
};
use kernel::{
    error::to_result,
    new_mutex,
    page::PAGE_SIZE,
    prelude::*,
    sync::{Arc, Mutex},
    types::Opaque,
};
use nk::{mmap::MmapRange, process::Process};

/// A process's use of the device: one open file (`struct ib_ucontext`).
#[repr(C)]
pub struct Context<D: Driver> {
    ib: Opaque<bindings::ib_ucontext>,
    /// Mappings that the context offers; the core keeps each until the last process has unmapped it.
    mappings: MaybeUninit<Pin<KBox<Mutex<Mappings<D>>>>>,
    data: MaybeUninit<D::Context>,
}

struct Mappings<D: Driver>(KVec<NonNull<Entry<D>>>);

// SAFETY: What the pointers point to is reference-counted by the core, and each is used with the lock held.
unsafe impl<D: Driver> Send for Mappings<D> {}

/// One mapping that a context offers.
#[repr(C)]
pub(crate) struct Entry<D: Driver> {
    entry: Opaque<bindings::rdma_user_mmap_entry>,
    /// Kept, with its memory, until nobody maps it any more.
    range: MmapRange,
    /// The only process that may map it; any that has the context's file if there is none.
    process: Option<Process>,
    /// Kept as long as the range.
    _keep: Option<D::Mapping>,
    /// The same memory, if it is one that is revoked.
    revocable: Option<Arc<Revocable>>,
}

impl<D: Driver> Entry<D> {
    /// Frees an entry that nobody maps or can map.
    ///
    /// # Safety
    ///
    /// `entry` is embedded in a `Self` that [`Context::offer`] made, and this is the core's last use of it.
    pub(crate) unsafe fn free(entry: *mut bindings::rdma_user_mmap_entry) {
        // SAFETY: By this function's contract; it comes from `KBox::into_raw()`.
        drop(unsafe { KBox::from_raw(entry.cast::<Self>()) });
    }
}

impl<D: Driver> Context<D> {
    pub(crate) const SIZE: usize = size_of::<Self>();

    /// Completes a new context.
    ///
    /// # Safety
    ///
    /// `ib` is the start of memory for a `Self` whose other fields are not initialised.
    pub(crate) unsafe fn init(ib: *mut bindings::ib_ucontext, data: D::Context) -> Result {
        let mappings = KBox::pin_init(new_mutex!(Mappings(KVec::new())), GFP_KERNEL_ACCOUNT)?;
        let this = ib.cast::<Self>();
        // SAFETY: By this function's contract.
        unsafe {
            (*this).mappings.write(mappings);
            (*this).data.write(data);
        }
        Ok(())
    }

    /// Drops what [`Context::init`] completed the context with.
    ///
    /// # Safety
    ///
    /// `ib` was passed to `init`, nobody uses the context, and this is called once.
    pub(crate) unsafe fn finish(ib: *mut bindings::ib_ucontext) {
        // SAFETY: By this function's contract.
        unsafe { Self::from_raw(ib) }.withdraw_all();
        let this = ib.cast::<Self>();
        // SAFETY: By this function's contract all fields are initialised and ours.
        unsafe {
            (*this).data.assume_init_drop();
            (*this).mappings.assume_init_drop();
        }
    }

    /// # Safety
    ///
    /// `ib` is a complete context of a device of `D`, for `'a`.
    pub(crate) unsafe fn from_raw<'a>(ib: *mut bindings::ib_ucontext) -> &'a Self {
        // SAFETY: The context starts with the C structure.
        unsafe { &*ib.cast::<Self>() }
    }

    /// The driver's data.
    pub fn data(&self) -> &D::Context {
        // SAFETY: There is a reference, so the context is complete.
        unsafe { &*addr_of!(self.data).cast::<D::Context>() }
    }

    fn mappings(&self) -> &Mutex<Mappings<D>> {
        // SAFETY: As in `data`.
        unsafe { self.mappings.assume_init_ref() }
    }

    /// Lets the process map `range`, and returns the offset for `mmap()`. `keep` is dropped when nobody maps it any
    /// more and the context is gone or has withdrawn it. Sleeps.
    pub fn offer(&self, range: MmapRange, keep: D::Mapping) -> Result<u64> {
        self.insert(range, None, Some(keep), None)
    }

    /// As [`Context::offer`], until it is revoked. Children do not inherit its mappings. To be called once.
    pub fn offer_revocable(&self, memory: &Arc<Revocable>) -> Result<u64> {
        let range = memory.range().clone();
        self.insert(range, None, None, Some(memory.clone()))
    }

    /// As [`Context::offer`], to one process alone: others that have the context's file cannot map the range (`EACCES`), and
    /// children do not inherit its mapping.
    pub fn offer_to(&self, process: &Process, range: MmapRange, keep: D::Mapping) -> Result<u64> {
        self.insert(range, Some(process.clone()), Some(keep), None)
    }

    fn insert(
        &self,
        range: MmapRange,
        process: Option<Process>,
        keep: Option<D::Mapping>,
        revocable: Option<Arc<Revocable>>,
    ) -> Result<u64> {
        let len = usize::try_from(range.len())?;
        let entry = KBox::new(
            Entry::<D> {
                // The core counts on zeroes where it does not initialise.
                entry: Opaque::zeroed(),
                range,
                process,
                _keep: keep,
                revocable,
            },
            GFP_KERNEL_ACCOUNT,
        )?;
        let mut mappings = self.mappings().lock();
        mappings.0.reserve(1, GFP_KERNEL_ACCOUNT)?;
        // SAFETY: The context is alive; the entry is fresh and stays where it is until `Entry::free`.
        to_result(unsafe {
            bindings::rdma_user_mmap_entry_insert(self.ib.get(), entry.entry.get(), len)
        })?;
        let entry = NonNull::from(KBox::leak(entry));
        // The room is reserved.
        mappings.0.push(entry, GFP_KERNEL_ACCOUNT)?;
        // SAFETY: The entry is alive while it is in the list.
        Ok(unsafe { entry.as_ref() }.offset())
    }

    /// Takes back an offer by its offset: it cannot be mapped again. Sleeps.
    pub fn withdraw(&self, offset: u64) {
        let mut mappings = self.mappings().lock();
        let position = mappings.0.iter().position(|entry| {
            // SAFETY: The entry is alive while it is in the list.
            unsafe { entry.as_ref() }.offset() == offset
        });
        let Some(entry) = position.and_then(|at| mappings.0.remove(at).ok()) else {
            return;
        };
        drop(mappings);
        // SAFETY: The reference that came with its insertion is ours and ends here.
        unsafe { bindings::rdma_user_mmap_entry_remove(entry.as_ref().entry.get()) };
    }

    fn withdraw_all(&self) {
        let entries = core::mem::take(&mut self.mappings().lock().0);
        for entry in entries {
            // SAFETY: As in `withdraw`.
            unsafe { bindings::rdma_user_mmap_entry_remove(entry.as_ref().entry.get()) };
        }
    }

    /// Maps what was offered at the area's offset. `EINVAL` if that is nothing, or if the area does not fit; `EACCES` if it was
    /// offered to another process.
    ///
    /// # Safety
    ///
    /// `vma` is the area of an `mmap()` of this context's file, in that call.
    pub(crate) unsafe fn mmap(&self, vma: *mut bindings::vm_area_struct) -> Result {
        // SAFETY: By this function's contract.
        let raw = unsafe { bindings::rdma_user_mmap_entry_get(self.ib.get(), vma) };
        if raw.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: All entries of this context are embedded in an `Entry`, and there is a reference to this one.
        let entry = unsafe { &*raw.cast::<Entry<D>>() };
        let (range, process) = (&entry.range, &entry.process);
        let inherited = process.is_none();
        let mapped = match (process, &entry.revocable) {
            (Some(process), _) if !process.is_current() => Err(EACCES),
            // SAFETY: By this function's contract; the entry was made for this range.
            (_, Some(memory)) => to_result(unsafe { memory.mmap(vma, raw) }),
            _ => {
                let (start, cached) = (range.start(), range.is_cached());
                // SAFETY: As above, and the area is as long as the range, as the core has checked.
                let mapped = unsafe {
                    bindings::nk_rdma_mmap(self.ib.get(), vma, raw, start, cached, inherited)
                };
                to_result(mapped)
            }
        };
        // SAFETY: The reference is ours.
        unsafe { bindings::rdma_user_mmap_entry_put(raw) };
        mapped
    }
}

impl<D: Driver> Entry<D> {
    fn offset(&self) -> u64 {
        // SAFETY: The entry was inserted, after which this field is constant.
        let pages = unsafe { (*self.entry.get()).start_pgoff };
        pages as u64 * PAGE_SIZE as u64
    }
}
