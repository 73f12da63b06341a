// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Measurements between all nodes of a fabric, and which of them do not fit to the others.

mod tables;

use std::collections::BTreeMap;
use std::io::Write;
use std::thread::sleep;
use std::time::Duration;

use anyhow::ensure;
use clap::Args;
use schemars::JsonSchema;
use serde::Serialize;

use super::fault::Fault;
use super::judge::{culprit, is_odd, reference, Better};
use super::probe;
use super::wire::{Report, PORT};
use crate::events::named;
use crate::facts::{Controller, Host};
use crate::reach::{NodeDown, Way};
use crate::view;

/// How often a pair is measured again that does not fit: a host may be busy with something else for a moment.
const AGAIN: u32 = 2;
/// How often a node is asked that is busy, and how long it is waited between.
const TRIES: u32 = 10;
const PAUSE: Duration = Duration::from_millis(300);

/// How to measure.
#[derive(Debug, Args)]
pub(crate) struct Selftest {
    /// Measure each pair for so many seconds
    #[arg(short, long, value_name = "SECONDS", default_value = "0.5", value_parser = super::seconds)]
    duration: Duration,

    /// Flag pairs that are worse than the better quarter by more than this factor
    #[arg(long, value_name = "FACTOR", default_value = "4", value_parser = factor)]
    factor: f64,
}

fn factor(text: &str) -> Result<f64, String> {
    let factor: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    // NaN is in no range.
    if !(1.5..=1e6).contains(&factor) {
        return Err("not from 1.5 to 1000000".to_owned());
    }
    Ok(factor)
}

/// What is known of a fabric after all nodes measured to each other.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Fabric {
    /// Identity of the fabric, 16 hexadecimal digits.
    fabric: String,
    /// Nodes that are up, this one too.
    nodes: Vec<Node>,
    /// Each node to each other one.
    pairs: Vec<Pair>,
    /// Microseconds of a round trip that a quarter of the pairs has, or less.
    latency_reference: Option<f64>,
    /// Bytes in a second that a quarter of the pairs has, or more.
    rate_reference: Option<f64>,
    /// The factor by which a pair may be worse.
    factor: f64,
    /// The node that all flagged pairs have in common, if there is one.
    odd_node: Option<u16>,
    /// No pair failed, and none is flagged.
    fine: bool,
}

/// A node.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Node {
    /// Its id.
    node: u16,
    /// Its name in /etc/nupa/nodes.conf.
    name: Option<String>,
    /// Why it could not be measured with, and what to do.
    trouble: Option<String>,
}

/// One node to another one. All bytes were compared.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Pair {
    /// Id of the node that measured.
    from: u16,
    /// Id of the other one.
    to: u16,
    /// Microseconds of the median round trip.
    latency: Option<f64>,
    /// Bytes in a second to the other one.
    bytes_per_second: Option<u64>,
    /// Why it failed, and what to do.
    trouble: Option<String>,
    /// The latency does not fit to that of the others.
    slow_latency: bool,
    /// The bandwidth does not fit to that of the others.
    slow_rate: bool,
}

/// Measures, prints, and says whether all is well.
pub(super) fn show(
    host: &Host,
    controllers: &[Controller],
    args: &Selftest,
    json: bool,
    out: &mut impl Write,
) -> anyhow::Result<bool> {
    let mut found: Vec<Fabric> = Vec::new();
    for controller in controllers {
        let known = found.iter().any(|of| of.fabric == controller.fabric);
        if !known && controller.epoch.is_some() {
            found.push(Tester::open(host, controller, args)?.run());
        }
    }
    ensure!(
        !found.is_empty(),
        "no controller runs: `nupactl status` says why"
    );
    let text = match json {
        true => view::json(&found)?,
        false => {
            let texts: Vec<_> = found.iter().map(tables::text).collect();
            texts.join("\n\n")
        }
    };
    writeln!(out, "{text}")?;
    Ok(found.iter().all(|fabric| fabric.fine))
}

/// Has nodes of a fabric measure.
struct Tester<'a> {
    args: &'a Selftest,
    /// Id of this node.
    own: u16,
    fabric: u64,
    /// The ways to the other nodes, and names of all.
    ways: BTreeMap<u16, Way>,
    names: BTreeMap<u16, Option<String>>,
    /// Why nodes cannot be measured with.
    troubles: BTreeMap<u16, Fault>,
}

impl<'a> Tester<'a> {
    fn open(host: &Host, controller: &Controller, args: &'a Selftest) -> anyhow::Result<Self> {
        let mut ways = BTreeMap::new();
        for peer in host.peers()? {
            if peer.controller == controller.index {
                ways.insert(peer.node, Way::through(host, controller, peer.node)?);
            }
        }
        if ways.is_empty() {
            let text = format!(
                "no other node of fabric {} is up, so there is nothing to measure: `nupactl peers` shows those that are",
                controller.fabric
            );
            return Err(NodeDown(text).into());
        }
        let all = ways.keys().copied().chain([controller.node]);
        Ok(Self {
            args,
            own: controller.node,
            fabric: u64::from_str_radix(&controller.fabric, 16)?,
            names: all.map(|node| (node, host.name(node))).collect(),
            ways,
            troubles: BTreeMap::new(),
        })
    }

    fn run(mut self) -> Fabric {
        let nodes: Vec<u16> = self.names.keys().copied().collect();
        let mut measured = BTreeMap::new();
        // This one first, which finds out who does not serve at all.
        let mut order = nodes.clone();
        order.sort_by_key(|node| *node != self.own);
        for from in &order {
            for to in nodes.iter().filter(|to| *to != from) {
                let report = self.measure(*from, *to);
                measured.insert((*from, *to), report);
            }
        }
        for _ in 0..AGAIN {
            let judged = Judged::new(&measured, self.args.factor);
            for (from, to) in judged.odd(&measured) {
                let again = self.measure(from, to);
                let report = measured.entry((from, to)).or_insert(again);
                *report = better(*report, again);
            }
        }
        self.result(&measured)
    }

    /// Has a node measure to another one.
    fn measure(&mut self, from: u16, to: u16) -> Report {
        for node in [from, to] {
            if let Some(fault) = self.troubles.get(&node) {
                return Err(*fault);
            }
        }
        for _ in 1..TRIES {
            match self.measure_once(from, to) {
                Err(Fault::Busy) => {
                    self.troubles.remove(&from);
                    sleep(PAUSE);
                }
                report => return report,
            }
        }
        self.measure_once(from, to)
    }

    fn measure_once(&mut self, from: u16, to: u16) -> Report {
        let time = self.args.duration;
        let way = |node| self.ways.get(&node).map(|way| way.port(PORT));
        let report = if from == self.own {
            let to = way(to).ok_or(Fault::Down)?;
            probe::pair(to, time)
        } else {
            let from_way = way(from).ok_or(Fault::Down)?;
            match probe::ask_pair(from_way, self.fabric, to, time) {
                Ok(report) => report,
                Err(fault) => {
                    self.troubles.insert(from, fault);
                    return Err(fault);
                }
            }
        };
        self.note(from, to, report);
        report
    }

    /// Measures no more with a node of which this one has found that it does not serve. What others say of it is theirs: one that says
    /// it of all would have nobody measured.
    fn note(&mut self, from: u16, to: u16, report: Report) {
        match report {
            Err(fault) if from == self.own && fault.is_of_node() => {
                self.troubles.insert(to, fault);
            }
            _ => {}
        }
    }

    fn result(self, measured: &BTreeMap<(u16, u16), Report>) -> Fabric {
        let text = |node: u16| {
            let name = self.names.get(&node);
            named(node, name.and_then(|name| name.as_deref()))
        };
        let judged = Judged::new(measured, self.args.factor);
        let odd = judged.odd(measured);
        let pairs = measured.iter().map(|(&(from, to), report)| Pair {
            from,
            to,
            latency: report.ok().map(micros),
            bytes_per_second: report.ok().map(|(_, rate)| rate),
            trouble: report.err().map(|fault| {
                let of = if fault == Fault::NoInterface || self.troubles.contains_key(&from) {
                    from
                } else {
                    to
                };
                fault.text(&text(of))
            }),
            slow_latency: judged.slow_latency(report),
            slow_rate: judged.slow_rate(report),
        });
        let pairs: Vec<_> = pairs.collect();
        let nodes = self.names.iter().map(|(&node, name)| Node {
            node,
            name: name.clone(),
            trouble: self
                .troubles
                .get(&node)
                .map(|fault| fault.text(&text(node))),
        });
        Fabric {
            fabric: format!("{:016x}", self.fabric),
            nodes: nodes.collect(),
            latency_reference: judged.latency,
            rate_reference: judged.rate,
            factor: self.args.factor,
            odd_node: culprit(&odd),
            fine: odd.is_empty() && pairs.iter().all(|pair| pair.trouble.is_none()),
            pairs,
        }
    }
}

/// What pairs are compared with.
struct Judged {
    latency: Option<f64>,
    rate: Option<f64>,
    factor: f64,
}

impl Judged {
    fn new(measured: &BTreeMap<(u16, u16), Report>, factor: f64) -> Self {
        let values = |of: fn((u64, u64)) -> f64| {
            let all = measured.values().flatten();
            all.map(|report| of(*report)).collect()
        };
        Self {
            latency: reference(values(micros), Better::Less),
            rate: reference(values(rate), Better::More),
            factor,
        }
    }

    fn slow_latency(&self, report: &Report) -> bool {
        let odd = |report| {
            Some(is_odd(
                micros(report),
                self.latency?,
                self.factor,
                Better::Less,
            ))
        };
        report.ok().and_then(odd).unwrap_or(false)
    }

    fn slow_rate(&self, report: &Report) -> bool {
        let odd = |report| Some(is_odd(rate(report), self.rate?, self.factor, Better::More));
        report.ok().and_then(odd).unwrap_or(false)
    }

    /// Pairs that do not fit to the others.
    fn odd(&self, measured: &BTreeMap<(u16, u16), Report>) -> Vec<(u16, u16)> {
        let odd = measured
            .iter()
            .filter(|(_, report)| self.slow_latency(report) || self.slow_rate(report));
        odd.map(|(pair, _)| *pair).collect()
    }
}

fn micros(report: (u64, u64)) -> f64 {
    report.0 as f64 / 1000.0
}

fn rate(report: (u64, u64)) -> f64 {
    report.1 as f64
}

/// The better values of two. A pair that fails at any time has failed.
fn better(one: Report, other: Report) -> Report {
    let ((latency, rate), (other_latency, other_rate)) = (one?, other?);
    Ok((latency.min(other_latency), rate.max(other_rate)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_that_do_not_fit_are_found_and_failures_are_not_compared() {
        let mut measured: BTreeMap<(u16, u16), Report> = BTreeMap::new();
        for (from, to) in [(1, 2), (2, 1), (1, 3), (3, 1), (2, 3), (3, 2)] {
            let rate = if from == 3 { 1_000_000 } else { 50_000_000 };
            measured.insert((from, to), Ok((90_000, rate)));
        }
        measured.insert((1, 2), Err(Fault::Wrong));
        let judged = Judged::new(&measured, 4.0);
        assert_eq!(judged.odd(&measured), [(3, 1), (3, 2)]);
        assert_eq!(culprit(&judged.odd(&measured)), Some(3));
        assert!(judged.slow_rate(&measured[&(3, 1)]) && !judged.slow_latency(&measured[&(3, 1)]));
        assert!(Judged::new(&measured, 60.0).odd(&measured).is_empty());
    }

    #[test]
    fn a_second_time_counts_if_it_is_better() {
        assert_eq!(better(Ok((9, 1)), Ok((5, 2))), Ok((5, 2)));
        assert_eq!(better(Ok((5, 2)), Ok((9, 1))), Ok((5, 2)));
        assert_eq!(better(Ok((5, 2)), Err(Fault::Wrong)), Err(Fault::Wrong));
    }

    #[test]
    fn what_a_node_says_of_others_ends_no_measurement() {
        let args = Selftest {
            duration: Duration::ZERO,
            factor: 4.0,
        };
        let mut tester = Tester {
            args: &args,
            own: 1,
            fabric: 0,
            ways: BTreeMap::new(),
            names: BTreeMap::new(),
            troubles: BTreeMap::new(),
        };
        for fault in [Fault::Nobody, Fault::OtherProgram, Fault::Version(0)] {
            tester.note(3, 2, Err(fault));
        }
        tester.note(1, 4, Err(Fault::Late));
        assert_eq!(tester.troubles, BTreeMap::new());
        tester.note(1, 2, Err(Fault::Nobody));
        assert_eq!(tester.troubles, BTreeMap::from([(2, Fault::Nobody)]));
    }

    #[test]
    fn factors_have_limits() {
        assert_eq!(factor("2.5"), Ok(2.5));
        for wrong in ["", "1", "NaN", "inf", "-4"] {
            assert!(factor(wrong).is_err(), "{wrong}");
        }
    }
}
