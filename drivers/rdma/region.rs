// SPDX-License-Identifier: GPL-2.0
//! Memory regions and memory windows.

use crate::{
    access::{device_rights, region_rights},
    device::Rdma,
    kernel::FastRegion,
    ring::page_array,
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc,
    },
};
use nk_rdma::{Device, Keys, MemoryKeys, Pd, Rereg, Umem, UserRegion};
use nupa_fabric::{Charge, MappedMemory, Mr, Port};
use nupa_proto::{
    admin::{CreateMr, KeyKind, PageList, MR_MASK_ACCESS, MR_MASK_PAGES, MR_MASK_PD},
    ident::DMA_LKEY,
};

/// A memory region. Fields are dropped in order.
pub(crate) struct Region {
    pub(crate) port: Port,
    /// None for all memory, which the controller has a key for anyway.
    pub(crate) object: Option<Arc<Mr>>,
    /// What fast registration needs.
    pub(crate) fast: Option<FastRegion>,
    /// How many pages the controller was told of, and log2 of their size; for people.
    pub(crate) layout: Layout,
    /// None for all memory.
    pub(crate) _charge: Option<Charge>,
    /// The memory of a memory device that it is of, if it is.
    pub(crate) mapped: Option<MappedMemory>,
}

/// Pages of a region.
pub(crate) struct Layout {
    pages: Atomic<u32>,
    shift: Atomic<u32>,
}

impl Default for Layout {
    fn default() -> Self {
        Self {
            pages: Atomic::new(0),
            shift: Atomic::new(0),
        }
    }
}

impl Layout {
    fn set(&self, list: &PageList) {
        self.pages.store(list.pages.get(), Relaxed);
        self.shift.store(list.page_shift.into(), Relaxed);
    }
}

impl MemoryKeys for Region {
    fn keys(&self) -> Keys {
        self.object.as_ref().map_or(ALL_MEMORY, |mr| keys(mr.key()))
    }
}

/// Keys of all memory: it has no remote one.
const ALL_MEMORY: Keys = Keys {
    local: DMA_LKEY,
    remote: 0,
};

/// The controller's keys are good for both.
fn keys(key: u32) -> Keys {
    Keys {
        local: key,
        remote: key,
    }
}

impl Region {
    /// Registers pinned memory.
    pub(crate) fn new(
        dev: &Device<Rdma>,
        pd: &Pd<Rdma>,
        umem: &Umem,
        region: &UserRegion,
    ) -> Result<Self> {
        let access = region_rights(region.access)?;
        let pages = page_array(dev.port(), umem, region.iova)?;
        let parameters = CreateMr {
            pages: pages.list(),
            iova: region.iova.into(),
            len: region.len.into(),
            access: access.into(),
            ..CreateMr::default()
        };
        Self::create(dev, pd, &parameters)
    }

    /// Registers memory of a memory device that a process has mapped, or has a DMA buffer of. `denied` if the process may not access it so.
    pub(crate) fn of_mapped(
        dev: &Device<Rdma>,
        pd: &Pd<Rdma>,
        memory: MappedMemory,
        region: &UserRegion,
        denied: Error,
    ) -> Result<Self> {
        let allowed = match region.access.is_writable() {
            true => memory.is_writable(),
            false => memory.is_readable(),
        };
        if !allowed {
            return Err(denied);
        }
        let made = Self::of_device_memory(dev, pd, memory.address()?, region)?;
        Ok(Self {
            mapped: Some(memory),
            ..made
        })
    }

    /// Registers `region.len` bytes that the controller has at `address`, in its own addresses. `EINVAL` or `EOPNOTSUPP` for rights that
    /// it cannot have, `EDQUOT` beyond the user's share of keys.
    pub(crate) fn of_device_memory(
        dev: &Device<Rdma>,
        pd: &Pd<Rdma>,
        address: u64,
        region: &UserRegion,
    ) -> Result<Self> {
        let parameters = CreateMr {
            pages: PageList {
                addr: address.into(),
                ..PageList::default()
            },
            iova: region.iova.into(),
            len: region.len.into(),
            access: device_rights(dev.port(), region.access)?.into(),
            ..CreateMr::default()
        };
        Self::create(dev, pd, &parameters)
    }

    /// Registers for a process what `parameters` say; its field `pd` is filled in below.
    fn create(dev: &Device<Rdma>, pd: &Pd<Rdma>, parameters: &CreateMr) -> Result<Self> {
        let charge = dev.limits().keys.charge_user()?;
        let layout = Layout::default();
        layout.set(&parameters.pages);
        Ok(Self {
            port: dev.port().clone(),
            object: Some(dev.port().create_mr(pd, parameters)?),
            fast: None,
            layout,
            _charge: Some(charge),
            mapped: None,
        })
    }

    /// Pages that the controller was told of, and log2 of their size; zeroes if there is no list of them.
    pub(crate) fn layout(&self) -> (u32, u32) {
        let Layout { pages, shift } = &self.layout;
        (pages.load(Relaxed), shift.load(Relaxed))
    }

    /// Takes it away from the controller. `EBUSY` if windows are bound to it.
    pub(crate) fn destroy(&self) -> Result {
        self.object.as_ref().map_or(Ok(()), |mr| mr.destroy())
    }

    /// Changes what `changes` says, at once. `EINVAL` for other memory if the region is of a memory device, as the core says of regions
    /// of device memory; `EACCES` for writing to what the process could only read.
    pub(crate) fn change(&self, changes: &Rereg<'_, Rdma>) -> Result<Keys> {
        let mut mask = 0;
        let mut parameters = CreateMr::default();
        let mut pages = None;
        if let Some((umem, iova, len)) = changes.memory {
            if self.mapped.is_some() {
                return Err(EINVAL);
            }
            let list = &*pages.insert(page_array(&self.port, umem, iova)?);
            parameters.pages = list.list();
            parameters.iova = iova.into();
            parameters.len = len.into();
            mask |= MR_MASK_PAGES;
        }
        if let Some(access) = changes.access {
            let rights = match &self.mapped {
                Some(memory) if access.is_writable() && !memory.is_writable() => {
                    return Err(EACCES)
                }
                Some(_) => device_rights(&self.port, access)?,
                None => region_rights(access)?,
            };
            parameters.access = rights.into();
            mask |= MR_MASK_ACCESS;
        }
        if changes.pd.is_some() {
            mask |= MR_MASK_PD;
        }
        let pd = changes.pd.map(|pd| &***pd);
        let object = self.object.as_ref().ok_or(EINVAL)?;
        let key = object.modify(mask, pd, &parameters)?;
        if changes.memory.is_some() {
            self.layout.set(&parameters.pages);
        }
        Ok(keys(key))
    }
}

/// A memory window of type 2B. Fields are dropped in order.
pub(crate) struct MemoryWindow {
    object: Arc<Mr>,
    _charge: Charge,
}

impl MemoryKeys for MemoryWindow {
    fn keys(&self) -> Keys {
        keys(self.object.key())
    }
}

impl MemoryWindow {
    /// Makes a window that is not bound yet.
    pub(crate) fn new(dev: &Device<Rdma>, pd: &Pd<Rdma>) -> Result<Self> {
        let charge = dev.limits().keys.charge_user()?;
        Ok(Self {
            object: dev.port().alloc_key(pd, KeyKind::Window, 0)?,
            _charge: charge,
        })
    }
}
