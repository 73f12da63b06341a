// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What happens to controllers and nodes.

use std::io::Write;

use jiff::{Timestamp, Zoned};
use schemars::JsonSchema;
use serde::Serialize;

use crate::facts::{Controller, Host};
use crate::netlink::{Monitor, Notification};
use crate::talk::Refused;
use crate::view;

/// Something that happened, or how it is at the beginning. Each is a line by itself.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Event {
    /// When this program learned of it, by RFC 3339.
    time: String,
    #[serde(flatten)]
    kind: Kind,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "event", rename_all = "kebab-case")]
enum Kind {
    /// A controller came, or its state or link changed.
    Controller(Box<Controller>),
    /// The driver of a controller is unbound.
    ControllerGone {
        /// Index of the controller.
        controller: u32,
        /// Name of its device on its bus.
        device: String,
    },
    /// A node is up.
    PeerUp {
        /// Index of the controller that reaches it.
        controller: u32,
        /// Id of the node.
        node: u16,
        /// Its name in /etc/nupa/nodes.conf.
        name: Option<String>,
        /// Goes up with each reset of the node's controller, if it is known.
        epoch: Option<u32>,
    },
    /// A node went down.
    PeerDown {
        /// Index of the controller that reached it.
        controller: u32,
        /// Id of the node.
        node: u16,
        /// Its name in /etc/nupa/nodes.conf.
        name: Option<String>,
    },
    /// The module nupa_fabric was unloaded: there are no controllers until it is loaded again.
    DriverUnloaded,
    /// The module nupa_fabric was loaded again; what is there now follows.
    DriverLoaded,
    /// Events were lost, because there were more than this program could read; what is there now follows.
    Lost,
}

/// Prints how it is, and then, if that is wanted, what happens.
pub(crate) fn show(
    host: &mut Host,
    follow: bool,
    json: bool,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let mut teller = Teller { out, json };
    // Listening begins first, so that nothing is missed between.
    let monitor = follow.then(|| host.monitor()).transpose()?;
    teller.snapshot(host)?;
    let Some(mut monitor) = monitor else {
        return Ok(());
    };
    loop {
        for notification in monitor.next()? {
            teller.tell(host, &mut monitor, notification)?;
        }
    }
}

/// Prints events.
struct Teller<'a, W> {
    out: &'a mut W,
    json: bool,
}

impl<W: Write> Teller<'_, W> {
    /// Prints what happened, and what there is to say of it by itself.
    fn tell(
        &mut self,
        host: &mut Host,
        monitor: &mut Monitor,
        notification: Notification,
    ) -> anyhow::Result<()> {
        match notification {
            Notification::Lost | Notification::DriverLoaded => {
                self.print(kind(host, notification))?;
                self.begin_anew(host, monitor)
            }
            _ => self.print(kind(host, notification)),
        }
    }

    /// Prints how it is, of a module that was loaded again perhaps.
    fn begin_anew(&mut self, host: &mut Host, monitor: &mut Monitor) -> anyhow::Result<()> {
        if !host.reconnect()? {
            return self.print(Kind::DriverUnloaded);
        }
        host.follow(monitor)?;
        told_next(self.snapshot(host))
    }

    fn snapshot(&mut self, host: &Host) -> anyhow::Result<()> {
        for controller in host.controllers()? {
            self.print(Kind::Controller(Box::new(controller)))?;
        }
        for peer in host.peers()? {
            self.print(Kind::PeerUp {
                controller: peer.controller,
                node: peer.node,
                name: peer.name,
                epoch: Some(peer.epoch),
            })?;
        }
        Ok(())
    }

    /// Prints a line, at once: somebody may be waiting for it.
    fn print(&mut self, kind: Kind) -> anyhow::Result<()> {
        let now = Timestamp::now();
        if self.json {
            let event = Event {
                time: now.to_string(),
                kind,
            };
            writeln!(self.out, "{}", serde_json::to_string(&event)?)?;
        } else {
            let local = Zoned::new(now, jiff::tz::TimeZone::system());
            writeln!(self.out, "{} {}", local.strftime("%F %T%.3f"), kind.text())?;
        }
        self.out.flush()?;
        Ok(())
    }
}

/// Without the error of a module that was unloaded meanwhile, which is told next.
fn told_next(done: anyhow::Result<()>) -> anyhow::Result<()> {
    match done {
        Err(error) if error.is::<Refused>() => Ok(()),
        done => done,
    }
}

fn kind(host: &Host, notification: Notification) -> Kind {
    match notification {
        Notification::Controller(raw) => Kind::Controller(Box::new(host.controller(raw))),
        Notification::ControllerGone(raw) => Kind::ControllerGone {
            controller: raw.index,
            device: raw.device,
        },
        Notification::PeerUp(raw) => Kind::PeerUp {
            controller: raw.controller,
            node: raw.node,
            name: host.name(raw.node),
            epoch: (raw.epoch != 0).then_some(raw.epoch),
        },
        Notification::PeerDown(raw) => Kind::PeerDown {
            controller: raw.controller,
            node: raw.node,
            name: host.name(raw.node),
        },
        Notification::DriverUnloaded => Kind::DriverUnloaded,
        Notification::DriverLoaded => Kind::DriverLoaded,
        Notification::Lost => Kind::Lost,
    }
}

impl Kind {
    /// What happened, for people.
    fn text(&self) -> String {
        match self {
            Self::Controller(controller) => {
                let link = if controller.link_up { "up" } else { "down" };
                let trouble = controller
                    .trouble
                    .as_ref()
                    .map_or(String::new(), |trouble| format!(": {trouble}"));
                format!(
                    "{} is {}, its link {link}{trouble}",
                    controller.device,
                    view::state(controller)
                )
            }
            Self::ControllerGone { device, .. } => {
                format!("{device} is gone: its driver was unbound")
            }
            Self::PeerUp {
                node, name, epoch, ..
            } => {
                let epoch = epoch.map_or(String::new(), |epoch| format!(", epoch {epoch}"));
                format!("node {} is up{epoch}", named(*node, name.as_deref()))
            }
            Self::PeerDown { node, name, .. } => {
                format!("node {} is down", named(*node, name.as_deref()))
            }
            Self::DriverUnloaded => {
                "the driver was unloaded; waiting for it to be loaded again".into()
            }
            Self::DriverLoaded => "the driver was loaded again; this is how it is now:".into(),
            Self::Lost => "events were lost; this is how it is now:".into(),
        }
    }
}

/// A node, with its name if it has one.
pub(crate) fn named(node: u16, name: Option<&str>) -> String {
    match name {
        Some(name) => format!("{node} ({name})"),
        None => node.to_string(),
    }
}
