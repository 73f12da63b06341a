// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Completion queues.

use std::ptr::NonNull;
use std::rc::Rc;

use super::context::{none, Context};
use super::sys::{self, Plain};
use crate::error::Error;

/// A request that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// What the request was given.
    pub id: u64,
    /// 0, or why it failed ([`status_name`](crate::status_name)).
    pub status: u8,
}

/// A completion queue, which is polled.
///
/// # Invariant
///
/// `raw` is what `ibv_create_cq()` returned, and is destroyed when this is dropped.
pub struct CompletionQueue {
    raw: NonNull<sys::ibv_cq>,
    context: Rc<Context>,
}

impl CompletionQueue {
    /// One with room for so many.
    ///
    /// # Errors
    ///
    /// If the kernel or the provider refuses.
    pub fn new(context: &Rc<Context>, entries: u16) -> Result<Rc<Self>, Error> {
        // SAFETY: the context is open (its invariant); there is no channel.
        let raw = unsafe {
            context
                .functions()
                .ibv_create_cq(context.raw(), entries.into(), none(), none(), 0)
        };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("make a completion queue"))?;
        Ok(Rc::new(Self {
            raw,
            context: context.clone(),
        }))
    }

    pub(super) fn raw(&self) -> *mut sys::ibv_cq {
        self.raw.as_ptr()
    }

    /// Takes the next completion, if there is one.
    ///
    /// # Errors
    ///
    /// If the queue is lost.
    pub fn poll(&self) -> Result<Option<Completion>, Error> {
        let mut found = sys::ibv_wc::zeroed();
        // SAFETY: the queue exists and its context is open (invariants), and that names the provider's function for it, as `ibv_poll_cq()` in
        // the header calls it. It writes one completion at most, to a variable that lives during the call.
        let count = unsafe {
            let operations = &(*self.context.raw()).ops;
            let poll = operations.poll_cq.ok_or(Error::Refused {
                what: "poll a completion queue",
                errno: 0,
            })?;
            poll(self.raw(), 1, &mut found)
        };
        match count {
            0 => Ok(None),
            1 => Ok(Some(Completion {
                id: found.wr_id,
                status: found.status.try_into().unwrap_or(u8::MAX),
            })),
            _ => Err(Error::last("poll a completion queue")),
        }
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: by the invariant; queue pairs keep an `Rc` of it, so there are none left.
        let _ = unsafe { self.context.functions().ibv_destroy_cq(self.raw()) };
    }
}
