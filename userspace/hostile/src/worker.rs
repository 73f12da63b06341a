// SPDX-License-Identifier: GPL-2.0 OR MIT

//! One process: threads that do everything wrong at once with one context, until the process ends in the midst of it.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::io::Errno;

use crate::commands;
use crate::create::{Maker, RC, UD};
use crate::draw::Draw;
use crate::rings;
use crate::tally::Tally;
use crate::world::World;

/// How a worker is.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    pub(crate) device: String,
    pub(crate) peers: Vec<[u8; 16]>,
    pub(crate) seed: u64,
    pub(crate) threads: usize,
    pub(crate) lasts: Duration,
}

/// Operations between two looks at the clock, and how often a worker says what it did.
const BATCH: u32 = 64;
const REPORT: Duration = Duration::from_millis(200);
/// Most batches of a thread; another one takes its place.
const BATCHES: u32 = 200;

/// Something to do: its name, how often of all, and what it is.
type Class = (
    &'static str,
    u32,
    fn(&Maker<'_>, &mut Draw) -> Result<(), Errno>,
);

const CLASSES: [Class; 15] = [
    ("ring words", 20, |maker, draw| {
        rings::ring_words(maker.world, draw)
    }),
    ("descriptors", 40, |maker, draw| {
        rings::descriptors(maker.world, draw)
    }),
    ("doorbells", 20, |maker, draw| {
        rings::doorbells(maker.world, draw)
    }),
    ("push slots", 10, |maker, draw| {
        rings::push_slots(maker.world, draw)
    }),
    ("trapped pages", 10, |maker, draw| {
        rings::kicks(maker.world, draw)
    }),
    ("kicks and polls", 10, |maker, draw| {
        rings::kick_methods(maker.world, draw)
    }),
    ("mapped words", 5, |maker, draw| {
        rings::mapped_words(maker.world, draw)
    }),
    ("memory given back", 1, |maker, draw| {
        rings::forget_memory(maker.world, draw)
    }),
    ("requests", 10, commands::any_request),
    ("device memory", 4, commands::device_memory),
    ("maps", 4, |maker, draw| commands::maps(maker.world, draw)),
    ("contexts", 2, commands::contexts),
    ("unmaps", 1, |maker, draw| {
        commands::unmaps(maker.world, draw)
    }),
    ("connections", 6, |maker, draw| maker.revive(draw)),
    ("right objects", 1, right_object),
];
/// How often a command is made.
const COMMANDS: u32 = 15;

/// Makes an object rightly, for those that are gone.
fn right_object(maker: &Maker<'_>, draw: &mut Draw) -> Result<(), Errno> {
    match draw.small(6) {
        0 => maker.domain(),
        1 => maker.completion_queue(draw),
        2 => maker.shared_queue(draw),
        3 => maker.region(draw),
        4 => maker.window(draw),
        _ => {
            let kind = draw.one_or(&[RC, RC, UD], RC);
            maker.pair(draw, kind)
        }
    }
}

/// Does one thing, and counts it.
fn step(maker: &Maker<'_>, draw: &mut Draw, tally: &mut Tally) {
    let all = CLASSES
        .iter()
        .fold(COMMANDS, |sum, class| sum.saturating_add(class.1));
    let mut left = draw.small(all);
    for (name, weight, act) in CLASSES {
        if left < weight {
            return tally.count(name, act(maker, draw));
        }
        left = left.saturating_sub(weight);
    }
    let (name, end) = commands::any_command(maker, draw);
    tally.count(name, end);
}

/// Works until its time is over, and then ends the process at once: what threads do just then, and what it has, is the kernel's to
/// tidy up. Lines of JSON on standard output say what was done so far.
///
/// # Errors
///
/// If the device cannot be opened, or gives no queues.
pub(crate) fn run(work: &Work) -> anyhow::Result<()> {
    let world = Arc::new(World::new(&work.device, work.peers.clone())?);
    let mut draw = Draw::new(work.seed);
    let maker = Maker {
        world: &world,
        thread: 0,
    };
    let made = maker.prepare(&mut draw);
    made.with_context(|| format!("{} gives no queues", work.device))?;
    let done = Arc::new(Mutex::new(Tally::default()));
    let end = Instant::now()
        .checked_add(work.lasts)
        .context("a worker cannot last so long")?;
    for thread in 1..=work.threads {
        let (world, done, draw) = (world.clone(), done.clone(), Draw::new(draw.seed()));
        thread::Builder::new().spawn(move || generations(&world, &done, thread, draw))?;
    }
    while Instant::now() < end {
        thread::sleep(REPORT);
        report(&done)?;
    }
    Ok(())
}

/// Prints what was done so far.
fn report(done: &Mutex<Tally>) -> io::Result<()> {
    let line = done
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .to_json();
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

/// Threads, one after the other: each ends after a while, whatever it has begun.
fn generations(world: &Arc<World>, done: &Arc<Mutex<Tally>>, thread: usize, mut draw: Draw) {
    loop {
        let (world, done, draw) = (world.clone(), done.clone(), Draw::new(draw.seed()));
        let next = thread::Builder::new().spawn(move || life(&world, &done, thread, draw));
        if next.is_ok_and(|next| next.join().is_err()) {
            return;
        }
    }
}

/// One thread's work.
fn life(world: &World, done: &Mutex<Tally>, thread: usize, mut draw: Draw) {
    let maker = Maker { world, thread };
    let mut tally = Tally::default();
    for _ in 0..=draw.small(BATCHES) {
        for _ in 0..BATCH {
            step(&maker, &mut draw, &mut tally);
        }
        done.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take(&mut tally);
    }
}
