// SPDX-License-Identifier: GPL-2.0
//! Safe abstractions for the RDMA core, in the form in which the `kernel` crate would take them.
//!
//! A driver implements [`Driver`] and [`KernelVerbs`] and registers a [`Device`]; the core then asks it for objects.
//! What the driver keeps for an object lies behind the core's structure in one piece of memory: the driver returns it
//! from `create_*`, sees it as `&Qp<Self>` and the like, and has it dropped when the core destroys the object. The
//! core destroys objects before what they depend on, and all of them before [`Registration`] is gone.
//!
//! Pinned memory of user space ([`Pins`], [`Umem`]) belongs to the object that it was pinned for and is released after
//! the driver's data is dropped, so that the hardware has let go of it by then.
//!
//! This is a crate of its own, apart from `nk`, so that only the module that it is part of needs `ib_core.ko`.
//!
//! C headers: `include/rdma/ib_verbs.h`, `include/rdma/ib_umem.h`, `include/rdma/uverbs_ioctl.h`.

mod address;
mod attributes;
#[path = "../bindings.rs"]
mod bindings;
mod context;
mod counters;
mod details;
mod device;
mod driver;
pub mod error;
mod event;
mod flags;
mod kernel_verbs;
mod object;
mod queue;
mod revocable;
mod udata;
mod umem;
mod vtable;
mod work_completion;
mod work_request;

pub use self::{
    address::{AhAttributes, GidAttributes},
    attributes::{DeviceAttributes, PortAttributes, PortSpeed},
    context::Context,
    counters::{CounterName, Traffic},
    details::Details,
    device::{Device, Registration, Unregistered},
    driver::{CompletionQueue, DmHandle, Driver, Keys, MemoryKeys, QueuePair, Rereg, UserRegion},
    event::{CqNotifier, Event, QpNotifier, SrqNotifier},
    flags::{Access, DeviceCaps, QpMask},
    kernel_verbs::KernelVerbs,
    object::{Ah, Cq, Dm, Mr, Mw, Pd, Qp, Srq},
    queue::{
        CqInit, QpAttributes, QpCapabilities, QpInit, QpState, QpType, SrqAttributes, SrqInit,
    },
    revocable::Revocable,
    udata::Udata,
    umem::{Blocks, Pins, Umem},
    work_completion::{Completions, NetworkHeader, WcOpcode, WorkCompletion},
    work_request::{
        FastRegistration, Piece, QpHandle, RecvWr, RecvWrs, SendOperation, SendWr, SendWrs,
    },
};
