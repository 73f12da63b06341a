// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A hostile member of a pool: threads that write anything to the pool, but to what is the victims' alone.
//!
//! It maps the file that is the memory of all hosts of a pool, beside the virtual machines. On a node the pool's driver has that range for itself,
//! and the kernel maps it to no program; unbound, the node would be no member any more. Here the node is one for as long as
//! this leaves it, one program does for all kinds of pools, and what it writes moves while the others read it, since it is not slowed down by an emulated
//! processor. In the end it leaves all slots that are not the victims' free.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context as _};
use clap::Args;
use serde_json::json;

use crate::draw::Draw;
use crate::pool::{HostileMember, Memory, Seen};
use crate::tally::Tally;

/// What to write to, and for how long.
#[derive(Debug, Args)]
pub(crate) struct Peer {
    /// File that is the pool's memory
    #[arg(long)]
    pool: PathBuf,
    /// Node of the pool that is hostile
    #[arg(long)]
    node: u16,
    /// Node that is spared what it writes alone, and what is between it and other such nodes; may be repeated
    #[arg(long, required = true)]
    victim: Vec<u16>,
    /// Spare nothing: not the superblock, not what is the victims', and not the word by which others have them start anew
    #[arg(long)]
    everything: bool,
    /// Threads
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=12))]
    threads: u16,
    /// Seconds to go on for
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// What to begin with; another one each time if not said
    #[arg(long)]
    seed: Option<u64>,
}

impl Peer {
    /// Writes for so long, and prints what.
    ///
    /// # Errors
    ///
    /// If there is no pool of this version, or it has no such nodes.
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let seed = self.seed.unwrap_or_else(|| fastrand::u64(..));
        println!("seed {seed}");
        let memory = Memory::open(&self.pool, &self.victim, self.everything)
            .with_context(|| self.pool.display().to_string())?;
        let fits = |node: &u16| *node < memory.nodes();
        let spared = self.victim.contains(&self.node);
        ensure!(
            self.victim.iter().all(fits) && fits(&self.node) && !spared,
            "the nodes of the pool are 0 to {}, and a victim cannot be the hostile one",
            memory.nodes().saturating_sub(1)
        );
        let end = Instant::now().checked_add(Duration::from_secs(self.seconds));
        let end = end.context("there are not so many seconds")?;
        let done = Mutex::new((Tally::default(), Seen::default()));
        let mut draw = Draw::new(seed);
        thread::scope(|scope| {
            for _ in 0..self.threads {
                let draw = Draw::new(draw.seed());
                let mut member = HostileMember::new(&memory, self.node, &self.victim, draw);
                let done = &done;
                scope.spawn(move || {
                    while Instant::now() < end {
                        member.act();
                    }
                    let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                    done.0.take(&mut member.tally);
                    done.1.add(&member.seen);
                });
            }
        });
        let mut last = HostileMember::new(&memory, self.node, &self.victim, draw);
        last.leave();
        let (tally, seen) = done.into_inner().unwrap_or_else(PoisonError::into_inner);
        println!(
            "{}",
            json!({
                "seed": seed,
                "operations": tally.total(),
                "classes": tally.to_json(),
                "links": {"made": seen.made, "refused": seen.refused, "unanswered": seen.unanswered},
                "entries": {"shown": seen.shown, "taken": seen.taken},
            })
        );
        Ok(())
    }
}
