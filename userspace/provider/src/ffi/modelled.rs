// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Memory of a process ring whose words are loom's atomics, for tests that try all orders that the memory model allows.

#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test may fail loudly"
)]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use loom::sync::atomic::{self, AtomicU32, AtomicU64};
use nupa_engine::rings::QueueMemory;
use nupa_proto::process_ring::STATE;

use super::{Pages, ProcessBytes};

/// Words of a thread's stack.
const STACK: usize = 0x20000;
/// Bytes of a word of data, and of a word of the control page.
const WORD: usize = size_of::<u64>();
const HALF: usize = size_of::<u32>();

thread_local! {
    /// Loom runs: all its threads are this one's.
    static LOOM: Cell<bool> = const { Cell::new(false) };
}

loom::lazy_static! {
    /// Stored to before each access and each fence, so that loom takes all of them for dependent. It remembers no more than the last access to an object, so it would not
    /// try a load of one thread behind a store of another one that has loaded the word itself before; and it does not switch threads at a fence.
    static ref STEPS: AtomicU32 = AtomicU32::new(0);
}

/// A word is about to be accessed, or a fence comes.
fn step() {
    STEPS.store(0, Ordering::Relaxed);
}

/// As that of the standard library, or loom's while that runs.
pub(crate) fn fence(order: Ordering) {
    match LOOM.get() {
        true => {
            step();
            atomic::fence(order);
        }
        false => std::sync::atomic::fence(order),
    }
}

/// As [`fence`]. A full one, as models take a processor to need it.
pub(crate) fn fence_after_cas() {
    fence(Ordering::SeqCst);
}

/// As [`fence`].
pub(crate) fn yield_now() {
    match LOOM.get() {
        true => loom::thread::yield_now(),
        false => std::thread::yield_now(),
    }
}

/// Runs a model in all orders with so many preemptions at most.
pub(crate) fn explore(preemptions: usize, model: fn()) {
    /// Ends what began, however it ends.
    struct Ends;
    impl Drop for Ends {
        fn drop(&mut self) {
            LOOM.set(false);
        }
    }
    let _ends = Ends;
    LOOM.set(true);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    let orders = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&orders);
    builder.check(move || {
        count.fetch_add(1, Ordering::Relaxed);
        spawn(model).join().unwrap();
    });
    println!("{} orders", orders.load(Ordering::Relaxed));
}

/// A thread of a model.
pub(crate) fn spawn<T: Send + 'static>(
    body: impl FnOnce() -> T + Send + 'static,
) -> loom::thread::JoinHandle<T> {
    loom::thread::Builder::new()
        .stack_size(STACK)
        .spawn(body)
        .unwrap()
}

/// Words of a ring that both ends use. No others may be accessed.
#[derive(Debug)]
pub(crate) struct Words {
    words32: BTreeMap<usize, AtomicU32>,
    words64: BTreeMap<usize, AtomicU64>,
}

impl Words {
    /// With words of 32 and of 64 bits at these offsets.
    pub(crate) fn new(words32: &[usize], words64: &[usize]) -> Arc<Self> {
        Arc::new(Self {
            words32: words32.iter().map(|at| (*at, AtomicU32::new(0))).collect(),
            words64: words64.iter().map(|at| (*at, AtomicU64::new(0))).collect(),
        })
    }

    fn word32(&self, offset: usize) -> &AtomicU32 {
        step();
        let word = self.words32.get(&offset);
        word.unwrap_or_else(|| panic!("the word at {offset} is not in the model"))
    }

    fn word64(&self, offset: usize) -> &AtomicU64 {
        step();
        let word = self.words64.get(&offset);
        word.unwrap_or_else(|| panic!("the word at {offset} is not in the model"))
    }

    /// Loads a word with acquire order.
    pub(crate) fn load(&self, offset: usize) -> u32 {
        self.word32(offset).load(Ordering::Acquire)
    }

    /// Stores a word with release order.
    pub(crate) fn store(&self, offset: usize, value: u32) {
        self.word32(offset).store(value, Ordering::Release);
    }

    /// As [`Words::load`], of 64 bits.
    pub(crate) fn load_wide(&self, offset: usize) -> u64 {
        self.word64(offset).load(Ordering::Acquire)
    }

    /// As [`Words::store`], of 64 bits.
    pub(crate) fn store_wide(&self, offset: usize, value: u64) {
        self.word64(offset).store(value, Ordering::Release);
    }

    /// Stores a word in place of the one that is expected there; returns what was there.
    pub(crate) fn swap_if(&self, offset: usize, expected: u32, value: u32) -> u32 {
        self.word32(offset)
            .compare_exchange(expected, value, Ordering::AcqRel, Ordering::Acquire)
            .unwrap_or_else(|before| before)
    }

    /// As [`Words::swap_if`], of 64 bits, as engines do: the half behind the state is in no model, and is 0.
    pub(crate) fn swap_if_wide(&self, offset: usize, expected: u64, value: u64) -> u64 {
        if offset == STATE {
            let [expected, value] = [expected, value].map(|word| u32::try_from(word).unwrap());
            return self.swap_if(offset, expected, value).into();
        }
        self.word64(offset)
            .compare_exchange(expected, value, Ordering::AcqRel, Ordering::Acquire)
            .unwrap_or_else(|before| before)
    }

    /// Reads any bytes, word by word, in no order. Those behind the state are 0.
    pub(crate) fn read(&self, offset: usize, buf: &mut [u8]) {
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done;
            let (start, word, size) = self.around(at);
            let word = word.to_le_bytes();
            let from = &word[at - start..size];
            let len = from.len().min(buf.len() - done);
            buf[done..done + len].copy_from_slice(&from[..len]);
            done += len;
        }
    }

    /// Where the word is that a byte lies in, the word, and its size.
    fn around(&self, at: usize) -> (usize, u64, usize) {
        let whole = at & !(WORD - 1);
        if self.words64.contains_key(&whole) {
            return (whole, self.word64(whole).load(Ordering::Relaxed), WORD);
        }
        let start = at & !(HALF - 1);
        let word = match start == STATE + HALF {
            true => 0,
            false => self.word32(start).load(Ordering::Relaxed),
        };
        (start, word.into(), HALF)
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        let mut at = offset;
        for chunk in bytes.chunks(WORD) {
            assert!(at % WORD == 0, "data is written in words");
            let mut word = [0; WORD];
            word[..chunk.len()].copy_from_slice(chunk);
            self.word64(at)
                .store(u64::from_le_bytes(word), Ordering::Relaxed);
            at += WORD;
        }
    }
}

/// Memory of a ring: mapped, or the words of a model.
#[derive(Debug)]
pub(crate) enum RingPages {
    Mapped(Pages),
    Modelled(Arc<Words>),
}

impl From<Pages> for RingPages {
    fn from(pages: Pages) -> Self {
        Self::Mapped(pages)
    }
}

impl From<Arc<Words>> for RingPages {
    fn from(words: Arc<Words>) -> Self {
        Self::Modelled(words)
    }
}

/// Each does what [`Pages`] does.
impl RingPages {
    pub(crate) fn load(&self, offset: usize) -> u32 {
        match self {
            Self::Mapped(pages) => pages.load(offset),
            Self::Modelled(words) => words.load(offset),
        }
    }

    pub(crate) fn store(&self, offset: usize, value: u32) {
        match self {
            Self::Mapped(pages) => pages.store(offset, value),
            Self::Modelled(words) => words.store(offset, value),
        }
    }

    pub(crate) fn compare_exchange(&self, offset: usize, expected: u32, value: u32) -> bool {
        match self {
            Self::Mapped(pages) => pages.compare_exchange(offset, expected, value),
            Self::Modelled(words) => words.swap_if(offset, expected, value) == expected,
        }
    }

    pub(crate) fn load_wide(&self, offset: usize) -> u64 {
        match self {
            Self::Mapped(pages) => pages.load_wide(offset),
            Self::Modelled(words) => words.load_wide(offset),
        }
    }

    pub(crate) fn store_wide(&self, offset: usize, value: u64) {
        match self {
            Self::Mapped(pages) => pages.store_wide(offset, value),
            Self::Modelled(words) => words.store_wide(offset, value),
        }
    }

    pub(crate) fn compare_exchange_wide(&self, offset: usize, expected: u64, value: u64) -> bool {
        match self {
            Self::Mapped(pages) => pages.compare_exchange_wide(offset, expected, value),
            Self::Modelled(words) => words.swap_if_wide(offset, expected, value) == expected,
        }
    }

    pub(crate) fn write_from(&self, offset: usize, from: Option<ProcessBytes>) {
        match self {
            Self::Mapped(pages) => pages.write_from(offset, from),
            Self::Modelled(words) => {
                if let Some(from) = from {
                    let mut bytes = vec![0; from.len()];
                    // SAFETY: memory of the program (`ProcessBytes`), and as many bytes of this function's.
                    unsafe { ptr::copy(from.pointer(), bytes.as_mut_ptr(), bytes.len()) };
                    words.write(offset, &bytes);
                }
            }
        }
    }

    pub(crate) fn read_to(&self, offset: usize, to: Option<ProcessBytes>) {
        match self {
            Self::Mapped(pages) => pages.read_to(offset, to),
            Self::Modelled(words) => {
                if let Some(to) = to {
                    let mut bytes = vec![0; to.len()];
                    words.read(offset, &mut bytes);
                    // SAFETY: as above; the program receives there.
                    unsafe { ptr::copy(bytes.as_ptr(), to.pointer(), bytes.len()) };
                }
            }
        }
    }
}

impl QueueMemory for RingPages {
    fn read(&self, offset: usize, buf: &mut [u8]) {
        match self {
            Self::Mapped(pages) => pages.read(offset, buf),
            Self::Modelled(words) => words.read(offset, buf),
        }
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        match self {
            Self::Mapped(pages) => pages.write(offset, bytes),
            Self::Modelled(words) => words.write(offset, bytes),
        }
    }

    fn load_acquire(&self, offset: usize) -> u32 {
        self.load(offset)
    }
}
