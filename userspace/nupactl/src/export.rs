// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Metrics for Prometheus and others, as OpenMetrics text.

use std::fmt::Write;

use crate::facts::{Controller, Counters, Host, Peer};
use crate::netlink::NoDriver;

/// A metric, and its samples: labels and value.
struct Family<'a> {
    name: &'a str,
    kind: &'a str,
    help: &'a str,
    samples: Vec<(String, u64)>,
}

impl Family<'_> {
    fn write(&self, text: &mut String) {
        let suffix = if self.kind == "counter" { "_total" } else { "" };
        // Writing to a string does not fail.
        let _ = writeln!(text, "# TYPE {} {}", self.name, self.kind);
        let _ = writeln!(text, "# HELP {} {}", self.name, self.help);
        for (labels, value) in &self.samples {
            let labels = match labels.is_empty() {
                true => String::new(),
                false => format!("{{{labels}}}"),
            };
            let _ = writeln!(text, "{}{suffix}{labels} {value}", self.name);
        }
    }
}

/// All that is known of this host, by <https://github.com/prometheus/OpenMetrics>. That no driver is loaded is known, too.
pub(crate) fn read() -> anyhow::Result<String> {
    let host = match Host::open() {
        Ok(host) => host,
        Err(error) if error.is::<NoDriver>() => return Ok(text(false, &[], &[], &[])),
        Err(error) => return Err(error),
    };
    let controllers = host.controllers()?;
    let (peers, counters) = (host.peers()?, host.counters(&controllers)?);
    Ok(text(true, &controllers, &peers, &counters))
}

fn text(loaded: bool, controllers: &[Controller], peers: &[Peer], counters: &[Counters]) -> String {
    let mut text = String::new();
    let up = vec![(String::new(), u64::from(loaded))];
    gauge("nupa_up", "1 if the driver is loaded, else 0.", up).write(&mut text);
    for family in gauges(controllers, peers) {
        family.write(&mut text);
    }
    let names = counters.first().map(|counters| counters.counters.keys());
    for name in names.into_iter().flatten() {
        let samples = counters.iter().filter_map(|counters| {
            let value = counters.counters.get(name)?;
            Some((label("device", &counters.device), *value))
        });
        let family = Family {
            name: &format!("nupa_{name}"),
            kind: "counter",
            help: "Counter of a controller's port since it was reset, see Documentation/rdma.md.",
            samples: samples.collect(),
        };
        family.write(&mut text);
    }
    text.push_str("# EOF");
    text
}

fn gauges<'a>(controllers: &[Controller], peers: &[Peer]) -> [Family<'a>; 5] {
    let each = |value: &dyn Fn(&Controller) -> u64| {
        let sample =
            |controller: &Controller| (label("device", &controller.device), value(controller));
        controllers.iter().map(sample).collect()
    };
    let info = controllers.iter().map(|controller| {
        let labels = [
            label("device", &controller.device),
            label("node", &controller.node.to_string()),
            label("name", controller.name.as_deref().unwrap_or_default()),
            label("fabric", &controller.fabric),
            label("firmware", &controller.firmware),
        ];
        (labels.join(","), 1)
    });
    let running = each(&|controller| u64::from(controller.state == "running"));
    let up = each(&|controller| u64::from(controller.link_up));
    let speed = each(&|controller| u64::from(controller.link_speed).saturating_mul(1_000_000));
    let others = each(&|controller| {
        let of = peers
            .iter()
            .filter(|peer| peer.controller == controller.index);
        of.count() as u64
    });
    [
        gauge(
            "nupa_controller",
            "A controller of this host; always 1.",
            info.collect(),
        ),
        gauge(
            "nupa_controller_running",
            "1 if the controller works, else 0.",
            running,
        ),
        gauge("nupa_link_up", "1 if the link is up, else 0.", up),
        gauge(
            "nupa_link_speed_bits_per_second",
            "Speed of the link; 0 if it is not known.",
            speed,
        ),
        gauge("nupa_peers", "Other nodes that are up.", others),
    ]
}

fn gauge<'a>(name: &'a str, help: &'a str, samples: Vec<(String, u64)>) -> Family<'a> {
    Family {
        name,
        kind: "gauge",
        help,
        samples,
    }
}

/// A label with its value, as the format escapes it.
fn label(name: &str, value: &str) -> String {
    let value = value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n");
    format!("{name}=\"{value}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_have_a_type_a_help_and_a_sample_for_each_device() {
        let counters = ["0000:01:00.0", "dax0.0"].map(|device| Counters {
            controller: 0,
            device: device.to_owned(),
            counters: [("tx_bytes".to_owned(), 7)].into(),
        });
        let text = text(true, &[], &[], &counters);
        let lines: Vec<_> = text
            .lines()
            .filter(|line| line.contains("nupa_tx_bytes"))
            .collect();
        assert_eq!(lines[0], "# TYPE nupa_tx_bytes counter");
        assert!(lines[1].starts_with("# HELP nupa_tx_bytes "));
        let samples = [
            "nupa_tx_bytes_total{device=\"0000:01:00.0\"} 7",
            "nupa_tx_bytes_total{device=\"dax0.0\"} 7",
        ];
        assert_eq!(lines[2..], samples);
        assert!(text.ends_with("# EOF"));
    }

    #[test]
    fn without_a_driver_it_is_down_and_the_text_is_complete() {
        let text = text(false, &[], &[], &[]);
        assert!(text.starts_with("# TYPE nupa_up gauge\n"), "{text}");
        assert!(
            text.contains("\nnupa_up 0\n") && text.ends_with("\n# EOF"),
            "{text}"
        );
    }

    #[test]
    fn values_of_labels_are_escaped() {
        assert_eq!(label("name", "a\"b\\c\nd"), "name=\"a\\\"b\\\\c\\nd\"");
    }
}
