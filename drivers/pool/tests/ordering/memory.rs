// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A coherent pool of which some words are loom's atomics.

use loom::{
    sync::atomic::{fence, AtomicU64, AtomicUsize, Ordering},
    thread,
};
use nupa_pool::{Poisoned, Time, Window};
use std::{
    cell::Cell,
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

/// Bytes of the smallest pool for two nodes, with some device memory.
pub const SIZE: usize = (3 << 20) + (1 << 20);
/// A coherent pool: words that are hot, and the rest.
pub struct Memory {
    pub cold: Mutex<Vec<u8>>,
    hot: BTreeMap<u64, AtomicU64>,
    /// Hosts cannot compare and exchange a hot word atomically: each loads it and stores it.
    torn: Option<Settling>,
}

/// What hosts rely on that cannot exchange words atomically: what one has stored is seen by others, and what others had begun before
/// they saw it is over, within the time that it waits after it has stored a word (`SETTLE_US`).
pub struct Settling {
    /// Hosts that are between their load and their store.
    under_way: AtomicUsize,
    /// Stores that all see who begin now.
    seen: AtomicUsize,
}

impl Settling {
    fn exchange(&self, word: &AtomicU64, current: u64, new: u64) -> bool {
        self.under_way.fetch_add(1, Ordering::Relaxed);
        self.seen.fetch_add(0, Ordering::Acquire);
        let same = word.load(Ordering::Acquire) == current;
        if same {
            word.store(new, Ordering::Release);
        }
        self.under_way.fetch_sub(1, Ordering::Release);
        same
    }

    fn wait(&self) {
        self.seen.fetch_add(1, Ordering::Release);
        // Not a load, which loom may have return an old value for ever.
        while self.under_way.fetch_add(0, Ordering::Acquire) != 0 {
            thread::yield_now();
        }
    }
}

impl Memory {
    /// The same pool, of hosts that cannot exchange words atomically.
    pub fn torn(self) -> Self {
        let torn = Some(Settling {
            under_way: AtomicUsize::new(0),
            seen: AtomicUsize::new(0),
        });
        Self { torn, ..self }
    }

    /// Calls `hot` with each hot word in a range, and where in the range it begins.
    fn each_hot(&self, offset: u64, len: usize, mut hot: impl FnMut(usize, &AtomicU64)) {
        for (at, word) in self.hot.range(offset..offset + len as u64) {
            assert!(at + 8 <= offset + len as u64);
            hot((at - offset) as usize, word);
        }
    }
}

impl Window for Memory {
    fn len(&self) -> u64 {
        SIZE as u64
    }

    fn is_coherent(&self) -> bool {
        true
    }

    fn load(&self, offset: u64) -> Result<u64, Poisoned> {
        Ok(match self.hot.get(&offset) {
            Some(word) => word.load(Ordering::Acquire),
            None => {
                let at = offset as usize;
                u64::from_le_bytes(self.cold.lock().unwrap()[at..at + 8].try_into().unwrap())
            }
        })
    }

    fn store(&self, offset: u64, value: u64) {
        match self.hot.get(&offset) {
            Some(word) => word.store(value, Ordering::Release),
            None => {
                let at = offset as usize;
                self.cold.lock().unwrap()[at..at + 8].copy_from_slice(&value.to_le_bytes());
            }
        }
    }

    fn compare_exchange(&self, offset: u64, current: u64, new: u64) -> Result<bool, Poisoned> {
        let Some(word) = self.hot.get(&offset) else {
            let same = self.load(offset)? == current;
            if same {
                self.store(offset, new);
            }
            return Ok(same);
        };
        Ok(match &self.torn {
            Some(settling) => settling.exchange(word, current, new),
            None => word
                .compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire)
                .is_ok(),
        })
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Poisoned> {
        let at = offset as usize;
        buf.copy_from_slice(&self.cold.lock().unwrap()[at..at + buf.len()]);
        self.each_hot(offset, buf.len(), |at, word| {
            let value = word.load(Ordering::Relaxed);
            buf[at..at + 8].copy_from_slice(&value.to_le_bytes());
        });
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        let at = offset as usize;
        self.cold.lock().unwrap()[at..at + bytes.len()].copy_from_slice(bytes);
        self.each_hot(offset, bytes.len(), |at, word| {
            let value = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
            word.store(value, Ordering::Relaxed);
        });
    }

    fn publish(&self, _: u64, _: u64) {}

    fn refresh(&self, _: u64, _: u64) {}

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

/// Time that passes when somebody sleeps.
pub struct Steps(pub Cell<u64>);

impl Time for Steps {
    fn now_us(&self) -> u64 {
        self.0.get()
    }

    fn sleep_us(&self, us: u64) {
        self.0.set(self.0.get() + us);
    }
}

/// Time of a host that runs against others. After a sleep, exchanges that others had begun before are complete and visible.
pub struct Sleeps {
    pub memory: Arc<Memory>,
    pub now: Cell<u64>,
}

impl Time for Sleeps {
    fn now_us(&self) -> u64 {
        self.now.get()
    }

    fn sleep_us(&self, us: u64) {
        self.now.set(self.now.get() + us);
        if let Some(settling) = &self.memory.torn {
            settling.wait();
        }
    }
}

pub fn cold(bytes: Vec<u8>) -> Memory {
    Memory {
        cold: Mutex::new(bytes),
        hot: BTreeMap::new(),
        torn: None,
    }
}

/// Makes words hot.
pub fn heat(memory: Memory, words: &[u64]) -> Memory {
    let hot = |at: &u64| (*at, AtomicU64::new(memory.load(*at).unwrap()));
    Memory {
        hot: words.iter().map(hot).collect(),
        ..memory
    }
}
