// SPDX-License-Identifier: GPL-2.0 OR MIT

//! How long it takes until a store of one node is seen by another.

use std::io::Write;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{bail, ensure, Context};
use guestmem::{AccessError, MmapRegion};
use serde_json::{json, Value};

/// The word that `ask` stores to, and the one that `answer` does: in cache lines of their own.
const PING: usize = 0;
const PONG: usize = 64;
/// Tells `answer` to end.
const END: u64 = u64::MAX;
/// How long the other side may be silent.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Loads between looks at the clock, which takes longer than a load.
const LOADS: u32 = 1 << 16;

/// Memory that both sides have.
pub(crate) trait Words {
    fn load_u64(&self, offset: usize) -> Result<u64, AccessError>;
    fn store_u64(&self, offset: usize, value: u64) -> Result<(), AccessError>;
}

impl Words for MmapRegion {
    fn load_u64(&self, offset: usize) -> Result<u64, AccessError> {
        MmapRegion::load_u64(self, offset)
    }

    fn store_u64(&self, offset: usize, value: u64) -> Result<(), AccessError> {
        MmapRegion::store_u64(self, offset, value)
    }
}

/// Waits until the word is one that `wanted` takes, and returns it.
fn until(
    pool: &impl Words,
    offset: usize,
    wanted: impl Fn(u64) -> bool,
) -> anyhow::Result<Option<u64>> {
    let start = Instant::now();
    loop {
        for _ in 0..LOADS {
            let word = pool.load_u64(offset)?;
            if wanted(word) {
                return Ok(Some(word));
            }
            std::hint::spin_loop();
        }
        if start.elapsed() > TIMEOUT {
            return Ok(None);
        }
    }
}

/// Waits until the word differs from `old`, and returns it.
fn changed(pool: &impl Words, offset: usize, old: u64) -> anyhow::Result<u64> {
    match until(pool, offset, |word| word != old)? {
        Some(word) => Ok(word),
        None => bail!("nothing from the other node for {TIMEOUT:?}"),
    }
}

/// Answers until told to end.
///
/// What the memory holds when this begins may be the first word of an `ask` that waits already, or anything else, the end of
/// an earlier measurement for example. All but that end is answered: nobody minds an answer that nobody waits for.
pub(crate) fn answer(pool: &impl Words) -> anyhow::Result<()> {
    let mut word = pool.load_u64(PING)?;
    if word != END {
        pool.store_u64(PONG, word)?;
    }
    println!("ready");
    std::io::stdout().flush()?;
    loop {
        word = changed(pool, PING, word)?;
        pool.store_u64(PONG, word)?;
        if word == END {
            return Ok(());
        }
    }
}

/// A word that the memory does not hold yet, whatever it holds: the time in nanoseconds. Those after it are measured with.
fn first_word() -> anyhow::Result<u64> {
    let time = SystemTime::now().duration_since(UNIX_EPOCH);
    let time = time.context("the clock of this node is before 1970")?;
    Ok(u64::try_from(time.as_nanos())?)
}

/// Measures `count` round trips. One way is taken to be half of one, in microseconds. The other side may begin later.
pub(crate) fn ask(pool: &impl Words, count: u32) -> anyhow::Result<Value> {
    let first = first_word()?;
    pool.store_u64(PING, first)?;
    ensure!(
        until(pool, PONG, |word| word == first)?.is_some(),
        "no answer within {TIMEOUT:?}: start `poolbench pong` on the other node, with the file of the same pool"
    );
    let mut times = Vec::with_capacity(usize::try_from(count)?);
    let unmeasured = u64::from(count / 10);
    let last = u64::from(count).saturating_add(unmeasured);
    let mut before = first;
    for done in 1..=last {
        let word = before.saturating_add(1);
        let start = Instant::now();
        pool.store_u64(PING, word)?;
        let answer = changed(pool, PONG, before)?;
        let time = start.elapsed();
        ensure!(answer == word, "{answer} came for {word}");
        if done > unmeasured {
            times.push(time.as_secs_f64() * 1e6 / 2.0);
        }
        before = word;
    }
    pool.store_u64(PING, END)?;
    times.sort_by(f64::total_cmp);
    let at = |part: f64| -> Value {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share of a length"
        )]
        let index = (part * f64::from(count.saturating_sub(1))) as usize;
        times
            .get(index)
            .map_or(Value::Null, |time| json!((time * 1000.0).round() / 1000.0))
    };
    let mean = times.iter().sum::<f64>() / f64::from(count);
    Ok(
        json!({ "count": count, "min": at(0.0), "median": at(0.5), "p99": at(0.99), "mean": (mean * 1000.0).round() / 1000.0 }),
    )
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// The words of a pool, as its memory has them.
    struct Pool([AtomicU64; 2]);

    impl Words for Pool {
        fn load_u64(&self, offset: usize) -> Result<u64, AccessError> {
            Ok(self.0[offset / PONG].load(Ordering::Acquire))
        }

        fn store_u64(&self, offset: usize, value: u64) -> Result<(), AccessError> {
            self.0[offset / PONG].store(value, Ordering::Release);
            Ok(())
        }
    }

    /// Runs both sides on memory that begins with `ping` and `pong`; `answer` comes that much later than `ask`.
    fn measured(ping: u64, pong: u64, late: Duration) -> anyhow::Result<Value> {
        let pool = Pool([AtomicU64::new(ping), AtomicU64::new(pong)]);
        std::thread::scope(|scope| {
            let answering = scope.spawn(|| {
                std::thread::sleep(late);
                answer(&pool)
            });
            let asked = ask(&pool, 10);
            answering.join().map_err(|_| anyhow::anyhow!("a panic"))??;
            asked
        })
    }

    #[test]
    fn either_side_may_come_first() {
        for late in [0, 50] {
            let result = measured(0, 0, Duration::from_millis(late)).unwrap();
            assert_eq!(result["count"], 10, "{late} ms");
        }
    }

    #[test]
    fn what_is_in_the_memory_means_nothing() {
        for (ping, pong) in [(END, 22_000), (7, 7), (u64::MAX - 1, 0), (0, END)] {
            for late in [0, 50] {
                let result = measured(ping, pong, Duration::from_millis(late)).unwrap();
                assert_eq!(result["count"], 10, "{ping}, {pong}, {late} ms");
            }
        }
    }
}
