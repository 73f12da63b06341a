// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A host behind a controller whose driver is hostile.
//!
//! It takes the place of a virtual machine at the emulated switch, as a VMM does: so there is nothing between it and the controller, no kernel
//! can fault in its place, and several threads write to its memory while the controller reads there.

mod function;
mod lies;
mod make;

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use serde_json::json;

use crate::draw::Draw;
use crate::tally::Tally;
use crate::target::{self, Target};

use self::function::Function;

/// The controller, and for how long.
#[derive(Debug, Args)]
pub(crate) struct Driver {
    /// Socket of a controller of the switch that no VM is connected to
    #[arg(long)]
    socket: PathBuf,
    /// GID of another node, to send datagrams to; may be repeated
    #[arg(long, value_parser = crate::gid)]
    peer: Vec<[u8; 16]>,
    /// What is not the driver's, and what it tries to reach all the same, as NODE:QPN:RKEY:ADDRESS: a queue pair that is connected to another node,
    /// and a region there. May be repeated
    #[arg(long, value_parser = target::parse)]
    target: Vec<Target>,
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

/// Operations between two rests of a thread. The switch is one thread, which others need as well.
const BATCH: u32 = 32;
const REST: Duration = Duration::from_millis(5);
/// How long the function is left in whatever state it is in before it is started anew.
const LIFE: Duration = Duration::from_millis(1500);

impl Driver {
    /// Writes for so long, and prints what.
    ///
    /// # Errors
    ///
    /// If the switch cannot be reached or goes, or a function that is started anew does not come up.
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let seed = self.seed.unwrap_or_else(|| fastrand::u64(..));
        println!("seed {seed}");
        let function = Function::connect(&self.socket, self.peer.clone(), self.target.clone())
            .with_context(|| self.socket.display().to_string())?;
        let end = Instant::now().checked_add(Duration::from_secs(self.seconds));
        let end = end.context("there are not so many seconds")?;
        let mut draw = Draw::new(seed);
        let done = Mutex::new(Tally::default());
        let mut lives = 0u64;
        while Instant::now() < end {
            let made = function.start(&mut draw);
            made.context("the function does not start")?;
            lives = lives.saturating_add(1);
            let until = Instant::now().checked_add(LIFE).unwrap_or(end).min(end);
            thread::scope(|scope| {
                for _ in 0..self.threads {
                    let (function, done, draw) = (&function, &done, Draw::new(draw.seed()));
                    scope.spawn(move || lie(function, done, draw, until));
                }
            });
        }
        // It is as good as new.
        let made = function.start(&mut draw);
        made.context("the function does not start again in the end")?;
        let tally = done.into_inner().unwrap_or_else(PoisonError::into_inner);
        println!(
            "{}",
            json!({
                "seed": seed,
                "operations": tally.total(),
                "classes": tally.to_json(),
                "lives": lives,
                "completions": function.completed(),
                "aimed": function.aimed(),
            })
        );
        Ok(())
    }
}

/// One thread's work.
fn lie(function: &Function, done: &Mutex<Tally>, mut draw: Draw, until: Instant) {
    let mut tally = Tally::default();
    while Instant::now() < until {
        for _ in 0..BATCH {
            lies::step(function, &mut draw, &mut tally);
        }
        thread::sleep(REST);
    }
    done.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take(&mut tally);
}
