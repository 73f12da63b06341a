// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Memory that hosts share: with coherent caches, or with caches that nothing but write-back and invalidation moves, and
//! eviction and prefetching when it is least expected.

use std::collections::BTreeSet;

/// Bytes of a line.
pub const LINE: usize = 64;
/// Lines that a cache holds before it has to make room.
const LINES: usize = 8192;

/// Random numbers (splitmix64).
pub struct Random(pub u64);

impl Random {
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.draw() % bound
    }
}

struct Line {
    /// Its number.
    line: usize,
    bytes: [u8; LINE],
    dirty: bool,
}

/// What one host has of the memory.
struct Cache {
    lines: Vec<Line>,
    /// For each line of the memory one more than its place in `lines`, or 0.
    places: Vec<u32>,
}

impl Cache {
    fn new(size: usize) -> Self {
        Self {
            lines: Vec::new(),
            places: vec![0; size.div_ceil(LINE)],
        }
    }

    /// The line, which is fetched if it is not here.
    fn line(&mut self, memory: &[u8], line: usize) -> &mut Line {
        if self.places[line] == 0 {
            let bytes = memory[line * LINE..][..LINE].try_into();
            self.lines.push(Line {
                line,
                bytes: bytes.unwrap_or([0; LINE]),
                dirty: false,
            });
            self.places[line] = self.lines.len() as u32;
        }
        &mut self.lines[self.places[line] as usize - 1]
    }

    fn write_back(&mut self, memory: &mut [u8], line: usize) {
        let place = self.places[line] as usize;
        if place != 0 && std::mem::take(&mut self.lines[place - 1].dirty) {
            memory[line * LINE..][..LINE].copy_from_slice(&self.lines[place - 1].bytes);
        }
    }

    fn evict(&mut self, memory: &mut [u8], line: usize) {
        self.write_back(memory, line);
        let place = std::mem::take(&mut self.places[line]) as usize;
        if place != 0 {
            self.lines.swap_remove(place - 1);
            if let Some(moved) = self.lines.get(place - 1) {
                self.places[moved.line] = place as u32;
            }
        }
    }

    fn evict_any(&mut self, memory: &mut [u8], random: &mut Random) {
        if !self.lines.is_empty() {
            let place = random.below(self.lines.len() as u64) as usize;
            self.evict(memory, self.lines[place].line);
        }
    }

    /// What caches do by themselves when a line is used.
    fn stir(&mut self, memory: &mut [u8], random: &mut Random, line: usize) {
        match random.below(16) {
            0 => self.evict_any(memory, random),
            1 | 2 => {
                let ahead = line + random.below(6) as usize;
                if ahead < self.places.len() {
                    self.line(memory, ahead);
                }
            }
            _ => {}
        }
        if self.lines.len() > LINES {
            self.evict_any(memory, random);
        }
    }
}

/// The memory.
pub struct Memory {
    bytes: Vec<u8>,
    /// One for each host; none if they are coherent.
    caches: Vec<Cache>,
    /// Lines that cannot be read.
    poison: BTreeSet<usize>,
    random: Random,
}

impl Memory {
    /// Poisons the line of an offset. It can be read again once one write has overwritten all of it.
    pub fn poison(&mut self, offset: u64) {
        self.poison.insert(offset as usize / LINE);
    }

    /// Where the first line of a range is that cannot be read.
    pub fn poisoned(&self, offset: u64, len: usize) -> Option<u64> {
        let (first, end) = (
            offset as usize / LINE,
            (offset as usize + len).div_ceil(LINE),
        );
        let line = self.poison.range(first..end.max(first)).next()?;
        Some((line * LINE) as u64)
    }

    /// So many bytes of zeroes, whole lines. `caches`: so many hosts with caches of their own; 0 if they are coherent.
    pub fn new(size: usize, caches: usize, seed: u64) -> Self {
        assert_eq!(size % LINE, 0, "whole lines");
        Self {
            bytes: vec![0; size],
            caches: (0..caches).map(|_| Cache::new(size)).collect(),
            poison: BTreeSet::new(),
            random: Random(seed),
        }
    }

    /// What the caches' whims are drawn with.
    pub fn seed(&mut self, seed: u64) {
        self.random = Random(seed);
    }

    pub fn is_coherent(&self) -> bool {
        self.caches.is_empty()
    }

    /// The memory itself, behind all caches.
    pub fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    /// Calls `access` with the piece of each line in a range, whether it is dirty, and where in the range it is.
    fn each(
        &mut self,
        host: usize,
        offset: usize,
        len: usize,
        mut access: impl FnMut(&mut [u8], &mut bool, usize),
    ) {
        let end = offset.saturating_add(len);
        if end > self.bytes.len() {
            return;
        }
        let Some(cache) = self.caches.get_mut(host) else {
            return access(&mut self.bytes[offset..end], &mut false, 0);
        };
        let mut at = offset;
        while at < end {
            let (line, start) = (at / LINE, at % LINE);
            let count = (LINE - start).min(end - at);
            cache.stir(&mut self.bytes, &mut self.random, line);
            let line = cache.line(&self.bytes, line);
            let piece = &mut line.bytes[start..start + count];
            access(piece, &mut line.dirty, at - offset);
            at += count;
        }
    }

    pub fn read(&mut self, host: usize, offset: u64, buf: &mut [u8]) {
        self.each(host, offset as usize, buf.len(), |bytes, _, at| {
            buf[at..at + bytes.len()].copy_from_slice(bytes);
        });
    }

    pub fn write(&mut self, host: usize, offset: u64, data: &[u8]) {
        self.each(host, offset as usize, data.len(), |bytes, dirty, at| {
            bytes.copy_from_slice(&data[at..at + bytes.len()]);
            *dirty = true;
        });
        if !self.poison.is_empty() {
            let whole = (offset as usize).div_ceil(LINE)..(offset as usize + data.len()) / LINE;
            self.poison.retain(|line| !whole.contains(line));
        }
    }

    fn lines(&self, offset: u64, len: u64) -> std::ops::Range<usize> {
        let end = (offset + len).min(self.bytes.len() as u64) as usize;
        offset as usize / LINE..end.div_ceil(LINE)
    }

    /// Writes a host's lines back.
    pub fn publish(&mut self, host: usize, offset: u64, len: u64) {
        let lines = self.lines(offset, len);
        if let Some(cache) = self.caches.get_mut(host) {
            lines.for_each(|line| cache.write_back(&mut self.bytes, line));
        }
    }

    /// Writes a host's lines back and forgets them.
    pub fn refresh(&mut self, host: usize, offset: u64, len: u64) {
        let lines = self.lines(offset, len);
        if let Some(cache) = self.caches.get_mut(host) {
            lines.for_each(|line| cache.evict(&mut self.bytes, line));
        }
    }
}
