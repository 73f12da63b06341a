// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Prints the frequency of the host's time stamp counter in kHz, for the kernel parameter `tsc_early_khz` of a guest.
//!
//! Without KVM the counter that a guest reads is the host's. A guest that is not told its frequency measures it against the emulated PIT. It is
//! wrong by up to a factor of 10 if the host takes the CPU away between the start of the PIT and the first look at the counter
//! (`pit_calibrate_tsc`). This program sees that it was interrupted, and looks again.

use std::fs;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use rustix::time::{clock_gettime, ClockId};
use safe_arch::read_timestamp_counter;

/// Between the two samples.
const APART: Duration = Duration::from_millis(100);
/// Most that a sample may take, in ns: a ten-thousandth of that.
const QUICK: i128 = 10_000;
/// Attempts to take one that quickly.
const ATTEMPTS: u32 = 10_000;

/// The counter at a time.
struct Sample {
    /// Sum of the times before and after, in ns.
    times: i128,
    ticks: i128,
}

/// Reads the counter, again if it takes long. `None` if it always does.
fn sample() -> Option<Sample> {
    (0..ATTEMPTS).find_map(|_| {
        let before = now();
        let ticks = i128::from(read_timestamp_counter());
        let after = now();
        (after.checked_sub(before)? <= QUICK).then_some(Sample {
            times: before.checked_add(after)?,
            ticks,
        })
    })
}

/// Time since some event, in ns.
fn now() -> i128 {
    let time = clock_gettime(ClockId::Monotonic);
    i128::from(time.tv_sec)
        .saturating_mul(1_000_000_000)
        .saturating_add(i128::from(time.tv_nsec))
}

/// The counter's frequency in kHz.
fn frequency() -> Option<i128> {
    let first = sample()?;
    thread::sleep(APART);
    let last = sample()?;
    let ticks = last.ticks.checked_sub(first.ticks)?;
    let twice_ns = last.times.checked_sub(first.times)?;
    ticks.checked_mul(2_000_000)?.checked_div(twice_ns)
}

/// Whether the counter has one frequency, whatever the CPU does.
fn is_constant() -> bool {
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    cpus.split_whitespace().any(|word| word == "constant_tsc")
}

fn main() -> ExitCode {
    let why = if !is_constant() {
        "the time stamp counter of this CPU has no constant frequency"
    } else if let Some(khz) = frequency() {
        println!("{khz}");
        return ExitCode::SUCCESS;
    } else {
        "this program was always interrupted when it read the time stamp counter"
    };
    eprintln!("nupa-tsc: {why}, so guests measure it themselves");
    ExitCode::FAILURE
}
