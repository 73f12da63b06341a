// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What happens to controllers and nodes.

use std::io::Write;

use jiff::{Timestamp, Zoned};
use schemars::JsonSchema;
use serde::Serialize;

use crate::facts::{Controller, Host};
use crate::netlink::Notification;

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
    /// Events were lost, because there were more than this program could read; what is there now follows.
    Lost,
}

/// Prints how it is, and then, if that is wanted, what happens.
pub(crate) fn show(
    host: &Host,
    follow: bool,
    json: bool,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    // Listening begins first, so that nothing is missed between.
    let monitor = follow.then(|| host.monitor()).transpose()?;
    snapshot(host, json, out)?;
    let Some(monitor) = monitor else {
        return Ok(());
    };
    loop {
        for notification in monitor.next()? {
            let lost = matches!(notification, Notification::Lost);
            print(kind(host, notification), json, out)?;
            if lost {
                snapshot(host, json, out)?;
            }
        }
    }
}

fn snapshot(host: &Host, json: bool, out: &mut impl Write) -> anyhow::Result<()> {
    for controller in host.controllers()? {
        print(Kind::Controller(Box::new(controller)), json, out)?;
    }
    for peer in host.peers()? {
        let kind = Kind::PeerUp {
            controller: peer.controller,
            node: peer.node,
            name: peer.name,
            epoch: Some(peer.epoch),
        };
        print(kind, json, out)?;
    }
    Ok(())
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
        Notification::Lost => Kind::Lost,
    }
}

/// Prints a line, at once: somebody may be waiting for it.
fn print(kind: Kind, json: bool, out: &mut impl Write) -> anyhow::Result<()> {
    let now = Timestamp::now();
    if json {
        let event = Event {
            time: now.to_string(),
            kind,
        };
        writeln!(out, "{}", serde_json::to_string(&event)?)?;
    } else {
        let local = Zoned::new(now, jiff::tz::TimeZone::system());
        writeln!(out, "{} {}", local.strftime("%F %T%.3f"), kind.text())?;
    }
    out.flush()?;
    Ok(())
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
                    controller.device, controller.state
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
