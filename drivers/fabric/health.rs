// SPDX-License-Identifier: GPL-2.0
//! What `devlink` shows of a controller, and does for its health.
//!
//! The driver resets a controller that fails by itself, and reports that afterwards, when its own locks are free: devlink's lock comes
//! before them. A controller that was given up stays reported as one in error; `devlink health recover` tries once more to start it.

use crate::controller::{Controller, State};
use kernel::{
    device::{Bound, Device},
    new_mutex, new_spinlock,
    prelude::*,
    sync::{Arc, Mutex, SpinLock},
};
use nk::{
    devlink::{Info, Message, Operations, Port, Registration},
    trace::ResetReason,
};
use nupa_proto::regs;

/// A failure of the controller.
#[derive(Clone, Copy)]
pub(crate) struct Failure {
    /// Why it was reset or given up.
    pub(crate) what: &'static str,
    /// What it said of it, `FAULT_*`.
    pub(crate) fault: u32,
}

/// What a fault that the controller tells of means; an error if it tells nothing any more.
pub(crate) fn fault_text(fault: Result<u32>) -> &'static str {
    match fault {
        Ok(regs::FAULT_NONE) => "no reason given",
        Ok(regs::FAULT_ADMIN_RING) => "admin ring unusable: DMA may be blocked, check the IOMMU",
        Ok(regs::FAULT_ADMIN_INDEX) => "admin producer index out of range",
        Ok(regs::FAULT_DOORBELL_MEMORY) => {
            "doorbell pages unusable: DMA may be blocked, check the IOMMU"
        }
        Ok(regs::FAULT_EVENT_QUEUE) => "event queue overflowed or could not be written",
        Ok(regs::FAULT_POOL) => {
            "other nodes of the pool have taken this one for dead, or its place is lost"
        }
        Ok(_) => "unknown reason, the controller is newer than the driver",
        Err(_) => "it is gone",
    }
}

/// What a failure is called that led to a reset.
pub(crate) fn name(reason: ResetReason) -> &'static str {
    match reason {
        ResetReason::Fault => "controller stopped",
        ResetReason::ResetByOthers => "controller was reset by somebody else",
        ResetReason::AdminQueue => "an admin command failed",
        ResetReason::EventQueue => "controller wrote garbage into an event queue",
        ResetReason::Cq => "a completion queue overflowed",
        ResetReason::Qp => "a queue pair failed",
        ResetReason::Unreadable => "state of the controller could not be read",
    }
}

impl Controller {
    /// Tries once more to start a function that was given up, for somebody who has mended it. `EBUSY` while it is being reset, or
    /// the host sleeps. Sleeps.
    fn revive(self: &Arc<Self>) -> Result {
        let mut life = self.lifecycle.lock();
        match self.state() {
            State::Running => return Ok(()),
            State::Lost => {}
            _ => return Err(EBUSY),
        }
        life.forget_resets();
        self.start_again().inspect_err(|_| {
            self.set_link(false);
            self.forget_peers();
        })?;
        self.renew_rdma();
        Ok(())
    }
}

/// The callbacks' view of a controller.
struct Health(Arc<Controller>);

impl Health {
    fn state(&self, message: &Message<'_>) -> Result {
        let controller = &self.0;
        message.text(c"state", fmt!("{:?}", controller.state()))?;
        message.number(c"epoch", controller.registers.epoch().unwrap_or(0));
        message.flag(c"link_up", controller.link_up());
        Ok(())
    }

    fn fault(message: &Message<'_>, fault: u32) -> Result {
        message.number(c"fault", fault);
        match fault {
            regs::FAULT_NONE => Ok(()),
            _ => message.text(c"fault_text", fmt!("{}", fault_text(Ok(fault)))),
        }
    }
}

impl Operations for Health {
    type Report = Failure;
    const REPORTER: &'static CStr = c"controller";

    fn info(&self, info: &Info<'_>) -> Result {
        let port = self.0.info();
        let [major, minor, patch] = port.firmware;
        info.serial_number(fmt!("{:016x}", port.guid))?;
        info.version(c"fw", fmt!("{major}.{minor}.{patch}"))
    }

    fn diagnose(&self, message: &Message<'_>) -> Result {
        self.state(message)?;
        Self::fault(message, self.0.fault())
    }

    fn dump(&self, message: &Message<'_>, report: Option<&Failure>) -> Result {
        if let Some(failure) = report {
            message.text(c"failure", fmt!("{}", failure.what))?;
        }
        Self::fault(
            message,
            report.map_or_else(|| self.0.fault(), |failure| failure.fault),
        )?;
        self.state(message)
    }

    fn recover(&self, report: Option<&Failure>) -> Result {
        match report {
            // All that could be done was done before it was reported.
            Some(_) => self.0.running().map(|_| ()),
            None => self.0.revive(),
        }
    }
}

/// The devlink instance of a controller, while there is one.
#[pin_data]
pub(crate) struct Reporter {
    #[pin]
    registration: Mutex<Option<Registration<Health>>>,
    /// What is still to be told.
    #[pin]
    news: SpinLock<News>,
}

/// What is to be told of a controller.
#[derive(Default)]
struct News {
    failure: Option<Failure>,
    /// It is healthy since.
    healthy: bool,
}

impl Reporter {
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            registration <- new_mutex!(None),
            news <- new_spinlock!(News::default()),
        })
    }

    /// Notes a failure; of several, the first is told of. Does not sleep.
    pub(crate) fn note(&self, failure: Failure) {
        let mut news = self.news.lock();
        news.failure.get_or_insert(failure);
        news.healthy = false;
    }

    /// Notes that the controller is healthy, regardless of who started it. Does not sleep.
    pub(crate) fn note_healthy(&self) {
        self.news.lock().healthy = true;
    }

    /// Tells of what was noted. Not with the lock of the controller's life held, which recovery takes. Sleeps.
    pub(crate) fn tell(&self) {
        let registration = self.registration.lock();
        let Some(registration) = &*registration else {
            return;
        };
        let news = core::mem::take(&mut *self.news.lock());
        if let Some(failure) = news.failure {
            registration.report(failure.what, &failure);
        }
        if news.healthy {
            registration.set_healthy();
        }
    }

    /// The port of the instance.
    pub(crate) fn port(&self) -> Option<Port> {
        let registration = self.registration.lock();
        registration.as_ref().map(Registration::port)
    }
}

/// Shows a controller by devlink until this is dropped.
pub(crate) struct Devlink(Arc<Controller>);

impl Devlink {
    /// Registers the instance. Sleeps.
    pub(crate) fn new(device: &Device<Bound>, controller: &Arc<Controller>) -> Result<Self> {
        let health = Arc::new(Health(controller.clone()), GFP_KERNEL)?;
        let registration = Registration::new(device, health)?;
        *controller.reporter.registration.lock() = Some(registration);
        controller.reporter.tell();
        Ok(Self(controller.clone()))
    }
}

impl Drop for Devlink {
    fn drop(&mut self) {
        let registration = self.0.reporter.registration.lock().take();
        // Only now, without the lock: it waits for callbacks.
        drop(registration);
    }
}
