// SPDX-License-Identifier: GPL-2.0
//! Character devices that processes map physical memory by, and that it can be taken away from them by.
//!
//! C headers: `include/linux/cdev.h`, `include/linux/mm.h` (`vmf_insert_pfn()`), `include/linux/dma-buf.h`.

use crate::{bindings, mmap::MmapRange, raw};
use core::ptr::NonNull;
use kernel::{device::Device, error::to_result, prelude::*};

/// Lets there be memory devices until this is dropped, when there are none any more: for the module whose drivers make them. Dropping it
/// sleeps.
pub struct Registration(());

impl Registration {
    /// `EBUSY` if there is one, else as `alloc_chrdev_region()` and `class_register()` say. Sleeps.
    pub fn new() -> Result<Self> {
        // SAFETY: No requirements.
        to_result(unsafe { bindings::nk_memory_device_init() })?;
        Ok(Self(()))
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: `new` was successful.
        unsafe { bindings::nk_memory_device_exit() };
    }
}

/// A character device whose bytes are those of physical memory: `/dev/NAME`, which root may open, and others if the administrator lets
/// them. Mappings are shared and not executable; its size is where `lseek()` finds the end. A process can have a DMA buffer made of a part of
/// it (`include/uapi/linux/nupa_memory.h`). Other devices can have such a buffer if the memory is the platform's. Dropping this removes the device
/// and unmaps the memory from all processes, which get `SIGBUS` when they access it afterwards, and from devices, which it waits for. Both sleep.
///
/// # Invariants
///
/// `device` was added with the memory of `memory`, and not removed.
pub struct MemoryDevice {
    device: NonNull<bindings::nk_memory_device>,
    memory: MmapRange,
}

// SAFETY: What C does with the device is under its own locks, from any thread.
unsafe impl Send for MemoryDevice {}
// SAFETY: As above.
unsafe impl Sync for MemoryDevice {}

impl MemoryDevice {
    /// Adds a device; `name` has its directories. `EEXIST` if there is one of the name, `ENODEV` without a
    /// [`Registration`], `EINVAL` for a name with a NUL or for memory that is
    /// not mapped cached. Sleeps.
    pub fn new(parent: &Device, name: &[u8], memory: MmapRange) -> Result<Self> {
        if name.contains(&0) || !memory.is_cached() {
            return Err(EINVAL);
        }
        let mut added = core::ptr::null_mut();
        // SAFETY: `parent` is valid, and `name` has that many bytes, which C copies. Processes may have the memory by the
        // invariants of `MmapRange`, and so may devices if it says so; we keep it until the device is revoked.
        to_result(unsafe {
            bindings::nk_memory_device_add(
                raw::device(parent),
                name.as_ptr(),
                name.len(),
                memory.start(),
                memory.len(),
                memory.is_platform(),
                &mut added,
            )
        })?;
        // INVARIANT: It was added just now.
        Ok(Self {
            device: NonNull::new(added).ok_or(ENOMEM)?,
            memory,
        })
    }

    /// Bytes. Does not sleep.
    pub fn size(&self) -> u64 {
        self.memory.len()
    }

    /// How many times it is open, each DMA buffer of it counted as one. Sleeps.
    pub fn opens(&self) -> u32 {
        // SAFETY: By the type's invariant.
        unsafe { bindings::nk_memory_device_opens(self.device.as_ptr()) }
    }

    /// Takes it away from all processes. Nobody can open it afterwards. Other devices are told, and waited for when this is dropped. Sleeps.
    pub fn revoke(&self) {
        // SAFETY: By the type's invariant.
        unsafe { bindings::nk_memory_device_revoke(self.device.as_ptr(), true) };
    }

    /// Takes it away from all processes, unless it is open: then nothing happens, and this is false. Nobody can open it afterwards.
    /// Sleeps.
    pub fn revoke_unused(&self) -> bool {
        // SAFETY: By the type's invariant.
        unsafe { bindings::nk_memory_device_revoke(self.device.as_ptr(), false) }
    }
}

impl Drop for MemoryDevice {
    fn drop(&mut self) {
        // SAFETY: By the type's invariant; this is its end. Only then, when no process and no device has it any more, `memory` is dropped.
        unsafe {
            bindings::nk_memory_device_revoke(self.device.as_ptr(), true);
            bindings::nk_memory_device_await(self.device.as_ptr());
            bindings::nk_memory_device_remove(self.device.as_ptr());
        }
    }
}

/// A part of a device that a process has mapped, or has a DMA buffer of. It counts as an open file of the device, even after the process has
/// unmapped it and closed the buffer, and does not keep the device from being revoked.
///
/// # Invariants
///
/// C filled it in, and `file` is a reference of ours to an open file of a memory device, or to a DMA buffer of one, which keeps `dev`.
pub struct Range(bindings::nk_memory_range);

// SAFETY: `fput()` may be called by any task.
unsafe impl Send for Range {}
// SAFETY: Nothing is changed by a reference.
unsafe impl Sync for Range {}

impl Range {
    /// Finds the device that the calling process has mapped at an address: `None` unless all of `len` bytes there, at least one, are of one
    /// device, at rising offsets. Takes the process's `mmap_lock`. Sleeps.
    pub fn find(addr: u64, len: u64) -> Option<Self> {
        let mut found = bindings::nk_memory_range::default();
        // SAFETY: C writes to `found` in this call only.
        let is_there = unsafe { bindings::nk_memory_device_find_range(addr, len, &mut found) };
        // INVARIANT: C says so, and has taken a reference to the file.
        is_there.then(|| Self(found))
    }

    /// Finds the device that the calling process has a DMA buffer of: `None` unless `fd` is one, and all of `len` bytes at `offset`, at least
    /// one, are in it. Does not sleep.
    pub fn of_dmabuf(fd: i32, offset: u64, len: u64) -> Option<Self> {
        let mut found = bindings::nk_memory_range::default();
        // SAFETY: C writes to `found` in this call only.
        let is_there =
            unsafe { bindings::nk_memory_dmabuf_find_range(fd, offset, len, &mut found) };
        // INVARIANT: C says so, and has taken a reference to the file.
        is_there.then(|| Self(found))
    }

    /// Whether it is a part of this device. Does not sleep.
    pub fn is_of(&self, device: &MemoryDevice) -> bool {
        // SAFETY: By the invariants of both types.
        unsafe { bindings::nk_memory_range_is_of(&self.0, device.device.as_ptr()) }
    }

    /// Bytes into the device.
    pub fn offset(&self) -> u64 {
        self.0.offset
    }

    /// Whether the process could read all of it when it was found, by the mapping or by the buffer's file.
    pub fn is_readable(&self) -> bool {
        self.0.readable
    }

    /// Whether the process could write to all of it when it was found, as above.
    pub fn is_writable(&self) -> bool {
        self.0.writable
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        // SAFETY: By the type's invariant.
        unsafe { bindings::nk_memory_range_put(&self.0) };
    }
}
