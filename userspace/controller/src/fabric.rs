// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The fabric: a switch and its controllers, with the interface that a VMM-facing server drives.

mod bar;
mod misbehave;

use std::fmt::Arguments;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use guestmem::{MapError, MapRequest, Reach, UnmapError};
use nupa_control::NodeStats;
use nupa_function::{Function, Model};
use nupa_proto::regs;

use crate::clock::Clock;
use crate::config::{DoorbellPlace, FabricConfig};
use crate::device_memory::DeviceMemory;
use crate::doorbells::{self, DoorbellPages};
use crate::error::FabricError;
use crate::nodes::{Controller, Nodes};
use crate::platform::{Attachment, Interrupts, NodePlatform};
use crate::stats;
use misbehave::Overdue;

/// A switch with one controller per node, all in one thread.
///
/// Nodes are known by id from the start; guests come ([`connect`](Self::connect)) and go
/// ([`disconnect`](Self::disconnect)). The engine runs inside of [`bar_write`](Self::bar_write), so data has moved and
/// interrupts are raised when that returns; what is left over (timers, long queues) is done by [`run`](Self::run).
///
/// A node id that does not exist reads as a function that is not there: guests cannot cause that.
pub struct Fabric {
    model: Model<Nodes>,
    doorbell_pages: u32,
    doorbells: DoorbellPlace,
    /// Bytes of a function's own memory.
    device_memory: u64,
    clock: Rc<dyn Clock>,
    /// The caller polls doorbells.
    polling: bool,
    overdue: Overdue,
}

impl Fabric {
    /// Makes a fabric with no guests.
    pub fn new(config: &FabricConfig, clock: &Rc<dyn Clock>) -> Result<Self, FabricError> {
        config.check()?;
        let controllers = (0..config.max_nodes)
            .map(|id| Function::new(&config.of_node(id), NodePlatform::new(clock.clone())));
        Ok(Self {
            model: Model::new(Nodes(controllers.collect())),
            doorbell_pages: config.doorbell_pages,
            doorbells: config.doorbells,
            device_memory: config.device_memory,
            clock: clock.clone(),
            polling: false,
            overdue: Overdue::default(),
        })
    }

    /// A guest arrives: the function is in its reset state, with fresh doorbell pages.
    pub fn connect(
        &mut self,
        node: u16,
        interrupts: Box<dyn Interrupts>,
    ) -> Result<(), FabricError> {
        let (pages, len) = (self.doorbell_pages, self.device_memory);
        let controller = self.controller(node)?;
        if controller.host.attachment.is_some() {
            return Err(FabricError::Connected(node));
        }
        let device_memory = match len {
            0 => None,
            len => Some(DeviceMemory::new(node, len)?),
        };
        if let Some(device_memory) = &device_memory {
            device_memory.map(&mut controller.host.memory)?;
        }
        controller.host.memory.set_reachable(true);
        controller.host.attachment = Some(Attachment {
            doorbells: DoorbellPages::new(node, pages)?,
            device_memory,
            interrupts,
        });
        tracing::info!(node, "guest connected");
        Ok(())
    }

    /// A guest is gone: the function is reset, peers are told, its memory is let go.
    pub fn disconnect(&mut self, node: u16) {
        self.reset(node);
        let Some(controller) = self.model.function_mut(node) else {
            return;
        };
        controller.host.memory.guest_mut().clear();
        if controller.host.attachment.take().is_some() {
            tracing::info!(node, "guest disconnected");
        }
    }

    /// Resets a function: function-level reset, reset of the guest, or its driver's wish. Memory stays mapped.
    pub fn reset(&mut self, node: u16) {
        self.model.reset(node);
        self.overdue.forget(node);
    }

    /// Follows Bus Master Enable of the function: without it, the function neither accesses memory nor interrupts.
    /// Counts as set for a guest that has just arrived.
    pub fn set_bus_master(&mut self, node: u16, on: bool) {
        if let Some(controller) = self.model.function_mut(node) {
            controller.host.memory.set_reachable(on);
        }
    }

    /// Shows a part of a guest's memory to its controller.
    pub fn dma_map(&mut self, node: u16, request: &MapRequest<'_>) -> Result<Reach, MapError> {
        let controller = self
            .model
            .function_mut(node)
            .ok_or(MapError::InvalidRange)?;
        let end = request.iova.checked_add(request.len);
        if end.is_none_or(|end| end > regs::DEVICE_MEMORY_BASE) {
            return Err(MapError::InvalidRange);
        }
        controller.host.memory.guest_mut().map(request)
    }

    /// Logs what a guest, or its VMM, did wrong, within the guest's rate limit.
    pub fn complain(&mut self, node: u16, what: Arguments<'_>) {
        if let Some(controller) = self.model.function_mut(node) {
            controller.complain(what);
        }
    }

    /// Takes back what [`dma_map`](Self::dma_map) showed. The engine keeps no pointers into it: work that still names
    /// it fails.
    pub fn dma_unmap(&mut self, node: u16, iova: u64, len: u64) -> Result<(), UnmapError> {
        let controller = self.model.function_mut(node);
        let controller = controller
            .filter(|_| iova < regs::DEVICE_MEMORY_BASE)
            .ok_or(UnmapError::NoSuchRegion)?;
        controller.host.memory.guest_mut().unmap(iova, len)
    }

    /// Takes back all memory of a guest.
    pub fn dma_unmap_all(&mut self, node: u16) {
        let Some(controller) = self.model.function_mut(node) else {
            return;
        };
        let NodePlatform {
            memory, attachment, ..
        } = &mut controller.host;
        memory.guest_mut().clear();
        let own = attachment
            .as_ref()
            .and_then(|guest| guest.device_memory.as_ref());
        if let Some(Err(error)) = own.map(|own| own.map(memory)) {
            tracing::warn!(node, %error, "device memory lost");
        }
    }

    /// Bytes of a BAR; 0 if there is no such BAR.
    pub fn bar_size(&self, bar: u8) -> u64 {
        match bar {
            regs::BAR_CONTROL => u64::try_from(regs::CONTROL_SIZE).unwrap_or(0),
            regs::BAR_DOORBELL => doorbells::bar_size(self.doorbell_pages, self.device_memory),
            regs::BAR_MSIX => regs::MSIX_BAR_SIZE,
            _ => 0,
        }
    }

    /// The file behind the doorbell BAR of a guest that is there; file offsets are BAR offsets.
    pub fn doorbell_file(&self, node: u16) -> Option<BorrowedFd<'_>> {
        let guest = self.model.function(node)?.host.attachment.as_ref()?;
        Some(guest.doorbells.file())
    }

    /// Ranges of the doorbell BAR that guests map: the shared pages.
    /// None if those are in the guest's memory.
    pub fn doorbell_mmap_areas(&self) -> impl Iterator<Item = Range<u64>> {
        doorbells::mmap_areas(match self.doorbells {
            DoorbellPlace::Bar => self.doorbell_pages,
            DoorbellPlace::Guest => 0,
        })
    }

    /// Does what is due: timers, and queues whose share was used up. Returns the time, on the fabric's clock, of the
    /// next call that is needed; a time that has passed means that there is more to do now.
    ///
    /// To be called after each batch of accesses, and when the time has come.
    pub fn run(&mut self) -> Option<u64> {
        let late = self.run_late_commands();
        [late, self.model.run()].into_iter().flatten().min()
    }

    /// Says whether the caller polls doorbells. While it does, guests need not kick; when it stops, they are asked to
    /// again. `true` if a doorbell may have been rung just before: then poll once more, and no more than once, as a queue
    /// that waits for something else looks like that too.
    pub fn set_polling(&mut self, on: bool) -> bool {
        self.polling = on;
        // A stalled controller ignores doorbells.
        self.model.set_polling(on && !self.has_stalled())
    }

    /// Requests that all guests' send queues have completed since the process began; wraps around.
    pub fn requests(&self) -> u64 {
        let guests = self.model.functions.0.iter();
        guests
            .filter(|controller| controller.host.attachment.is_some())
            .map(|controller| {
                let counters = controller.node.counters();
                counters
                    .tx_frames
                    .get()
                    .wrapping_add(counters.tx_messages.get())
            })
            .fold(0, u64::wrapping_add)
    }

    /// Looks at the doorbells of all nodes once and does the work found; `true` if there was any.
    pub fn poll_doorbells(&mut self) -> bool {
        self.model.poll_doorbells()
    }

    /// Plugs or unplugs the cable between a node and the switch.
    pub fn set_link(&mut self, node: u16, up: bool) -> Result<(), FabricError> {
        self.controller(node)?;
        self.model.set_link(node, up);
        tracing::info!(node, up, "link set");
        Ok(())
    }

    /// State and counters of all nodes.
    pub fn stats(&self) -> Vec<NodeStats> {
        self.model.functions.0.iter().map(stats::of).collect()
    }

    /// The controller of a node.
    fn controller(&mut self, node: u16) -> Result<&mut Controller, FabricError> {
        let controller = self.model.function_mut(node);
        controller.ok_or(FabricError::NoSuchNode(node))
    }
}
