// SPDX-License-Identifier: GPL-2.0
//! Tracepoints: what perf, trace-cmd, bpftrace and tracefs tell of a controller.
//!
//! C header: `drivers/kernel/trace.h`; `Documentation/tracing.md` explains events and fields. Any context. One that nobody has
//! enabled is a jump that is patched in (a static branch), without a call.

use crate::{bindings, raw};
use kernel::device::Device;

/// As `kernel::declare_trace!`, which knows only the tracepoints that the kernel's own bindings have.
macro_rules! declare_trace {
    ($($(#[$attr:meta])* unsafe fn $name:ident($($argname:ident : $argtyp:ty),* $(,)?);)*) => {$(
        $( #[$attr] )*
        #[inline(always)]
        unsafe fn $name($($argname : $argtyp),*) {
            #[cfg(CONFIG_TRACEPOINTS)]
            {
                // SAFETY: `trace.c` defines the tracepoint, whose key is a static key.
                let enabled = unsafe {
                    kernel::macros::paste! {
                        kernel::jump_label::static_branch_unlikely!(
                            bindings::[< __tracepoint_ $name >],
                            bindings::tracepoint,
                            key
                        )
                    }
                };
                if enabled {
                    kernel::macros::paste! {
                        // SAFETY: By this function's contract.
                        unsafe { bindings::[< rust_do_trace_ $name >]($($argname),*) };
                    }
                }
            }
            #[cfg(not(CONFIG_TRACEPOINTS))]
            {
                $( let _unused = $argname; )*
            }
        }
    )*}
}

/// Defines for each event a safe function that takes the device, and the unsafe one that it calls.
macro_rules! events {
    ($($(#[$attr:meta])* $name:ident => $event:ident($($argname:ident : $argtyp:ty),* $(,)?);)*) => {$(
        declare_trace! {
            /// # Safety
            ///
            /// `dev` must be a device that exists.
            unsafe fn $event(dev: *const bindings::device, $($argname : $argtyp),*);
        }

        $( #[$attr] )*
        #[inline(always)]
        pub fn $name(device: &Device, $($argname : $argtyp),*) {
            // SAFETY: `device` exists as long as it is borrowed.
            unsafe { $event(raw::device(device), $($argname),*) }
        }
    )*}
}

/// Why a controller is reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ResetReason {
    /// It stopped, and says why.
    Fault = 0,
    /// Somebody else has reset it.
    ResetByOthers = 1,
    /// An admin command failed, other than by being refused.
    AdminQueue = 2,
    /// It wrote garbage into an event queue.
    EventQueue = 3,
    /// A completion queue that the network needs overflowed.
    Cq = 4,
    /// A queue pair that the network needs failed.
    Qp = 5,
    /// Its state could not be read.
    Unreadable = 6,
}

events! {
    /// The driver thinks otherwise of what the controller is fit for.
    controller_state => nupa_controller_state(old: u32, new: u32);
    /// The driver is about to reset the controller; `fault` is what its register says.
    reset => nupa_reset(reason: u8, fault: u32);
    /// The link of this node came up or went down.
    link => nupa_link(up: bool);
    /// Another node came or went; `epoch` is 0 where it is not known.
    peer => nupa_peer(node: u16, up: bool, epoch: u32);
    /// An admin command is done; `error` is 0 or what the driver makes of it, and `duration_ns` begins before it waits for its turn.
    admin_cmd => nupa_admin_cmd(opcode: u16, status: u16, error: i32, duration_ns: i64);
    /// The controller told of something that happened to a queue.
    async_event => nupa_async_event(event: u8, number: u32);
    /// A queue pair was created.
    qp_create => nupa_qp_create(qpn: u32, qp_type: u8, pd: u32, send_cqn: u32, recv_cqn: u32);
    /// A queue pair was told to change its state.
    qp_modify => nupa_qp_modify(qpn: u32, state: u8);
    /// A queue pair is about to be destroyed.
    qp_destroy => nupa_qp_destroy(qpn: u32);
    /// A completion queue was created, whose events go to event queue `eqn`.
    cq_create => nupa_cq_create(cqn: u32, entries: u32, eqn: u32);
    /// A completion queue is about to be destroyed.
    cq_destroy => nupa_cq_destroy(cqn: u32);
    /// A shared receive queue was created.
    srq_create => nupa_srq_create(srqn: u32, pd: u32, entries: u32);
    /// A shared receive queue is about to be destroyed.
    srq_destroy => nupa_srq_destroy(srqn: u32);
    /// Memory was registered.
    mr_reg => nupa_mr_reg(key: u32, pd: u32, iova: u64, len: u64, access: u32);
    /// A key was allocated that work requests will give memory to.
    mr_alloc => nupa_mr_alloc(key: u32, pd: u32, kind: u8, max_pages: u32);
    /// A region was changed; the old key is not good any more.
    mr_rereg => nupa_mr_rereg(old_key: u32, key: u32);
    /// A region or key is about to go.
    mr_dereg => nupa_mr_dereg(key: u32);
}
