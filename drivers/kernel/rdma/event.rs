// SPDX-License-Identifier: GPL-2.0
//! Telling users of queues what happened to them.

use crate::bindings;
use core::{ffi::c_void, ptr::NonNull};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{Arc, Mutex},
};
use nk::{irqlock::SpinLockIrq, new_spinlock_irq};

/// Something that happened to a queue (`enum ib_event_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A completion queue overflowed.
    CqError,
    /// A queue pair went to the error state on its own.
    QpFatal,
    /// A malformed or forbidden request of a queue pair.
    QpRequest,
    /// An access to a queue pair was refused.
    QpAccess,
    /// A queue pair in the RTR state got its first message.
    CommEstablished,
    /// A queue pair in the SQD state has drained its send queue.
    SqDrained,
    /// A queue pair on a shared receive queue takes no more entries from it.
    LastWqe,
    /// A shared receive queue failed.
    SrqError,
    /// A shared receive queue fell to its limit.
    SrqLimit,
}

impl Event {
    fn to_raw(self) -> bindings::ib_event_type {
        match self {
            Self::CqError => bindings::ib_event_type_IB_EVENT_CQ_ERR,
            Self::QpFatal => bindings::ib_event_type_IB_EVENT_QP_FATAL,
            Self::QpRequest => bindings::ib_event_type_IB_EVENT_QP_REQ_ERR,
            Self::QpAccess => bindings::ib_event_type_IB_EVENT_QP_ACCESS_ERR,
            Self::CommEstablished => bindings::ib_event_type_IB_EVENT_COMM_EST,
            Self::SqDrained => bindings::ib_event_type_IB_EVENT_SQ_DRAINED,
            Self::LastWqe => bindings::ib_event_type_IB_EVENT_QP_LAST_WQE_REACHED,
            Self::SrqError => bindings::ib_event_type_IB_EVENT_SRQ_ERR,
            Self::SrqLimit => bindings::ib_event_type_IB_EVENT_SRQ_LIMIT_REACHED,
        }
    }
}

/// The way to an object of the RDMA core for those that may outlive it, such as a handler of interrupts.
///
/// Calls have no effect before the object is complete and once it is being destroyed.
#[pin_data]
pub struct Notifier<B> {
    /// The object; a null pointer after it has gone. The lock is held while its users are told, so that it stays.
    #[pin]
    object: SpinLockIrq<Object<B>>,
    /// Held while users are told that take their time, and by others who do.
    #[pin]
    telling: Mutex<()>,
}

struct Object<B>(Option<NonNull<B>>);

// SAFETY: The pointer is only used with the lock held, which `Notifier::detach` takes before the object goes;
// handlers of the core may be called from any thread.
unsafe impl<B> Send for Object<B> {}

/// Tells users of a completion queue.
pub type CqNotifier = Notifier<bindings::ib_cq>;
/// Tells users of a queue pair.
pub type QpNotifier = Notifier<bindings::ib_qp>;
/// Tells users of a shared receive queue.
pub type SrqNotifier = Notifier<bindings::ib_srq>;

type Handler = Option<unsafe extern "C" fn(*mut bindings::ib_event, *mut c_void)>;

impl<B> Notifier<B> {
    /// # Safety
    ///
    /// `object` stays until [`Notifier::detach`] has returned; the fields that name device and handlers of its users
    /// are set and constant, or null.
    pub(crate) unsafe fn new(object: *mut B) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                object <- new_spinlock_irq!(Object(NonNull::new(object))),
                telling <- new_mutex!(()),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Does something that takes its time while nobody else does so, or tells users something. Sleeps.
    pub(crate) fn exclusive<R>(&self, action: impl FnOnce() -> R) -> R {
        let _telling = self.telling.lock();
        action()
    }

    /// The object is about to go; waits for calls in progress. Sleeps.
    pub(crate) fn detach(&self) {
        self.object.lock().0 = None;
        drop(self.telling.lock());
    }
}

/// Calls a handler of asynchronous events.
///
/// # Safety
///
/// `device`, `handler` and `context` are of one live object, which is the one in `element`.
unsafe fn raise(
    device: *mut bindings::ib_device,
    element: bindings::ib_event__bindgen_ty_1,
    event: Event,
    handler: Handler,
    context: *mut c_void,
) {
    let mut event = bindings::ib_event {
        device,
        element,
        event: event.to_raw(),
    };
    if let Some(handler) = handler {
        // SAFETY: By this function's contract; the handler takes what it needs by copy and works in any context.
        unsafe { handler(&mut event, context) };
    }
}

impl CqNotifier {
    /// Calls the completion handler. Any context.
    pub fn completion(&self) {
        let object = self.object.lock();
        let Some(cq) = object.0 else { return };
        let cq = cq.as_ptr();
        // SAFETY: The lock keeps the object; its handler may be called in any context (`ib_comp_handler`). It may
        // still be null while a kernel user is setting the queue up: then nothing is armed that counts.
        unsafe {
            if let Some(handler) = core::ptr::read_volatile(&raw const (*cq).comp_handler) {
                handler(cq, (*cq).cq_context);
            }
        }
    }

    /// Calls the handler of asynchronous events. Any context.
    pub fn event(&self, event: Event) {
        let object = self.object.lock();
        let Some(cq) = object.0 else { return };
        let cq = cq.as_ptr();
        let element = bindings::ib_event__bindgen_ty_1 { cq };
        // SAFETY: The lock keeps the object.
        unsafe {
            raise(
                (*cq).device,
                element,
                event,
                (*cq).event_handler,
                (*cq).cq_context,
            )
        };
    }
}

impl QpNotifier {
    /// Calls the handler of asynchronous events. Any context; for users whose handlers work in any.
    pub fn event(&self, event: Event) {
        let object = self.object.lock();
        let Some(qp) = object.0 else { return };
        // SAFETY: The lock keeps the object.
        unsafe { raise_qp(qp, event) };
    }

    /// As [`QpNotifier::event`], for users in the kernel, whose handlers may sleep. Process context.
    pub fn event_may_sleep(&self, event: Event) {
        let _telling = self.telling.lock();
        let Some(qp) = self.object.lock().0 else {
            return;
        };
        // SAFETY: `detach` waits for the mutex before the object goes.
        unsafe { raise_qp(qp, event) };
    }
}

/// # Safety
///
/// `qp` is a complete queue pair that stays for the time of the call.
unsafe fn raise_qp(qp: NonNull<bindings::ib_qp>, event: Event) {
    let qp = qp.as_ptr();
    let element = bindings::ib_event__bindgen_ty_1 { qp };
    // SAFETY: By this function's contract.
    unsafe {
        raise(
            (*qp).device,
            element,
            event,
            (*qp).event_handler,
            (*qp).qp_context,
        )
    };
}

impl SrqNotifier {
    /// Calls the handler of asynchronous events. Any context.
    pub fn event(&self, event: Event) {
        let object = self.object.lock();
        let Some(srq) = object.0 else { return };
        let srq = srq.as_ptr();
        let element = bindings::ib_event__bindgen_ty_1 { srq };
        // SAFETY: The lock keeps the object.
        unsafe {
            raise(
                (*srq).device,
                element,
                event,
                (*srq).event_handler,
                (*srq).srq_context,
            )
        };
    }
}
