// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Facts as people, or programs, read them.

use comfy_table::{presets::NOTHING, CellAlignment, ContentArrangement, Table};
use serde::Serialize;

use crate::events::named;
use crate::facts::{Controller, Counters, Peer};

/// What there is to say where there is nothing.
pub(crate) const NO_CONTROLLER: &str = "nupa_fabric is loaded, but no device is bound to it: a PCI controller is bound by itself, memory that \
     hosts share once it was formatted as a pool";

/// As JSON.
pub(crate) fn json(value: &impl Serialize) -> serde_json::Result<String> {
    serde_json::to_string_pretty(value)
}

/// Controllers as a table, and what is wrong with them below it.
pub(crate) fn status(controllers: &[Controller]) -> String {
    if controllers.is_empty() {
        return NO_CONTROLLER.into();
    }
    let mut table = table(&[
        "DEVICE", "STATE", "LINK", "NODE", "FABRIC", "NETDEV", "RDMA",
    ]);
    for controller in controllers {
        table.add_row([
            controller.device.clone(),
            state(controller),
            link(controller),
            named(controller.node, controller.name.as_deref()),
            controller.fabric.clone(),
            or_dash(&controller.netdevs),
            or_dash(&controller.rdma),
        ]);
    }
    let troubles = controllers.iter().filter_map(|controller| {
        let trouble = controller.trouble.as_ref()?;
        Some(format!("\n{}: {trouble}", controller.device))
    });
    let drained = controllers.iter().filter(|of| of.draining).map(|of| {
        format!(
            "\n{device}: processes get no new queue pairs, and have {}; `nupactl drain --undo {device}` puts it back into service",
            of.user_queue_pairs,
            device = of.device,
        )
    });
    let notes: String = troubles.chain(drained).collect();
    format!("{}{notes}", trimmed(&table))
}

/// Links as a table.
pub(crate) fn links(controllers: &[Controller], counters: &[Counters]) -> String {
    let mut table = table(&[
        "DEVICE", "LINK", "FOR", "NETDEV", "RDMA", "SENT", "RECEIVED",
    ]);
    for controller in controllers {
        let of = counters
            .iter()
            .find(|counters| counters.controller == controller.index);
        let sum = |names: [&str; 2]| {
            let value = |name| of?.counters.get(name).copied();
            let sum = names
                .into_iter()
                .map(value)
                .try_fold(0u64, |sum, value| Some(sum.saturating_add(value?)));
            sum.map_or_else(|| "-".into(), bytes)
        };
        table.add_row([
            controller.device.clone(),
            match controller.draining {
                true => format!("{}, draining", link(controller)),
                false => link(controller),
            },
            duration(controller.link_age),
            or_dash(&controller.netdevs),
            or_dash(&controller.rdma),
            sum(["tx_bytes", "tx_message_bytes"]),
            sum(["rx_bytes", "rx_message_bytes"]),
        ]);
    }
    trimmed(&table)
}

/// Peers as a table.
pub(crate) fn peers(controllers: &[Controller], peers: &[Peer]) -> String {
    let mut table = table(&["DEVICE", "NODE", "GUID", "EPOCH"]);
    for controller in controllers {
        let device = &controller.device;
        if let Some(epoch) = controller.epoch {
            let node = format!(
                "{}, this one",
                named(controller.node, controller.name.as_deref())
            );
            table.add_row([
                device.clone(),
                node,
                controller.guid.clone(),
                epoch.to_string(),
            ]);
        }
        for peer in peers
            .iter()
            .filter(|peer| peer.controller == controller.index)
        {
            let node = named(peer.node, peer.name.as_deref());
            table.add_row([
                device.clone(),
                node,
                peer.guid.clone(),
                peer.epoch.to_string(),
            ]);
        }
    }
    trimmed(&table)
}

/// The fabric as a tree: each controller with its link, and the nodes behind it.
pub(crate) fn topo(controllers: &[Controller], peers: &[Peer]) -> String {
    let mut lines = Vec::new();
    for controller in controllers {
        let node = named(controller.node, controller.name.as_deref());
        lines.push(format!(
            "fabric {}, {} nodes at most",
            controller.fabric, controller.max_nodes
        ));
        let interfaces = or_dash(&[&controller.netdevs[..], &controller.rdma[..]].concat());
        lines.push(format!(
            "`- node {node}, this one: {} {interfaces}, {}, link {}",
            controller.device,
            state(controller),
            link(controller)
        ));
        let behind: Vec<_> = peers
            .iter()
            .filter(|peer| peer.controller == controller.index)
            .collect();
        for (peer, last) in behind.iter().zip((0..behind.len()).rev()) {
            let branch = if last == 0 { "`-" } else { "|-" };
            lines.push(format!(
                "   {branch} node {}",
                named(peer.node, peer.name.as_deref())
            ));
        }
    }
    lines.join("\n")
}

/// The fabric for Graphviz: a node for each fabric, with its nodes around it.
pub(crate) fn dot(controllers: &[Controller], peers: &[Peer]) -> String {
    let mut lines = vec!["graph nupa {".to_owned(), "\tnode [shape=box];".to_owned()];
    for controller in controllers {
        let fabric = format!("fabric {}", controller.fabric);
        lines.push(format!("\t{} [shape=ellipse];", quoted(&fabric)));
        let own = named(controller.node, controller.name.as_deref());
        let style = if controller.link_up {
            "solid"
        } else {
            "dashed"
        };
        let label = link(controller);
        let near = quoted(&format!("node {own}"));
        lines.push(format!(
            "\t{near} -- {} [style={style}, label={}];",
            quoted(&fabric),
            quoted(&label)
        ));
        for peer in peers
            .iter()
            .filter(|peer| peer.controller == controller.index)
        {
            let far = quoted(&format!("node {}", named(peer.node, peer.name.as_deref())));
            lines.push(format!("\t{far} -- {};", quoted(&fabric)));
        }
    }
    lines.push("}".to_owned());
    lines.join("\n")
}

/// A string as Graphviz reads it.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Counters as a table; those that are zero only if all are wanted.
pub(crate) fn stats(counters: &[Counters], all: bool) -> String {
    let mut table = table(&["DEVICE", "COUNTER", "VALUE"]);
    if let Some(column) = table.column_mut(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    for counters in counters {
        let device = &counters.device;
        let shown: Vec<_> = counters
            .counters
            .iter()
            .filter(|(_, value)| all || **value != 0)
            .collect();
        if shown.is_empty() {
            table.add_row([device.clone(), "all are zero".into(), "0".into()]);
        }
        for (name, value) in shown {
            table.add_row([device.clone(), name.clone(), value.to_string()]);
        }
    }
    trimmed(&table)
}

/// A number of bytes, for people.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["kB", "MB", "GB", "TB", "PB", "EB"];
    let mut shown = (count as f64, "B");
    for unit in UNITS {
        if shown.0 < 1000.0 {
            break;
        }
        shown = (shown.0 / 1000.0, unit);
    }
    match shown.1 {
        "B" => format!("{count} B"),
        unit => format!("{:.1} {unit}", shown.0),
    }
}

/// A time in ms, for people.
fn duration(ms: u64) -> String {
    let seconds = ms / 1000;
    match (
        seconds / 86400,
        seconds / 3600 % 24,
        seconds / 60 % 60,
        seconds % 60,
    ) {
        (0, 0, 0, seconds) => format!("{seconds} s"),
        (0, 0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (0, hours, minutes, _) => format!("{hours} h {minutes} min"),
        (days, hours, _, _) => format!("{days} d {hours} h"),
    }
}

/// A table with a header.
pub(crate) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table
        .load_preset(NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header);
    table
}

/// What others have named, fit for a terminal: `?` in place of control characters, and of those that turn the direction of what follows.
pub(crate) fn printable(text: &str) -> String {
    let turns = |c| matches!(c, '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.replace(|c: char| c.is_control() || turns(c), "?")
}

/// Without the spaces around each line.
pub(crate) fn trimmed(table: &Table) -> String {
    let lines: Vec<String> = table.lines().map(|line| line.trim().to_owned()).collect();
    lines.join("\n")
}

/// What a controller is fit for.
pub(crate) fn state(controller: &Controller) -> String {
    let draining = if controller.draining {
        ", draining"
    } else {
        ""
    };
    let polled = controller
        .poll_cpu
        .map_or(String::new(), |cpu| format!(", polled on processor {cpu}"));
    format!("{}{draining}{polled}", controller.state)
}

/// A link, for people.
pub(crate) fn link(controller: &Controller) -> String {
    match (controller.link_up, controller.link_speed) {
        (false, _) => "down".into(),
        (true, 0) => "up".into(),
        (true, speed) => format!("up, {} Gb/s", f64::from(speed) / 1000.0),
    }
}

fn or_dash(names: &[String]) -> String {
    if names.is_empty() {
        return "-".into();
    }
    names.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!(
            [0, 999, 1000, 1_550_000, u64::MAX].map(bytes),
            ["0 B", "999 B", "1.0 kB", "1.6 MB", "18.4 EB"]
        );
        let times = [999, 61_000, 3_660_000, 90_000_000].map(duration);
        assert_eq!(times, ["0 s", "1 min 1 s", "1 h 1 min", "1 d 1 h"]);
    }

    #[test]
    fn the_state_says_what_is_not_as_by_default() {
        let mut controller = Controller::example();
        assert_eq!(state(&controller), "running");
        controller.poll_cpu = Some(3);
        assert_eq!(state(&controller), "running, polled on processor 3");
        controller.draining = true;
        let all = "running, draining, polled on processor 3";
        assert_eq!(state(&controller), all);
        assert!(status(&[controller]).contains(all));
    }

    #[test]
    fn names_do_not_end_a_string_for_graphviz() {
        assert_eq!(quoted("a\"b\\"), "\"a\\\"b\\\\\"");
    }
}
