// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The vfio-user protocol, as QEMU's `vfio-user-pci` speaks it: the server's side, and as much of the other as a program needs that takes
//! QEMU's place.
//!
//! vfio-user carries the kernel's VFIO interface over a UNIX stream socket: the VMM asks
//! for regions and interrupts, passes its memory as file descriptors, and sends every
//! trapped register access as a message. Specification: QEMU's
//! `docs/interop/vfio-user.rst`; structures: `include/uapi/linux/vfio.h`.
//!
//! - [`Listener`] accepts VMMs on a socket path.
//! - [`Connection`] is one VMM: a non-blocking object for an event loop, any number of them
//!   in one thread. It parses requests and turns them into calls of a [`Device`].
//! - [`Device`] is what a device model implements; it never sees the wire.
//! - [`pci`] composes a configuration space.
//! - [`Client`] is the other side.
//! - [`EventFds`] keeps the interrupts that the VMM handed out.
//!
//! # Latency
//!
//! A guest's CPU stands still while a trapped access is served. One request costs one
//! `recvmsg` and one `sendmsg` besides the event loop's wait, and allocates nothing; the
//! device runs in the same call. QEMU sends a BAR write without waiting for the reply
//! only if no region of the device can be mapped.
//!
//! # Why not the vfio_user crate
//!
//! Version 0.1.7 serves one connection on a thread of its own and returns when it ends,
//! takes one eventfd per message, answers errors with errno 0 and does not skip what it
//! does not know; that leaves nothing but its structure definitions.

mod client;
mod connection;
mod device;
mod dispatch;
mod irq;
mod listener;
pub mod pci;
mod proto;
mod transport;
mod version;

pub use client::Client;
pub use connection::{Connection, Disconnect, Interest};
pub use device::{Area, Device, DmaMap, Mmap, Region};
pub use irq::{EventFds, IrqRequest};
pub use listener::{Listener, ListenerError};
pub use proto::{irq_index, region_index};
/// Error numbers, as they go over the wire.
pub use rustix::io::Errno;
pub use transport::send;
