// SPDX-License-Identifier: GPL-2.0
//! User contexts: doorbell pages of a process's own, which all of its contexts share.

use crate::{device::Rdma, device_memory::Piece};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{Arc, Mutex},
};
use nk::{mmap::MmapRange, process::Process};
use nk_rdma::{error::unsupported, Context, Device, Udata};
use nupa_fabric::{DoorbellPage, DoorbellSlot, Port, Wanted};
use nupa_proto::{doorbell::SLOT_NONE, uabi};

/// A process's use of the device.
pub(crate) struct UserContext {
    port: Port,
    pages: Pin<KBox<Mutex<KVec<OfferedPage>>>>,
}

/// A pair of doorbell pages that a process may map, until the context is closed: it is not another one's meanwhile.
#[derive(Clone, Copy)]
struct OfferedPage {
    number: u32,
    shared_offset: u64,
    /// None: the function has no trapped pages.
    trapped_offset: Option<u64>,
}

/// What is kept while a process maps it.
pub(crate) enum Mapping {
    /// Doorbell pages.
    Doorbells {
        /// The pair.
        _page: DoorbellPage,
    },
    /// Device memory.
    Memory {
        /// The piece.
        _piece: Arc<Piece>,
    },
}

impl Mapping {
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
            flags: flags(dev.port()),
            clock_khz: info.clock_khz.into(),
            ..uabi::ContextResponse::default()
        })?;
        Ok(context)
    }

    /// Takes doorbell slots for a queue of the running process, which is mostly the one that opened the device, and lets the
    /// process map their page. Errors are those of [`Port::doorbell_slots`].
    pub(crate) fn doorbells(context: &Context<Rdma>, wanted: Wanted) -> Result<Doorbells> {
        let own = context.data();
        let (slot, recv_slot) = own.port.doorbell_slots(wanted)?;
        let mut pages = own.pages.lock();
        let page = slot.page();
        let offered = pages
            .iter()
            .find(|offered| offered.number == page.number())
            .copied();
        let offered = match offered {
            Some(offered) => offered,
            None => {
                pages.reserve(1, GFP_KERNEL_ACCOUNT)?;
                let offered = OfferedPage::new(context, &page)?;
                pages.push(offered, GFP_KERNEL_ACCOUNT)?;
                offered
            }
        };
        let response = uabi::Doorbell {
            shared_offset: offered.shared_offset.into(),
            trapped_offset: offered.trapped_offset.unwrap_or(0).into(),
            slot: slot.number().into(),
            recv_slot: recv_slot
                .as_ref()
                .map_or(SLOT_NONE, DoorbellSlot::number)
                .into(),
            reserved: 0.into(),
        };
        Ok(Doorbells {
            slot,
            recv_slot,
            response,
        })
    }
}

/// What a process has to know of how the device works.
fn flags(port: &Port) -> u8 {
    let kicks = match port.has_trapped_pages() {
        true => 0,
        false => uabi::CONTEXT_KICK_BY_COMMAND,
    };
    match port.has_process_rings() {
        true => kicks | uabi::CONTEXT_PROCESS_RINGS | uabi::CONTEXT_RING_WRITES,
        false => kicks,
    }
}

impl OfferedPage {
    fn new(context: &Context<Rdma>, page: &DoorbellPage) -> Result<Self> {
        let process = Process::current()?;
        let offer = |range: MmapRange| {
            let keep = Mapping::Doorbells {
                _page: page.clone(),
            };
            context.offer_to(&process, range, keep)
        };
        let shared_offset = offer(page.shared().ok_or_else(unsupported)?)?;
        let trapped_offset = page.trapped().map(offer).transpose();
        let trapped_offset = trapped_offset.inspect_err(|_| context.withdraw(shared_offset))?;
        Ok(Self {
            number: page.number(),
            shared_offset,
            trapped_offset,
        })
    }
}
