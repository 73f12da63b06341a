// SPDX-License-Identifier: GPL-2.0 OR MIT

//! How long requests take, by classes of time.

use nupa_proto::admin::{FIRST_LATENCY, PORT_COUNTER_NAMES};
use schemars::JsonSchema;
use serde::Serialize;

use super::{since, Counted};
use crate::facts::{Counters, Host};
use crate::view;

/// Cells of the longest bar.
const BAR: u64 = 40;

/// How long the messages took that a controller has measured: of each queue pair one of 64.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Histogram {
    /// Index of the controller.
    pub(crate) controller: u32,
    /// Name of its device on its bus.
    pub(crate) device: String,
    /// By time, the shortest ones first.
    pub(crate) classes: Vec<Class>,
}

/// Messages that took about the same time.
#[derive(Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct Class {
    /// They took less than so many microseconds, and no less than the class before this; the last one has no limit.
    pub(crate) below_us: Option<u64>,
    /// How many were measured.
    pub(crate) messages: u64,
}

/// Latency of controllers.
pub(super) struct Latency<'a> {
    pub(super) host: &'a Host,
}

impl Counted for Latency<'_> {
    type Counts = Counters;
    type Shown = Histogram;

    fn read(&self) -> anyhow::Result<Vec<Counters>> {
        self.host.counters(&self.host.controllers()?)
    }

    fn since(now: &[Counters], before: &[Counters]) -> Vec<Counters> {
        since(now, before)
    }

    fn shown(&self, counts: &[Counters]) -> Vec<Histogram> {
        let histogram = |of: &Counters| Histogram {
            controller: of.controller,
            device: of.device.clone(),
            classes: classes(of),
        };
        counts.iter().map(histogram).collect()
    }

    fn table(&self, shown: &[Histogram]) -> String {
        table(shown)
    }
}

/// Classes among counters; none of a module that has no such counters.
fn classes(of: &Counters) -> Vec<Class> {
    let names = PORT_COUNTER_NAMES.get(FIRST_LATENCY..).unwrap_or_default();
    let last = names.len().saturating_sub(1);
    let class = |(at, name): (usize, &&str)| {
        Some(Class {
            below_us: (at < last).then(|| 1 << at),
            messages: *of.counters.get(*name)?,
        })
    };
    names.iter().enumerate().filter_map(class).collect()
}

fn table(shown: &[Histogram]) -> String {
    let mut table = view::table(&["DEVICE", "LATENCY", "MESSAGES", ""]);
    for histogram in shown {
        let counts = histogram.classes.iter().map(|class| class.messages);
        let most = counts.clone().max().unwrap_or(0);
        if most == 0 {
            table.add_row([&histogram.device, "none was measured", "0", ""]);
        }
        // Up to the longest that there was.
        let used = counts.collect::<Vec<_>>();
        let used = used.iter().rposition(|count| *count != 0);
        for class in histogram
            .classes
            .iter()
            .take(used.map_or(0, |at| at.saturating_add(1)))
        {
            let bar = class.messages.saturating_mul(BAR).div_ceil(most.max(1));
            table.add_row([
                histogram.device.clone(),
                class.limit(),
                class.messages.to_string(),
                "#".repeat(usize::try_from(bar).unwrap_or(0)),
            ]);
        }
    }
    view::trimmed(&table)
}

impl Class {
    fn limit(&self) -> String {
        match self.below_us {
            None => "longer".to_owned(),
            Some(us) if us < 1000 => format!("below {us} us"),
            Some(us) => format!("below {}.{} ms", us / 1000, us % 1000 / 100),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_there_are_messages() {
        let values = [
            ("tx_latency_below_1us", 0),
            ("tx_latency_below_4us", 80),
            ("tx_latency_below_1024us", 1),
            ("tx_latency_longer", 0),
        ];
        let names = PORT_COUNTER_NAMES
            .iter()
            .map(|name| ((*name).to_owned(), 0));
        let mut counters: std::collections::BTreeMap<_, _> = names.collect();
        counters.extend(values.map(|(name, value)| (name.to_owned(), value)));
        let of = Counters {
            controller: 0,
            device: "dax0.0".to_owned(),
            counters,
        };
        let found = classes(&of);
        assert_eq!(found.len(), 12);
        assert_eq!((found[2].below_us, found[2].messages), (Some(4), 80));
        assert_eq!((found[11].below_us, found[11].messages), (None, 0));
        let text = table(&[Histogram {
            controller: 0,
            device: of.device,
            classes: found,
        }]);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 1 + 11, "{text}");
        assert!(
            lines[3].ends_with(&format!("80        {}", "#".repeat(40))),
            "{text}"
        );
        assert!(
            lines[11].contains("below 1.0 ms") && lines[11].ends_with(" #"),
            "{text}"
        );
    }
}
