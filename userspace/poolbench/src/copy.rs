// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Copies between private memory and the pool.

use std::time::{Duration, Instant};

use anyhow::{ensure, Context};
use guestmem::MmapRegion;
use serde_json::{json, Value};

/// Megabytes per second to the pool, from it, and between private memory.
pub(crate) fn run(pool: &MmapRegion, block: u32, seconds: u32) -> anyhow::Result<Value> {
    let size = usize::try_from(block)?;
    let blocks = pool.len().checked_div(size).unwrap_or(0);
    ensure!(blocks > 0, "the pool has less than a block");
    let time = Duration::from_secs(seconds.into());
    let mut own = vec![0x5a; size];
    let mut other = vec![0; size.saturating_mul(blocks)];
    let within = other.chunks_exact_mut(size);
    // Each page of private memory is to be there before it is measured.
    within.for_each(|chunk| chunk.copy_from_slice(&own));

    let to_pool = rate(size, blocks, time, |offset| Ok(pool.write(offset, &own)?))?;
    let private = rate(size, blocks, time, |offset| {
        let end = offset.saturating_add(size);
        let chunk = other.get_mut(offset..end).context("no such block")?;
        chunk.copy_from_slice(&own);
        Ok(())
    })?;
    let from_pool = rate(
        size,
        blocks,
        time,
        |offset| Ok(pool.read(offset, &mut own)?),
    )?;
    ensure!(
        own.iter().all(|byte| *byte == 0x5a),
        "the pool holds other bytes than were written"
    );
    Ok(json!({ "block": size, "to_pool": to_pool, "from_pool": from_pool, "private": private }))
}

/// Runs `copy` on one block after the other, over and over, for a time; returns megabytes per second.
fn rate(
    block: usize,
    blocks: usize,
    time: Duration,
    mut copy: impl FnMut(usize) -> anyhow::Result<()>,
) -> anyhow::Result<f64> {
    let start = Instant::now();
    let mut passes = 0u32;
    while passes == 0 || start.elapsed() < time {
        for index in 0..blocks {
            copy(index.saturating_mul(block))?;
        }
        passes = passes.saturating_add(1);
    }
    let bytes = f64::from(passes) * f64::from(u32::try_from(blocks.saturating_mul(block))?);
    Ok((bytes / start.elapsed().as_secs_f64() / 1e6).round())
}
