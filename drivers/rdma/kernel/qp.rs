// SPDX-License-Identifier: GPL-2.0
//! Queue pairs that the kernel posts to.

use super::{
    completion::is_recv,
    lost::Member,
    request::{post_receives, post_send},
    KernelCq, KernelQps, KernelSrq, LateEvents,
};
use crate::{
    device::Rdma,
    qp::{blocks_each, check, grant, parameters, Handler, Qp, Users},
    state::State,
};
use kernel::{new_mutex, prelude::*, sync::Arc};
use nk::{irqlock::SpinLockIrq, new_spinlock_irq};
use nk_rdma::{error::unsupported, Device, QpHandle, QpInit, QpNotifier, RecvWrs, SendWrs};
use nupa_fabric::{QpSizes, RecvPoster, SendPoster};
use nupa_proto::{
    admin::{ModifyQp, QpStateCode, QP_FLAG_PRIVILEGED, QP_MASK_STATE},
    cqe::Cqe,
    wqe::{RecvHeader, Sge, MAX_RECV_STRIDE, MIN_RECV_STRIDE},
};

/// Rings of a queue pair, for its posters and for those who poll its completions.
#[pin_data]
pub(crate) struct Pair {
    handle: QpHandle,
    signal_all: bool,
    #[pin]
    pub(super) send: SpinLockIrq<Ring<SendPoster>>,
    /// None if entries come from `srq`.
    #[pin]
    pub(super) recv: SpinLockIrq<Option<Ring<RecvPoster>>>,
    pub(super) srq: Option<Arc<KernelSrq>>,
}

/// A ring, and whether its controller was lost: then requests are flushed without it.
pub(super) struct Ring<P> {
    pub(super) poster: P,
    pub(super) lost: bool,
}

impl<P> Ring<P> {
    fn new(poster: P) -> Self {
        Self {
            poster,
            lost: false,
        }
    }
}

impl Pair {
    /// How completions name it.
    pub(super) fn handle(&self) -> QpHandle {
        self.handle
    }

    /// Frees what a completion says is done. Any context.
    pub(super) fn completed(&self, cqe: &Cqe) {
        let index = cqe.queue_index.get();
        // An index that was never posted frees nothing; a controller that writes such a thing gets what it deserves.
        let _ = if !is_recv(cqe) {
            self.send.lock().poster.completed(index)
        } else if let Some(srq) = &self.srq {
            srq.completed(index);
            Ok(())
        } else {
            match &mut *self.recv.lock() {
                Some(ring) => ring.poster.completed(index),
                None => Ok(()),
            }
        };
    }

    /// Forgets everything posted, as the controller does in the reset state.
    fn reset(&self) {
        self.send.lock().poster.reset();
        if let Some(ring) = &mut *self.recv.lock() {
            ring.poster.reset();
        }
    }
}

/// What the kernel's side of a queue pair consists of.
pub(crate) struct KernelQp {
    pub(super) pair: Arc<Pair>,
    pub(super) qpn: u32,
    pub(super) events: Arc<LateEvents>,
    all: Arc<KernelQps>,
    /// Where it completes: the send side, the receive side.
    pub(super) cqs: [Arc<KernelCq>; 2],
}

impl KernelQp {
    /// Posts send requests. Any context.
    pub(super) fn post_send(&self, requests: &mut SendWrs<'_, Rdma>) -> Result {
        let mut ring = self.pair.send.lock();
        let signal_all = self.pair.signal_all;
        let result = requests.try_for_each(|wr| post_send(&mut ring.poster, &wr, signal_all));
        if !ring.lost {
            ring.poster.ring();
            return result;
        }
        ring.poster.ring_lost();
        drop(ring);
        let [cq, _] = &self.cqs;
        cq.lose();
        result
    }

    /// Posts receive requests. `EINVAL` if they come from a shared receive queue. Any context.
    pub(super) fn post_recv(&self, requests: &mut RecvWrs<'_>) -> Result {
        let mut guard = self.pair.recv.lock();
        let Some(ring) = &mut *guard else {
            return Err(EINVAL);
        };
        let result = post_receives(&mut ring.poster, requests);
        if !ring.lost {
            ring.poster.ring();
            return result;
        }
        ring.poster.ring_lost();
        drop(guard);
        let [_, cq] = &self.cqs;
        cq.lose();
        result
    }

    /// The pair has gone to the reset state: nothing that was posted completes.
    pub(crate) fn reset(&self) {
        for cq in &self.cqs {
            cq.disown(self.qpn);
        }
        self.pair.reset();
    }

    /// Has its completions found by those who poll for them. May sleep.
    fn attach(&self) -> Result {
        let [send, recv] = &self.cqs;
        let attach = |cq: &KernelCq, send, recv| {
            let pair = self.pair.clone();
            cq.attach(self.qpn, Member { pair, send, recv })
        };
        if Arc::ptr_eq(send, recv) {
            return attach(send, true, true);
        }
        attach(send, true, false)?;
        attach(recv, false, true)
    }

    /// Ends what refers to a pair that is in the reset state. Sleeps.
    fn end(&self) {
        self.all.remove(self.qpn);
        self.events.end();
        for cq in &self.cqs {
            cq.detach(self.qpn);
        }
    }
}

/// log2 of the bytes of a receive entry with so many pieces.
pub(super) fn recv_stride(sges: u32) -> u8 {
    let bytes = size_of::<RecvHeader>() + sges as usize * size_of::<Sge>();
    let stride = bytes
        .next_power_of_two()
        .clamp(MIN_RECV_STRIDE, MAX_RECV_STRIDE);
    stride.trailing_zeros() as u8
}

/// log2 of a number of entries, rounded up.
fn log2(entries: u32) -> Result<u8> {
    let power = entries.checked_next_power_of_two().ok_or(EINVAL)?;
    Ok(u8::try_from(power.trailing_zeros())?)
}

/// Rings that hold what is asked for, whatever its requests are. `EINVAL` if the port's are not as large.
fn sizes(dev: &Device<Rdma>, init: &QpInit<'_, Rdma>) -> Result<QpSizes> {
    let wanted = &init.capabilities;
    let blocks = blocks_each(init.qp_type, wanted)
        .checked_mul(wanted.max_send_wr)
        .ok_or(EINVAL)?;
    let sizes = QpSizes {
        log_send_blocks: log2(blocks)?,
        log_recv_entries: log2(wanted.max_recv_wr)?,
        log_recv_stride: recv_stride(wanted.max_recv_sge),
    };
    let limits = dev.port().info().limits;
    if sizes.log_send_blocks > limits.max_log_sq || sizes.log_recv_entries > limits.max_log_rq {
        return Err(EINVAL);
    }
    Ok(sizes)
}

/// Has a pair of the kernel's complete nothing any more before its completion queues forget it: its number may be given
/// to another one as soon as it is destroyed. Ends what works for one of a process's.
impl Drop for Qp {
    fn drop(&mut self) {
        self.handler.end_late();
        self.state.lock().forget_rings();
        if let Some(kernel) = &self.kernel {
            let reset = ModifyQp {
                mask: QP_MASK_STATE.into(),
                state: QpStateCode::Reset.to_wire(),
                ..ModifyQp::default()
            };
            // One that was lost completes nothing anyway.
            let _ = self.object.modify(&reset);
            kernel.end();
        }
    }
}

impl Qp {
    /// Makes one whose rings are the port's, and says in `init` how much they hold.
    pub(super) fn for_kernel(
        dev: &Device<Rdma>,
        init: &mut QpInit<'_, Rdma>,
        notifier: &Arc<QpNotifier>,
        handle: QpHandle,
    ) -> Result<Self> {
        if init.flags != 0 {
            return Err(unsupported());
        }
        check(dev, &init.capabilities)?;
        let sizes = sizes(dev, init)?;
        let recv_entries = init.srq.is_none().then_some(sizes.log_recv_entries);
        grant(
            &mut init.capabilities,
            init.qp_type,
            sizes.log_send_blocks,
            recv_entries,
        );
        let init = &*init;
        let events = LateEvents::new(notifier.clone())?;
        let handler = Handler::new(Users::Kernel(events.clone()));
        let handler = Arc::new(handler, GFP_KERNEL)?;
        let parameters = parameters(init, QP_FLAG_PRIVILEGED);
        let made = dev
            .port()
            .create_kernel_qp(parameters, &sizes, handler.clone())?;
        Self::attached(dev, init, made, handler, events, handle)
    }

    /// One of a pair of the port, which is told of completions. By itself because of the space that it takes on the stack, of which the port needs much.
    #[inline(never)]
    fn attached(
        dev: &Device<Rdma>,
        init: &QpInit<'_, Rdma>,
        (object, send, recv): (nupa_fabric::Qp, SendPoster, Option<RecvPoster>),
        handler: Arc<Handler>,
        events: Arc<LateEvents>,
        handle: QpHandle,
    ) -> Result<Self> {
        let srq = init.srq.map(|srq| srq.kernel().cloned()).transpose()?;
        let pair = Arc::pin_init(
            pin_init!(Pair {
                handle,
                signal_all: init.signal_all,
                send <- new_spinlock_irq!(Ring::new(send)),
                recv <- new_spinlock_irq!(recv.map(Ring::new)),
                srq,
            }),
            GFP_KERNEL,
        )?;
        let kernel = KernelQp {
            pair,
            qpn: object.number(),
            events,
            all: dev.kernel_qps().clone(),
            cqs: [
                init.send_cq.kernel()?.clone(),
                init.recv_cq.kernel()?.clone(),
            ],
        };
        let kernel = Arc::new(kernel, GFP_KERNEL)?;
        // From here on dropping it ends what is begun.
        let qp = Self {
            kernel: Some(kernel.clone()),
            object,
            qp_type: init.qp_type,
            capabilities: init.capabilities,
            signal_all: init.signal_all,
            handler,
            state: Arc::pin_init(new_mutex!(State::default()), GFP_KERNEL)?,
        };
        kernel.attach()?;
        dev.kernel_qps().add(kernel.qpn, kernel)?;
        Ok(qp)
    }

    /// What it takes to post to it. `EINVAL` for one of a process.
    pub(super) fn kernel(&self) -> Result<&KernelQp> {
        self.kernel.as_deref().ok_or(EINVAL)
    }
}
