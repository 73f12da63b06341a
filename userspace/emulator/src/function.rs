// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A controller as a VMM sees it: the PCI function around the device model.

use std::cell::RefCell;
use std::os::fd::AsFd;
use std::rc::Rc;

use guestmem::{MapError, MapRequest, Reach, Rights};
use nupa_controller::{Fabric, Interrupts};
use nupa_proto::{ident, regs};
use vfio_user::pci::{Bar, ConfigBuilder, ConfigError, ConfigSpace, Identity, Msix, CONFIG_SIZE};
use vfio_user::{
    irq_index, region_index, Area, Device, DmaMap, Errno, EventFds, IrqRequest, Mmap, Region,
};

/// What a guest's PCI function has besides the controller.
#[derive(Debug)]
pub struct Function {
    node: u16,
    config: ConfigSpace,
    vectors: Rc<RefCell<EventFds>>,
    /// Pages of the doorbell BAR that the guest maps.
    areas: Vec<Area>,
}

/// The vectors as the device model sees them.
struct Vectors(Rc<RefCell<EventFds>>);

impl Interrupts for Vectors {
    fn raise(&self, vector: u16) {
        if !self.0.borrow().raise(vector.into()) {
            tracing::trace!(vector, "interrupt raised that the guest has not enabled");
        }
    }
}

impl Function {
    /// Attaches a guest to its controller.
    ///
    /// # Errors
    /// There is no such node, or it has a guest.
    pub fn attach(fabric: &mut Fabric, node: u16) -> anyhow::Result<Self> {
        let config = config_space(fabric)?;
        let vectors = Rc::new(RefCell::new(EventFds::new(regs::MSIX_VECTORS.into())));
        fabric.connect(node, Box::new(Vectors(Rc::clone(&vectors))))?;
        fabric.set_bus_master(node, config.bus_master());
        let areas = fabric.doorbell_mmap_areas();
        let areas = areas.map(|range| Area {
            offset: range.start,
            size: range.end.saturating_sub(range.start),
        });
        Ok(Self {
            node,
            config,
            vectors,
            areas: areas.collect(),
        })
    }

    /// The function with the fabric that it is plugged into.
    pub fn plugged<'a>(&'a mut self, fabric: &'a mut Fabric) -> Plugged<'a> {
        Plugged {
            function: self,
            fabric,
        }
    }
}

/// Lays out the configuration space.
fn config_space(fabric: &Fabric) -> Result<ConfigSpace, ConfigError> {
    let bar = |index, prefetchable| Bar {
        index,
        size: fabric.bar_size(index),
        prefetchable,
    };
    let identity = Identity {
        vendor: ident::PCI_VENDOR_ID,
        device: ident::PCI_DEVICE_ID,
        class: ident::PCI_CLASS,
        revision: ident::PCI_REVISION,
    };
    let msix = Msix {
        vectors: regs::MSIX_VECTORS,
        bar: regs::BAR_MSIX,
        table: regs::MSIX_TABLE_OFFSET,
        pba: regs::MSIX_PBA_OFFSET,
    };
    let builder = ConfigBuilder::new(identity)
        .bar(bar(regs::BAR_CONTROL, false))?
        .bar(bar(regs::BAR_DOORBELL, true))?
        .bar(bar(regs::BAR_MSIX, false))?
        .msix(msix)?;
    Ok(builder.build())
}

/// A function and its fabric, for the time of one call.
pub struct Plugged<'a> {
    function: &'a mut Function,
    fabric: &'a mut Fabric,
}

impl Plugged<'_> {
    /// Resets everything but the VMM's own settings: memory and interrupts.
    fn reset_function(&mut self) {
        self.function.config.reset();
        self.fabric.reset(self.function.node);
        self.follow_bus_master();
    }

    /// Lets the controller do what the guest allows the function.
    fn follow_bus_master(&mut self) {
        let allowed = self.function.config.bus_master();
        self.fabric.set_bus_master(self.function.node, allowed);
    }
}

impl Device for Plugged<'_> {
    fn region(&self, index: u32) -> Region<'_> {
        match index {
            region_index::BAR0..=region_index::BAR5 => {
                let bar = u8::try_from(index).unwrap_or(u8::MAX);
                let file = match bar {
                    regs::BAR_DOORBELL => self.fabric.doorbell_file(self.function.node),
                    _ => None,
                };
                let mmap = file
                    .filter(|_| !self.function.areas.is_empty())
                    .map(|file| Mmap {
                        file,
                        areas: &self.function.areas,
                    });
                Region {
                    size: self.fabric.bar_size(bar),
                    mmap,
                }
            }
            region_index::CONFIG => Region {
                size: u64::try_from(CONFIG_SIZE).unwrap_or(0),
                mmap: None,
            },
            _ => Region::default(),
        }
    }

    fn irq_count(&self, index: u32) -> u32 {
        match index {
            irq_index::MSIX => regs::MSIX_VECTORS.into(),
            _ => 0,
        }
    }

    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno> {
        if region == region_index::CONFIG {
            self.function.config.read(offset, data);
            return Ok(());
        }
        let bar = u8::try_from(region).map_err(|_| Errno::INVAL)?;
        self.fabric.bar_read(self.function.node, bar, offset, data);
        Ok(())
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        if region == region_index::CONFIG {
            let effects = self.function.config.write(offset, data);
            if effects.function_reset {
                self.reset_function();
            }
            self.follow_bus_master();
            return Ok(());
        }
        let bar = u8::try_from(region).map_err(|_| Errno::INVAL)?;
        self.fabric.bar_write(self.function.node, bar, offset, data);
        Ok(())
    }

    fn dma_map(&mut self, map: DmaMap) -> Result<(), Errno> {
        let node = self.function.node;
        let (iova, size) = (map.iova, map.size);
        let request = MapRequest {
            iova,
            len: size,
            file: map.file.as_ref().map(AsFd::as_fd),
            offset: map.offset,
            rights: if map.writable {
                Rights::ReadWrite
            } else {
                Rights::Read
            },
        };
        match self.fabric.dma_map(node, &request) {
            Ok(Reach::Unsealable) => {
                self.fabric.complain(
                    node,
                    format_args!("memory is out of reach (address {iova:#x}, {size} bytes): its file may shrink; use memory-backend-memfd"),
                );
            }
            Ok(reach) => {
                tracing::debug!(
                    node,
                    iova = format_args!("{iova:#x}"),
                    size,
                    ?reach,
                    "memory mapped"
                );
            }
            Err(error) => {
                self.fabric.complain(
                    node,
                    format_args!("memory refused (address {iova:#x}, {size} bytes): {error}"),
                );
                return Err(errno_of(error));
            }
        }
        Ok(())
    }

    fn dma_unmap(&mut self, iova: u64, size: u64) -> Result<(), Errno> {
        let unmapped = self.fabric.dma_unmap(self.function.node, iova, size);
        unmapped.map_err(|_| Errno::NOENT)
    }

    fn dma_unmap_all(&mut self) {
        self.fabric.dma_unmap_all(self.function.node);
    }

    fn set_irqs(&mut self, request: IrqRequest) -> Result<(), Errno> {
        tracing::debug!(node = self.function.node, ?request, "interrupts set");
        self.function.vectors.borrow_mut().apply(request)
    }

    fn reset(&mut self) {
        self.reset_function();
    }
}

/// The error number that tells a VMM why its memory was not taken.
fn errno_of(error: MapError) -> Errno {
    match error {
        MapError::InvalidRange | MapError::FileTooShort | MapError::NotADevice => Errno::INVAL,
        MapError::Overlap => Errno::EXIST,
        MapError::TooMany => Errno::NOSPC,
        MapError::Os(errno) => errno,
    }
}
