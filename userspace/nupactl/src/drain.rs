// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Takes a controller out of service, and waits until no process uses it.

use std::collections::BTreeMap;
use std::io::Write;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::bail;
use clap::Args;
use schemars::JsonSchema;
use serde::Serialize;

use crate::facts::{choose, Controller, Host};
use crate::resources::{Owner, Resources};
use crate::view;

/// How long to wait before looking again how many are left.
const PAUSE: Duration = Duration::from_millis(200);
/// How long the names of those who are left hold, as long as their number does: some may have been about to get their queue pairs.
const NAMED: Duration = Duration::from_secs(5);

/// Which controller to take out of service, and for how long to wait.
#[derive(Debug, Args)]
pub(crate) struct Drain {
    /// The controller: its device, as `nupactl status` shows it, or its index. The only one, if it is not said
    controller: Option<String>,

    /// Wait for so many seconds at most, in place of without end; 0 only looks who is left
    #[arg(long, value_name = "SECONDS", conflicts_with = "undo")]
    timeout: Option<u32>,

    /// Put it back into service
    #[arg(long)]
    undo: bool,
}

/// How far a controller is drained.
#[derive(Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct Drained {
    /// Index of the controller.
    controller: u32,
    /// Name of its device on its bus.
    device: String,
    /// Whether processes get no new queue pairs.
    draining: bool,
    /// Queue pairs that processes have.
    queue_pairs: u32,
    /// The processes, as far as they are seen here.
    processes: Vec<Process>,
}

/// A process that has queue pairs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
struct Process {
    pid: u32,
    /// Its name, unless it ended meanwhile.
    name: Option<String>,
    /// How many it has.
    queue_pairs: u32,
}

/// Does it. False if there are queue pairs left when the time is over, or somebody else undid it meanwhile.
pub(crate) fn run(
    host: &Host,
    controllers: &[Controller],
    args: &Drain,
    json: bool,
    out: &mut impl Write,
) -> anyhow::Result<bool> {
    let controller = choose(controllers, args.controller.as_deref())?;
    host.drain(controller, !args.undo)?;
    let now = wait(host, controller, args.timeout, json, out)?;
    let text = match json {
        true => view::json(&now)?,
        false if !args.undo && !now.draining => {
            format!("{} was put back into service meanwhile", now.device)
        }
        false => now.summary(),
    };
    writeln!(out, "{text}")?;
    Ok(match args.undo {
        true => !now.draining,
        false => now.draining && now.queue_pairs == 0,
    })
}

/// Waits until the controller has no queue pairs of processes, is back in service, or the time in seconds is over; tells meanwhile who is left.
fn wait(
    host: &Host,
    controller: &Controller,
    timeout: Option<u32>,
    json: bool,
    out: &mut impl Write,
) -> anyhow::Result<Drained> {
    let timeout = timeout.map(u64::from).map(Duration::from_secs);
    let start = Instant::now();
    let (mut told, mut named): (Option<Drained>, _) = (None, start);
    loop {
        let known = told.as_ref().filter(|_| named.elapsed() < NAMED);
        if known.is_none() {
            named = Instant::now();
        }
        let Some(now) = look(host, controller, known)? else {
            bail!(
                "{} has gone: its driver was unbound or unloaded meanwhile",
                controller.device
            );
        };
        let over = timeout.is_some_and(|timeout| start.elapsed() >= timeout);
        // It may be somebody else who puts it back into service.
        if !now.draining || now.queue_pairs == 0 || over {
            return Ok(now);
        }
        // Each change is told once, while it is waited for.
        if !json && told.as_ref() != Some(&now) {
            writeln!(out, "{}", now.left())?;
            out.flush()?;
        }
        told = Some(now);
        sleep(PAUSE);
    }
}

/// Who has queue pairs of a controller; `None` if that has gone. `known`: what was found a moment ago.
fn look(
    host: &Host,
    controller: &Controller,
    known: Option<&Drained>,
) -> anyhow::Result<Option<Drained>> {
    let controllers = host.controllers()?;
    let Some(of) = controllers.iter().find(|of| of.index == controller.index) else {
        return Ok(None);
    };
    let name = || -> anyhow::Result<_> {
        let queue_pairs = Resources::open(host, std::slice::from_ref(of))?.queue_pairs()?;
        Ok(processes(queue_pairs.into_iter().map(|qp| qp.owner)))
    };
    Ok(Some(Drained {
        controller: of.index,
        device: of.device.clone(),
        draining: of.draining,
        queue_pairs: of.user_queue_pairs,
        processes: named(of.user_queue_pairs, known, name)?,
    }))
}

/// Processes that have so many queue pairs; of as many as are known they are the same. Only `name` finds out, by having the controller asked for
/// the state of each queue pair: not several times in a second, because those who destroy theirs wait behind that.
fn named(
    queue_pairs: u32,
    known: Option<&Drained>,
    name: impl FnOnce() -> anyhow::Result<Vec<Process>>,
) -> anyhow::Result<Vec<Process>> {
    match known {
        _ if queue_pairs == 0 => Ok(Vec::new()),
        Some(known) if known.queue_pairs == queue_pairs => Ok(known.processes.clone()),
        _ => name(),
    }
}

/// Processes by id. What the kernel has made is none of theirs.
fn processes(owners: impl Iterator<Item = Owner>) -> Vec<Process> {
    let mut found: BTreeMap<u32, Process> = BTreeMap::new();
    for owner in owners {
        let Some(pid) = owner.pid else { continue };
        let process = found.entry(pid).or_insert(Process {
            pid,
            name: owner.name,
            queue_pairs: 0,
        });
        process.queue_pairs = process.queue_pairs.saturating_add(1);
    }
    found.into_values().collect()
}

impl Drained {
    /// Who is left.
    fn left(&self) -> String {
        let mut text = format!("{}: {} left", self.device, pairs(self.queue_pairs));
        let mut unseen = self.queue_pairs;
        for process in &self.processes {
            unseen = unseen.saturating_sub(process.queue_pairs);
            let name = process.name.as_deref().unwrap_or("?");
            text.push_str(&format!(
                "\n  process {} ({name}): {}",
                process.pid,
                pairs(process.queue_pairs)
            ));
        }
        if unseen != 0 {
            text.push_str(&format!(
                "\n  processes that are not seen here, as in containers, or that end just now: {}",
                pairs(unseen)
            ));
        }
        text
    }

    fn summary(&self) -> String {
        let device = &self.device;
        match (self.draining, self.queue_pairs) {
            (false, _) => format!("{device} is in service"),
            (true, 0) => format!(
                "{device} is drained: no process has queue pairs, and none gets new ones. Its driver may be unbound or unloaded; \
                 `nupactl drain --undo {device}` puts it back into service"
            ),
            (true, _) => format!(
                "{}\nIt is still being drained: no process gets new queue pairs. End these processes and run `nupactl drain {device}` \
                 again, or put it back into service: `nupactl drain --undo {device}`",
                self.left()
            ),
        }
    }
}

fn pairs(count: u32) -> String {
    match count {
        1 => "1 queue pair".to_owned(),
        _ => format!("{count} queue pairs"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(pid: Option<u32>, name: &str) -> Owner {
        Owner {
            pid,
            name: Some(name.to_owned()),
        }
    }

    #[test]
    fn processes_are_looked_for_when_their_number_changes() {
        let process = |pid| Process {
            pid,
            name: None,
            queue_pairs: 4,
        };
        let known = Drained {
            controller: 0,
            device: "dax0.0".to_owned(),
            draining: true,
            queue_pairs: 4,
            processes: vec![process(7)],
        };
        let found = |count, known| named(count, known, || Ok(vec![process(8)])).unwrap();
        assert_eq!(found(4, Some(&known)), [process(7)]);
        assert_eq!(found(3, Some(&known)), [process(8)]);
        assert_eq!(found(4, None), [process(8)]);
        assert_eq!(found(0, None), []);
    }

    #[test]
    fn those_who_are_left_are_named_and_counted() {
        let owners = [
            owner(Some(7), "perf"),
            owner(None, "ib_core"),
            owner(Some(5), "store"),
            owner(Some(7), "perf"),
        ];
        let drained = Drained {
            controller: 0,
            device: "0000:00:04.0".to_owned(),
            draining: true,
            queue_pairs: 4,
            processes: processes(owners.into_iter()),
        };
        assert_eq!(
            drained.left(),
            "0000:00:04.0: 4 queue pairs left\n  process 5 (store): 1 queue pair\n  process 7 (perf): 2 queue pairs\n  \
             processes that are not seen here, as in containers, or that end just now: 1 queue pair"
        );
        assert!(drained
            .summary()
            .contains("nupactl drain --undo 0000:00:04.0"));
    }
}
