// SPDX-License-Identifier: GPL-2.0
//! What devlink callbacks answer.

use crate::bindings;
use core::marker::PhantomData;
use kernel::{error::to_result, fmt, prelude::*, str::CString};

/// What the device is (`devlink dev info`).
pub struct Info<'a>(
    pub(super) *mut bindings::devlink_info_req,
    pub(super) PhantomData<&'a ()>,
);

impl Info<'_> {
    /// Says the serial number.
    pub fn serial_number(&self, value: fmt::Arguments<'_>) -> Result {
        let value = CString::try_from_fmt(value)?;
        // SAFETY: The request is valid for `'a`; the text is copied.
        to_result(unsafe { bindings::devlink_info_serial_number_put(self.0, value.as_char_ptr()) })
    }

    /// Says the version of something that runs.
    pub fn version(&self, name: &CStr, value: fmt::Arguments<'_>) -> Result {
        let value = CString::try_from_fmt(value)?;
        // SAFETY: As above.
        to_result(unsafe {
            bindings::devlink_info_version_running_put(
                self.0,
                name.as_char_ptr(),
                value.as_char_ptr(),
            )
        })
    }
}

/// Names and values, in order. Where there is no memory for one, the core says so in the end.
pub struct Message<'a>(
    pub(super) *mut bindings::devlink_fmsg,
    pub(super) PhantomData<&'a ()>,
);

impl Message<'_> {
    /// Appends text.
    pub fn text(&self, name: &CStr, value: fmt::Arguments<'_>) -> Result {
        let value = CString::try_from_fmt(value)?;
        // SAFETY: The message is valid for `'a`; both texts are copied.
        unsafe {
            bindings::devlink_fmsg_string_pair_put(self.0, name.as_char_ptr(), value.as_char_ptr());
        }
        Ok(())
    }

    /// Appends a number.
    pub fn number(&self, name: &CStr, value: u32) {
        // SAFETY: As above.
        unsafe { bindings::devlink_fmsg_u32_pair_put(self.0, name.as_char_ptr(), value) };
    }

    /// Appends a truth.
    pub fn flag(&self, name: &CStr, value: bool) {
        // SAFETY: As above.
        unsafe { bindings::devlink_fmsg_bool_pair_put(self.0, name.as_char_ptr(), value) };
    }
}
