// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The kernel's side, by the generic netlink family of `Documentation/netlink/specs/nupa.yaml`.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use neli::attr::Attribute;
use neli::consts::genl::{CtrlAttr, CtrlCmd};
use neli::consts::nl::GenlId;
use neli::err::DeError;
use neli::genl::Nlattr;
use neli::types::Buffer;
use neli::utils::Groups;
use nupa_proto::admin::PORT_COUNTER_NAMES;
use nupa_proto::netlink::{command, controller, counters, memory, peer, FAMILY, MONITOR};
use nupa_proto::pool::sharing::DmHandle;

use crate::genl::{Family, Heard, Message, Socket};
use crate::talk::{self, find, Attributes, Refused, NOT_UNDERSTOOD};

/// Takes an attribute of an object.
type Take<T> = fn(&mut T, &Nlattr<u16, Buffer>) -> Result<(), DeError>;

/// The module is not there.
#[derive(Debug, thiserror::Error)]
#[error("the module nupa_fabric is not loaded: run `modprobe nupa_fabric`; if that fails, the kernel log says why")]
pub(crate) struct NoDriver;

/// A controller as the kernel says it.
#[derive(Debug, Default)]
pub(crate) struct RawController {
    pub(crate) index: u32,
    pub(crate) device: String,
    pub(crate) state: u32,
    pub(crate) node: u16,
    pub(crate) max_nodes: u16,
    pub(crate) guid: u64,
    pub(crate) fabric: u64,
    pub(crate) epoch: Option<u32>,
    pub(crate) fault: Option<u32>,
    pub(crate) link_up: bool,
    pub(crate) link_age: u64,
    pub(crate) link_speed: u32,
    pub(crate) firmware: String,
    pub(crate) vectors: u32,
    pub(crate) draining: bool,
    pub(crate) user_qps: u32,
    pub(crate) poll_cpu: Option<u32>,
}

/// A node as the kernel says it.
#[derive(Debug, Default)]
pub(crate) struct RawPeer {
    pub(crate) controller: u32,
    pub(crate) node: u16,
    pub(crate) guid: u64,
    pub(crate) epoch: u32,
}

/// A memory device as the kernel says it.
#[derive(Debug, Default)]
pub(crate) struct RawMemory {
    pub(crate) controller: u32,
    pub(crate) name: String,
    pub(crate) size: u64,
    pub(crate) handle: [u8; size_of::<DmHandle>()],
    pub(crate) node: u16,
    pub(crate) attached: bool,
    pub(crate) opens: u32,
}

/// A controller's counters as the kernel says them.
#[derive(Debug, Default)]
pub(crate) struct RawCounters {
    pub(crate) controller: u32,
    pub(crate) values: BTreeMap<String, u64>,
}

/// Something that happened.
#[derive(Debug)]
pub(crate) enum Notification {
    /// A controller came, or its state or link changed.
    Controller(RawController),
    /// A controller's driver is being unbound.
    ControllerGone(RawController),
    /// A node came up; its epoch is 0 if it is not known.
    PeerUp(RawPeer),
    /// A node went down.
    PeerDown(RawPeer),
    /// The module was unloaded.
    DriverUnloaded,
    /// The module was loaded again.
    DriverLoaded,
    /// Some were lost, because this program did not read them in time.
    Lost,
}

impl RawController {
    fn take(&mut self, attribute: &Nlattr<u16, Buffer>) -> Result<(), DeError> {
        match *attribute.nla_type().nla_type() {
            controller::INDEX => self.index = attribute.get_payload_as()?,
            controller::DEVICE => self.device = text(attribute)?,
            controller::STATE => self.state = attribute.get_payload_as()?,
            controller::NODE => self.node = attribute.get_payload_as()?,
            controller::MAX_NODES => self.max_nodes = attribute.get_payload_as()?,
            controller::GUID => self.guid = attribute.get_payload_as()?,
            controller::FABRIC => self.fabric = attribute.get_payload_as()?,
            controller::EPOCH => self.epoch = Some(attribute.get_payload_as()?),
            controller::FAULT => self.fault = Some(attribute.get_payload_as()?),
            controller::LINK_UP => self.link_up = attribute.get_payload_as::<u8>()? != 0,
            controller::LINK_AGE => self.link_age = attribute.get_payload_as()?,
            controller::LINK_SPEED => self.link_speed = attribute.get_payload_as()?,
            controller::FIRMWARE => self.firmware = text(attribute)?,
            controller::VECTORS => self.vectors = attribute.get_payload_as()?,
            controller::DRAINING => self.draining = attribute.get_payload_as::<u32>()? != 0,
            controller::USER_QPS => self.user_qps = attribute.get_payload_as()?,
            controller::POLL_CPU => self.poll_cpu = Some(attribute.get_payload_as()?),
            // A newer module may say more.
            _ => {}
        }
        Ok(())
    }
}

impl RawPeer {
    fn take(&mut self, attribute: &Nlattr<u16, Buffer>) -> Result<(), DeError> {
        match *attribute.nla_type().nla_type() {
            peer::CONTROLLER => self.controller = attribute.get_payload_as()?,
            peer::NODE => self.node = attribute.get_payload_as()?,
            peer::GUID => self.guid = attribute.get_payload_as()?,
            peer::EPOCH => self.epoch = attribute.get_payload_as()?,
            _ => {}
        }
        Ok(())
    }
}

impl RawMemory {
    fn take(&mut self, attribute: &Nlattr<u16, Buffer>) -> Result<(), DeError> {
        match *attribute.nla_type().nla_type() {
            memory::CONTROLLER => self.controller = attribute.get_payload_as()?,
            memory::NAME => self.name = text(attribute)?,
            memory::SIZE => self.size = attribute.get_payload_as()?,
            memory::HANDLE => self.handle = bytes(attribute)?,
            memory::NODE => self.node = attribute.get_payload_as()?,
            memory::ATTACHED => self.attached = attribute.get_payload_as::<u8>()? != 0,
            memory::OPENS => self.opens = attribute.get_payload_as()?,
            _ => {}
        }
        Ok(())
    }
}

impl RawCounters {
    fn take(&mut self, attribute: &Nlattr<u16, Buffer>) -> Result<(), DeError> {
        let number = *attribute.nla_type().nla_type();
        if number == counters::CONTROLLER {
            self.controller = attribute.get_payload_as()?;
        } else if let Some(name) = number
            .checked_sub(counters::FIRST)
            .and_then(|index| PORT_COUNTER_NAMES.get(usize::from(index)))
        {
            self.values
                .insert((*name).to_owned(), attribute.get_payload_as()?);
        }
        Ok(())
    }
}

/// A socket to the kernel.
pub(crate) struct Connection {
    socket: Socket,
    family: Family,
}

impl Connection {
    /// Connects, and finds the family. [`NoDriver`] without the module.
    pub(crate) fn open() -> anyhow::Result<Self> {
        let socket = Socket::open(Groups::empty())?;
        let (name, group) = (FAMILY.to_str()?, MONITOR.to_str()?);
        match socket.family(name, group) {
            Ok(family) => Ok(Self { socket, family }),
            Err(error) if !error.is::<Refused>() => Err(error),
            Err(_) if !Path::new("/sys/module/nupa_fabric").exists() => Err(NoDriver.into()),
            Err(error) => Err(error.context(format!(
                "the module nupa_fabric does not offer the generic netlink family {name} here: it may be older than this program, \
                 or this is a container with a network of its own"
            ))),
        }
    }

    /// All controllers of this host.
    pub(crate) fn controllers(&self) -> anyhow::Result<Vec<RawController>> {
        self.dump(command::CONTROLLER_GET, RawController::take)
    }

    /// The nodes that are up.
    pub(crate) fn peers(&self) -> anyhow::Result<Vec<RawPeer>> {
        self.dump(command::PEER_GET, RawPeer::take)
    }

    /// Counters of the controllers that run.
    pub(crate) fn counters(&self) -> anyhow::Result<Vec<RawCounters>> {
        self.dump(command::COUNTERS_GET, RawCounters::take)
    }

    /// Takes a controller out of service for processes, or back into it.
    pub(crate) fn drain(&self, index: u32, draining: bool) -> anyhow::Result<()> {
        let mut attributes = Attributes::new();
        attributes.push(talk::attribute(controller::INDEX, index)?);
        attributes.push(talk::attribute(controller::DRAINING, u32::from(draining))?);
        self.socket
            .order(self.family.id, command::CONTROLLER_DRAIN, attributes)
    }

    /// Has a thread poll a controller's pool on a processor, or none.
    pub(crate) fn poll(&self, index: u32, cpu: Option<u32>) -> anyhow::Result<()> {
        let mut attributes = Attributes::new();
        attributes.push(talk::attribute(controller::INDEX, index)?);
        if let Some(cpu) = cpu {
            attributes.push(talk::attribute(controller::POLL_CPU, cpu)?);
        }
        self.socket
            .order(self.family.id, command::CONTROLLER_POLL, attributes)
    }

    /// All memory devices of this host.
    pub(crate) fn memory(&self) -> anyhow::Result<Vec<RawMemory>> {
        self.dump(command::MEMORY_GET, RawMemory::take)
    }

    /// Allocates memory of a controller's pool, and makes a memory device of it.
    pub(crate) fn create_memory(&self, index: u32, name: &str, size: u64) -> anyhow::Result<()> {
        let mut attributes = of_memory(index, name)?;
        attributes.push(talk::attribute(memory::SIZE, size)?);
        self.socket
            .order(self.family.id, command::MEMORY_CREATE, attributes)
    }

    /// Makes a memory device of memory that a handle names.
    pub(crate) fn attach_memory(
        &self,
        index: u32,
        name: &str,
        handle: &[u8],
    ) -> anyhow::Result<()> {
        let mut attributes = of_memory(index, name)?;
        attributes.push(talk::attribute(memory::HANDLE, handle)?);
        self.socket
            .order(self.family.id, command::MEMORY_ATTACH, attributes)
    }

    /// Removes a memory device, with `force` also one that is open.
    pub(crate) fn remove_memory(&self, index: u32, name: &str, force: bool) -> anyhow::Result<()> {
        let mut attributes = of_memory(index, name)?;
        attributes.push(talk::attribute(memory::FORCE, u32::from(force))?);
        self.socket
            .order(self.family.id, command::MEMORY_REMOVE, attributes)
    }

    /// All objects that a command lists; `take` is shown the attributes of each.
    fn dump<T: Default>(&self, command: u8, take: Take<T>) -> anyhow::Result<Vec<T>> {
        let messages = self.socket.dump(self.family.id, command)?;
        messages
            .iter()
            .map(|message| read(message.attrs(), take))
            .collect()
    }

    /// What happens from now on.
    pub(crate) fn monitor(&self) -> anyhow::Result<Monitor> {
        // The group of the family goes with the module; that the family comes and goes is told to this one.
        let notify = self.socket.family("nlctrl", "notify")?;
        let notify = notify
            .group
            .context("the kernel does not tell of modules that come and go")?;
        let mut monitor = Monitor {
            socket: Socket::open(Groups::new_groups(&[notify]))?,
            family: self.family.id,
        };
        monitor.follow(self)?;
        Ok(monitor)
    }
}

/// A socket that hears what happens.
pub(crate) struct Monitor {
    socket: Socket,
    family: u16,
}

impl Monitor {
    /// Listens to a family, which a module that was loaded again has made.
    pub(crate) fn follow(&mut self, connection: &Connection) -> anyhow::Result<()> {
        let group = connection.family.group;
        let group = group.context(
            "the module nupa_fabric does not tell what happens: it may be older than this program",
        )?;
        self.family = connection.family.id;
        self.socket.join(group)
    }

    /// Waits for something to happen.
    pub(crate) fn next(&self) -> anyhow::Result<Vec<Notification>> {
        let messages = match self.socket.hear()? {
            Heard::Messages(messages) => messages,
            Heard::Lost => return Ok(vec![Notification::Lost]),
        };
        let mut found = Vec::new();
        for (family, message) in &messages {
            let notification = match *family {
                _ if *family == u16::from(GenlId::Ctrl) => of_module(message),
                _ if *family == self.family => of_controller(message)?,
                _ => None,
            };
            found.extend(notification);
        }
        Ok(found)
    }
}

/// What generic netlink tells of our family, which is there as long as the module is.
fn of_module(message: &Message) -> Option<Notification> {
    let name = find(message.attrs(), CtrlAttr::FamilyName.into())?;
    let name = text(name).ok()?;
    match CtrlCmd::from(*message.cmd()) {
        _ if FAMILY.to_str() != Ok(&name) => None,
        CtrlCmd::Newfamily => Some(Notification::DriverLoaded),
        CtrlCmd::Delfamily => Some(Notification::DriverUnloaded),
        _ => None,
    }
}

/// What the module tells.
fn of_controller(message: &Message) -> anyhow::Result<Option<Notification>> {
    let attributes = message.attrs();
    Ok(Some(match *message.cmd() {
        command::CONTROLLER_NTF => Notification::Controller(read(attributes, RawController::take)?),
        command::CONTROLLER_DEL_NTF => {
            Notification::ControllerGone(read(attributes, RawController::take)?)
        }
        command::PEER_UP_NTF => Notification::PeerUp(read(attributes, RawPeer::take)?),
        command::PEER_DOWN_NTF => Notification::PeerDown(read(attributes, RawPeer::take)?),
        // A newer module may tell more.
        _ => return Ok(None),
    }))
}

/// An object of what the kernel said.
fn read<T: Default>(attributes: &Attributes, take: Take<T>) -> anyhow::Result<T> {
    let mut object = T::default();
    for attribute in attributes.iter() {
        take(&mut object, attribute).context(NOT_UNDERSTOOD)?;
    }
    Ok(object)
}

/// Attributes that name a memory device.
fn of_memory(index: u32, name: &str) -> anyhow::Result<Attributes> {
    let mut attributes = Attributes::new();
    attributes.push(talk::attribute(memory::CONTROLLER, index)?);
    attributes.push(talk::attribute(memory::NAME, name)?);
    Ok(attributes)
}

/// The text of an attribute, which the kernel ends with a zero.
fn text(attribute: &Nlattr<u16, Buffer>) -> Result<String, DeError> {
    let bytes = attribute.payload().as_ref();
    let text = bytes.strip_suffix(&[0]).unwrap_or(bytes);
    Ok(std::str::from_utf8(text)?.to_owned())
}

/// The bytes of an attribute that has a certain number of them.
fn bytes<const LEN: usize>(attribute: &Nlattr<u16, Buffer>) -> Result<[u8; LEN], DeError> {
    let bytes = attribute.payload().as_ref();
    bytes
        .try_into()
        .map_err(|_| DeError::InvalidInput(bytes.len()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn taken(attributes: &[Nlattr<u16, Buffer>]) -> Result<RawMemory, DeError> {
        let mut memory = RawMemory::default();
        attributes
            .iter()
            .try_for_each(|attribute| memory.take(attribute))?;
        Ok(memory)
    }

    #[test]
    fn memory_devices_are_as_the_kernel_says() {
        let attributes = [
            talk::attribute(memory::CONTROLLER, 1u32),
            talk::attribute(memory::NAME, "kv"),
            talk::attribute(memory::SIZE, 4096u64),
            talk::attribute(memory::HANDLE, [7u8; 32]),
            talk::attribute(memory::NODE, 3u16),
            talk::attribute(memory::ATTACHED, 1u8),
            talk::attribute(memory::OPENS, 2u32),
            // Of a newer module.
            talk::attribute(99, 5u32),
        ];
        let found = taken(&attributes.map(Result::unwrap)).unwrap();
        assert_eq!(
            (found.controller, &*found.name, found.size),
            (1, "kv", 4096)
        );
        assert_eq!(
            (found.handle, found.node, found.attached, found.opens),
            ([7; 32], 3, true, 2)
        );
    }

    #[test]
    fn no_thread_polls_unless_the_kernel_says_where() {
        let mut controller = RawController::default();
        let index = talk::attribute(controller::INDEX, 1u32).unwrap();
        controller.take(&index).unwrap();
        assert_eq!(controller.poll_cpu, None);
        let cpu = talk::attribute(controller::POLL_CPU, 0u32).unwrap();
        controller.take(&cpu).unwrap();
        assert_eq!((controller.index, controller.poll_cpu), (1, Some(0)));
    }

    #[test]
    fn what_is_too_short_or_too_long_is_not_understood() {
        let bad = [
            talk::attribute(memory::HANDLE, [7u8; 31]),
            talk::attribute(memory::HANDLE, [7u8; 33]),
            talk::attribute(memory::SIZE, 1u32),
            talk::attribute(memory::OPENS, 1u16),
            talk::attribute(memory::NAME, &[0xffu8, 0][..]),
        ];
        for attribute in bad.map(Result::unwrap) {
            assert!(taken(&[attribute]).is_err());
        }
        let nameless = talk::attribute(memory::NAME, &[][..]).unwrap();
        assert_eq!(taken(&[nameless]).unwrap().name, "");
    }
}
