// SPDX-License-Identifier: GPL-2.0
//! What programs are told about the controllers of this host, and what they have done: the generic netlink family of
//! `Documentation/netlink/specs/nupa.yaml`.

use crate::{
    controller::{Controller, State},
    fmt,
    memory_devices::is_fit,
    port::{Listener, ListenerRegistration, Port, PortEvent},
};
use kernel::{prelude::*, str::CString, sync::Arc};
use nk::genl::{self, DoAttribute, DoCommand, DoRequest, Family, Message, Published, Source};
use nupa_proto::{
    admin::PortCounters,
    netlink::{
        command, controller, counters, memory, peer, ControllerState, FAMILY, MONITOR, VERSION,
    },
    pool::sharing::DmHandle,
    regs::FAULT_NONE,
};
use zerocopy::{little_endian::U64, FromBytes, IntoBytes};

/// The family.
pub(crate) const NUPA: Family = Family {
    name: FAMILY,
    version: VERSION,
    dumps: &[
        command::CONTROLLER_GET,
        command::PEER_GET,
        command::COUNTERS_GET,
    ],
    admin_dumps: &[command::MEMORY_GET],
    commands: &[
        DoCommand {
            command: command::CONTROLLER_DRAIN,
            attributes: &[
                DoAttribute::Any(controller::INDEX),
                DoAttribute::UpTo(controller::DRAINING, 1),
            ],
        },
        DoCommand {
            command: command::CONTROLLER_POLL,
            attributes: &[
                DoAttribute::Any(controller::INDEX),
                DoAttribute::Any(controller::POLL_CPU),
            ],
        },
        DoCommand {
            command: command::MEMORY_CREATE,
            attributes: &[
                DoAttribute::Any(memory::CONTROLLER),
                DoAttribute::NulString(memory::NAME, memory::MAX_NAME as u16),
                DoAttribute::U64(memory::SIZE),
            ],
        },
        DoCommand {
            command: command::MEMORY_ATTACH,
            attributes: &[
                DoAttribute::Any(memory::CONTROLLER),
                DoAttribute::NulString(memory::NAME, memory::MAX_NAME as u16),
                DoAttribute::Binary(memory::HANDLE, size_of::<DmHandle>() as i16),
            ],
        },
        DoCommand {
            command: command::MEMORY_REMOVE,
            attributes: &[
                DoAttribute::Any(memory::CONTROLLER),
                DoAttribute::NulString(memory::NAME, memory::MAX_NAME as u16),
                DoAttribute::UpTo(memory::FORCE, 1),
            ],
        },
    ],
    group: MONITOR,
};

// Where the kernel looks for the source that a request is for.
const _: () = assert!(controller::INDEX == genl::SOURCE && memory::CONTROLLER == genl::SOURCE);

/// A controller that programs are told about, until this is dropped.
pub(crate) struct Shown {
    listener: Option<ListenerRegistration>,
    published: Option<Published>,
    controller: Arc<Controller>,
}

impl Shown {
    /// Shows a controller. Sleeps.
    pub(crate) fn new(controller: &Arc<Controller>) -> Result<Self> {
        let listed = Listed(controller.clone());
        let published = genl::publish(Arc::new(listed, GFP_KERNEL)?)?;
        let monitor = Monitor {
            listed: Listed(controller.clone()),
            index: published.index(),
        };
        let port = Port {
            controller: controller.clone(),
        };
        let monitor = Arc::new(monitor, GFP_KERNEL)?;
        // All events are told under this lock: none comes before it was told how it is, or between.
        let life = controller.lifecycle.lock();
        let listener = port.listen(monitor.clone())?;
        monitor.tell_controller();
        for node in controller.peers().iter() {
            monitor.tell_peer_up(node);
        }
        drop(life);
        Ok(Self {
            listener: Some(listener),
            published: Some(published),
            controller: controller.clone(),
        })
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        // Nothing is told of it any more, nor is it listed, when its end is told.
        self.listener = None;
        let Some(index) = self.published.take().map(|published| published.index()) else {
            return;
        };
        let told = genl::notify(command::CONTROLLER_DEL_NTF, |message| {
            write_name(&self.controller, index, message)
        });
        log_untold(&self.controller, told);
    }
}

/// Tells of a controller's events.
struct Monitor {
    listed: Listed,
    index: u32,
}

impl Monitor {
    fn tell(&self, command: u8, write: impl FnOnce(&mut Message<'_>) -> Result) {
        log_untold(&self.listed.0, genl::notify(command, write));
    }

    fn tell_controller(&self) {
        self.tell(command::CONTROLLER_NTF, |message| {
            self.listed.write_controller(self.index, message)
        });
    }

    fn tell_peer_up(&self, node: u16) {
        self.tell(command::PEER_UP_NTF, |message| {
            message.put_u32(peer::CONTROLLER, self.index)?;
            message.put_u16(peer::NODE, node)?;
            match self.listed.0.peers().epoch(node) {
                Some(epoch) => message.put_u32(peer::EPOCH, epoch),
                None => Ok(()),
            }
        });
    }
}

impl Listener for Monitor {
    fn event(&self, event: PortEvent) {
        let index = self.index;
        genl::note_change();
        match event {
            PortEvent::NodeUp(node) => self.tell_peer_up(node),
            PortEvent::NodeDown(node) => self.tell(command::PEER_DOWN_NTF, |message| {
                message.put_u32(peer::CONTROLLER, index)?;
                message.put_u16(peer::NODE, node)
            }),
            PortEvent::LinkUp
            | PortEvent::LinkDown
            | PortEvent::Resetting
            | PortEvent::Ready
            | PortEvent::Gone => self.tell_controller(),
        }
    }
}

/// Says that a notification could not be sent: there was no memory for it.
fn log_untold(controller: &Controller, told: Result) {
    if let Err(error) = told {
        dev_warn!(
            controller.device(),
            "programs were not told of a change ({error:?}); `nupactl status` shows how it is\n"
        );
    }
}

/// Writes which controller it is.
fn write_name(of: &Controller, index: u32, message: &mut Message<'_>) -> Result {
    let device = CString::try_from_fmt(fmt!("{}", of.device().name()))?;
    message.put_u32(controller::INDEX, index)?;
    message.put_str(controller::DEVICE, &device)
}

/// A controller as dumps list it.
struct Listed(Arc<Controller>);

impl Source for Listed {
    fn dump(
        &self,
        command: u8,
        index: u32,
        position: u32,
        message: &mut Message<'_>,
    ) -> Result<Option<u32>> {
        match command {
            command::CONTROLLER_GET if position == 0 => {
                self.write_controller(index, message)?;
                Ok(Some(1))
            }
            command::PEER_GET => self.write_peer(index, position, message),
            command::COUNTERS_GET if position == 0 => self.write_counters(index, message),
            command::MEMORY_GET => self.write_memory(index, position, message),
            _ => Ok(None),
        }
    }

    fn doit(&self, index: u32, request: &DoRequest<'_>) -> Result {
        match request.command() {
            command::CONTROLLER_DRAIN => {
                self.drain(index, request.required(controller::DRAINING)? != 0);
                return Ok(());
            }
            command::CONTROLLER_POLL => {
                return self.set_poll_cpu(index, request.value(controller::POLL_CPU));
            }
            command::MEMORY_CREATE => {
                let size = request.required_u64(memory::SIZE)?;
                self.0.create_memory_device(name_of(request)?, size)?;
            }
            command::MEMORY_ATTACH => {
                let handle = request.required_bytes(memory::HANDLE)?;
                let handle = DmHandle::read_from_bytes(handle).map_err(|_| EINVAL)?;
                self.0.attach_memory_device(name_of(request)?, &handle)?;
            }
            command::MEMORY_REMOVE => {
                let name = request.required_string(memory::NAME)?;
                let force = request.value(memory::FORCE).unwrap_or(0) != 0;
                self.0.memory_devices.remove(name, force)?;
            }
            _ => return Err(EINVAL),
        }
        genl::note_change();
        Ok(())
    }
}

/// The name of a memory device that a request wants to make. `EINVAL` if it may not have that.
fn name_of<'request>(request: &'request DoRequest<'_>) -> Result<&'request [u8]> {
    let name = request.required_string(memory::NAME)?;
    match is_fit(name) {
        true => Ok(name),
        false => Err(request.bad_attribute(memory::NAME, EINVAL)),
    }
}

impl Listed {
    fn write_controller(&self, index: u32, message: &mut Message<'_>) -> Result {
        let (info, state) = (self.0.info(), self.0.state());
        let [major, minor, patch] = info.firmware;
        let firmware = CString::try_from_fmt(fmt!("{major}.{minor}.{patch}"))?;
        write_name(&self.0, index, message)?;
        message.put_u32(controller::STATE, to_wire(state).to_wire())?;
        message.put_u16(controller::NODE, info.node)?;
        message.put_u16(controller::MAX_NODES, info.max_nodes)?;
        message.put_u64(controller::GUID, info.guid)?;
        message.put_u64(controller::FABRIC, info.fabric_id)?;
        message.put_u8(controller::LINK_UP, self.0.link_up().into())?;
        message.put_u32(controller::LINK_SPEED, info.link_speed_mbps)?;
        message.put_str(controller::FIRMWARE, &firmware)?;
        message.put_u64(controller::CAPABILITIES, info.caps)?;
        message.put_u32(controller::VECTORS, info.vectors)?;
        message.put_u64(controller::LINK_AGE, self.0.link_age_ms())?;
        let service = self.0.service();
        message.put_u32(controller::DRAINING, service.is_draining().into())?;
        message.put_u32(controller::USER_QPS, service.user_qps())?;
        if let Some(cpu) = self.0.function.poll_cpu() {
            message.put_u32(controller::POLL_CPU, cpu)?;
        }
        if state == State::Running {
            if let Ok(epoch) = self.0.registers.epoch() {
                message.put_u32(controller::EPOCH, epoch)?;
            }
        }
        match self.0.fault() {
            fault if fault != FAULT_NONE && state != State::Running => {
                message.put_u32(controller::FAULT, fault)
            }
            _ => Ok(()),
        }
    }

    /// Takes the controller out of service for processes, or back into it.
    fn drain(&self, index: u32, draining: bool) {
        if !self.0.service().set_draining(draining) {
            return;
        }
        let device = self.0.device();
        match draining {
            true => dev_info!(
                device,
                "controller is drained: processes get no new queue pairs\n"
            ),
            false => dev_info!(device, "controller is drained no more\n"),
        }
        self.tell_change(index);
    }

    /// Has a thread poll the pool on a processor, or none. Errors as of [`crate::hal::Function::set_poll_cpu`]; the change is told also if
    /// it could be made in part.
    fn set_poll_cpu(&self, index: u32, cpu: Option<u32>) -> Result {
        let before = self.0.function.poll_cpu();
        let done = self.0.function.set_poll_cpu(cpu);
        if self.0.function.poll_cpu() != before {
            self.tell_change(index);
        }
        done
    }

    fn tell_change(&self, index: u32) {
        genl::note_change();
        let told = genl::notify(command::CONTROLLER_NTF, |message| {
            self.write_controller(index, message)
        });
        log_untold(&self.0, told);
    }

    /// Writes the counters of a controller that runs and answers.
    fn write_counters(&self, index: u32, message: &mut Message<'_>) -> Result<Option<u32>> {
        const COUNT: usize = size_of::<PortCounters>() / size_of::<U64>();
        // One that is reset meanwhile has none.
        let Ok(read) = self.0.counters() else {
            return Ok(None);
        };
        let values = <[U64; COUNT]>::read_from_bytes(read.as_bytes()).map_err(|_| EINVAL)?;
        message.put_u32(counters::CONTROLLER, index)?;
        for (attribute, value) in (counters::FIRST..).zip(values) {
            message.put_u64(attribute, value.get())?;
        }
        Ok(Some(1))
    }

    /// Writes the memory device at a position.
    fn write_memory(
        &self,
        index: u32,
        position: u32,
        message: &mut Message<'_>,
    ) -> Result<Option<u32>> {
        let devices = &self.0.memory_devices;
        devices.at(usize::try_from(position)?, |device| {
            let handle = device.handle();
            message.put_u32(memory::CONTROLLER, index)?;
            message.put_str(memory::NAME, device.name())?;
            message.put_u64(memory::SIZE, device.size())?;
            message.put(memory::HANDLE, handle.as_bytes())?;
            message.put_u16(memory::NODE, handle.node.get())?;
            message.put_u8(memory::ATTACHED, device.is_attached().into())?;
            message.put_u32(memory::OPENS, device.opens())?;
            Ok(position.saturating_add(1))
        })
    }

    /// Writes the first node of those from `position` on that are up and answer.
    fn write_peer(
        &self,
        index: u32,
        position: u32,
        message: &mut Message<'_>,
    ) -> Result<Option<u32>> {
        if self.0.state() != State::Running {
            return Ok(None);
        }
        let nodes = self.0.peers().iter();
        for node in nodes.filter(|node| u32::from(*node) >= position) {
            let there = match self.0.query_peer(node) {
                Ok(there) => there,
                // The controller does not answer, about the others neither.
                Err(error) if [EIO, ENODEV, ETIMEDOUT].contains(&error) => return Ok(None),
                // One that went meanwhile is left out.
                Err(_) => continue,
            };
            message.put_u32(peer::CONTROLLER, index)?;
            message.put_u16(peer::NODE, node)?;
            message.put_u64(peer::GUID, there.guid)?;
            message.put_u32(peer::EPOCH, there.epoch)?;
            return Ok(Some(u32::from(node).saturating_add(1)));
        }
        Ok(None)
    }
}

/// The state as programs know it.
fn to_wire(state: State) -> ControllerState {
    match state {
        State::Down => ControllerState::Down,
        State::Running => ControllerState::Running,
        State::Paused => ControllerState::Paused,
        State::Lost => ControllerState::Lost,
        State::Removed => ControllerState::Removed,
    }
}
