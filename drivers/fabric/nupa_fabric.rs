// SPDX-License-Identifier: GPL-2.0
//! Driver of the NUPA fabric controller.
//!
//! It owns the PCI function, starts and resets it, routes its events, and publishes one [`Port`] on the auxiliary bus
//! as `nupa_fabric.net` and `nupa_fabric.rdma`. The controller's interface is defined by [`nupa_proto`] and described in
//! `Documentation/controller.md`.

#![forbid(unsafe_code)]

mod admin;
mod command;
mod controller;
mod debug;
mod doorbell;
mod event;
mod hal;
mod handlers;
mod identity;
mod instance;
mod lifecycle;
mod listeners;
mod memory;
mod patience;
mod peers;
mod port;
mod registers;
mod requests;
mod slots;
mod vector;

pub use self::{
    doorbell::{DoorbellPage, DoorbellSlot, Window},
    port::{
        dma_sge, Cq, CqControl, CqHandler, EventHandler, Listener, ListenerRegistration, Mr,
        ObjectEvent, PageArray, PageTable, Pd, Peer, Port, PortEvent, PortInfo, Qp, QpConfig,
        QpControl, QpParameters, QpQueues, QpSizes, QueuePair, QueueRing, RecvPoster, RecvQueue,
        SendPoster, SendQueue, SendReclaim, Srq,
    },
};

use self::hal::Driver;
use kernel::fmt;

kernel::module_driver! {
    <T>, nk::pci::Adapter<T>, {
        type: Driver,
        name: "nupa_fabric",
        authors: ["NUPA authors"],
        description: "NUPA fabric controller",
        license: "GPL v2",
    }
}
