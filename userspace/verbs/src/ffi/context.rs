// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A device that is open, and protection domains on it.

use std::ffi::{c_int, CStr};
use std::ptr::{self, NonNull};
use std::rc::Rc;

use super::library::functions;
use super::sys::{self, Functions};
use crate::error::{last_errno, Error};

/// A device that is open.
///
/// # Invariant
///
/// `raw` is what `ibv_open_device()` returned, and is closed when this is dropped.
pub struct Context {
    functions: &'static Functions,
    raw: NonNull<sys::ibv_context>,
}

impl Context {
    /// Opens a device by its name.
    ///
    /// # Errors
    ///
    /// If there is no libibverbs, if it does not know the device, or if the device cannot be opened.
    pub fn open(name: &str) -> Result<Rc<Self>, Error> {
        let functions = functions()?;
        let devices = Devices::list(functions)?;
        let device = devices.find(name);
        let device = device.ok_or_else(|| Error::Device(name.to_owned()))?;
        // SAFETY: the device is of a list that is not freed before this returns; an open device stays after that, by the contract of
        // ibv_free_device_list().
        let raw = unsafe { functions.ibv_open_device(device.as_ptr()) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::Open(last_errno()))?;
        Ok(Rc::new(Self { functions, raw }))
    }

    pub(super) fn functions(&self) -> &'static Functions {
        self.functions
    }

    pub(super) fn raw(&self) -> *mut sys::ibv_context {
        self.raw.as_ptr()
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: by the invariant; whatever depends on it keeps an `Rc` of it, so there is nothing left. An error cannot be helped.
        let _ = unsafe { self.functions.ibv_close_device(self.raw.as_ptr()) };
    }
}

/// The devices that libibverbs knows.
///
/// # Invariant
///
/// `list` is what `ibv_get_device_list()` returned, with `count` entries, and is freed when this is dropped.
struct Devices {
    functions: &'static Functions,
    list: NonNull<*mut sys::ibv_device>,
    count: usize,
}

impl Devices {
    fn list(functions: &'static Functions) -> Result<Self, Error> {
        let mut count: c_int = 0;
        // SAFETY: the number is written to a variable that lives during the call.
        let list = unsafe { functions.ibv_get_device_list(&mut count) };
        let list = NonNull::new(list).ok_or_else(|| Error::last("list RDMA devices"))?;
        Ok(Self {
            functions,
            list,
            count: count.try_into().unwrap_or(0),
        })
    }

    fn find(&self, name: &str) -> Option<NonNull<sys::ibv_device>> {
        let has_name = |device: &NonNull<sys::ibv_device>| {
            // SAFETY: the device is one of the list, whose names are strings in C as long as it is not freed, or null.
            let found = unsafe {
                let text = self.functions.ibv_get_device_name(device.as_ptr());
                (!text.is_null()).then(|| CStr::from_ptr(text))
            };
            found.is_some_and(|found| found.to_bytes() == name.as_bytes())
        };
        let devices = (0..self.count).filter_map(|at| {
            // SAFETY: `at` is below the number of entries (invariant).
            NonNull::new(unsafe { self.list.as_ptr().add(at).read() })
        });
        devices.into_iter().find(has_name)
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        // SAFETY: by the invariant.
        unsafe { self.functions.ibv_free_device_list(self.list.as_ptr()) };
    }
}

/// A protection domain.
///
/// # Invariant
///
/// `raw` is what `ibv_alloc_pd()` returned, and is freed when this is dropped.
pub struct Domain {
    raw: NonNull<sys::ibv_pd>,
    context: Rc<Context>,
}

impl Domain {
    /// A new one.
    ///
    /// # Errors
    ///
    /// If the kernel or the provider refuses.
    pub fn new(context: &Rc<Context>) -> Result<Rc<Self>, Error> {
        // SAFETY: the context is open (its invariant).
        let raw = unsafe { context.functions.ibv_alloc_pd(context.raw()) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("make a protection domain"))?;
        Ok(Rc::new(Self {
            raw,
            context: context.clone(),
        }))
    }

    pub(super) fn context(&self) -> &Rc<Context> {
        &self.context
    }

    pub(super) fn raw(&self) -> *mut sys::ibv_pd {
        self.raw.as_ptr()
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: by the invariant; what was made in it keeps an `Rc` of it, so there is nothing left.
        let _ = unsafe { self.context.functions.ibv_dealloc_pd(self.raw()) };
    }
}

/// What a function says that returns an errno, or -1 and sets it.
pub(super) fn check(what: &'static str, returned: c_int) -> Result<(), Error> {
    match returned {
        0 => Ok(()),
        errno if errno > 0 => Err(Error::Refused { what, errno }),
        _ => Err(Error::last(what)),
    }
}

/// A null pointer in the place of an object that there is none of.
pub(super) fn none<T>() -> *mut T {
    ptr::null_mut()
}
