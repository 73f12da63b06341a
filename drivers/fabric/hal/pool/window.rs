// SPDX-License-Identifier: GPL-2.0
//! The pool and the clock, as the code of pools asks for them.

use kernel::{
    prelude::*,
    sync::Arc,
    time::{delay::fsleep, Delta, Instant, Monotonic},
};
use nk::{barrier::full_fence, mmap::MmapRange, window::Window};
use nupa_pool::Poisoned;
use nupa_proto::pool::LINE;

/// The pool, mapped. What lies outside of it reads as zero.
#[derive(Clone)]
pub(super) struct PoolWindow(Arc<Window>);

impl PoolWindow {
    /// Shares a mapping. May sleep.
    pub(super) fn new(window: Window) -> Result<Self> {
        Ok(Self(Arc::new(window, GFP_KERNEL)?))
    }

    /// The mapping.
    pub(super) fn mapping(&self) -> &Arc<Window> {
        &self.0
    }

    /// `len` bytes at an offset, for processes to map; `None` if they are not whole pages of the pool.
    pub(super) fn pages(&self, offset: u64, len: u64) -> Option<MmapRange> {
        self.0.mmap_range()?.slice(offset, len)
    }

    /// The first line of a range that cannot be read.
    #[cold]
    fn first_poisoned(&self, offset: u64, len: usize) -> Poisoned {
        let end = offset.saturating_add(len as u64);
        let mut lines = (offset / LINE * LINE..end).step_by(LINE as usize);
        let poisoned = |line: &u64| self.0.read(at(*line), &mut [0; LINE as usize]) == Err(EIO);
        let offset = lines.find(poisoned).unwrap_or(offset);
        Poisoned { offset }
    }

    /// Has reads of the line of an offset fail, or of none, for tests.
    pub(super) fn set_poisoned(&self, offset: Option<u64>) {
        self.0.set_poisoned(offset);
    }

    /// Has the heartbeat of this host's node stand still, or go on, for tests.
    pub(super) fn set_frozen(&self, frozen: bool) {
        self.0.set_frozen(frozen);
    }

    /// DMA address of an offset.
    #[inline]
    pub(super) fn address(&self, offset: u64) -> u64 {
        self.0.start().wrapping_add(offset)
    }
}

/// An offset in memory; one that no memory is as long as stays outside.
#[inline]
fn at(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

/// What was read at an offset; none if that is outside.
#[inline]
fn found<T>(offset: u64, read: Result<T>) -> Result<Option<T>, Poisoned> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(EIO) => Err(Poisoned { offset }),
        Err(_) => Ok(None),
    }
}

impl nupa_pool::Window for PoolWindow {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn is_coherent(&self) -> bool {
        self.0.is_coherent()
    }

    #[inline]
    fn load(&self, offset: u64) -> Result<u64, Poisoned> {
        found(offset, self.0.load_acquire(at(offset))).map(Option::unwrap_or_default)
    }

    #[inline]
    fn store(&self, offset: u64, value: u64) {
        let _ = self.0.store_release(at(offset), value);
    }

    fn compare_exchange(&self, offset: u64, current: u64, new: u64) -> Result<bool, Poisoned> {
        let was = self.0.compare_exchange(at(offset), current, new);
        Ok(found(offset, was)? == Some(current))
    }

    #[inline]
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Poisoned> {
        let read = found(offset, self.0.read(at(offset), buf));
        if read
            .map_err(|_| self.first_poisoned(offset, buf.len()))?
            .is_none()
        {
            buf.fill(0);
        }
        Ok(())
    }

    #[inline]
    fn write(&self, offset: u64, bytes: &[u8]) {
        let _ = self.0.write(at(offset), bytes);
    }

    #[inline]
    fn write_words<const WORDS: usize>(&self, offset: u64, words: [u64; WORDS]) {
        let _ = self.0.write_words(at(offset), words);
    }

    #[inline]
    fn publish(&self, offset: u64, len: u64) {
        let _ = self.0.publish(at(offset)..at(offset.saturating_add(len)));
    }

    #[inline]
    fn refresh(&self, offset: u64, len: u64) {
        let _ = self.0.refresh(at(offset)..at(offset.saturating_add(len)));
    }

    #[inline]
    fn fence(&self) {
        full_fence();
    }

    fn is_frozen(&self) -> bool {
        self.0.is_frozen()
    }
}

/// Time since this was made.
#[derive(Clone, Copy)]
pub(super) struct HostClock(Instant<Monotonic>);

impl HostClock {
    /// Starts it.
    pub(super) fn new() -> Self {
        Self(Instant::now())
    }

    /// Microseconds.
    #[inline]
    pub(super) fn now_us(self) -> u64 {
        self.now_ns() / 1000
    }

    /// Nanoseconds.
    #[inline]
    pub(super) fn now_ns(self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(0)
    }
}

impl nupa_pool::Time for HostClock {
    fn now_us(&self) -> u64 {
        (*self).now_us()
    }

    fn sleep_us(&self, us: u64) {
        fsleep(Delta::from_micros(i64::try_from(us).unwrap_or(i64::MAX)));
    }
}
