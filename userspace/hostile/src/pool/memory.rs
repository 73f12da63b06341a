// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The memory of a pool, and what of it is spared.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{fence, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{anyhow, ensure};
use nupa_pool::{Area, Geometry, Poisoned, Pool, Time, Window};
use nupa_proto::pool::{Class, LinkWord, TAG_NONE};
use rustix::io::Errno;

use crate::ffi::{LongPages, LONG};

/// A pool that is mapped.
#[derive(Debug)]
pub(crate) struct Memory {
    pages: LongPages,
    geometry: Geometry,
    victims: Vec<u16>,
    everything: bool,
}

impl Memory {
    /// Maps a file. `victims`: what nobody but these nodes writes is not written, unless that is `everything`.
    pub(crate) fn open(path: &Path, victims: &[u16], everything: bool) -> anyhow::Result<Self> {
        let file = File::options().read(true).write(true).open(path)?;
        let len = usize::try_from(file.metadata()?.len())?;
        Self::new(
            LongPages::of_file(file.as_fd(), 0, len)?,
            victims,
            everything,
        )
    }

    fn new(pages: LongPages, victims: &[u16], everything: bool) -> anyhow::Result<Self> {
        let pool = Pool::attach(&Whole(&pages), &Clock(Instant::now()));
        let pool = pool.map_err(|refusal| anyhow!("{refusal}"))?;
        ensure!(
            pool.geometry().inboxes().is_none(),
            "the pool has inboxes; this knows where rings for every two nodes lie"
        );
        Ok(Self {
            geometry: *pool.geometry(),
            pages,
            victims: victims.to_vec(),
            everything,
        })
    }

    pub(crate) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Nodes are below this.
    pub(crate) fn nodes(&self) -> u16 {
        self.geometry.max_nodes()
    }

    /// Whether what is a node's alone is not written.
    pub(crate) fn spares(&self, node: u16) -> bool {
        !self.everything && self.victims.contains(&node)
    }

    /// Loads the word at an offset, which is rounded down.
    pub(crate) fn load(&self, offset: u64) -> u64 {
        self.pages.load_long(index(offset))
    }

    /// Stores the word at an offset, which is rounded down. `PERM`: it is spared.
    pub(crate) fn store(&self, offset: u64, value: u64) -> Result<(), Errno> {
        if !self.everything && (self.is_spared(offset) || self.refuses_epoch(offset, value)) {
            return Err(Errno::PERM);
        }
        self.pages.store_long(index(offset), value);
        Ok(())
    }

    /// Writes bytes, word by word. `PERM`: some of them are spared.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        let load = |at| self.load(at);
        write_words(offset, bytes, load, |at, word| self.store(at, word))
    }

    /// Whether something is the victims' alone, or nobody's.
    fn is_spared(&self, offset: u64) -> bool {
        let victim = |node: u64| self.victims.iter().any(|victim| u64::from(*victim) == node);
        match self.geometry.area(offset) {
            Area::Superblock => true,
            Area::Slot { node } | Area::Directory { node } | Area::DeviceMemory { node } => {
                victim(node)
            }
            Area::Link { source, target, .. } => victim(source) && victim(target),
            // Of pools that are not attached to here.
            Area::Pair { node, .. } | Area::Inbox { node, .. } => victim(node),
        }
    }

    /// Whether a link word refuses the epoch of the node that reads it, which resets then and rejoins. It believes that of every node that is
    /// up, and cannot tell whether it is true.
    fn refuses_epoch(&self, offset: u64, value: u64) -> bool {
        let Area::Link {
            source,
            target,
            class: None,
        } = self.geometry.area(offset)
        else {
            return false;
        };
        let (Ok(source), Ok(target)) = (u16::try_from(source), u16::try_from(target)) else {
            return false;
        };
        let place = self.geometry.ring(source, target, Class::Request);
        let word = LinkWord::from_wire(value);
        index(offset) / LONG == index(place.consumer()) / LONG
            && (word.target, word.index) == (TAG_NONE, 0)
    }
}

/// Writes bytes as words; of the first and the last the rest is what was there. Goes on after an error.
fn write_words(
    offset: u64,
    bytes: &[u8],
    load: impl Fn(u64) -> u64,
    store: impl Fn(u64, u64) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let (mut at, mut left, mut end) = (offset, bytes, Ok(()));
    while !left.is_empty() {
        let skipped = index(at) % LONG;
        let (piece, rest) = left.split_at(left.len().min(LONG.saturating_sub(skipped)));
        let mut word = load(at).to_le_bytes();
        let into = word.iter_mut().skip(skipped);
        into.zip(piece).for_each(|(to, from)| *to = *from);
        end = end.and(store(at, u64::from_le_bytes(word)));
        at = at.saturating_add(piece.len() as u64);
        left = rest;
    }
    end
}

/// An offset in memory; one that no memory is as long as stays outside.
fn index(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

/// All of it, as the code of pools wants it. To attach to a pool writes nothing.
struct Whole<'a>(&'a LongPages);

impl Window for Whole<'_> {
    fn len(&self) -> u64 {
        self.0.bytes() as u64
    }

    fn is_coherent(&self) -> bool {
        true
    }

    fn load(&self, offset: u64) -> Result<u64, Poisoned> {
        Ok(self.0.load_long(index(offset)))
    }

    fn store(&self, offset: u64, value: u64) {
        self.0.store_long(index(offset), value);
    }

    fn compare_exchange(&self, offset: u64, current: u64, new: u64) -> Result<bool, Poisoned> {
        let same = self.load(offset) == Ok(current);
        if same {
            self.store(offset, new);
        }
        Ok(same)
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Poisoned> {
        for (at, piece) in (index(offset)..).step_by(LONG).zip(buf.chunks_mut(LONG)) {
            let word = self.0.load_long(at).to_le_bytes();
            piece.iter_mut().zip(word).for_each(|(to, from)| *to = from);
        }
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        let load = |at| self.0.load_long(index(at));
        let _ = write_words(offset, bytes, load, |at, word| {
            self.store(at, word);
            Ok(())
        });
    }

    fn publish(&self, _: u64, _: u64) {}

    fn refresh(&self, _: u64, _: u64) {}

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

/// Time since something.
struct Clock(Instant);

impl Time for Clock {
    fn now_us(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    fn sleep_us(&self, us: u64) {
        thread::sleep(Duration::from_micros(us));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
impl Memory {
    /// A pool for 4 nodes in memory of this process.
    pub(super) fn formatted(victims: &[u16], everything: bool) -> Self {
        let pages = LongPages::anonymous(64 << 20).unwrap();
        let (whole, clock) = (Whole(&pages), Clock(Instant::now()));
        let options = nupa_pool::FormatOptions::new(4, 7);
        let survey = nupa_pool::Survey::new(&whole, &clock);
        survey.format(&whole, &clock, &options).unwrap();
        Self::new(pages, victims, everything).unwrap()
    }
}
