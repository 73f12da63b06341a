// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Memory that is registered.

use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::rc::Rc;

use super::context::Domain;
use super::sys;
use crate::error::Error;
use crate::memory::Memory;

/// Memory that a device may read and write.
///
/// # Invariant
///
/// `raw` is what `ibv_reg_mr()` returned for all of `memory`. The device, and nodes that know the key, access it through `raw` alone, which is
/// taken away before the memory is freed.
pub struct Region {
    raw: NonNull<sys::ibv_mr>,
    memory: ManuallyDrop<Memory>,
    domain: Rc<Domain>,
}

impl Region {
    /// Registers memory; `remote` lets other nodes write to it that have its key.
    ///
    /// # Errors
    ///
    /// If the kernel refuses, for one because the process may not lock so much memory.
    pub fn new(domain: &Rc<Domain>, memory: Memory, remote: bool) -> Result<Self, Error> {
        let mut access = sys::IBV_ACCESS_LOCAL_WRITE;
        if remote {
            access |= sys::IBV_ACCESS_REMOTE_WRITE;
        }
        let start = memory.start().cast_mut().cast();
        // SAFETY: the domain exists (its invariant), and the memory is of the allocator. It consists of atomics, so that a device may write to
        // it, and is not freed before the region is taken away (see `drop`).
        let raw = unsafe {
            domain.context().functions().ibv_reg_mr(
                domain.raw(),
                start,
                memory.bytes(),
                access as c_int,
            )
        };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("register memory"))?;
        Ok(Self {
            raw,
            memory: ManuallyDrop::new(memory),
            domain: domain.clone(),
        })
    }

    /// The memory.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The key for other nodes.
    pub fn remote_key(&self) -> u32 {
        // SAFETY: by the invariant it is there, and the library does not change it.
        unsafe { self.raw.as_ref().rkey }
    }

    /// Where it begins, for other nodes.
    pub fn address(&self) -> u64 {
        self.memory.start().expose_provenance() as u64
    }

    /// An element of a scatter/gather list, for so many bytes of it.
    pub(super) fn element(&self, offset: usize, bytes: u32) -> Result<sys::ibv_sge, Error> {
        let end = offset.checked_add(bytes.try_into().map_err(|_| Error::Range)?);
        if end.is_none_or(|end| end > self.memory.bytes()) {
            return Err(Error::Range);
        }
        Ok(sys::ibv_sge {
            addr: self.address().wrapping_add(offset as u64),
            length: bytes,
            // SAFETY: as in `remote_key`.
            lkey: unsafe { self.raw.as_ref().lkey },
        })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: by the invariant. Requests that still name it fail from now on: the kernel does not return before the device has forgotten it.
        let gone = unsafe {
            let functions = self.domain.context().functions();
            functions.ibv_dereg_mr(self.raw.as_ptr())
        };
        // What a device may still write to is not freed.
        if gone == 0 {
            // SAFETY: nobody uses it after this, and it is dropped once.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        }
    }
}
