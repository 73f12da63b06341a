// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Errors as C wants them.

use core::ffi::c_int;
use std::ptr;

use nupa_engine::rings::PostError;
use rustix::io::Errno;

use super::sys;

/// Sets `errno` and returns null, as functions that make objects do.
pub(super) fn null<T>(error: Errno) -> *mut T {
    // SAFETY: the C library returns the address of the calling thread's own variable.
    unsafe { *sys::__errno_location() = error.raw_os_error() };
    ptr::null_mut()
}

/// The result of a call that returns an error number.
pub(super) fn check(result: c_int) -> Result<(), Errno> {
    match result {
        0 => Ok(()),
        error => Err(Errno::from_raw_os_error(error.saturating_abs())),
    }
}

/// The error number that a function returns, 0 if all went well.
pub(super) fn code(result: Result<(), Errno>) -> c_int {
    result.map_or_else(Errno::raw_os_error, |()| 0)
}

/// The object, or null with `errno` set.
pub(super) fn pointer<T>(result: Result<*mut T, Errno>) -> *mut T {
    result.unwrap_or_else(null)
}

/// What a request that was not posted is answered with.
pub(super) const fn of_post(error: PostError) -> Errno {
    match error {
        PostError::Full => Errno::NOMEM,
        PostError::Invalid => Errno::INVAL,
    }
}
