// SPDX-License-Identifier: GPL-2.0
//! A pool in the shared memory of an ivshmem device, whose interrupts wake hosts that sleep.
//!
//! The device is QEMU's (docs/specs/ivshmem-spec.rst there).

use super::{
    function::PollerNapi,
    instance::{map, Place, PoolInstance},
    node::Bell,
};
use kernel::{
    device::Core, device_id::IdArray, devres::Devres, io::Io, pci, prelude::*, sync::Arc,
};
use nk::{
    pci::{
        irq::{Handler, Registration, Vectors},
        BusMaster, PowerHandler,
    },
    power::Transition,
    window::Window,
};
use nupa_proto::pool::{BELL_IVSHMEM, BELL_KIND_SHIFT};

/// Device id, of the vendor Red Hat, Inc.
const DEVICE_ID: u32 = 0x1110;
/// BAR of the registers.
const BAR_REGISTERS: u32 = 0;
/// Bytes of the registers.
const REGISTERS_SIZE: usize = 256;
/// BAR of the memory.
const BAR_MEMORY: u32 = 2;
/// RO: this peer's id; negative while it has none.
const REG_IV_POSITION: usize = 8;
/// WO: {peer:16, vector:16}, interrupts a peer.
const REG_DOORBELL: usize = 12;
/// Kind of bell.
const KIND: u64 = BELL_IVSHMEM << BELL_KIND_SHIFT;

/// Driver of ivshmem devices that hold a pool.
pub(crate) struct IvshmemDriver;

/// A table without a module alias: such devices are mostly for something else, so that nobody but an administrator loads this
/// driver for them. Of those that are there it takes the ones that hold a pool.
const PCI_TABLE: IdArray<pci::DeviceId, (), 1> = IdArray::new([(
    pci::DeviceId::from_id(pci::Vendor::REDHAT_QUMRANET, DEVICE_ID),
    (),
)]);

/// What belongs to a device; the interrupt goes before the function does.
pub(crate) struct IvshmemInstance<'bound> {
    _interrupt: Option<Registration<Arrival>>,
    instance: PoolInstance<'bound>,
    bus: BusMaster,
}

impl pci::Driver for IvshmemDriver {
    type IdInfo = ();
    type Data<'bound> = IvshmemInstance<'bound>;
    const ID_TABLE: pci::IdTable<Self::IdInfo> = &PCI_TABLE;

    fn probe<'bound>(
        pdev: &'bound pci::Device<Core<'_>>,
        _id_info: &'bound Self::IdInfo,
    ) -> impl PinInit<Self::Data<'bound>, Error> + 'bound {
        probe(pdev)
    }
}

impl PowerHandler for IvshmemDriver {
    fn power(this: Pin<&Self::Data<'_>>, transition: Transition) {
        this.instance.controller().power(transition);
        if transition == Transition::Shutdown {
            // No more interrupts, which are writes to memory.
            this.bus.revoke();
        }
    }
}

/// Something has come from another host.
struct Arrival(Arc<PollerNapi>);

impl Handler for Arrival {
    fn handle(&self) {
        self.0.schedule();
    }
}

/// The device's doorbell register.
struct Doorbell(Devres<pci::Bar<'static, REGISTERS_SIZE>>);

impl Bell for Doorbell {
    fn ring(&self, bell: u64) {
        // Not all hosts of a pool need have such a device; the others poll.
        let Ok(peer) = u16::try_from(bell ^ KIND) else {
            return;
        };
        if let Some(bar) = self.0.try_access() {
            bar.write32(u32::from(peer) << 16, REG_DOORBELL);
        }
    }
}

fn probe<'bound>(pdev: &'bound pci::Device<Core<'_>>) -> Result<IvshmemInstance<'bound>> {
    nk::pci::enable(pdev)?;
    let window = map(pdev.as_ref(), |coherence, extent| {
        Window::of_bar(pdev, BAR_MEMORY, c"nupa_fabric", coherence, extent)
    })?;
    let registers = pdev.iomap_region_sized::<REGISTERS_SIZE>(BAR_REGISTERS, c"nupa_fabric")?;
    let position = registers.read32(REG_IV_POSITION);
    let registers = registers.into_devres()?;
    let poller = PollerNapi::new()?;
    let bus = BusMaster::new(pdev);
    // A device without a server has no interrupts and no peers' ids.
    let vectors = Vectors::new(pdev, 1, 1).ok();
    let interrupt = match &vectors {
        Some(vectors) => Some(vectors.request(0, 0, c"nupa_fabric", Arrival(poller.clone()))?),
        None => None,
    };
    if interrupt.is_some() {
        // Its interrupts are writes to memory. Unbinding ends that.
        bus.allow();
    }
    let position = u16::try_from(position).ok().filter(|_| interrupt.is_some());
    let bell: Arc<dyn Bell> = Arc::new(Doorbell(registers), GFP_KERNEL)?;
    let place = Place {
        window,
        own_bell: position.map_or(0, |position| KIND | u64::from(position)),
        bell: position.map(|_| bell),
        poller,
        // The device says nothing of that.
        persistent: false,
    };
    Ok(IvshmemInstance {
        _interrupt: interrupt,
        instance: PoolInstance::new(pdev.as_ref(), place)?,
        bus,
    })
}
