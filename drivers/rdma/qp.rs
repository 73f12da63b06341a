// SPDX-License-Identifier: GPL-2.0
//! Queue pairs.

use crate::{
    context::UserContext,
    device::{max_qp_wr, Rdma},
    kernel::{KernelQp, LateEvents},
    ring::UserRing,
    ring_closer::RingCloser,
    state::State,
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc, Mutex,
    },
};
use nk_rdma::{
    error::unsupported, Device, Event, Pins, QpCapabilities, QpInit, QpNotifier, QpType, QueuePair,
    Udata,
};
use nupa_fabric::{EventHandler, ObjectEvent, QpParameters, QpQueues, QueueRing, Wanted};
use nupa_proto::{
    admin::{self, QP_FLAG_GSI, QP_FLAG_SIGNAL_ALL},
    uabi,
    wqe::{blocks_for, ud_blocks_for, AtomicSegment, Sge, MAX_INLINE, MAX_RECV_SGE},
};

/// Scatter/gather entries of a request.
pub(crate) const MAX_SGE: u32 = MAX_RECV_SGE as u32;

/// A queue pair.
pub(crate) struct Qp {
    /// One that the kernel posts to. Dropped before `object`.
    pub(crate) kernel: Option<Arc<KernelQp>>,
    pub(crate) object: nupa_fabric::Qp,
    pub(crate) qp_type: QpType,
    pub(crate) capabilities: QpCapabilities,
    pub(crate) signal_all: bool,
    pub(crate) handler: Arc<Handler>,
    /// Held while the controller changes the pair.
    pub(crate) state: Arc<Mutex<State>>,
}

impl QueuePair for Qp {
    fn number(&self) -> u32 {
        self.object.number()
    }
}

/// Refuses sizes that no queue pair can have.
pub(crate) fn check(dev: &Device<Rdma>, capabilities: &QpCapabilities) -> Result {
    let max_wr = max_qp_wr(&dev.port().info().limits);
    let fits = capabilities.max_send_wr <= max_wr
        && capabilities.max_recv_wr <= max_wr
        && capabilities.max_send_sge <= MAX_SGE
        && capabilities.max_recv_sge <= MAX_SGE
        && capabilities.max_inline_data <= MAX_INLINE as u32;
    if fits {
        Ok(())
    } else {
        Err(EINVAL)
    }
}

/// Makes `capabilities` say what rings of these sizes hold: as many requests of the longest kind that was asked for as
/// the blocks are enough for, and all entries, of which there are none with a shared receive queue.
pub(crate) fn grant(
    capabilities: &mut QpCapabilities,
    qp_type: QpType,
    log_send_blocks: u8,
    log_recv_entries: Option<u8>,
) {
    let power = |log: u8| 1u32.checked_shl(log.into()).unwrap_or(0);
    let blocks = blocks_each(qp_type, capabilities);
    capabilities.max_send_wr = power(log_send_blocks).checked_div(blocks).unwrap_or(0);
    capabilities.max_recv_wr = log_recv_entries.map_or(0, power);
}

/// Blocks that the longest request of a pair takes.
pub(crate) fn blocks_each(qp_type: QpType, capabilities: &QpCapabilities) -> u32 {
    let entries = capabilities.max_send_sge.min(MAX_SGE) as usize * size_of::<Sge>();
    let data = entries.max(capabilities.max_inline_data.min(MAX_INLINE as u32) as usize);
    let blocks = match qp_type {
        QpType::Rc => blocks_for(data),
        QpType::Ud | QpType::Gsi => ud_blocks_for(data),
    };
    blocks as u32
}

// The operands of an atomic operation and its entry fit where no entries were asked for.
const _: () = assert!(blocks_for(size_of::<AtomicSegment>() + size_of::<Sge>()) == blocks_for(0));

/// What the controller is told of a new pair; `flags` are those of [`QpParameters`] that do not follow from `init`.
pub(crate) fn parameters<'a>(init: &'a QpInit<'_, Rdma>, flags: u8) -> QpParameters<'a> {
    let (qp_type, kind) = match init.qp_type {
        QpType::Rc => (admin::QpType::Rc, 0),
        QpType::Ud => (admin::QpType::Ud, 0),
        QpType::Gsi => (admin::QpType::Ud, QP_FLAG_GSI),
    };
    let signal = if init.signal_all {
        QP_FLAG_SIGNAL_ALL
    } else {
        0
    };
    QpParameters {
        qp_type,
        flags: flags | kind | signal,
        pd: init.pd,
        send_cq: init.send_cq.control(),
        recv_cq: init.recv_cq.control(),
        srq: init.srq.map(|srq| srq.object()),
    }
}

/// The rings of a user's queue pair, pinned.
struct UserRings {
    send: UserRing,
    recv: Option<UserRing>,
}

impl UserRings {
    fn pin(
        dev: &Device<Rdma>,
        init: &QpInit<'_, Rdma>,
        pins: &Pins,
        request: &uabi::CreateQpRequest,
    ) -> Result<Self> {
        let limits = &dev.port().info().limits;
        let blocks = blocks_each(init.qp_type, &init.capabilities)
            .checked_mul(init.capabilities.max_send_wr)
            .ok_or(EINVAL)?;
        let send = UserRing::pin(dev, pins, request.send_ring(blocks, limits))?;
        if init.srq.is_some() {
            return Ok(Self { send, recv: None });
        }
        let ring = request.recv_ring(init.capabilities.max_recv_wr, limits);
        let recv = Some(UserRing::pin(dev, pins, ring)?);
        Ok(Self { send, recv })
    }
}

impl Qp {
    /// Makes one whose rings are the process's, and says in `init` how much they hold.
    pub(crate) fn for_user(
        dev: &Device<Rdma>,
        init: &mut QpInit<'_, Rdma>,
        notifier: &Arc<QpNotifier>,
        pins: &Pins,
        udata: &mut Udata<'_, Rdma>,
    ) -> Result<Self> {
        if init.qp_type == QpType::Gsi {
            return Err(unsupported());
        }
        if init.flags != 0 {
            return Err(unsupported());
        }
        check(dev, &init.capabilities)?;
        let request: uabi::CreateQpRequest = udata.request()?;
        let rings = UserRings::pin(dev, init, pins, &request)?;
        let recv_entries = rings.recv.as_ref().map(|_| request.log_recv_entries);
        grant(
            &mut init.capabilities,
            init.qp_type,
            request.log_send_blocks,
            recv_entries,
        );
        let wanted = match init.srq {
            Some(_) => Wanted::Send,
            None => Wanted::Pair,
        };
        let doorbells = UserContext::doorbells(udata.context()?, wanted)?;
        let state = Arc::pin_init(new_mutex!(State::default()), GFP_KERNEL_ACCOUNT)?;
        let closer = RingCloser::new(state.clone(), notifier.clone())?;
        let handler = Arc::new(Handler::new(Users::Process(closer)), GFP_KERNEL_ACCOUNT)?;
        let parameters = parameters(init, 0);
        let queues = QpQueues {
            send: rings.send.queue_ring(),
            recv: rings
                .recv
                .as_ref()
                .map_or(QueueRing::default(), UserRing::queue_ring),
            slot: doorbells.slot,
            recv_slot: doorbells.recv_slot,
        };
        let object = dev
            .port()
            .create_user_qp(parameters, queues, handler.clone())?;
        udata.respond(&uabi::CreateQpResponse {
            doorbell: doorbells.response,
        })?;
        Ok(Self {
            kernel: None,
            object,
            qp_type: init.qp_type,
            capabilities: init.capabilities,
            signal_all: init.signal_all,
            handler,
            state,
        })
    }
}

/// The way to users of a pair.
pub(crate) enum Users {
    /// A process, whose queue of events takes them in any context. Its process ring is closed before it is told that the pair has failed.
    Process(Arc<RingCloser>),
    /// The kernel.
    Kernel(Arc<LateEvents>),
}

/// Passes events on to users of the pair.
pub(crate) struct Handler {
    users: Users,
    /// Whether they want to hear of a drained send queue.
    sqd_notify: Atomic<bool>,
}

impl Handler {
    pub(crate) fn new(users: Users) -> Self {
        Self {
            users,
            sqd_notify: Atomic::new(false),
        }
    }

    /// The pair, whose state is locked, is about to have a process ring. `EINVAL` for the kernel's.
    pub(crate) fn expect_ring(&self) -> Result {
        match &self.users {
            Users::Process(closer) => closer.expect_ring(),
            Users::Kernel(_) => return Err(EINVAL),
        }
        Ok(())
    }

    /// The pair is about to go: no process is told anything late from here on. Sleeps.
    pub(crate) fn end_late(&self) {
        if let Users::Process(closer) = &self.users {
            closer.end();
        }
    }

    /// Sets whether users of the pair hear of a drained send queue.
    pub(crate) fn set_sqd_notify(&self, wanted: bool) {
        self.sqd_notify.store(wanted, Relaxed);
    }
}

impl EventHandler for Handler {
    fn event(&self, event: ObjectEvent) {
        let event = match event {
            ObjectEvent::QpFatal => Event::QpFatal,
            ObjectEvent::QpAccess => Event::QpAccess,
            ObjectEvent::LastWqe => Event::LastWqe,
            ObjectEvent::CommEstablished => Event::CommEstablished,
            ObjectEvent::SqDrained if self.sqd_notify.load(Relaxed) => Event::SqDrained,
            _ => return,
        };
        match &self.users {
            Users::Process(closer) => closer.event(event),
            Users::Kernel(events) => events.add(event),
        }
    }
}
