// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Processes that do everything wrong, one after the other and beside each other, until their time is over. Some are killed.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{bail, Context as _};
use rustix::process::Signal;
use serde_json::{json, Value};

use crate::draw::Draw;
use crate::tally::Tally;
use crate::worker::Work;

/// Workers at once.
const BESIDE: usize = 2;
/// A worker's time, in milliseconds: at least, and at most so many more.
const SHORTEST: u64 = 300;
const MORE: u32 = 4000;
/// How often the parent looks.
const LOOK: Duration = Duration::from_millis(50);

/// A worker and who reads what it says.
struct Running {
    child: Child,
    said: JoinHandle<Option<Value>>,
    /// When it is to be killed, if it is.
    kill: Option<Instant>,
    /// When it should have ended by itself.
    late: Instant,
    killed: bool,
}

/// What became of the workers.
#[derive(Debug, Default)]
struct Ends {
    ended: u64,
    killed: u64,
    /// By a signal that nobody sent, and with an error.
    broken: u64,
    failed: u64,
}

/// Runs workers for so long, and prints what they did.
///
/// # Errors
///
/// If no worker could do anything, or one does not end.
pub(crate) fn run(work: &Work, seconds: u64) -> anyhow::Result<()> {
    println!("seed {}", work.seed);
    let mut draw = Draw::new(work.seed);
    let (mut tally, mut ends) = (Tally::default(), Ends::default());
    let end = Instant::now().checked_add(Duration::from_secs(seconds));
    let end = end.context("there are not so many seconds")?;
    let mut running: Vec<Running> = Vec::new();
    while Instant::now() < end || !running.is_empty() {
        if Instant::now() < end && running.len() < BESIDE {
            running.push(start(work, &mut draw)?);
            continue;
        }
        thread::sleep(LOOK);
        let mut still = Vec::new();
        for mut worker in running {
            match look(&mut worker)? {
                None => still.push(worker),
                Some(status) => finish(worker, status, &mut tally, &mut ends),
            }
        }
        running = still;
    }
    println!(
        "{}",
        json!({
            "seed": work.seed,
            "operations": tally.total(),
            "classes": tally.to_json(),
            "children": {"ended": ends.ended, "killed": ends.killed, "broken": ends.broken, "failed": ends.failed},
        })
    );
    if tally.total() == 0 {
        bail!("no worker could do anything");
    }
    Ok(())
}

/// Starts a worker of a seed of its own.
fn start(work: &Work, draw: &mut Draw) -> anyhow::Result<Running> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let lasts = SHORTEST.saturating_add(draw.small(MORE).into());
    let mut command = Command::new(program);
    command.args(["worker", "--device", &work.device]);
    command.args(["--seed", &draw.seed().to_string()]);
    command.args(["--milliseconds", &lasts.to_string()]);
    command.args(["--threads", &work.threads.to_string()]);
    for peer in &work.peers {
        command.args(["--peer", &std::net::Ipv6Addr::from(*peer).to_string()]);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().context("cannot start a worker")?;
    let out = child.stdout.take().context("a worker has no output")?;
    let now = Instant::now();
    let kill = Duration::from_millis(draw.small(MORE).into());
    let kill = draw.once_in(2).then(|| now.checked_add(kill)).flatten();
    let late = now
        .checked_add(END_TIMEOUT)
        .context("there is no such time")?;
    Ok(Running {
        child,
        said: thread::spawn(move || last_line(out)),
        kill,
        late,
        killed: false,
    })
}

/// A worker that has not ended by then hangs.
const END_TIMEOUT: Duration = Duration::from_secs(60);

/// The last line that was JSON.
fn last_line(out: ChildStdout) -> Option<Value> {
    let lines = BufReader::new(out).lines().map_while(Result::ok);
    lines
        .filter_map(|line| serde_json::from_str(&line).ok())
        .last()
}

/// Kills a worker if that is due; how it ended.
fn look(worker: &mut Running) -> anyhow::Result<Option<ExitStatus>> {
    let now = Instant::now();
    if worker.kill.is_some_and(|at| at <= now) && !worker.killed {
        // It may have ended just now.
        let _ = worker.child.kill();
        worker.killed = true;
    }
    let ended = worker
        .child
        .try_wait()
        .context("cannot wait for a worker")?;
    if ended.is_none() && now >= worker.late {
        bail!("worker {} hangs: see its stack in /proc", worker.child.id());
    }
    Ok(ended)
}

/// Counts a worker that has ended, and what it did.
fn finish(worker: Running, status: ExitStatus, tally: &mut Tally, ends: &mut Ends) {
    let count = match status.signal() {
        Some(signal) if worker.killed && signal == Signal::KILL.as_raw() => &mut ends.killed,
        Some(_) => &mut ends.broken,
        None if status.success() => &mut ends.ended,
        None => &mut ends.failed,
    };
    *count = count.saturating_add(1);
    if let Ok(Some(said)) = worker.said.join() {
        tally.take_json(&said);
    }
}
