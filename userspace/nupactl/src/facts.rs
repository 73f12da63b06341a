// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What is known of this host's controllers. What `--json` prints is these structures.

use std::collections::BTreeMap;
use std::io::ErrorKind;

use anyhow::bail;
use nupa_proto::{ident::UnknownValue, netlink::ControllerState};
use schemars::JsonSchema;
use serde::Serialize;

use crate::names::Names;
use crate::netlink::{
    Connection, Monitor, NoDriver, RawController, RawCounters, RawMemory, RawPeer,
};
use crate::sysfs;
use crate::talk::Refused;
use crate::view::NO_CONTROLLER;

/// No device is bound to the module.
#[derive(Debug, thiserror::Error)]
#[error("{NO_CONTROLLER}")]
pub(crate) struct NoController;

/// A controller of this host.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Controller {
    /// Number on this host.
    pub(crate) index: u32,
    /// Name of its device on its bus.
    pub(crate) device: String,
    /// Driver that it is bound to, which tells what it is: a PCI function, or memory that hosts share.
    pub(crate) driver: Option<String>,
    /// What it is fit for.
    pub(crate) state: &'static str,
    /// What is wrong with it, if anything is.
    pub(crate) trouble: Option<String>,
    /// Id of this node.
    pub(crate) node: u16,
    /// Name of this node in /etc/nupa/nodes.conf.
    pub(crate) name: Option<String>,
    /// Node ids of the fabric are below this.
    pub(crate) max_nodes: u16,
    /// EUI-64 of this node, 16 hexadecimal digits.
    pub(crate) guid: String,
    /// Identity of the fabric, 16 hexadecimal digits.
    pub(crate) fabric: String,
    /// Goes up with each reset; of a controller that runs.
    pub(crate) epoch: Option<u32>,
    /// Why it stopped, a FAULT code of Documentation/controller.md.
    pub(crate) fault: Option<u32>,
    /// Whether the link is up.
    pub(crate) link_up: bool,
    /// For how long the link has been up or down, in ms.
    pub(crate) link_age: u64,
    /// In Mb/s; 0 if it is not known.
    pub(crate) link_speed: u32,
    /// Version of the firmware.
    pub(crate) firmware: String,
    /// Interrupt vectors for completion queues.
    pub(crate) vectors: u32,
    /// Whether it is taken out of service: processes get no new queue pairs.
    pub(crate) draining: bool,
    /// Queue pairs that processes have.
    pub(crate) user_queue_pairs: u32,
    /// The processor of the thread that does nothing but poll the pool; null if there is no such thread.
    pub(crate) poll_cpu: Option<u32>,
    /// Network interfaces.
    pub(crate) netdevs: Vec<String>,
    /// RDMA devices.
    pub(crate) rdma: Vec<String>,
}

/// A node that is up.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Peer {
    /// Index of the controller that reaches it.
    pub(crate) controller: u32,
    /// Id of the node.
    pub(crate) node: u16,
    /// Its name in /etc/nupa/nodes.conf.
    pub(crate) name: Option<String>,
    /// EUI-64 of the node, 16 hexadecimal digits.
    pub(crate) guid: String,
    /// Goes up with each reset of the node's controller.
    pub(crate) epoch: u32,
}

/// Counters of a controller since it was reset.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Counters {
    /// Index of the controller.
    pub(crate) controller: u32,
    /// Name of its device on its bus.
    pub(crate) device: String,
    /// By name.
    pub(crate) counters: BTreeMap<String, u64>,
}

/// This host as its kernel knows it.
pub(crate) struct Host {
    connection: Connection,
    names: Names,
}

impl Host {
    /// Connects to the kernel, and reads the names of nodes.
    pub(crate) fn open() -> anyhow::Result<Self> {
        Ok(Self {
            connection: Connection::open()?,
            names: Names::read()?,
        })
    }

    /// All controllers.
    pub(crate) fn controllers(&self) -> anyhow::Result<Vec<Controller>> {
        let raw = self.connection.controllers()?;
        Ok(raw.into_iter().map(|raw| self.controller(raw)).collect())
    }

    /// The nodes that are up. This asks the controllers.
    pub(crate) fn peers(&self) -> anyhow::Result<Vec<Peer>> {
        let raw = self.connection.peers()?;
        Ok(raw.into_iter().map(|raw| self.peer(&raw)).collect())
    }

    /// Counters of the controllers that run. This asks them.
    pub(crate) fn counters(&self, controllers: &[Controller]) -> anyhow::Result<Vec<Counters>> {
        let raw = self.connection.counters()?;
        Ok(raw
            .into_iter()
            .map(|raw| counters(raw, controllers))
            .collect())
    }

    /// Takes a controller out of service for processes, or back into it.
    pub(crate) fn drain(&self, of: &Controller, draining: bool) -> anyhow::Result<()> {
        let refused = |error: anyhow::Error| {
            let what = match error.downcast_ref::<Refused>().map(|refused| refused.0.kind()) {
                Some(ErrorKind::PermissionDenied) => "this takes CAP_NET_ADMIN: run it as root",
                Some(ErrorKind::Unsupported) => {
                    "the module nupa_fabric that is loaded cannot do this: it is older than this program"
                }
                _ => "`nupactl status` shows how it is",
            };
            error.context(format!("{} stays as it was: {what}", of.device))
        };
        self.connection.drain(of.index, draining).map_err(refused)
    }

    /// Has a thread poll a controller's pool on a processor, or none.
    pub(crate) fn poll(&self, of: &Controller, cpu: Option<u32>) -> anyhow::Result<()> {
        self.connection.poll(of.index, cpu)
    }

    /// All memory devices.
    pub(crate) fn memory(&self) -> anyhow::Result<Vec<RawMemory>> {
        self.connection.memory()
    }

    /// Allocates memory of a controller's pool, and makes a memory device of it.
    pub(crate) fn create_memory(
        &self,
        of: &Controller,
        name: &str,
        size: u64,
    ) -> anyhow::Result<()> {
        self.connection.create_memory(of.index, name, size)
    }

    /// Makes a memory device of memory that a handle names.
    pub(crate) fn attach_memory(
        &self,
        of: &Controller,
        name: &str,
        handle: &[u8],
    ) -> anyhow::Result<()> {
        self.connection.attach_memory(of.index, name, handle)
    }

    /// Removes a memory device of the controller with an index.
    pub(crate) fn remove_memory(&self, index: u32, name: &str, force: bool) -> anyhow::Result<()> {
        self.connection.remove_memory(index, name, force)
    }

    /// The node that has a name.
    pub(crate) fn node(&self, name: &str) -> Option<u16> {
        self.names.node(name)
    }

    /// Connects anew, after the module was loaded again. False if it has been unloaded since.
    pub(crate) fn reconnect(&mut self) -> anyhow::Result<bool> {
        match Connection::open() {
            Ok(connection) => self.connection = connection,
            // The family goes a moment before the module.
            Err(error) if error.is::<NoDriver>() || error.is::<Refused>() => return Ok(false),
            Err(error) => return Err(error),
        }
        Ok(true)
    }

    /// What `read` finds; `None` while the module is not loaded. Connects anew after it was loaded again.
    pub(crate) fn if_loaded<T>(
        &mut self,
        read: impl Fn(&Self) -> anyhow::Result<T>,
    ) -> anyhow::Result<Option<T>> {
        match read(self) {
            Err(error) if error.is::<Refused>() => {}
            found => return found.map(Some),
        }
        if !self.reconnect()? {
            return Ok(None);
        }
        match read(self) {
            Err(error) if error.is::<Refused>() => Ok(None),
            found => found.map(Some),
        }
    }

    /// Has a monitor listen to the module as it is now.
    pub(crate) fn follow(&self, monitor: &mut Monitor) -> anyhow::Result<()> {
        monitor.follow(&self.connection)
    }

    /// What happens from now on.
    pub(crate) fn monitor(&self) -> anyhow::Result<Monitor> {
        self.connection.monitor()
    }

    /// Name of a node.
    pub(crate) fn name(&self, node: u16) -> Option<String> {
        self.names.of(node)
    }

    pub(crate) fn controller(&self, raw: RawController) -> Controller {
        let state = ControllerState::try_from(raw.state);
        let interfaces = sysfs::interfaces(&raw.device);
        Controller {
            index: raw.index,
            driver: interfaces.driver,
            state: name(state),
            trouble: trouble(state, &raw),
            node: raw.node,
            name: self.name(raw.node),
            max_nodes: raw.max_nodes,
            guid: format!("{:016x}", raw.guid),
            fabric: format!("{:016x}", raw.fabric),
            epoch: raw.epoch,
            fault: raw.fault,
            link_up: raw.link_up,
            link_age: raw.link_age,
            link_speed: raw.link_speed,
            firmware: raw.firmware,
            vectors: raw.vectors,
            draining: raw.draining,
            user_queue_pairs: raw.user_qps,
            poll_cpu: raw.poll_cpu,
            netdevs: interfaces.netdevs,
            rdma: interfaces.rdma,
            device: raw.device,
        }
    }

    fn peer(&self, raw: &RawPeer) -> Peer {
        Peer {
            controller: raw.controller,
            node: raw.node,
            name: self.name(raw.node),
            guid: format!("{:016x}", raw.guid),
            epoch: raw.epoch,
        }
    }
}

#[cfg(test)]
impl Controller {
    /// One that runs, with its link up.
    pub(crate) fn example() -> Self {
        Self {
            index: 0,
            device: "0000:00:04.0".to_owned(),
            driver: None,
            state: "running",
            trouble: None,
            node: 1,
            name: Some("alpha".to_owned()),
            max_nodes: 8,
            guid: String::new(),
            fabric: String::new(),
            epoch: Some(1),
            fault: None,
            link_up: true,
            link_age: 0,
            link_speed: 256_000,
            firmware: String::new(),
            vectors: 2,
            draining: false,
            user_queue_pairs: 0,
            poll_cpu: None,
            netdevs: vec!["nupanet0".to_owned()],
            rdma: vec!["nupa_rdma0".to_owned()],
        }
    }
}

/// The controller that is meant: the one with a device's name or an index, or the only one. [`NoController`] if there is none at all.
pub(crate) fn choose<'a>(
    controllers: &'a [Controller],
    wanted: Option<&str>,
) -> anyhow::Result<&'a Controller> {
    let devices = || {
        let devices: Vec<_> = controllers.iter().map(|of| of.device.as_str()).collect();
        devices.join(", ")
    };
    match (wanted, controllers) {
        (_, []) => Err(NoController.into()),
        (None, [only]) => Ok(only),
        (None, _) => bail!("say which controller: {}", devices()),
        (Some(wanted), _) => {
            let meant = |of: &&Controller| of.device == wanted || of.index.to_string() == wanted;
            let Some(found) = controllers.iter().find(meant) else {
                bail!(
                    "there is no controller {wanted} here; there is {}",
                    devices()
                );
            };
            Ok(found)
        }
    }
}

fn counters(raw: RawCounters, controllers: &[Controller]) -> Counters {
    let of = controllers
        .iter()
        .find(|controller| controller.index == raw.controller);
    Counters {
        controller: raw.controller,
        // One that came a moment ago.
        device: of.map_or_else(
            || format!("controller {}", raw.controller),
            |controller| controller.device.clone(),
        ),
        counters: raw.values,
    }
}

fn name(state: Result<ControllerState, UnknownValue>) -> &'static str {
    match state {
        Ok(ControllerState::Down) => "down",
        Ok(ControllerState::Running) => "running",
        Ok(ControllerState::Paused) => "paused",
        Ok(ControllerState::Lost) => "lost",
        Ok(ControllerState::Removed) => "removed",
        Err(_) => "unknown",
    }
}

/// What is wrong with a controller, and what to do.
fn trouble(state: Result<ControllerState, UnknownValue>, raw: &RawController) -> Option<String> {
    let fault = raw
        .fault
        .map_or(String::new(), |fault| format!(" (fault {fault})"));
    match state {
        Ok(ControllerState::Running) if raw.link_up => None,
        Ok(ControllerState::Running) => Some("the link is down: the other end may be off".into()),
        Ok(ControllerState::Down) => Some(format!("it is being reset{fault}: wait, or see the kernel log")),
        Ok(ControllerState::Paused) => Some("something else resets the function: wait".into()),
        Ok(ControllerState::Lost) => Some(format!(
            "it does not come back by itself{fault}: see the kernel log, then unbind its driver and bind it again"
        )),
        Ok(ControllerState::Removed) => Some("its driver is being unbound".into()),
        Err(unknown) => Some(format!("the module knows a state that this program does not: {unknown:?}")),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn without_controllers_none_is_asked_for() {
        for wanted in [None, Some("0")] {
            let error = choose(&[], wanted).unwrap_err();
            assert!(error.is::<NoController>(), "{error}");
        }
    }
}
