// SPDX-License-Identifier: GPL-2.0
//! What a driver has of a function that it is bound to, whatever bus that is on.

use crate::{
    controller::{Controller, Parts},
    debug::Files,
    device_memory::DeviceMemory,
    doorbell::Doorbells,
    hal::Function,
    handlers::ObjectHandlers,
    health::Devlink,
    identity::Unfit,
    netlink::Shown,
    port::{Port, PortInfo},
    registers::{Identity, Registers},
    vector::Vector,
};
use kernel::{
    auxiliary,
    device::{Bound, Device},
    prelude::*,
    sync::Arc,
    types::ForLt,
};
use nupa_proto::doorbell::device_memory_offset;

/// What belongs to a bound function; `I` keeps its vectors connected. Fields are dropped in order: children first,
/// interrupts late, last of all the function is stopped.
pub(crate) struct Instance<'bound, I> {
    _rdma: PublishedRdma,
    _net: auxiliary::Registration<'bound, ForLt!(Port)>,
    _files: Files,
    _shown: Shown,
    _devlink: Devlink,
    _interrupts: I,
    running: Running,
}

/// Sees to it that `nupa_fabric.rdma` goes, and does not come back.
struct PublishedRdma(Arc<Controller>);

impl Drop for PublishedRdma {
    fn drop(&mut self) {
        self.0.rdma.close();
    }
}

/// A controller that was started; stops it when dropped.
struct Running(Arc<Controller>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.remove();
    }
}

/// A function that is fit for this driver.
pub(crate) struct Found {
    function: Arc<dyn Function>,
    registers: Registers,
    identity: Identity,
    doorbells: Arc<Doorbells>,
    device_memory: Option<Arc<DeviceMemory>>,
}

impl Found {
    /// Asks a function who it is; if it is of no use, says why. May sleep.
    pub(crate) fn new(device: &Device<Bound>, function: Arc<dyn Function>) -> Result<Self> {
        let registers = Registers::new(function.clone());
        let identity = registers
            .identify()?
            .map_err(|unfit| refuse(device, unfit))?;
        let doorbells = Doorbells::new(device, function.clone(), &identity)?;
        Ok(Self {
            doorbells: doorbells.map_err(|unfit| refuse(device, unfit))?,
            device_memory: device_memory(&function, &identity)?,
            function,
            registers,
            identity,
        })
    }
}

impl<'bound, I> Instance<'bound, I> {
    /// Starts a function that has `vectors` vectors, at least one, and publishes its port. `connect` has the
    /// controller's vectors run when the function raises them, until what it returns is dropped. Sleeps.
    pub(crate) fn new(
        device: &'bound Device<Bound>,
        found: Found,
        vectors: u32,
        connect: impl FnOnce(&Arc<Controller>) -> Result<I>,
    ) -> Result<Self> {
        let objects = Arc::pin_init(ObjectHandlers::new(), GFP_KERNEL)?;
        // The first vector is for node and link events, unless it is the only one.
        let info = PortInfo::new(&found.identity, vectors.saturating_sub(1).max(1));
        let parts = Parts {
            function: found.function,
            registers: found.registers,
            doorbells: found.doorbells,
            device_memory: found.device_memory,
            vectors: make_vectors(device, vectors, &objects)?,
            objects,
        };
        let running = Running(Controller::new(device, parts, info)?);
        let controller = &running.0;
        let interrupts = connect(controller)?;
        controller.start_first()?;
        announce(device, &controller.info());
        let files = Files::new(controller)?;
        let shown = Shown::new(controller)?;
        let devlink = Devlink::new(device, controller)?;
        let port = Port {
            controller: controller.clone(),
        };
        let number = controller.number();
        let net = auxiliary::Registration::new(device, c"net", number, c"nupa_fabric", port)?;
        let rdma = PublishedRdma(controller.clone());
        controller.publish_first();
        Ok(Self {
            _rdma: rdma,
            _net: net,
            _files: files,
            _shown: shown,
            _devlink: devlink,
            _interrupts: interrupts,
            running,
        })
    }

    pub(crate) fn controller(&self) -> &Arc<Controller> {
        &self.running.0
    }
}

/// The own memory of a function that says this of itself, if the CPU can reach it. May sleep.
fn device_memory(
    function: &Arc<dyn Function>,
    identity: &Identity,
) -> Result<Option<Arc<DeviceMemory>>> {
    let offset = device_memory_offset(identity.doorbell_pages);
    let window = match identity.device_memory {
        0 => None,
        len => function.window(offset, len),
    };
    let memory = window.map(|window| DeviceMemory::new(function.clone(), offset, window));
    memory.transpose()
}

/// Says why a function is of no use.
fn refuse(device: &Device<Bound>, unfit: Unfit) -> Error {
    dev_err!(device, "{unfit}\n");
    ENODEV
}

fn make_vectors(
    device: &Device,
    count: u32,
    objects: &Arc<ObjectHandlers>,
) -> Result<KVec<Arc<Vector>>> {
    let mut vectors = KVec::with_capacity(usize::try_from(count)?, GFP_KERNEL)?;
    for index in 0..u16::try_from(count)? {
        vectors.push(Vector::new(device, index, objects.clone())?, GFP_KERNEL)?;
    }
    Ok(vectors)
}

fn announce(device: &Device<Bound>, info: &PortInfo) {
    let [major, minor, patch] = info.firmware;
    dev_info!(
        device,
        "node {} of fabric {:016x}, completion vectors: {}, firmware {major}.{minor}.{patch}\n",
        info.node,
        info.fabric_id,
        info.vectors
    );
}
