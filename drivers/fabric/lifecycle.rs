// SPDX-License-Identifier: GPL-2.0
//! Start, stop, recovery and loss of the controller.
//!
//! All of it runs in process context under [`Controller::lifecycle`]. That comes after the lock of the devlink instance, and before the lock of the listeners
//! and the device lock of the auxiliary device for verbs (and so before the RTNL, which both may take), which come before
//! that of the admin queue.

use crate::{
    controller::{attention, Controller, State},
    health::{self, fault_text, Failure},
    identity::{check_limits, Unfit},
    port::{Port, PortEvent, PortInfo},
    registers::Status,
    reset_limit::ResetLimit,
};
use kernel::{
    prelude::*,
    sync::{atomic::Full, Arc},
    time::{delay::fsleep, Delta, Instant, Monotonic},
};
use nk::trace::{self, ResetReason};
use nupa_proto::{
    admin::{AdminOpcode, ById, DeviceLimits, ModifyQp, QpStateCode, QP_MASK_STATE},
    ident::GSI_QPN,
    regs,
};

/// Milliseconds between two looks at the function's state, which find out about a surprise removal on an idle link.
pub(crate) const WATCH_MS: u32 = 1000;
/// Attempts to start the function again.
const ATTEMPTS: u32 = 3;
/// Pause before another attempt.
const ATTEMPT_PAUSE: Delta = Delta::from_secs(1);

/// What is protected by the lock of the controller's life.
pub(crate) struct Lifecycle {
    born: Instant<Monotonic>,
    reset_limit: ResetLimit,
}

impl Lifecycle {
    /// Allows as many resets as at the beginning.
    pub(crate) fn forget_resets(&mut self) {
        self.reset_limit = ResetLimit::new();
    }

    pub(crate) fn new() -> Self {
        Self {
            born: Instant::now(),
            reset_limit: ResetLimit::new(),
        }
    }
}

impl Controller {
    /// Logs why a function is of no use, and turns that into an error.
    fn unfit(&self, unfit: Unfit) -> Error {
        dev_err!(self.device(), "{unfit}\n");
        ENODEV
    }

    /// Notes why the function stopped, if it says so.
    fn note_fault(&self) -> Result<u32> {
        let fault = self.registers.fault()?;
        self.set_fault(fault);
        Ok(fault)
    }

    /// Notes and logs why the function stopped.
    pub(crate) fn log_fault(&self) {
        let why = fault_text(self.note_fault());
        dev_err!(self.device(), "controller stopped: {why}\n");
    }

    /// Says why the function could not be started.
    fn log_failed_start(&self, error: Error) {
        let what = match error {
            ETIMEDOUT => "does not become ready",
            _ => "does not start",
        };
        dev_err!(
            self.device(),
            "controller {what}: check the log of the fabric switch\n"
        );
        if error == EIO {
            self.log_fault();
        }
    }

    /// Starts the function for the first time; call before the port is published. Sleeps.
    pub(crate) fn start_first(self: &Arc<Self>) -> Result {
        let _life = self.lifecycle.lock();
        self.start().inspect_err(|_| self.stop(true))?;
        self.set_state(State::Running);
        self.watch_later();
        Ok(())
    }

    /// Starts a function that is stopped.
    fn start(self: &Arc<Self>) -> Result {
        let identity = self
            .registers
            .identify()?
            .map_err(|unfit| self.unfit(unfit))?;
        let status = self.registers.status()?;
        if status.ready() || status.fatal() {
            // Left over from somebody who had no time to stop it.
            self.registers.reset()?;
        }
        self.function.allow_dma();
        self.admin
            .start(
                self.bound(),
                &self.registers,
                self.doorbells().memory_address(),
            )
            .inspect_err(|error| self.log_failed_start(*error))?;
        self.rss.lock().clear();
        let generation = self.admin.generation();
        let limits: DeviceLimits =
            self.command(generation, AdminOpcode::QueryDevice, &ById::default())?;
        check_limits(&limits).map_err(|unfit| self.unfit(unfit))?;
        self.set_info(PortInfo::new(&identity, self.info().vectors).with_limits(limits));
        for vector in self.vectors() {
            vector.open(self, generation)?;
        }
        self.set_link(self.registers.status()?.link_up());
        self.read_peers(generation, |_| {})
    }

    /// Stops the function: afterwards it uses no memory of ours. All objects are dead. `reachable` is false if its
    /// registers must not be touched.
    fn stop(&self, reachable: bool) {
        self.admin.stop(|| {
            if !reachable || self.registers.reset().is_err() {
                self.function.revoke_dma();
            }
        });
        for vector in self.vectors() {
            drop(vector.close());
        }
    }

    /// Attends to whatever [`Controller::wake`] was called for.
    pub(crate) fn attend(self: &Arc<Self>) {
        self.look_after();
        self.reporter.tell();
    }

    fn look_after(self: &Arc<Self>) {
        let mut life = self.lifecycle.lock();
        let reasons = self.attention.xchg(0, Full);
        if self.state() != State::Running {
            return;
        }
        let mut broken = self.admin.is_broken().then_some(ResetReason::AdminQueue);
        if reasons & attention::CHECK != 0 {
            match self.registers.status() {
                Ok(status) => broken = broken.or(self.check(status)),
                Err(_) => {
                    self.stop(false);
                    return self.lose("controller is gone (registers read as all ones): check the fabric switch, then recover it by devlink, or rebind the driver");
                }
            }
        }
        if broken.is_none() {
            broken = self.handle_news();
        }
        if let Some(reason) = broken {
            let fault = self.note_fault().unwrap_or(regs::FAULT_NONE);
            self.reporter.note(Failure {
                what: health::name(reason),
                fault,
            });
            self.recover(&mut life, reason, fault);
        } else if reasons & attention::RENEW_RDMA != 0 {
            self.renew_rdma();
        }
    }

    /// Looks at the state of the function; if it is broken, says why.
    fn check(&self, status: Status) -> Option<ResetReason> {
        if status.fatal() {
            self.log_fault();
            return Some(ResetReason::Fault);
        }
        if !status.ready() {
            dev_err!(self.device(), "controller was reset by somebody else\n");
            return Some(ResetReason::ResetByOthers);
        }
        self.note_link(status.link_up());
        None
    }

    /// Resets the function and starts it again.
    fn recover(self: &Arc<Self>, life: &mut Lifecycle, reason: ResetReason, fault: u32) {
        if !life.reset_limit.try_again(life.born.elapsed().as_millis()) {
            self.stop(true);
            self.lose("controller does not stay up, giving up: check the log of the fabric switch, then recover it by devlink, or rebind the driver");
            return;
        }
        dev_warn!(self.device(), "resetting the controller\n");
        trace::reset(self.device(), reason as u8, fault);
        self.set_state(State::Down);
        self.end_memory_devices("the controller is reset");
        self.stop(true);
        self.listeners().tell(PortEvent::Resetting);
        self.forget_peers();
        for attempt in 1..=ATTEMPTS {
            match self.start() {
                Ok(()) => {
                    self.go_on();
                    return self.renew_rdma();
                }
                Err(error) => {
                    dev_err!(self.device(), "attempt {attempt} of {ATTEMPTS} to start the controller failed: {error:?}\n");
                    self.stop(true);
                    // One that is silent right after a reset will not find its voice: unbinding waits for this.
                    if error == ETIMEDOUT {
                        break;
                    }
                }
            }
            if attempt < ATTEMPTS {
                fsleep(ATTEMPT_PAUSE);
            }
        }
        self.lose("controller does not recover: check the log of the fabric switch, then recover it by devlink, or rebind the driver");
    }

    /// Publishes the port for verbs, if the controller is fit for them.
    fn publish_rdma(self: &Arc<Self>) {
        if self.info().caps & regs::CAP_RC == 0 {
            return;
        }
        let port = Port {
            controller: self.clone(),
        };
        let number = self.number();
        if let Err(error) = self.rdma.add(c"rdma", number, c"nupa_fabric", port) {
            dev_err!(
                self.device(),
                "cannot publish the port for verbs: {error:?}\n"
            );
        }
    }

    /// As `publish_rdma`, for the first time, when the port is published otherwise. Sleeps.
    pub(crate) fn publish_first(self: &Arc<Self>) {
        let _life = self.lifecycle.lock();
        if self.state() == State::Running {
            self.publish_rdma();
        }
    }

    /// The function was started again.
    fn go_on(self: &Arc<Self>) {
        self.set_fault(regs::FAULT_NONE);
        self.set_state(State::Running);
        dev_info!(
            self.device(),
            "controller works again, epoch {}\n",
            self.registers.epoch().unwrap_or(0)
        );
        self.reporter.note_healthy();
        self.wake(attention::REPORT);
        self.listeners().tell(PortEvent::Ready);
        for node in self.peers().iter() {
            self.listeners().tell(PortEvent::NodeUp(node));
        }
    }

    /// Replaces the device for verbs once the function was started again. The network goes on before: users of the old device may
    /// take their time to let go of it.
    pub(crate) fn renew_rdma(self: &Arc<Self>) {
        self.rdma.remove();
        self.publish_rdma();
    }

    /// Gives up a function that was stopped.
    pub(crate) fn lose(self: &Arc<Self>, why: &'static str) {
        dev_err!(self.device(), "{why}\n");
        self.reporter.note(Failure {
            what: why,
            fault: self.fault(),
        });
        self.wake(attention::REPORT);
        self.set_state(State::Lost);
        self.end_memory_devices("the controller is lost");
        self.set_link(false);
        self.forget_peers();
        self.listeners().tell(PortEvent::Gone);
        self.rdma.remove();
    }

    /// Takes the queue pairs of verbs programs to the error state while the controller can still tell them: they get
    /// flush errors for all that they wait for. Sleeps.
    pub(crate) fn fail_pairs(self: &Arc<Self>) {
        let generation = self.admin.generation();
        // The connection manager's is left alone: the RDMA core ends it itself.
        let mut next = GSI_QPN.wrapping_add(1);
        while let Some(qpn) = self.objects().next_pair(next, generation) {
            let command = ModifyQp {
                qpn: qpn.into(),
                mask: QP_MASK_STATE.into(),
                state: QpStateCode::Err.to_wire(),
                ..ModifyQp::default()
            };
            match self.modify_pair(generation, &command) {
                Err(error) if [EIO, ENODEV, ETIMEDOUT].contains(&error) => return,
                // Others: it was destroyed meanwhile.
                _ => next = qpn.wrapping_add(1),
            }
        }
    }

    /// Somebody else is about to reset the function, or it cannot be reached for now: stop using it. Sleeps.
    pub(crate) fn pause(self: &Arc<Self>, reachable: bool) {
        let _life = self.lifecycle.lock();
        let known_dead = self.state() == State::Lost;
        if reachable && self.state() == State::Running {
            self.fail_pairs();
        }
        self.set_state(State::Paused);
        self.end_memory_devices("the controller stops");
        self.stop(reachable);
        if !known_dead {
            self.listeners().tell(PortEvent::Resetting);
        }
        self.forget_peers();
    }

    /// Whether the function can be reached again after it was paused.
    pub(crate) fn reachable(&self) -> bool {
        matches!(self.registers.identify(), Ok(Ok(_)))
    }

    /// That is over. Sleeps.
    pub(crate) fn resume(self: &Arc<Self>) {
        let _life = self.lifecycle.lock();
        if self.state() != State::Paused {
            return;
        }
        if self.restart() {
            self.renew_rdma();
        }
    }

    /// Starts a function that was paused, which is lost if that fails.
    pub(crate) fn restart(self: &Arc<Self>) -> bool {
        let started = self.start_again().is_ok();
        if !started {
            self.lose("controller does not start after a reset or sleep: recover it by devlink, or rebind the driver");
        }
        started
    }

    /// Starts a function that was stopped; it stays so if that fails.
    pub(crate) fn start_again(self: &Arc<Self>) -> Result {
        self.start().inspect_err(|_| self.stop(true))?;
        self.go_on();
        Ok(())
    }

    /// The function will not come back. Sleeps.
    pub(crate) fn disconnect(self: &Arc<Self>) {
        let _life = self.lifecycle.lock();
        if self.state() != State::Lost {
            self.stop(false);
            self.lose("controller was disconnected");
        }
    }

    /// The end: nothing of the driver touches the function afterwards. Sleeps.
    pub(crate) fn remove(self: &Arc<Self>) {
        self.end();
        self.disable_work();
    }

    /// Stops the function, whatever becomes of the driver. Sleeps.
    pub(crate) fn end(&self) {
        let _life = self.lifecycle.lock();
        let stopped = matches!(self.state(), State::Paused | State::Lost | State::Removed);
        self.set_state(State::Removed);
        self.end_memory_devices("the driver is being unbound");
        if !stopped {
            self.stop(true);
        }
    }
}
