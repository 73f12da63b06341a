// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The memory and the clock of a pool that a process has mapped, as the code of pools asks for them.

use std::ops::Deref;
use std::sync::atomic::{fence, Ordering};
use std::time::{Duration, Instant};

use guestmem::MmapRegion;
use nupa_pool::{Poisoned, Time, Window};

/// A pool's memory, borrowed or shared. Where hosts are not coherent what is written is on its way when this process ends: memory of PCI devices
/// is mapped uncached, and [`Window::publish`] writes other lines back.
#[derive(Clone, Debug)]
pub struct PoolMemory<R> {
    region: R,
    coherent: bool,
}

impl<R: Deref<Target = MmapRegion>> PoolMemory<R> {
    /// The memory of a region, for hosts whose caches are kept coherent or not.
    pub fn new(region: R, coherent: bool) -> Self {
        Self { region, coherent }
    }

    #[inline]
    fn region(&self) -> &MmapRegion {
        &self.region
    }

    /// Writes lines back and invalidates them (CLFLUSH). Not inlined, so that accesses to coherent memory can be: a call is short beside a flush.
    #[cold]
    #[inline(never)]
    fn flush(&self, offset: u64, len: u64) {
        let _ = self.region().flush(at(offset), at(len));
    }
}

/// An offset in memory; one that no memory is as long as stays outside.
fn at(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

impl<R: Deref<Target = MmapRegion>> Window for PoolMemory<R> {
    fn len(&self) -> u64 {
        self.region().len() as u64
    }

    fn is_coherent(&self) -> bool {
        self.coherent
    }

    // Memory that cannot be read ends this process (SIGBUS), and nothing else.
    #[inline]
    fn load(&self, offset: u64) -> Result<u64, Poisoned> {
        Ok(self.region().load_u64(at(offset)).map_or(0, u64::from_le))
    }

    #[inline]
    fn store(&self, offset: u64, value: u64) {
        let _ = self.region().store_u64(at(offset), value.to_le());
    }

    fn compare_exchange(&self, offset: u64, current: u64, new: u64) -> Result<bool, Poisoned> {
        let (old, new) = (current.to_le(), new.to_le());
        let found = self.region().compare_exchange_u64(at(offset), old, new);
        Ok(found == Ok(old))
    }

    #[inline]
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Poisoned> {
        if self.region().read(at(offset), buf).is_err() {
            buf.fill(0);
        }
        Ok(())
    }

    #[inline]
    fn write(&self, offset: u64, bytes: &[u8]) {
        let _ = self.region().write(at(offset), bytes);
    }

    #[inline]
    fn write_words<const WORDS: usize>(&self, offset: u64, words: [u64; WORDS]) {
        let _ = self.region().write_words(at(offset), words);
    }

    #[inline]
    fn publish(&self, offset: u64, len: u64) {
        match self.coherent {
            true => fence(Ordering::Release),
            false => self.flush(offset, len),
        }
    }

    #[inline]
    fn refresh(&self, offset: u64, len: u64) {
        match self.coherent {
            true => fence(Ordering::Acquire),
            false => self.flush(offset, len),
        }
    }

    #[inline]
    fn fence(&self) {
        guestmem::full_fence();
    }
}

/// Time since this was made.
#[derive(Clone, Copy, Debug)]
pub struct HostTime(Instant);

impl HostTime {
    /// Starts at zero.
    pub fn new() -> Self {
        Self(Instant::now())
    }
}

impl HostTime {
    /// The time in nanoseconds.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

impl Default for HostTime {
    fn default() -> Self {
        Self::new()
    }
}

impl Time for HostTime {
    fn now_us(&self) -> u64 {
        self.now_ns() / 1000
    }

    fn sleep_us(&self, us: u64) {
        std::thread::sleep(Duration::from_micros(us));
    }
}
