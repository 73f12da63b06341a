// SPDX-License-Identifier: GPL-2.0
//! User contexts: doorbell pages of a process's own.

use crate::{device::Rdma, device_memory::Piece};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{Arc, Mutex},
};
use nk::mmap::MmapRange;
use nk_rdma::{error::unsupported, Context, Device, Udata};
use nupa_fabric::{DoorbellPage, DoorbellSlot, Port};
use nupa_proto::{doorbell::SLOT_NONE, uabi};

/// A process's use of the device.
pub(crate) struct UserContext {
    port: Port,
    pages: Pin<KBox<Mutex<KVec<MappedPage>>>>,
}

/// A pair of doorbell pages that the process may map.
struct MappedPage {
    page: Arc<DoorbellPage>,
    shared_offset: u64,
    /// None: the function has no trapped pages.
    trapped_offset: Option<u64>,
}

/// What is kept while a process maps it.
pub(crate) enum Mapping {
    /// Doorbell pages.
    Doorbells {
        /// The pair.
        _page: Arc<DoorbellPage>,
    },
    /// Device memory.
    Memory {
        /// The piece.
        _piece: Arc<Piece>,
    },
}

impl Mapping {
    /// Keeps a pair of doorbell pages.
    fn doorbells(page: &Arc<DoorbellPage>) -> Self {
        Self::Doorbells {
            _page: page.clone(),
        }
    }

    /// Keeps a piece of device memory.
    pub(crate) fn memory(piece: Arc<Piece>) -> Self {
        Self::Memory { _piece: piece }
    }
}

/// What a queue's owner rings.
pub(crate) struct Doorbells {
    /// Slot of the queue, or of the send queue.
    pub(crate) slot: DoorbellSlot,
    /// Slot of the receive queue.
    pub(crate) recv_slot: Option<DoorbellSlot>,
    /// How the process finds them.
    pub(crate) response: uabi::Doorbell,
}

/// Which slots are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// One, for a completion queue or a shared receive queue.
    Queue,
    /// One for a send queue.
    Send,
    /// One for a send queue, and one on the same page for its receive queue.
    Pair,
}

impl UserContext {
    /// Answers the command that opens the device.
    pub(crate) fn new(dev: &Device<Rdma>, udata: &mut Udata<'_, Rdma>) -> Result<Self> {
        udata.no_request()?;
        let info = dev.port().info();
        let context = Self {
            port: dev.port().clone(),
            pages: KBox::pin_init(new_mutex!(KVec::new()), GFP_KERNEL_ACCOUNT)?,
        };
        udata.respond(&uabi::ContextResponse {
            caps: info.caps.into(),
            node: info.node.into(),
            max_log_sq: info.limits.max_log_sq,
            max_log_rq: info.limits.max_log_rq,
            max_log_cq: info.limits.max_log_cq,
            flags: match dev.port().has_trapped_pages() {
                true => 0,
                false => uabi::CONTEXT_KICK_BY_COMMAND,
            },
            ..uabi::ContextResponse::default()
        })?;
        Ok(context)
    }

    /// Takes doorbell slots, on a new page if those that the process has are full. `ENOSPC` if the controller's are.
    pub(crate) fn doorbells(context: &Context<Rdma>, wanted: Wanted) -> Result<Doorbells> {
        let mut pages = context.data().pages.lock();
        if let Some(doorbells) = pages.iter().rev().find_map(|page| page.take(wanted)) {
            return Ok(doorbells);
        }
        let page = MappedPage::new(context)?;
        let doorbells = page.take(wanted).ok_or(ENOSPC)?;
        pages.push(page, GFP_KERNEL_ACCOUNT)?;
        Ok(doorbells)
    }
}

impl MappedPage {
    fn new(context: &Context<Rdma>) -> Result<Self> {
        let page = context.data().port.doorbell_page()?;
        let offer = |range: MmapRange| context.offer(range, Mapping::doorbells(&page));
        let shared_offset = offer(page.shared().ok_or_else(unsupported)?)?;
        let trapped_offset = page.trapped().map(offer).transpose();
        let trapped_offset = trapped_offset.inspect_err(|_| context.withdraw(shared_offset))?;
        Ok(Self {
            page,
            shared_offset,
            trapped_offset,
        })
    }

    fn take(&self, wanted: Wanted) -> Option<Doorbells> {
        let slot = match wanted {
            Wanted::Queue => self.page.take_slot()?,
            Wanted::Send | Wanted::Pair => self.page.take_send_slot()?,
        };
        let recv_slot = match wanted {
            Wanted::Pair => Some(self.page.take_slot()?),
            Wanted::Queue | Wanted::Send => None,
        };
        let response = uabi::Doorbell {
            shared_offset: self.shared_offset.into(),
            trapped_offset: self.trapped_offset.unwrap_or(0).into(),
            slot: slot.number().into(),
            recv_slot: recv_slot
                .as_ref()
                .map_or(SLOT_NONE, DoorbellSlot::number)
                .into(),
            reserved: 0.into(),
        };
        Some(Doorbells {
            slot,
            recv_slot,
            response,
        })
    }
}
