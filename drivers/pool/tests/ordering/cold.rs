// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The pool before the hosts run against each other, and what of it is not about their order.

use nupa_pool::{Poisoned, Time, Window};
use nupa_proto::pool::LINE;
use std::{
    cell::Cell,
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

/// Bytes of the smallest pool for two nodes, with some device memory.
pub const SIZE: usize = (3 << 20) + (1 << 20);

/// Bytes of a line.
pub type Line = [u8; LINE as usize];

/// Memory whose accesses take effect at once. It is copied for each run, so only the lines that a run changes are its own.
pub struct Cold {
    base: Arc<Vec<u8>>,
    lines: Mutex<BTreeMap<u64, Line>>,
    coherent: bool,
}

impl Cold {
    pub fn new(base: Arc<Vec<u8>>, coherent: bool) -> Self {
        Self {
            base,
            lines: Mutex::new(BTreeMap::new()),
            coherent,
        }
    }

    /// All bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.base.to_vec();
        for (at, line) in &*self.lines.lock().unwrap() {
            bytes[*at as usize..][..line.len()].copy_from_slice(line);
        }
        bytes
    }

    /// The line that begins at an offset.
    pub fn line(&self, at: u64) -> Line {
        let changed = self.lines.lock().unwrap().get(&at).copied();
        changed.unwrap_or_else(|| {
            self.base[at as usize..][..LINE as usize]
                .try_into()
                .unwrap()
        })
    }

    pub fn set_line(&self, at: u64, line: Line) {
        self.lines.lock().unwrap().insert(at, line);
    }
}

/// The pieces of a range that are in one line each: offset of the line, where the piece begins in it and in the range, and its bytes.
pub fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, usize, usize)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let place = offset + at as u64;
        let start = (place % LINE) as usize;
        let count = (LINE as usize - start).min(len - at);
        let piece = (place - place % LINE, start, at, count);
        at += count;
        (count != 0).then_some(piece)
    })
}

impl Window for Cold {
    fn len(&self) -> u64 {
        SIZE as u64
    }

    fn is_coherent(&self) -> bool {
        self.coherent
    }

    fn load(&self, offset: u64) -> Result<u64, Poisoned> {
        let mut bytes = [0; 8];
        self.read(offset, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn store(&self, offset: u64, value: u64) {
        self.write(offset, &value.to_le_bytes());
    }

    fn compare_exchange(&self, offset: u64, current: u64, new: u64) -> Result<bool, Poisoned> {
        let same = self.load(offset)? == current;
        if same {
            self.store(offset, new);
        }
        Ok(same)
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Poisoned> {
        for (line, start, at, count) in pieces(offset, buf.len()) {
            buf[at..at + count].copy_from_slice(&self.line(line)[start..start + count]);
        }
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        for (at, start, from, count) in pieces(offset, bytes.len()) {
            let mut line = self.line(at);
            line[start..start + count].copy_from_slice(&bytes[from..from + count]);
            self.set_line(at, line);
        }
    }

    fn publish(&self, _: u64, _: u64) {}

    fn refresh(&self, _: u64, _: u64) {}

    fn fence(&self) {}
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
