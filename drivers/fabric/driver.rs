// SPDX-License-Identifier: GPL-2.0
//! The PCI driver.

use crate::{
    controller::{Controller, Parts},
    debug::Files,
    doorbell::Doorbells,
    handlers::ObjectHandlers,
    identity::Unfit,
    port::{Port, PortInfo},
    registers::Registers,
    vector::{Vector, VectorInterrupt},
};
use kernel::{
    auxiliary, cpu,
    device::{Bound, Core},
    pci,
    prelude::*,
    sync::Arc,
    types::ForLt,
};
use nk::pci::{
    irq::{Registration, Vectors},
    ChannelState, ErrorHandler, Recovery,
};
use nupa_proto::{ident::PCI_DEVICE_ID, regs::MSIX_VECTORS};

/// Driver of `PCI_VENDOR_ID`:`PCI_DEVICE_ID`.
pub(crate) struct Driver;

/// What belongs to a bound function. Fields are dropped in order: children first, interrupts late, last of all the
/// function is stopped.
pub(crate) struct Function<'bound> {
    _rdma: PublishedRdma,
    _net: auxiliary::Registration<'bound, ForLt!(Port)>,
    _files: Files,
    _interrupts: KVec<Registration<VectorInterrupt>>,
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

kernel::pci_device_table!(
    PCI_TABLE,
    MODULE_PCI_TABLE,
    <Driver as pci::Driver>::IdInfo,
    [(
        pci::DeviceId::from_id(pci::Vendor::REDHAT_QUMRANET, PCI_DEVICE_ID as u32),
        ()
    )]
);

impl pci::Driver for Driver {
    type IdInfo = ();
    type Data<'bound> = Function<'bound>;
    const ID_TABLE: pci::IdTable<Self::IdInfo> = &PCI_TABLE;

    fn probe<'bound>(
        pdev: &'bound pci::Device<Core<'_>>,
        _id_info: &'bound Self::IdInfo,
    ) -> impl PinInit<Self::Data<'bound>, Error> + 'bound {
        Function::new(pdev)
    }
}

impl<'bound> Function<'bound> {
    fn new(pdev: &'bound pci::Device<Core<'_>>) -> Result<Self> {
        nk::pci::enable(pdev)?;
        let registers = Registers::new(pdev)?;
        let identity = registers.identify()?.map_err(|unfit| refuse(pdev, unfit))?;
        let doorbells = Doorbells::new(pdev, &identity)?;
        let doorbells = doorbells.map_err(|unfit| refuse(pdev, unfit))?;
        let granted = grant_vectors(pdev)?;
        let objects = Arc::pin_init(ObjectHandlers::new(), GFP_KERNEL)?;
        let vectors = make_vectors(granted.count(), &objects)?;
        // The first vector is for node and link events, unless it is the only one.
        let info = PortInfo::new(&identity, granted.count().saturating_sub(1).max(1));
        let parts = Parts {
            registers,
            doorbells,
            objects,
            vectors,
        };
        let running = Running(Controller::new(pdev, parts, info)?);
        let controller = &running.0;
        let interrupts = request_interrupts(&granted, controller)?;
        controller.start_first()?;
        announce(pdev, &controller.info());
        let files = Files::new(controller)?;
        let port = Port {
            controller: controller.clone(),
        };
        let net = auxiliary::Registration::new(pdev.as_ref(), c"net", 0, c"nupa_fabric", port)?;
        let rdma = PublishedRdma(controller.clone());
        controller.publish_first();
        Ok(Self {
            _rdma: rdma,
            _net: net,
            _files: files,
            _interrupts: interrupts,
            running,
        })
    }

    fn controller(&self) -> &Arc<Controller> {
        &self.running.0
    }
}

/// Says why a function is of no use.
fn refuse(pdev: &pci::Device<Bound>, unfit: Unfit) -> Error {
    dev_err!(pdev, "{unfit}\n");
    ENODEV
}

/// Asks for one vector per CPU and one for events of the function; fewer will do.
fn grant_vectors<'a>(pdev: &'a pci::Device<Bound>) -> Result<Vectors<'a>> {
    let wanted = u32::from(MSIX_VECTORS).min(cpu::nr_cpu_ids().saturating_add(1));
    Vectors::new(pdev, 1, wanted).inspect_err(|error| {
        dev_err!(
            pdev,
            "no MSI-X vectors ({error:?}): the platform must support message-signaled interrupts\n"
        );
    })
}

fn make_vectors(count: u32, objects: &Arc<ObjectHandlers>) -> Result<KVec<Arc<Vector>>> {
    let mut vectors = KVec::with_capacity(usize::try_from(count)?, GFP_KERNEL)?;
    for index in 0..u16::try_from(count)? {
        vectors.push(Vector::new(index, objects.clone())?, GFP_KERNEL)?;
    }
    Ok(vectors)
}

fn request_interrupts(
    granted: &Vectors<'_>,
    controller: &Arc<Controller>,
) -> Result<KVec<Registration<VectorInterrupt>>> {
    let mut interrupts = KVec::with_capacity(controller.vectors().len(), GFP_KERNEL)?;
    for (index, vector) in (0u32..).zip(controller.vectors()) {
        // Completion vector `i` is vector `i + 1`, and belongs to the `i`-th CPU, as queue `i` of a child does.
        let cpu = index.saturating_sub(1);
        let handler = VectorInterrupt {
            vector: vector.clone(),
            controller: controller.clone(),
        };
        let interrupt = granted.request(index, cpu, c"nupa_fabric", handler)?;
        interrupts.push(interrupt, GFP_KERNEL)?;
    }
    Ok(interrupts)
}

fn announce(pdev: &pci::Device<Bound>, info: &PortInfo) {
    let [major, minor, patch] = info.firmware;
    dev_info!(
        pdev,
        "node {} of fabric {:016x}, completion vectors: {}, firmware {major}.{minor}.{patch}\n",
        info.node,
        info.fabric_id,
        info.vectors
    );
}

impl ErrorHandler for Driver {
    fn error_detected(
        _: &pci::Device<Core<'_>>,
        this: Pin<&Self::Data<'_>>,
        state: ChannelState,
    ) -> Recovery {
        match state {
            ChannelState::Normal | ChannelState::Frozen => {
                this.controller().pause(state == ChannelState::Normal);
                Recovery::NeedReset
            }
            ChannelState::Failed => {
                this.controller().disconnect();
                Recovery::Disconnect
            }
        }
    }

    fn slot_reset(_: &pci::Device<Core<'_>>, this: Pin<&Self::Data<'_>>) -> Recovery {
        if this.controller().reachable() {
            Recovery::Recovered
        } else {
            this.controller().disconnect();
            Recovery::Disconnect
        }
    }

    fn resume(_: &pci::Device<Core<'_>>, this: Pin<&Self::Data<'_>>) {
        this.controller().resume();
    }

    fn reset_prepare(_: &pci::Device<Core<'_>>, this: Pin<&Self::Data<'_>>) {
        this.controller().pause(true);
    }

    fn reset_done(_: &pci::Device<Core<'_>>, this: Pin<&Self::Data<'_>>) {
        this.controller().resume();
    }

    fn shutdown(_: &pci::Device<Core<'_>>, this: Pin<&Self::Data<'_>>) {
        this.controller().shutdown();
    }
}
