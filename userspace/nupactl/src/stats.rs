// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Counters, once or again and again.

use std::io::Write;
use std::thread::sleep;
use std::time::Duration;

use crate::cli::Stats;
use crate::facts::{Counters, Host};
use crate::view;

/// Prints counters as often as is wanted. False if there is no controller that runs.
pub(crate) fn show(
    host: &Host,
    args: &Stats,
    json: bool,
    out: &mut impl Write,
) -> anyhow::Result<bool> {
    let pause = Duration::from_secs(args.watch.unwrap_or(1).into());
    // Without an end of its own it is watched until interrupted.
    let times = args.count.or_else(|| args.watch.is_none().then_some(1));
    let mut before = if args.delta { Some(read(host)?) } else { None };
    let mut shown = 0u32;
    loop {
        if before.is_some() || shown > 0 {
            sleep(pause);
        }
        let now = read(host)?;
        let counters = match &before {
            Some(before) => since(&now, before),
            None => now.clone(),
        };
        if json {
            // Several are a line each.
            let text = if times == Some(1) {
                view::json(&counters)?
            } else {
                serde_json::to_string(&counters)?
            };
            writeln!(out, "{text}")?;
        } else {
            writeln!(out, "{}", view::stats(&counters, args.all))?;
        }
        out.flush()?;
        shown = shown.saturating_add(1);
        if times.is_some_and(|times| shown >= times) {
            return Ok(!now.is_empty());
        }
        if args.delta {
            before = Some(now);
        }
    }
}

fn read(host: &Host) -> anyhow::Result<Vec<Counters>> {
    host.counters(&host.controllers()?)
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
