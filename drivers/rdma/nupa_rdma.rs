// SPDX-License-Identifier: GPL-2.0
//! The RDMA device on a NUPA fabric: verbs for programs and for the kernel, over the port of `nupa_fabric`.
//!
//! The kernel makes objects and checks what they are made of; programs use their queues without it. The RDMA core
//! sees a RoCE v2 device whose port belongs to the network interface of the same PCI function.
//!
//! - `driver`: binds to the auxiliary device, registers `nupa_rdma%d`.
//! - `device`: what the RDMA core asks of the device as a whole, and the way to the modules below.
//! - `context`: a process's doorbell pages and what else it maps.
//! - `region`: memory regions and windows; `access` has the rights, `ring` the memory of user queues,
//!   `device_memory` the controller's own, and `process_ring` such that queue pairs receive from.
//! - `cq`, `srq`, `qp`: queues; `state` is how queue pairs change, `ring_closer` what is done when their controllers fail them, `pending` events
//!   that are told late.
//! - `multicast`: groups that datagram queue pairs are in.
//! - `limits`: what is counted for users, protection domains among it.
//! - `address`: GIDs and address handles.
//! - `kernel`: all of these for users in the kernel; `counters` of the port, and `counter_sets` that queue pairs are bound to.

#![forbid(unsafe_code)]

mod access;
mod address;
mod context;
mod counter_sets;
mod counters;
mod cq;
mod details;
mod device;
mod device_memory;
mod driver;
mod kernel;
mod limits;
mod multicast;
mod peer_region;
mod pending;
mod process_ring;
mod qp;
mod region;
mod ring;
mod ring_closer;
mod srq;
mod state;

nk::module_version!(nupa_proto::VERSION);

::kernel::module_auxiliary_driver! {
    type: driver::Driver,
    name: "nupa_rdma",
    authors: ["The NUPA developers"],
    description: "RDMA device on a NUPA fabric",
    license: "GPL v2",
}
