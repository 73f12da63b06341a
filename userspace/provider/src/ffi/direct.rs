// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Direct verbs, what is beyond those of libibverbs: `nupadv.h`. Programs link with this library or look the functions up.

use core::ffi::{c_int, c_void};
use std::ptr;

use nupa_proto::pool::sharing::DmHandle;
use nupa_proto::uabi::{EXPORT_DM, EXPORT_DM_HANDLE, METHOD_DM_EXPORT};
use rustix::io::Errno;
use zerocopy::FromZeros;

use super::device_memory::{as_verbs, make, mapping, Source, OBJECT};
use super::driver;
use super::errno::{code, pointer};
use super::ioctl::{self, Attributes};
use super::sys;

/// Fails for contexts of other providers: a program may have devices of several.
///
/// # Safety
///
/// `context` is open.
unsafe fn check_context(context: *mut sys::ibv_context) -> Result<(), Errno> {
    // SAFETY: the caller's word.
    match unsafe { driver::is_own((*context).device) } {
        true => Ok(()),
        false => Err(Errno::OPNOTSUPP),
    }
}

/// Exports device memory.
///
/// # Safety
///
/// `dm` exists.
unsafe fn export(dm: *mut sys::ibv_dm) -> Result<DmHandle, Errno> {
    // SAFETY: the caller's word.
    let context = unsafe { (*dm).context };
    // SAFETY: memory belongs to an open context.
    unsafe { check_context(context) }?;
    let mut handle = DmHandle::new_zeroed();
    let attributes = Attributes::new([
        // SAFETY: `dm` is one of this provider's, as just checked.
        ioctl::object(EXPORT_DM, unsafe { (*as_verbs(dm)).handle }),
        ioctl::value(EXPORT_DM_HANDLE, &raw mut handle),
    ]);
    // SAFETY: as above; `handle` lives.
    unsafe { attributes.execute(context, OBJECT, METHOD_DM_EXPORT) }?;
    // SAFETY: the kernel has written it behind the compiler's back.
    Ok(unsafe { (&raw const handle).read_volatile() })
}

/// `nupadv_export_dm()`
///
/// # Safety
///
/// As the header says: `dm` exists, and there is room for a handle.
#[no_mangle]
pub(super) unsafe extern "C" fn nupadv_export_dm(
    dm: *mut sys::ibv_dm,
    handle: *mut DmHandle,
) -> c_int {
    // SAFETY: the caller's word.
    let exported = unsafe { export(dm) };
    // SAFETY: as above; a handle has no alignment.
    code(exported.map(|exported| unsafe { handle.write(exported) }))
}

/// `nupadv_import_dm()`
///
/// # Safety
///
/// As the header says: `context` is open, and there is a handle.
#[no_mangle]
pub(super) unsafe extern "C" fn nupadv_import_dm(
    context: *mut sys::ibv_context,
    handle: *const DmHandle,
) -> *mut sys::ibv_dm {
    // SAFETY: the caller's word; any bytes are a handle.
    let handle = unsafe { handle.read() };
    let import = || {
        // SAFETY: the caller's word.
        unsafe { check_context(context) }?;
        let attr = sys::ibv_alloc_dm_attr {
            length: usize::try_from(handle.len.get()).map_err(|_| Errno::INVAL)?,
            log_align_req: 0,
            comp_mask: 0,
        };
        // SAFETY: as above; the context is one of this provider's, as just checked.
        unsafe { make(context, &raw const attr, Source::Shared(&handle)) }
    };
    pointer(import())
}

/// `nupadv_map_dm()`
///
/// # Safety
///
/// As the header says: `dm` exists, and `len` is null or has room for the length.
#[no_mangle]
pub(super) unsafe extern "C" fn nupadv_map_dm(
    dm: *mut sys::ibv_dm,
    len: *mut usize,
) -> *mut c_void {
    let map = || {
        // SAFETY: the caller's word; memory belongs to an open context.
        unsafe { check_context((*dm).context) }?;
        // SAFETY: `dm` is one of this provider's, as just checked.
        let (address, bytes) = unsafe { mapping(dm) };
        if !len.is_null() {
            // SAFETY: the caller's word.
            unsafe { len.write(bytes) };
        }
        let address = usize::try_from(address).map_err(|_| Errno::INVAL)?;
        Ok(ptr::with_exposed_provenance_mut(address))
    };
    pointer(map())
}
