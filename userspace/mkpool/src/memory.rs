// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The memory and the clock, as the code of pools asks for them.

use std::fs::File;
use std::io::Read;
use std::sync::atomic::{fence, Ordering};
use std::time::{Duration, Instant};

use guestmem::MmapRegion;
use nupa_pool::{Poisoned, Time, Window};

/// A device's memory. Where hosts are not coherent what is written is on its way when this process ends: memory of PCI devices is
/// mapped uncached, and [`Window::publish`] writes other lines back.
pub(crate) struct Memory<'a> {
    region: &'a MmapRegion,
    coherent: bool,
}

impl<'a> Memory<'a> {
    pub(crate) fn new(region: &'a MmapRegion, coherent: bool) -> Self {
        Self { region, coherent }
    }
}

/// An offset in memory; one that no memory is as long as stays outside.
fn at(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

impl Window for Memory<'_> {
    fn len(&self) -> u64 {
        self.region.len() as u64
    }

    fn is_coherent(&self) -> bool {
        self.coherent
    }

    // Memory that cannot be read ends this process (SIGBUS), and nothing else.
    fn load(&self, offset: u64) -> Result<u64, Poisoned> {
        Ok(self.region.load_u64(at(offset)).map_or(0, u64::from_le))
    }

    fn store(&self, offset: u64, value: u64) {
        let _ = self.region.store_u64(at(offset), value.to_le());
    }

    fn compare_exchange(&self, offset: u64, current: u64, new: u64) -> Result<bool, Poisoned> {
        let (old, new) = (current.to_le(), new.to_le());
        let found = self.region.compare_exchange_u64(at(offset), old, new);
        Ok(found == Ok(old))
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Poisoned> {
        if self.region.read(at(offset), buf).is_err() {
            buf.fill(0);
        }
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        let _ = self.region.write(at(offset), bytes);
    }

    fn publish(&self, offset: u64, len: u64) {
        match self.coherent {
            true => fence(Ordering::Release),
            false => self.flush(offset, len),
        }
    }

    fn refresh(&self, offset: u64, len: u64) {
        match self.coherent {
            true => fence(Ordering::Acquire),
            false => self.flush(offset, len),
        }
    }

    fn fence(&self) {
        guestmem::full_fence();
    }
}

impl Memory<'_> {
    /// Writes lines back to memory, and drops them from the caches.
    fn flush(&self, offset: u64, len: u64) {
        let _ = self.region.flush(at(offset), at(len));
    }
}

/// Time since this was made.
pub(crate) struct HostTime(Instant);

impl HostTime {
    pub(crate) fn new() -> Self {
        Self(Instant::now())
    }
}

impl Time for HostTime {
    fn now_us(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    fn sleep_us(&self, us: u64) {
        std::thread::sleep(Duration::from_micros(us));
    }
}

/// A random number.
pub(crate) fn random() -> anyhow::Result<u64> {
    let mut bytes = [0; 8];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}
