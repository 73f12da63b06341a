// SPDX-License-Identifier: GPL-2.0
//! Memory devices: character devices by which programs of several nodes map the same memory of a pool.
//!
//! A node creates one with memory of its own, which it exports; others attach it by the export's handle
//! (`Documentation/memory.md`). Devices end with what the function was when they were made: when it is reset or lost, or the driver is
//! unbound.

use crate::{
    controller::{Controller, State},
    device_memory::AllocatedMemory,
    fmt,
    hal::unsupported,
    port::{ExportedMemory, ImportedMemory, Port},
};
use kernel::{
    new_mutex,
    prelude::*,
    str::CString,
    sync::{Arc, Mutex},
};
use nk::{memory_device, mmap::MmapRange};
use nupa_proto::{netlink::memory::MAX_NAME, pool::sharing::DmHandle};

/// The memory devices of a controller. Their lock comes after that of the controller's life.
#[pin_data]
pub(crate) struct MemoryDevices {
    #[pin]
    all: Mutex<KVec<MemoryDevice>>,
}

/// A memory device. Fields are dropped in order: no process has the memory mapped any more when it is given back.
pub(crate) struct MemoryDevice {
    device: memory_device::MemoryDevice,
    memory: Memory,
    handle: DmHandle,
    name: CString,
}

/// The memory of a device. Fields are dropped in order: an export goes before the memory that it is of.
struct Memory {
    /// Of memory of the node's own.
    _exported: Option<ExportedMemory>,
    held: Held,
}

/// Whose memory it is. It is given back with the last clone.
#[derive(Clone)]
enum Held {
    /// The node's own.
    Own(Arc<AllocatedMemory>),
    /// What some node exports.
    Imported(Arc<ImportedMemory>),
}

/// Memory of a memory device that a process had mapped, or had a DMA buffer of, when it was found. The function may use it until this is
/// dropped: the memory goes to nobody else, even if the device has ended since. The device counts as open that long.
pub struct MappedMemory {
    held: Held,
    range: memory_device::Range,
}

impl MappedMemory {
    /// Where the function has its first byte. `EINVAL` if that is nowhere. Does not sleep.
    pub fn address(&self) -> Result<u64> {
        let start = match &self.held {
            Held::Own(allocated) => allocated.address()?,
            Held::Imported(imported) => imported.address(),
        };
        start.checked_add(self.range.offset()).ok_or(EINVAL)
    }

    /// Whether the process could read all of it. Does not sleep.
    pub fn is_readable(&self) -> bool {
        self.range.is_readable()
    }

    /// Whether the process could write to all of it. Does not sleep.
    pub fn is_writable(&self) -> bool {
        self.range.is_writable()
    }
}

impl MemoryDevice {
    /// Its name, below `/dev/nupa`.
    pub(crate) fn name(&self) -> &CStr {
        &self.name
    }

    /// Bytes.
    pub(crate) fn size(&self) -> u64 {
        self.device.size()
    }

    /// What others attach it by.
    pub(crate) fn handle(&self) -> &DmHandle {
        &self.handle
    }

    /// Whether it was attached, not created.
    pub(crate) fn is_attached(&self) -> bool {
        matches!(self.memory.held, Held::Imported(_))
    }

    /// How many times it is open. Sleeps.
    pub(crate) fn opens(&self) -> u32 {
        self.device.opens()
    }
}

/// Whether a device may have this name: it is one of a file, and none that means something else to a shell or to udev.
pub(crate) fn is_fit(name: &[u8]) -> bool {
    let fits = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-".contains(byte);
    let first = name.first().is_some_and(u8::is_ascii_alphanumeric);
    first && name.len() <= MAX_NAME && name.iter().all(fits)
}

impl MemoryDevices {
    /// None.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            all <- new_mutex!(KVec::new()),
        })
    }

    /// Calls `f` with the first device from `position` on, if there is one. Sleeps.
    pub(crate) fn at<T>(
        &self,
        position: usize,
        f: impl FnOnce(&MemoryDevice) -> Result<T>,
    ) -> Result<Option<T>> {
        self.all.lock().get(position).map(f).transpose()
    }

    /// Removes a device. `ENOENT` if there is none of the name, `EBUSY` if it is open and not forced. Sleeps.
    pub(crate) fn remove(&self, name: &[u8], force: bool) -> Result {
        let mut all = self.all.lock();
        let found = all.iter().position(|of| of.name.to_bytes() == name);
        let index = found.ok_or(ENOENT)?;
        let device = all.get(index).ok_or(ENOENT)?;
        if !force && !device.device.revoke_unused() {
            return Err(EBUSY);
        }
        drop(all.remove(index));
        Ok(())
    }
}

impl Controller {
    /// Ends all memory devices, because of `why`; the controller does not run any more. Sleeps.
    pub(crate) fn end_memory_devices(&self, why: &str) {
        let mut all = self.memory_devices.all.lock();
        for device in all.iter() {
            // All processes lose all of it before a device is waited for that has imported some.
            device.device.revoke();
            dev_warn!(
                self.device(),
                "memory device /dev/nupa/{} ends, because {why}: programs that have mapped it get SIGBUS\n",
                device.name.to_str().unwrap_or_default()
            );
        }
        all.clear();
    }

    /// Makes a memory device of `len` bytes of the node's own memory, whole pages. `EOPNOTSUPP` where memory cannot be shared, `EINVAL` for no
    /// bytes, `ENOMEM` if there is no room, `ENOSPC` if too much is exported, `EEXIST` if there is a device of the name, `ENODEV` if the
    /// controller does not run, `EINTR` if a signal ends it. Sleeps.
    pub(crate) fn create_memory_device(&self, name: &[u8], len: u64) -> Result {
        let generation = self.check_new(name)?;
        let own = self.device_memory().ok_or_else(unsupported)?;
        own.check_shareable()?;
        let allocated = Arc::new(own.alloc_for_mapping(len)?, GFP_KERNEL)?;
        let window = allocated.window();
        let exported = allocated.export(window.len())?;
        let handle = *exported.handle();
        let memory = Memory {
            _exported: Some(exported),
            held: Held::Own(allocated),
        };
        self.add_memory_device(generation, name, window, memory, handle)
    }

    /// Makes one of memory that is exported under `handle`. `EOPNOTSUPP`, `EEXIST` and `ENODEV` as above, else as
    /// [`Port::import_memory`] says. Sleeps.
    pub(crate) fn attach_memory_device(self: &Arc<Self>, name: &[u8], handle: &DmHandle) -> Result {
        let generation = self.check_new(name)?;
        let port = Port {
            controller: self.clone(),
        };
        let imported = port.import_memory(handle)?;
        let window = imported.window();
        let memory = Memory {
            _exported: None,
            held: Held::Imported(Arc::new(imported, GFP_KERNEL)?),
        };
        self.add_memory_device(generation, name, window, memory, *handle)
    }

    /// Whether there may be a device of this name, before it is made; what may have changed by then is looked at again. Returns which
    /// generation of the function's objects it will be of.
    fn check_new(&self, name: &[u8]) -> Result<u32> {
        if self.state() != State::Running {
            return Err(ENODEV);
        }
        let all = self.memory_devices.all.lock();
        if all.iter().any(|of| of.name.to_bytes() == name) {
            return Err(EEXIST);
        }
        drop(all);
        Ok(self.admin.generation())
    }

    /// Adds a device with memory that the function had or got as it was then.
    fn add_memory_device(
        &self,
        generation: u32,
        name: &[u8],
        window: MmapRange,
        memory: Memory,
        handle: DmHandle,
    ) -> Result {
        let text = core::str::from_utf8(name).map_err(|_| EINVAL)?;
        let path = CString::try_from_fmt(fmt!("nupa/{text}"))?;
        let name = CString::try_from_fmt(fmt!("{text}"))?;
        let mut all = self.memory_devices.all.lock();
        // `end_memory_devices` is called after these have changed, and takes the lock.
        if self.state() != State::Running || self.admin.generation() != generation {
            return Err(ENODEV);
        }
        all.reserve(1, GFP_KERNEL)?;
        let device = memory_device::MemoryDevice::new(self.device(), path.to_bytes(), window)?;
        all.push(
            MemoryDevice {
                device,
                memory,
                handle,
                name,
            },
            GFP_KERNEL,
        )?;
        Ok(())
    }
}

impl Port {
    /// What the calling process has mapped at an address, if all of `len` bytes there, at least one, are of one memory device of this
    /// port's controller, at rising offsets. Takes the process's `mmap_lock`, then the lock of the memory devices. Sleeps.
    pub fn mapped_memory(&self, addr: u64, len: u64) -> Option<MappedMemory> {
        self.memory_of(memory_device::Range::find(addr, len)?, len)
    }

    /// As [`Port::mapped_memory`], for `len` bytes at an offset of a DMA buffer that the calling process has. Takes the lock of the memory
    /// devices. Sleeps.
    pub fn dmabuf_memory(&self, fd: i32, offset: u64, len: u64) -> Option<MappedMemory> {
        self.memory_of(memory_device::Range::of_dmabuf(fd, offset, len)?, len)
    }

    /// The memory of a range of `len` bytes, if its device is one of this port's controller and has not ended.
    fn memory_of(&self, range: memory_device::Range, len: u64) -> Option<MappedMemory> {
        let all = self.controller.memory_devices.all.lock();
        let found = all.iter().find(|of| range.is_of(&of.device))?;
        // As was checked when it was mapped, or the buffer made.
        let end = range.offset().checked_add(len)?;
        if end > found.size() {
            return None;
        }
        Some(MappedMemory {
            held: found.memory.held.clone(),
            range,
        })
    }
}
