// SPDX-License-Identifier: GPL-2.0 OR MIT

//! How long it takes until a store of one node is seen by another.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use guestmem::MmapRegion;
use serde_json::{json, Value};

/// The word that `ask` stores to, and the one that `answer` does: in cache lines of their own.
const PING: usize = 0;
const PONG: usize = 64;
/// Tells `answer` to end.
const END: u64 = u64::MAX;
/// How long the other side may be silent.
const PATIENCE: Duration = Duration::from_secs(30);
/// Loads between looks at the clock, which takes longer than a load.
const LOADS: u32 = 1 << 16;

/// Waits until the word differs from `old`, and returns it.
fn changed(pool: &MmapRegion, offset: usize, old: u64) -> anyhow::Result<u64> {
    let start = Instant::now();
    loop {
        for _ in 0..LOADS {
            let word = pool.load_u64(offset)?;
            if word != old {
                return Ok(word);
            }
            std::hint::spin_loop();
        }
        if start.elapsed() > PATIENCE {
            bail!("nothing from the other node for {PATIENCE:?}");
        }
    }
}

/// Answers until told to end.
pub(crate) fn answer(pool: &MmapRegion) -> anyhow::Result<()> {
    pool.store_u64(PING, 0)?;
    pool.store_u64(PONG, 0)?;
    println!("ready");
    std::io::stdout().flush()?;
    let mut word = 0;
    while word != END {
        word = changed(pool, PING, word)?;
        pool.store_u64(PONG, word)?;
    }
    Ok(())
}

/// Measures `count` round trips. One way is taken to be half of one, in microseconds.
pub(crate) fn ask(pool: &MmapRegion, count: u32) -> anyhow::Result<Value> {
    ensure!(
        pool.load_u64(PING)? == 0,
        "no 'pong' waits on the other node"
    );
    let mut times = Vec::with_capacity(usize::try_from(count)?);
    let unmeasured = u64::from(count / 10);
    let last = u64::from(count).saturating_add(unmeasured);
    for word in 1..=last {
        let start = Instant::now();
        pool.store_u64(PING, word)?;
        let answer = changed(pool, PONG, word.saturating_sub(1))?;
        let time = start.elapsed();
        ensure!(answer == word, "{answer} came for {word}");
        if word > unmeasured {
            times.push(time.as_secs_f64() * 1e6 / 2.0);
        }
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
