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
mod device_memory;
mod doorbell;
mod drain;
mod event;
mod hal;
mod handlers;
mod health;
mod identity;
mod instance;
mod lifecycle;
mod listeners;
mod memory;
mod memory_devices;
mod netlink;
mod news;
mod number;
mod peers;
mod port;
mod power;
mod quota;
mod registers;
mod requests;
mod reset_limit;
mod shares;
mod slots;
mod table;
mod vector;

pub use self::{
    device_memory::{AllocatedMemory, DeviceMemory},
    doorbell::{DoorbellPage, DoorbellSlot},
    memory_devices::MappedMemory,
    port::{
        dma_sge, Cq, CqConfig, CqControl, CqHandler, EventHandler, ExportedMemory, GrantedMemory,
        ImportedMemory, KnownRing, Listener, ListenerRegistration, MappingMark, Mr, ObjectEvent,
        PageArray, PageTable, Pd, Peer, Port, PortEvent, PortInfo, Qp, QpConfig, QpControl,
        QpParameters, QpQueues, QpSizes, QpWatch, QueuePair, QueueRing, RecvPoster, RecvQueue,
        SendPoster, SendQueue, SendReclaim, Srq,
    },
    quota::{Charge, Quota},
    slots::Wanted,
};

use self::hal::{DaxDriver, Driver, IvshmemDriver};
use kernel::{driver::Registration, fmt, prelude::*, InPlaceModule};

/// The module: a driver for each kind of function.
#[pin_data]
struct Module {
    #[pin]
    _pci: Registration<nk::pci::Adapter<Driver>>,
    #[pin]
    _ivshmem: Registration<nk::pci::PowerAdapter<IvshmemDriver>>,
    #[pin]
    _dax: Registration<nk::dax::Adapter<DaxDriver>>,
    // These are the last ones, so that no controller is left when they go.
    _memory_devices: nk::memory_device::Registration,
    _netlink: nk::genl::Registration,
}

impl InPlaceModule for Module {
    fn init(module: &'static ThisModule) -> impl PinInit<Self, Error> {
        nk::genl::prepare();
        try_pin_init!(Self {
            _pci <- Registration::new(c"nupa_fabric", module),
            // One name, one driver of a bus.
            _ivshmem <- Registration::new(c"nupa_ivshmem", module),
            _dax <- Registration::new(c"nupa_fabric", module),
            _memory_devices: nk::memory_device::Registration::new()?,
            _netlink: nk::genl::Registration::new(&netlink::NUPA, module)?,
        })
    }
}

nk::module_version!(nupa_proto::VERSION);

module! {
    type: Module,
    name: "nupa_fabric",
    authors: ["NUPA authors"],
    description: "NUPA fabric controller, and the same as software on shared memory",
    license: "GPL v2",
    params: {
        pool_coherent: u8 {
            default: 1,
            description: "0: the caches of hosts that share a pool are not kept coherent, so write back and invalidate",
        },
        poll_cpu: i32 {
            default: -1,
            description: "The processor of a thread that does nothing but poll the pool; -1: there is none",
        },
        dma_copies: i32 {
            default: 0,
            description: "Bytes from which on a DMA channel copies payload to a coherent pool; 0: the processors do, -1: what measurements say",
        },
        copy_workers: u32 {
            default: 0,
            description: "Workers that copy long payload of a coherent pool on other processors, besides who runs the function; 0: none",
        },
    },
}
