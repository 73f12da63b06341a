// SPDX-License-Identifier: GPL-2.0
//! Memory that a process may map until it is revoked.
//!
//! C header: `revocable.h`.

use crate::bindings;
use core::ptr::NonNull;
use kernel::{error::from_err_ptr, prelude::*};
use nk::mmap::MmapRange;

/// Memory that processes may map until this is dropped, or it is revoked before: what they store afterwards goes to a page that is nobody's.
///
/// # Invariants
///
/// `file` is one of `nk_rdma_revocable_new()`, of the range, and there is a reference to it that is ours.
pub struct Revocable {
    file: NonNull<bindings::file>,
    range: MmapRange,
}

// SAFETY: All that is done with it is done under its own lock.
unsafe impl Send for Revocable {}
// SAFETY: As above.
unsafe impl Sync for Revocable {}

impl Revocable {
    /// `ENOMEM` if there is no memory for it. Sleeps.
    pub fn new(range: MmapRange) -> Result<Self> {
        // SAFETY: No requirements; processes may map the memory (`MmapRange`).
        let file = unsafe { bindings::nk_rdma_revocable_new(range.start(), range.is_cached()) };
        // INVARIANT: The reference that comes with it is ours.
        Ok(Self {
            file: NonNull::new(from_err_ptr(file)?).ok_or(ENOMEM)?,
            range,
        })
    }

    /// The memory.
    pub(crate) fn range(&self) -> &MmapRange {
        &self.range
    }

    /// Takes it away: when this returns no process reaches it, and none will. Sleeps.
    pub fn revoke(&self) {
        // SAFETY: The file is of that kind, and there is a reference (invariant).
        unsafe { bindings::nk_rdma_revoke(self.file.as_ptr()) };
    }

    /// Lets the running process map it.
    ///
    /// # Safety
    ///
    /// `vma` is the area of an `mmap()`, in that call, which found `entry`; that is as long as the range, and the same each time.
    pub(crate) unsafe fn mmap(
        &self,
        vma: *mut bindings::vm_area_struct,
        entry: *mut bindings::rdma_user_mmap_entry,
    ) -> i32 {
        // SAFETY: By this function's contract, and the invariant. Its areas have pages of the range only while it is not revoked, which it is before the range is
        // dropped.
        unsafe { bindings::nk_rdma_revocable_mmap(self.file.as_ptr(), vma, entry) }
    }
}

impl Drop for Revocable {
    fn drop(&mut self) {
        self.revoke();
        // SAFETY: The reference is ours (invariant), and ends here.
        unsafe { bindings::nk_rdma_revocable_put(self.file.as_ptr()) };
    }
}
