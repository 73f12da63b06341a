// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The memory, two caches, and what they may do.

use super::{Exploration, Thread};
use crate::cold::{Cold, Line};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

/// A line in a cache.
pub(super) struct Cached {
    pub(super) bytes: Line,
    /// When the host stored to it last, if that was not written back.
    pub(super) dirty: Option<u64>,
}

/// What a cache was told to write back and has not: a line as it was then, and when that was.
struct Told {
    at: u64,
    bytes: Line,
    when: u64,
}

#[derive(Default)]
pub(super) struct Cache {
    lines: BTreeMap<u64, Cached>,
    /// In the order in which others are to see it.
    told: Vec<Told>,
}

pub(super) struct State {
    pub(super) cold: Cold,
    pub(super) caches: [Cache; 2],
    /// Each access takes one microsecond.
    pub(super) now: u64,
    /// What the hosts are at, while they run against each other.
    pub(super) threads: Option<[Thread; 2]>,
    pub(super) running: usize,
    /// Lines that each host has used, and whether it has written to them.
    pub(super) used: [BTreeMap<u64, bool>; 2],
    pub(super) exploration: Arc<Mutex<Exploration>>,
}

impl State {
    /// Chooses one of so many ways for a line; always the first one where it is not about the order.
    pub(super) fn choose(&self, at: u64, ways: usize) -> usize {
        let mut exploration = self.exploration.lock().unwrap();
        let free = self.threads.is_some() && !exploration.learns;
        match free && ways > 1 && exploration.shared.contains(&at) {
            true => exploration.choices.choose(ways),
            false => 0,
        }
    }

    /// A line gets to the memory. The other cache may have fetched it just before.
    fn set_line(&mut self, host: usize, at: u64, bytes: Line) {
        let before = self.cold.line(at);
        let other = self.caches[1 - host].lines.get(&at);
        let has = other.is_some_and(|line| line.dirty.is_some() || line.bytes == before);
        if !has && before != bytes && self.choose(at, 2) == 1 {
            let line = Cached {
                bytes: before,
                dirty: None,
            };
            self.caches[1 - host].lines.insert(at, line);
        }
        self.cold.set_line(at, bytes);
    }

    /// A cache does the first things that it was told to.
    fn settle(&mut self, host: usize, count: usize) {
        let told: Vec<_> = self.caches[host].told.drain(..count).collect();
        for Told { at, bytes, .. } in told {
            self.set_line(host, at, bytes);
        }
    }

    /// A cache does all that it was told to.
    pub(super) fn settle_all(&mut self, host: usize) {
        self.settle(host, self.caches[host].told.len());
    }

    /// A cache writes a line back if it has to, after what it was told to write back before the host stored to that.
    fn write_back(&mut self, host: usize, at: u64) {
        let cache = &mut self.caches[host];
        let Some(line) = cache.lines.get_mut(&at) else {
            return;
        };
        let (bytes, stored) = (line.bytes, line.dirty.take());
        let is_before =
            |told: &Told| stored.is_some_and(|stored| told.when < stored) || told.at == at;
        let count = cache.told.iter().rposition(is_before);
        self.settle(host, count.map_or(0, |last| last + 1));
        if stored.is_some() {
            self.set_line(host, at, bytes);
        }
    }

    /// A cache drops a line.
    pub(super) fn evict(&mut self, host: usize, at: u64) {
        self.write_back(host, at);
        self.caches[host].lines.remove(&at);
    }

    /// The caches do what they like, before a host accesses a line.
    pub(super) fn stir(&mut self, host: usize, at: u64, writes: bool) {
        let own = self.caches[host].lines.get(&at);
        if own.is_some_and(|line| line.dirty.is_some()) {
            if writes && self.choose(at, 2) == 1 {
                self.write_back(host, at);
            }
            return;
        }
        // Each state in which the other cache may have written the line back by now.
        let other = &self.caches[1 - host];
        let told = other
            .told
            .iter()
            .enumerate()
            .filter(|(_, told)| told.at == at);
        let told: Vec<usize> = told.map(|(number, _)| number + 1).collect();
        let dirty = other
            .lines
            .get(&at)
            .is_some_and(|line| line.dirty.is_some());
        match self.choose(at, 1 + told.len() + usize::from(dirty)) {
            0 => {}
            way => match told.get(way - 1) {
                Some(count) => self.settle(1 - host, *count),
                None => self.write_back(1 - host, at),
            },
        }
        let own = self.caches[host].lines.get(&at);
        let stale = own.is_some_and(|line| line.bytes != self.cold.line(at));
        if stale && self.choose(at, 2) == 1 {
            self.evict(host, at);
        }
    }

    /// A line as a host sees it.
    pub(super) fn line(&mut self, host: usize, at: u64) -> &mut Cached {
        let Self { caches, cold, .. } = self;
        caches[host].lines.entry(at).or_insert_with(|| Cached {
            bytes: cold.line(at),
            dirty: None,
        })
    }

    /// A cache is told to write a line back.
    pub(super) fn tell(&mut self, host: usize, at: u64) {
        let when = self.now;
        let cache = &mut self.caches[host];
        let line = cache.lines.get_mut(&at).filter(|line| line.dirty.is_some());
        if let Some(line) = line {
            line.dirty = None;
            let bytes = line.bytes;
            cache.told.push(Told { at, bytes, when });
        }
    }
}
