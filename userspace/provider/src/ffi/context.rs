// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Contexts: an open device.

use core::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nupa_proto::uabi::{self, ContextResponse, CONTEXT_PROCESS_RINGS, CONTEXT_RING_WRITES};
use rustix::io::Errno;

use super::called;
use super::command::exchange;
use super::doorbells::{Doorbells, Slots};
use super::driver::OPS;
use super::empty_polls::EmptyPolls;
use super::errno::{check, code, null};
use super::kick::Owner;
use super::object::{Object, Plain};
use super::ring_source::Mode;
use super::{abi, sys};
use crate::queue::Regions;

/// `RDMA_DRIVER_UNKNOWN`: what the device tells of its driver.
const DRIVER_ID: u32 = 0;

/// What belongs to a context.
#[derive(Debug)]
pub(super) struct Context {
    /// What the kernel said of the device.
    pub(super) info: ContextResponse,
    doorbells: Doorbells,
    empty_polls: EmptyPolls,
    regions: Arc<Regions>,
    mode: Mode,
    /// Held from the destruction of a queue pair until its completion queues know, and while one is made.
    numbers: Mutex<()>,
}

type ContextObject = Object<sys::verbs_context, Context>;

impl Context {
    /// The context of a `struct ibv_context`.
    ///
    /// # Safety
    ///
    /// It is one of this provider's, and stays open as long as the reference is used.
    pub(super) unsafe fn of<'a>(context: *mut sys::ibv_context) -> &'a Self {
        let offset = offset_of!(sys::verbs_context, context);
        // SAFETY: libibverbs opens contexts as `verbs_context`s made by `alloc_context`, and passes their last member
        // around (`verbs_get_ctx()`).
        unsafe { ContextObject::of(context.byte_sub(offset).cast::<sys::verbs_context>()) }
    }

    /// Memory that the program has registered.
    pub(super) fn regions(&self) -> &Arc<Regions> {
        &self.regions
    }

    /// Which messages of connections go past the engine.
    pub(super) fn mode(&self) -> Mode {
        match self.info.flags & CONTEXT_PROCESS_RINGS {
            0 => Mode::Off,
            _ => self.mode,
        }
    }

    /// Whether the engine takes WRITEs out of process rings that processes leave there, so that there may be some.
    pub(super) fn takes_writes(&self) -> bool {
        self.info.flags & CONTEXT_RING_WRITES != 0
    }

    /// Whether the engine is called, because there is nobody to trap stores for it.
    pub(super) fn is_called(&self) -> bool {
        !self.doorbells.are_trapped()
    }

    /// Whether the kernel's engine is to work because the completion queue with this handle was found empty.
    pub(super) fn works_for(&self, cq: u32) -> bool {
        self.empty_polls.counts(cq)
    }

    /// The doorbell slots of a queue that the kernel just made.
    ///
    /// # Safety
    ///
    /// `context` is the `struct ibv_context` of this context; `owner` is what the kernel made, and exists for as long as
    /// its queues are posted to.
    pub(super) unsafe fn slots(
        &self,
        context: *mut sys::ibv_context,
        doorbell: &uabi::Doorbell,
        owner: Owner,
    ) -> Result<Slots, Errno> {
        // SAFETY: the file of an open context is open.
        let device = unsafe { BorrowedFd::borrow_raw((*context).cmd_fd) };
        // SAFETY: the caller's word.
        unsafe { self.doorbells.slots(device, doorbell, owner) }
    }

    /// Keeps queue pair numbers and doorbell slots from being given away again.
    pub(super) fn hold_numbers(&self) -> MutexGuard<'_, ()> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `verbs_device_ops::alloc_context`. Owns `cmd_fd` from now on.
pub(super) unsafe extern "C" fn alloc_context(
    device: *mut sys::ibv_device,
    cmd_fd: c_int,
    _private_data: *mut c_void,
) -> *mut sys::verbs_context {
    // SAFETY: `device` and `cmd_fd` are libibverbs's; the structure that it allocates begins with its own part. If it
    // fails it has closed the file and set `errno`.
    let context = unsafe {
        sys::_verbs_init_and_alloc_context(
            device,
            cmd_fd,
            size_of::<ContextObject>(),
            ptr::null_mut(),
            DRIVER_ID,
        )
    };
    let context = context.cast::<sys::verbs_context>();
    if context.is_null() {
        return context;
    }
    // SAFETY: the context was just made, and nobody else knows it.
    match unsafe { ask(context) } {
        Ok(info) => {
            let own = Context {
                doorbells: Doorbells::new(&info),
                empty_polls: EmptyPolls::new(),
                regions: Arc::default(),
                mode: Mode::of_environment(),
                info,
                numbers: Mutex::new(()),
            };
            let called = own.is_called();
            // SAFETY: as above; the tables are static, and what is not in the second one stays as it is.
            unsafe {
                ContextObject::complete(context, own);
                sys::verbs_set_ops(context, &raw const OPS);
                if called {
                    sys::verbs_set_ops(context, &raw const called::OPS);
                }
            }
            context
        }
        Err(error) => {
            // SAFETY: as above.
            unsafe { release(context) };
            null(error)
        }
    }
}

/// Opens the kernel's part of a context.
///
/// # Safety
///
/// `context` is initialised.
unsafe fn ask(context: *mut sys::verbs_context) -> Result<ContextResponse, Errno> {
    exchange((), |request, request_size, response, response_size| {
        // SAFETY: the caller's word; the structures live across the call, and the sizes are theirs.
        unsafe { abi::get_context(context, request, request_size, response, response_size) }
    })
}

/// Closes a context and frees its memory.
///
/// # Safety
///
/// It was made by `_verbs_init_and_alloc_context()`, holds nothing of ours any more, and nobody uses it.
unsafe fn release(context: *mut sys::verbs_context) {
    // SAFETY: the caller's word; the memory came from `calloc()`.
    unsafe {
        sys::verbs_uninit_context(context);
        sys::free(context.cast());
    }
}

/// `verbs_context_ops::free_context`
pub(super) unsafe extern "C" fn free_context(context: *mut sys::ibv_context) {
    let offset = offset_of!(sys::verbs_context, context);
    // SAFETY: the context is one of `alloc_context`, closed by the program, and nothing of it is left.
    unsafe {
        let context = context.byte_sub(offset).cast::<sys::verbs_context>();
        ContextObject::empty(context);
        release(context);
    }
}

/// `verbs_context_ops::query_device_ex`
pub(super) unsafe extern "C" fn query_device_ex(
    context: *mut sys::ibv_context,
    input: *const sys::ibv_query_device_ex_input,
    attr: *mut sys::ibv_device_attr_ex,
    attr_size: usize,
) -> c_int {
    let mut response = sys::ib_uverbs_ex_query_device_resp::zeroed();
    let mut size = size_of_val(&response);
    // SAFETY: pointers of the caller are passed on as they came; ours live across the call.
    let asked = check(unsafe {
        sys::ibv_cmd_query_device_any(
            context,
            input,
            attr,
            attr_size,
            &raw mut response,
            &raw mut size,
        )
    });
    if asked.is_ok() {
        // SAFETY: the call succeeded, so `attr` holds the original attributes at least.
        let text = unsafe { &mut (*attr).orig_attr.fw_ver };
        write_version(text, response.base.fw_ver);
    }
    code(asked)
}

/// Writes a version, 16 bits each for major, minor and patch, as text that ends in a zero.
fn write_version(text: &mut [core::ffi::c_char], version: u64) {
    let part = |shift: u32| (version >> shift) & 0xffff;
    let version = format!("{}.{}.{}\0", part(32), part(16), part(0));
    for (to, byte) in text.iter_mut().zip(version.bytes()) {
        *to = core::ffi::c_char::from_ne_bytes([byte]);
    }
}

/// `verbs_context_ops::query_port`
pub(super) unsafe extern "C" fn query_port(
    context: *mut sys::ibv_context,
    port: u8,
    attr: *mut sys::ibv_port_attr,
) -> c_int {
    let mut request = sys::ibv_query_port::zeroed();
    let size = size_of_val(&request);
    // SAFETY: as in `query_device_ex`.
    unsafe { sys::ibv_cmd_query_port(context, port, attr, &raw mut request, size) }
}
