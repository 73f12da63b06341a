// SPDX-License-Identifier: GPL-2.0
//! The PCI driver.

use super::PciFunction;
use crate::{
    controller::Controller,
    instance::{Found, Instance},
    vector::VectorInterrupt,
};
use kernel::{
    cpu,
    device::{Bound, Core},
    pci,
    prelude::*,
    sync::Arc,
};
use nk::{
    pci::{
        irq::{Handler, Registration, Vectors},
        ChannelState, ErrorHandler, PowerHandler, Recovery,
    },
    power::Transition,
};
use nupa_proto::{ident::PCI_DEVICE_ID, regs::MSIX_VECTORS};

/// Driver of `PCI_VENDOR_ID`:`PCI_DEVICE_ID`.
pub(crate) struct Driver;

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
    type Data<'bound> = Instance<'bound, KVec<Registration<VectorInterrupt>>>;
    const ID_TABLE: pci::IdTable<Self::IdInfo> = &PCI_TABLE;

    fn probe<'bound>(
        pdev: &'bound pci::Device<Core<'_>>,
        _id_info: &'bound Self::IdInfo,
    ) -> impl PinInit<Self::Data<'bound>, Error> + 'bound {
        probe(pdev)
    }
}

fn probe<'bound>(
    pdev: &'bound pci::Device<Core<'_>>,
) -> Result<<Driver as pci::Driver>::Data<'bound>> {
    nk::pci::enable(pdev)?;
    let function = Arc::new(PciFunction::new(pdev)?, GFP_KERNEL)?;
    let found = Found::new(pdev.as_ref(), function)?;
    let granted = grant_vectors(pdev)?;
    Instance::new(pdev.as_ref(), found, granted.count(), |controller| {
        request_interrupts(&granted, controller)
    })
}

impl Handler for VectorInterrupt {
    fn handle(&self) {
        self.run();
    }
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
        vector.set_interrupt(interrupt.number());
        interrupts.push(interrupt, GFP_KERNEL)?;
    }
    Ok(interrupts)
}

impl PowerHandler for Driver {
    fn power(this: Pin<&Self::Data<'_>>, transition: Transition) {
        this.controller().power(transition);
    }
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
}
