// SPDX-License-Identifier: GPL-2.0
//! Programs, and what they say of a frame.

use super::XdpBuff;
use crate::{
    bindings,
    net::{Device, Operations},
};
use core::{marker::PhantomData, ptr::NonNull};
use kernel::{ffi::c_char, prelude::*};

/// A program that is attached to a device. Any context.
///
/// # Invariants
///
/// The pointer is to a program of type XDP, of which this owns a reference.
pub struct Program(NonNull<bindings::bpf_prog>);

// SAFETY: Programs are never changed, and their references are counted atomically.
unsafe impl Send for Program {}
// SAFETY: As above.
unsafe impl Sync for Program {}

impl Program {
    /// A reference to a program, `None` if there is none.
    ///
    /// # Safety
    ///
    /// The pointer is null, or to an XDP program that stays for the time of the call.
    pub(in crate::net) unsafe fn get(prog: *mut bindings::bpf_prog) -> Option<Self> {
        let prog = NonNull::new(prog)?;
        // SAFETY: By this function's contract.
        unsafe { bindings::bpf_prog_inc(prog.as_ptr()) };
        // INVARIANT: The reference was taken above.
        Some(Self(prog))
    }

    /// Whether it takes frames with fragments (`xdp.frags`).
    pub fn takes_frags(&self) -> bool {
        // SAFETY: By the type invariants.
        unsafe { bindings::nk_xdp_takes_frags(self.as_raw()) }
    }

    pub(super) fn as_raw(&self) -> *mut bindings::bpf_prog {
        self.0.as_ptr()
    }

    /// Lets who traces exceptions (`trace_xdp_exception()`) know that what the program wanted was not done. Any context.
    pub fn report<T: Operations>(&self, dev: &Device<T>, wanted: Verdict) {
        // SAFETY: By the type invariants; the device is alive.
        unsafe { bindings::nk_xdp_exception(dev.as_raw(), self.as_raw(), wanted.to_raw()) };
    }

    /// Runs it on a received frame. An action that there is not counts as [`Verdict::Aborted`]; of both, who traces exceptions
    /// learns.
    #[inline]
    pub fn run<T: Operations>(&self, dev: &Device<T>, frame: &mut XdpBuff<'_>) -> Verdict {
        // SAFETY: By the type invariants; a frame is in the poll function of its queue, and complete.
        let action = unsafe { bindings::nk_xdp_run(self.as_raw(), frame.as_raw()) };
        match action {
            bindings::xdp_action_XDP_PASS => return Verdict::Pass,
            bindings::xdp_action_XDP_DROP => return Verdict::Drop,
            bindings::xdp_action_XDP_TX => return Verdict::Tx,
            bindings::xdp_action_XDP_REDIRECT => return Verdict::Redirect,
            bindings::xdp_action_XDP_ABORTED => {}
            // SAFETY: As in `report`.
            _ => unsafe {
                bindings::bpf_warn_invalid_xdp_action(dev.as_raw(), self.as_raw(), action);
            },
        }
        // SAFETY: As in `report`.
        unsafe { bindings::nk_xdp_exception(dev.as_raw(), self.as_raw(), action) };
        Verdict::Aborted
    }
}

impl Clone for Program {
    fn clone(&self) -> Self {
        // SAFETY: By the type invariants.
        unsafe { bindings::bpf_prog_inc(self.as_raw()) };
        // INVARIANT: The reference was taken above.
        Self(self.0)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: The reference is ours by the type invariants.
        unsafe { bindings::bpf_prog_put(self.as_raw()) };
    }
}

/// What a program wants to become of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes to the stack.
    Pass,
    /// It is dropped.
    Drop,
    /// It goes out where it came from.
    Tx,
    /// It goes to where the program has said ([`XdpBuff::redirect`]).
    Redirect,
    /// It is dropped: the program has failed.
    Aborted,
}

impl Verdict {
    fn to_raw(self) -> u32 {
        match self {
            Self::Pass => bindings::xdp_action_XDP_PASS,
            Self::Drop => bindings::xdp_action_XDP_DROP,
            Self::Tx => bindings::xdp_action_XDP_TX,
            Self::Redirect => bindings::xdp_action_XDP_REDIRECT,
            Self::Aborted => bindings::xdp_action_XDP_ABORTED,
        }
    }
}

/// Where a refusal says why, for who asked by netlink (`struct netlink_ext_ack`).
pub struct ExtAck<'a>(*mut bindings::netlink_ext_ack, PhantomData<&'a mut ()>);

impl ExtAck<'_> {
    /// # Safety
    ///
    /// The pointer is null, or to a structure that is ours for the lifetime.
    pub(in crate::net) unsafe fn from_raw(extack: *mut bindings::netlink_ext_ack) -> Self {
        Self(extack, PhantomData)
    }

    /// Sets the message.
    pub fn set(&mut self, message: &'static CStr) {
        let message: *const c_char = message.as_char_ptr();
        // SAFETY: By the contract of `from_raw`; the message stays.
        unsafe { bindings::nk_extack_set(self.0, message) };
    }
}
