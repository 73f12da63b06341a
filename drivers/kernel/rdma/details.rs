// SPDX-License-Identifier: GPL-2.0
//! What drivers add to the lists of resources (`rdma resource show ... -dd`).

use crate::bindings;
use core::ptr::NonNull;
use kernel::{error::to_result, prelude::*};

/// A message that details of one object are written to.
pub struct Details {
    message: NonNull<bindings::sk_buff>,
}

impl Details {
    /// Has `describe` write the details of an object, as one attribute of the message. `EMSGSIZE` if there is no room,
    /// which has the core send what it has and ask again.
    ///
    /// # Safety
    ///
    /// `message` is one that the core is composing, in that call.
    pub(crate) unsafe fn write(
        message: *mut bindings::sk_buff,
        describe: impl FnOnce(&mut Self) -> Result,
    ) -> Result {
        let message = NonNull::new(message).ok_or(EINVAL)?;
        // SAFETY: By this function's contract.
        let table = unsafe { bindings::nk_rdma_details_start(message.as_ptr()) };
        let table = NonNull::new(table).ok_or(EMSGSIZE)?;
        let described = describe(&mut Self { message });
        // SAFETY: As above; the attribute was begun above, and is ended or taken back once.
        unsafe {
            bindings::nk_rdma_details_end(message.as_ptr(), table.as_ptr(), described.is_ok())
        };
        described
    }

    /// Adds a number. `EMSGSIZE` if there is no room.
    pub fn add(&mut self, name: &CStr, value: u32) -> Result {
        // SAFETY: By the contract of `write`; the name is copied.
        to_result(unsafe {
            bindings::rdma_nl_put_driver_u32(self.message.as_ptr(), name.as_char_ptr(), value)
        })
    }

    /// As [`Details::add`], for a number of 64 bits.
    pub fn add_u64(&mut self, name: &CStr, value: u64) -> Result {
        // SAFETY: As above.
        to_result(unsafe {
            bindings::rdma_nl_put_driver_u64(self.message.as_ptr(), name.as_char_ptr(), value)
        })
    }
}
