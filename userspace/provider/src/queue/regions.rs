// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Memory regions whose memory the process has mapped itself: what it may copy to and from without the engine.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use nupa_proto::wqe::Sge;

use crate::ffi::ProcessBytes;

/// A region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    /// Handle of its protection domain.
    pub(crate) domain: u32,
    /// First address of the region, as requests name it.
    pub(crate) start: u64,
    /// Its memory, as the process has it.
    pub(crate) memory: ProcessBytes,
    /// Whether messages may be received there.
    pub(crate) writable: bool,
    /// Whether peers may write there.
    pub(crate) remote_writable: bool,
}

impl Region {
    /// The part of its memory from an address on, if all of that is inside.
    #[inline]
    fn part(&self, addr: u64, len: usize) -> Option<ProcessBytes> {
        let offset = addr.checked_sub(self.start)?;
        self.memory.part(usize::try_from(offset).ok()?, len)
    }
}

/// The regions of a context, by key.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    table: RwLock<HashMap<u32, Region>>,
    /// Goes up with each change that makes what was looked up wrong.
    changes: AtomicU32,
}

impl Regions {
    /// A region was registered, or has changed.
    pub(crate) fn insert(&self, key: u32, region: Region) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        table.insert(key, region);
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// A region is about to be deregistered or changed: what names it goes to the engine from now on. Returns what was known of it, when nothing
    /// is [written](Lookup::write) there any more.
    pub(crate) fn remove(&self, key: u32) -> Option<Region> {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let removed = table.remove(&key);
        if removed.is_some() {
            self.changes.fetch_add(1, Ordering::Release);
        }
        removed
    }

    /// Waits until what is being [written](Lookup::write) is there.
    pub(crate) fn wait(&self) {
        drop(self.table.write().unwrap_or_else(PoisonError::into_inner));
    }

    fn find(&self, key: u32) -> Option<Region> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.get(&key).copied()
    }
}

/// Looks up entries of a queue pair, and keeps what it found last: most requests use the same key again and again.
#[derive(Debug)]
pub(crate) struct Lookup {
    regions: Arc<Regions>,
    domain: u32,
    last: Option<(u32, u32, Region)>,
}

impl Lookup {
    /// For a queue pair of a protection domain.
    pub(crate) fn new(regions: Arc<Regions>, domain: u32) -> Self {
        Self {
            regions,
            domain,
            last: None,
        }
    }

    /// The regions that it looks in.
    pub(crate) fn regions(&self) -> &Arc<Regions> {
        &self.regions
    }

    /// Another one, which knows nothing yet.
    pub(crate) fn another(&self) -> Self {
        Self::new(Arc::clone(&self.regions), self.domain)
    }

    /// The process's memory that an entry means, if that is all in a region of the domain. With `write` the region must allow it.
    #[inline]
    pub(crate) fn memory(&mut self, sge: &Sge, write: bool) -> Option<ProcessBytes> {
        let (key, len) = (sge.lkey.get(), sge.len.get() as usize);
        if len == 0 {
            return Some(ProcessBytes::default());
        }
        let changes = self.regions.changes.load(Ordering::Acquire);
        let region = match &self.last {
            Some((known, at, region)) if *known == key && *at == changes => *region,
            _ => self.search(key, changes)?,
        };
        if region.domain != self.domain || write && !region.writable {
            return None;
        }
        region.part(sge.addr.get(), len)
    }

    /// Has `copy` write to the memory that a peer's WRITE of `len` bytes means, if it `may` and that is all in a region of the domain which allows it; whether
    /// it did. The region stays registered meanwhile, and [`Regions::wait`] waits. With no bytes the key means nothing, as for the engine.
    #[inline]
    pub(crate) fn write(
        &self,
        key: u32,
        addr: u64,
        len: usize,
        may: impl FnOnce() -> bool,
        copy: impl FnOnce(ProcessBytes),
    ) -> bool {
        let table = self.regions.table.read();
        let table = table.unwrap_or_else(PoisonError::into_inner);
        if !may() {
            return false;
        }
        if len == 0 {
            return true;
        }
        let region = table.get(&key);
        let region = region.filter(|region| region.domain == self.domain && region.remote_writable);
        let memory = region.and_then(|region| region.part(addr, len));
        memory.map(copy).is_some()
    }

    #[cold]
    fn search(&mut self, key: u32, changes: u32) -> Option<Region> {
        let region = self.regions.find(key)?;
        self.last = Some((key, changes, region));
        Some(region)
    }
}
