// SPDX-License-Identifier: GPL-2.0
//! The driver's part of requests from user space.
//!
//! The rules for sizes are those of `struct ib_udata` (include/rdma/ib_verbs.h).

use crate::{bindings, context::Context, Driver};
use core::{marker::PhantomData, ptr::NonNull};
use kernel::{error::to_result, prelude::*};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Request and response of one command. Process context only.
pub struct Udata<'a, D> {
    raw: NonNull<bindings::ib_udata>,
    _command: PhantomData<&'a D>,
}

impl<'a, D: Driver> Udata<'a, D> {
    /// # Safety
    ///
    /// `raw` is the driver's data of a command for a device of `D`, for `'a`.
    pub(crate) unsafe fn from_raw(raw: NonNull<bindings::ib_udata>) -> Self {
        Self {
            raw,
            _command: PhantomData,
        }
    }

    /// Reads a request that has been as long as `T` from the first version of the interface on.
    ///
    /// `EINVAL` if it is shorter, `EOPNOTSUPP` if there is something other than zeroes behind it, `EFAULT`.
    pub fn request<T: FromBytes + IntoBytes>(&self) -> Result<T> {
        let mut request = T::new_zeroed();
        // SAFETY: `request` has room for `size_of::<T>()` bytes, and any bytes will do.
        to_result(unsafe {
            bindings::_ib_copy_validate_udata_in(
                self.raw.as_ptr(),
                (&raw mut request).cast(),
                size_of::<T>(),
                size_of::<T>(),
            )
        })?;
        Ok(request)
    }

    /// Fails with `EOPNOTSUPP` if there is a request other than zeroes, for a command that has none.
    pub fn no_request(&self) -> Result {
        // SAFETY: `raw` is valid by the invariants.
        to_result(unsafe { bindings::nk_rdma_udata_in_empty(self.raw.as_ptr()) })
    }

    /// Writes the response, shortened or extended with zeroes to what the program has room for. `EFAULT`.
    pub fn respond<T: IntoBytes + Immutable>(&mut self, response: &T) -> Result {
        // SAFETY: `response` is that long and has no padding.
        to_result(unsafe {
            bindings::_ib_respond_udata(
                self.raw.as_ptr(),
                core::ptr::from_ref(response).cast(),
                size_of::<T>(),
            )
        })
    }

    /// Writes zeroes to where a response might be, for a command that has none. `EFAULT`.
    pub fn no_response(&mut self) -> Result {
        // SAFETY: `raw` is valid by the invariants.
        to_result(unsafe { bindings::nk_rdma_respond_empty(self.raw.as_ptr()) })
    }

    /// The context that the command is for. `EINVAL` for the command that makes one.
    pub fn context(&self) -> Result<&'a Context<D>> {
        // SAFETY: `raw` is embedded in the attributes of a command, as the core has it.
        let context = unsafe { bindings::nk_rdma_udata_context(self.raw.as_ptr()) };
        if context.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: The core keeps the context, which is of this device, for the time of the command.
        Ok(unsafe { Context::from_raw(context) })
    }
}
