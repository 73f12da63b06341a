// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Counters, once or again and again.

mod histogram;
mod usage;

use std::io::Write;
use std::thread::sleep;
use std::time::Duration;

use serde::Serialize;

use crate::cli::Stats;
use crate::facts::{Counters, Host};
use crate::view;

pub(crate) use histogram::Histogram;
pub(crate) use usage::{By, Usage};

/// Something that counts.
trait Counted {
    /// What is read.
    type Counts;
    /// What is shown of it.
    type Shown: Serialize;

    fn read(&self) -> anyhow::Result<Vec<Self::Counts>>;

    /// By how much it has changed.
    fn since(now: &[Self::Counts], before: &[Self::Counts]) -> Vec<Self::Counts>;

    fn shown(&self, counts: &[Self::Counts]) -> Vec<Self::Shown>;

    fn table(&self, shown: &[Self::Shown]) -> String;
}

/// Prints counters as often as is wanted. False if there is no controller that runs.
pub(crate) fn show(
    host: &Host,
    args: &Stats,
    json: bool,
    out: &mut impl Write,
) -> anyhow::Result<bool> {
    match args.by {
        Some(by) => {
            repeat(&usage::QueuePairs { host, by }, args, json, out)?;
            Ok(true)
        }
        None if args.histogram => repeat(&histogram::Latency { host }, args, json, out),
        None => {
            let all = args.all;
            repeat(&Ports { host, all }, args, json, out)
        }
    }
}

/// Prints it as often as is wanted. Returns whether there was anything in the end.
fn repeat<C: Counted>(
    counted: &C,
    args: &Stats,
    json: bool,
    out: &mut impl Write,
) -> anyhow::Result<bool> {
    let pause = Duration::from_secs(args.watch.unwrap_or(1).into());
    // Without an end of its own it is watched until interrupted.
    let times = args.count.or_else(|| args.watch.is_none().then_some(1));
    let mut before = if args.delta {
        Some(counted.read()?)
    } else {
        None
    };
    let mut printed = 0u32;
    loop {
        if before.is_some() || printed > 0 {
            sleep(pause);
        }
        let now = counted.read()?;
        let shown = match &before {
            Some(before) => counted.shown(&C::since(&now, before)),
            None => counted.shown(&now),
        };
        if json {
            // Several are a line each.
            let text = if times == Some(1) {
                view::json(&shown)?
            } else {
                serde_json::to_string(&shown)?
            };
            writeln!(out, "{text}")?;
        } else {
            writeln!(out, "{}", counted.table(&shown))?;
        }
        out.flush()?;
        printed = printed.saturating_add(1);
        if times.is_some_and(|times| printed >= times) {
            return Ok(!now.is_empty());
        }
        if args.delta {
            before = Some(now);
        }
    }
}

/// Counters of controllers' ports.
struct Ports<'a> {
    host: &'a Host,
    all: bool,
}

impl Counted for Ports<'_> {
    type Counts = Counters;
    type Shown = Counters;

    fn read(&self) -> anyhow::Result<Vec<Counters>> {
        self.host.counters(&self.host.controllers()?)
    }

    fn since(now: &[Counters], before: &[Counters]) -> Vec<Counters> {
        since(now, before)
    }

    fn shown(&self, counts: &[Counters]) -> Vec<Counters> {
        counts.to_vec()
    }

    fn table(&self, shown: &[Counters]) -> String {
        view::stats(shown, self.all)
    }
}

/// By how much counters have changed. Those of a controller that was reset meanwhile began anew.
fn since(now: &[Counters], before: &[Counters]) -> Vec<Counters> {
    let mut changed = now.to_vec();
    for counters in &mut changed {
        let Some(old) = before
            .iter()
            .find(|old| old.controller == counters.controller)
        else {
            continue;
        };
        if counters
            .counters
            .iter()
            .any(|(name, value)| old.counters.get(name).is_some_and(|old| old > value))
        {
            continue;
        }
        for (name, value) in &mut counters.counters {
            *value = value.saturating_sub(old.counters.get(name).copied().unwrap_or(0));
        }
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(controller: u32, frames: u64, bytes: u64) -> Counters {
        Counters {
            controller,
            device: String::new(),
            counters: [("frames".to_owned(), frames), ("bytes".to_owned(), bytes)].into(),
        }
    }

    #[test]
    fn differences_are_by_controller_and_begin_anew_with_a_reset() {
        let before = [counters(0, 5, 500), counters(1, 7, 700)];
        let now = [
            counters(1, 9, 1000),
            counters(0, 3, 600),
            counters(2, 4, 400),
        ];
        let changed = since(&now, &before);
        let values = |index: usize| {
            let counters = &changed[index].counters;
            (counters["frames"], counters["bytes"])
        };
        assert_eq!(
            (values(0), values(1), values(2)),
            ((2, 300), (3, 600), (4, 400))
        );
    }
}
