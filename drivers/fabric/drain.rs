// SPDX-License-Identifier: GPL-2.0
//! Taking a controller out of service: processes that have queue pairs keep them, and nobody gets new ones. The kernel's own users,
//! such as the network interface, go on.

use crate::controller::Controller;
use kernel::{
    bindings, current,
    prelude::*,
    sync::{
        atomic::{Atomic, Full, Relaxed},
        Arc,
    },
};

/// Who may use a controller, and how much it is used; through all resets.
pub(crate) struct Service {
    draining: Atomic<bool>,
    /// Queue pairs of processes, and those that are being made.
    user_qps: Atomic<u32>,
    /// Whether a refusal was logged since draining began: one tells of all.
    told: Atomic<bool>,
}

impl Service {
    pub(crate) fn new() -> Self {
        Self {
            draining: Atomic::new(false),
            user_qps: Atomic::new(0),
            told: Atomic::new(false),
        }
    }

    /// Whether processes get no new queue pairs. Any context.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Relaxed)
    }

    /// Queue pairs that processes have. While the controller is drained no more come than this says. Any context.
    pub(crate) fn user_qps(&self) -> u32 {
        self.user_qps.load(Relaxed)
    }

    /// Begins or ends draining; returns whether that is a change. Any context.
    pub(crate) fn set_draining(&self, draining: bool) -> bool {
        self.told.store(false, Relaxed);
        // Fully ordered: either creation of a queue pair sees this, or a later count sees the queue pair.
        self.draining.xchg(draining, Full) != draining
    }
}

/// A queue pair of a process is there, until this is dropped.
pub(crate) struct UserQp(Arc<Controller>);

impl UserQp {
    /// `ESHUTDOWN` if the controller is drained. Process context.
    pub(crate) fn new(controller: &Arc<Controller>) -> Result<Self> {
        let service = controller.service();
        service.user_qps.fetch_add(1, Full);
        // From here on it is counted, and counted off if it is refused.
        let this = Self(controller.clone());
        if !service.is_draining() {
            return Ok(this);
        }
        if !service.told.xchg(true, Relaxed) {
            dev_info!(
                controller.device(),
                "process {} was refused a queue pair (ESHUTDOWN), as all will be while the controller is drained; \
                 'nupactl drain --undo' ends that\n",
                current!().group_leader().pid()
            );
        }
        Err(shut_down())
    }
}

impl Drop for UserQp {
    fn drop(&mut self) {
        self.0.service().user_qps.fetch_sub(1, Full);
    }
}

/// `ESHUTDOWN`, which the `kernel` crate does not name.
fn shut_down() -> Error {
    Error::from_errno(-(bindings::ESHUTDOWN as i32))
}
