// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The memory, two caches, and what they may do.

use super::{Exploration, Thread};
use crate::cold::{Cold, Line};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard},
};

/// A line in a cache.
pub(super) struct Cached {
    pub(super) bytes: Line,
    /// When the host stored to it last, if that was not written back.
    pub(super) dirty: Option<u64>,
}

/// A write-back that a cache was asked for and has not done: a line as it was then, and when that was.
struct Pending {
    at: u64,
    bytes: Line,
    when: u64,
}

#[derive(Default)]
pub(super) struct Cache {
    lines: BTreeMap<u64, Cached>,
    /// The pool as it was long ago. Each line of it is in the cache until it is used or dropped.
    old: Option<Arc<Cold>>,
    /// Lines that were used or dropped since.
    known: BTreeSet<u64>,
    /// In the order in which others are to see them.
    pending: Vec<Pending>,
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
    /// Threads that compare and exchange a word just now: they have dropped its line, and have not shown a new one.
    pub(super) exchanging: [bool; 2],
    pub(super) exploration: Arc<Mutex<Exploration>>,
}

impl Cache {
    /// One that still has each line as it was in `old`, of which those at `dirty` were stored to and not written back.
    pub(super) fn with_old_lines(old: Arc<Cold>, dirty: &[u64]) -> Self {
        let line = |at: &u64| {
            let line = Cached {
                bytes: old.line(*at),
                dirty: Some(0),
            };
            (*at, line)
        };
        Self {
            lines: dirty.iter().map(line).collect(),
            known: dirty.iter().copied().collect(),
            pending: Vec::new(),
            old: Some(old),
        }
    }

    /// Has a line be in the cache if it is from long ago.
    fn recall(&mut self, at: u64) {
        if let Some(old) = self.old.as_ref().filter(|_| self.known.insert(at)) {
            let line = Cached {
                bytes: old.line(at),
                dirty: None,
            };
            self.lines.insert(at, line);
        }
    }
}

impl State {
    pub(super) fn exploration(&self) -> MutexGuard<'_, Exploration> {
        self.exploration
            .lock()
            .unwrap_or_else(|error| error.into_inner())
    }

    /// Says what happens to a line that both hosts use, where a run is made again to be read.
    pub(super) fn trace(&self, host: usize, what: &str, at: u64) {
        let mut exploration = self.exploration();
        if exploration.shared.contains(&at) {
            if let Some(trace) = &mut exploration.trace {
                trace.push(format!("host {host} {what} line {at:#x}"));
            }
        }
    }

    /// Chooses one of so many ways for a line; always the first one where it is not about the order.
    pub(super) fn choose(&self, at: u64, ways: usize) -> usize {
        let shared = self.exploration().shared.contains(&at);
        match shared {
            true => self.choose_anywhere(ways),
            false => 0,
        }
    }

    /// As [`State::choose`], for what is about no line.
    pub(super) fn choose_anywhere(&self, ways: usize) -> usize {
        let mut exploration = self.exploration();
        match self.threads.is_some() && !exploration.learns && ways > 1 {
            true => exploration.choices.choose(ways),
            false => 0,
        }
    }

    /// A line gets to the memory. The other cache may have fetched it just before.
    fn set_line(&mut self, host: usize, at: u64, bytes: Line) {
        self.trace(host, "writes back", at);
        let before = self.cold.line(at);
        let cache = &mut self.caches[1 - host];
        cache.recall(at);
        let other = cache.lines.get(&at);
        let has = other.is_some_and(|line| line.dirty.is_some() || line.bytes == before)
            || cache.pending.iter().any(|pending| pending.at == at);
        if !has && before != bytes && self.choose(at, 2) == 1 {
            let line = Cached {
                bytes: before,
                dirty: None,
            };
            self.caches[1 - host].lines.insert(at, line);
            self.trace(1 - host, "had just fetched", at);
        }
        self.cold.set_line(at, bytes);
    }

    /// A cache does the first write-backs that it was asked for.
    fn settle(&mut self, host: usize, count: usize) {
        let pending: Vec<_> = self.caches[host].pending.drain(..count).collect();
        for Pending { at, bytes, .. } in pending {
            self.set_line(host, at, bytes);
        }
    }

    /// A cache does all write-backs that it was asked for.
    pub(super) fn settle_all(&mut self, host: usize) {
        self.settle(host, self.caches[host].pending.len());
    }

    /// A cache writes a line back if it is dirty, after all that it was asked to write back before the host stored to that.
    fn write_back(&mut self, host: usize, at: u64) {
        let cache = &mut self.caches[host];
        let Some(line) = cache.lines.get_mut(&at) else {
            return;
        };
        let (bytes, stored) = (line.bytes, line.dirty.take());
        let is_before = |pending: &Pending| {
            stored.is_some_and(|stored| pending.when < stored) || pending.at == at
        };
        let count = cache.pending.iter().rposition(is_before);
        self.settle(host, count.map_or(0, |last| last + 1));
        if stored.is_some() {
            self.set_line(host, at, bytes);
        }
    }

    /// A cache drops a line.
    pub(super) fn evict(&mut self, host: usize, at: u64) {
        self.write_back(host, at);
        let cache = &mut self.caches[host];
        cache.lines.remove(&at);
        cache.known.insert(at);
    }

    /// The caches write back and drop what nobody asked them to, before a host accesses a line.
    pub(super) fn act_unasked(&mut self, host: usize, at: u64, writes: bool) {
        self.caches[host].recall(at);
        let own = self.caches[host].lines.get(&at);
        if own.is_some_and(|line| line.dirty.is_some()) {
            if writes && self.choose(at, 2) == 1 {
                self.write_back(host, at);
            }
            return;
        }
        // Each state in which the other cache may have written the line back by now.
        let other = &self.caches[1 - host];
        let pending = other.pending.iter().zip(1..);
        let pending = pending.filter(|(pending, _)| pending.at == at);
        let pending: Vec<usize> = pending.map(|(_, count)| count).collect();
        let dirty = other
            .lines
            .get(&at)
            .is_some_and(|line| line.dirty.is_some());
        match self.choose(at, 1 + pending.len() + usize::from(dirty)) {
            0 => {}
            way => match pending.get(way - 1) {
                Some(count) => self.settle(1 - host, *count),
                None => self.write_back(1 - host, at),
            },
        }
        let own = self.caches[host].lines.get(&at);
        let stale = own.is_some_and(|line| line.bytes != self.cold.line(at));
        if stale && self.choose(at, 2) == 1 {
            self.trace(host, "drops", at);
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

    /// A cache is asked to write a line back.
    pub(super) fn ask(&mut self, host: usize, at: u64) {
        let when = self.now;
        let cache = &mut self.caches[host];
        let line = cache.lines.get_mut(&at).filter(|line| line.dirty.is_some());
        if let Some(line) = line {
            line.dirty = None;
            let bytes = line.bytes;
            cache.pending.push(Pending { at, bytes, when });
        }
    }
}
