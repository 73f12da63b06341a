// SPDX-License-Identifier: GPL-2.0
//! Control registers.

use crate::{
    hal::Function,
    identity::{check_node, check_version, Unfit},
};
use kernel::{io::poll::read_poll_timeout, prelude::*, sync::Arc, time::Delta};
use nupa_proto::regs;

/// Longest wait for the function to start or to stop.
const TRANSITION_TIMEOUT: Delta = Delta::from_secs(5);
/// Pause between two looks at the status meanwhile.
const TRANSITION_POLL: Delta = Delta::from_micros(200);

/// The control registers. All functions return `ENODEV` once the driver is unbound, and may sleep.
pub(crate) struct Registers(Arc<dyn Function>);

/// What the registers say about a function that is fit for this driver.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity {
    pub(crate) node: u16,
    pub(crate) max_nodes: u16,
    pub(crate) guid: u64,
    pub(crate) fabric_id: u64,
    pub(crate) caps: u64,
    pub(crate) link_speed_mbps: u32,
    pub(crate) doorbell_pages: u32,
    /// Bytes of the function's own memory.
    pub(crate) device_memory: u64,
    /// kHz of its clock; 0: it has none.
    pub(crate) clock_khz: u32,
}

/// State of the function, `STATUS_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status(u32);

impl Status {
    /// It takes admin commands.
    pub(crate) fn ready(self) -> bool {
        self.0 & regs::STATUS_READY != 0
    }

    /// It stopped.
    pub(crate) fn fatal(self) -> bool {
        self.0 & regs::STATUS_FATAL != 0
    }

    /// Its link is up.
    pub(crate) fn link_up(self) -> bool {
        self.0 & regs::STATUS_LINK_UP != 0
    }
}

impl Registers {
    /// Those of this function.
    pub(crate) fn new(function: Arc<dyn Function>) -> Self {
        Self(function)
    }

    /// Reads who the function is; the inner error says why it is of no use.
    pub(crate) fn identify(&self) -> Result<Result<Identity, Unfit>> {
        if let Err(unfit) = check_version(
            self.0.read32(regs::REG_MAGIC)?,
            self.0.read32(regs::REG_VERSION)?,
        ) {
            return Ok(Err(unfit));
        }
        let guid = self.0.read64(regs::REG_NODE_GUID)?;
        let caps = self.0.read64(regs::REG_CAPS)?;
        let id = self.0.read32(regs::REG_NODE_ID)?;
        let nodes = check_node(id, self.0.read32(regs::REG_MAX_NODES)?, guid, caps);
        let (node, max_nodes) = match nodes {
            Ok(nodes) => nodes,
            Err(unfit) => return Ok(Err(unfit)),
        };
        Ok(Ok(Identity {
            node,
            max_nodes,
            guid,
            caps,
            fabric_id: self.0.read64(regs::REG_FABRIC_ID)?,
            link_speed_mbps: self.0.read32(regs::REG_LINK_SPEED)?,
            doorbell_pages: self.0.read32(regs::REG_DOORBELL_PAGES)?,
            device_memory: self.0.read64(regs::REG_DEVICE_MEMORY)?,
            clock_khz: match caps & regs::CAP_TIMESTAMP {
                0 => 0,
                _ => self.0.read32(regs::REG_CLOCK_KHZ)?,
            },
        }))
    }

    /// State of the function; `ENODEV` also if it was removed by surprise (reads are all ones).
    pub(crate) fn status(&self) -> Result<Status> {
        match self.0.read32(regs::REG_STATUS)? {
            u32::MAX => Err(ENODEV),
            status => Ok(Status(status)),
        }
    }

    /// Goes up with each reset of the function.
    pub(crate) fn epoch(&self) -> Result<u32> {
        self.0.read32(regs::REG_EPOCH)
    }

    /// Why the function stopped, `FAULT_*`.
    pub(crate) fn fault(&self) -> Result<u32> {
        self.0.read32(regs::REG_FAULT)
    }

    /// Starts the function on new admin rings. `ETIMEDOUT` if it does not get ready, `EIO` if it refuses.
    /// `doorbells` is the address of doorbell pages in memory, if that is where they are.
    pub(crate) fn start(
        &self,
        admin_sq: u64,
        admin_cq: u64,
        log_entries: u32,
        doorbells: Option<u64>,
    ) -> Result {
        if let Some(address) = doorbells {
            self.0.write64(regs::REG_DOORBELL_MEMORY, address)?;
        }
        self.0.write64(regs::REG_ADMIN_SQ, admin_sq)?;
        self.0.write64(regs::REG_ADMIN_CQ, admin_cq)?;
        self.0.write32(regs::REG_ADMIN_SIZE, log_entries)?;
        self.0.write32(regs::REG_CONTROL, regs::CONTROL_ENABLE)?;
        let status = self.wait(|status| status.ready() || status.fatal())?;
        if status.fatal() {
            return Err(EIO);
        }
        Ok(())
    }

    /// Resets the function: it forgets every object and touches no memory any more. `ETIMEDOUT` if it goes on.
    pub(crate) fn reset(&self) -> Result {
        self.0.write32(regs::REG_CONTROL, regs::CONTROL_RESET)?;
        self.wait(|status| !status.ready()).map(|_| ())
    }

    fn wait(&self, until: impl Fn(Status) -> bool) -> Result<Status> {
        read_poll_timeout(
            || self.status(),
            |status| until(*status),
            TRANSITION_POLL,
            TRANSITION_TIMEOUT,
        )
    }

    /// Tells the function of new admin commands.
    pub(crate) fn ring_admin(&self, producer: u32) -> Result {
        self.0.write32(regs::REG_ADMIN_DOORBELL, producer)
    }
}
