// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What both hosts do at the same time, and how long it takes.

use std::time::Instant;

use nupa_proto::regs::DEVICE_MEMORY_BASE;
use serde_json::{json, Value};

use super::{
    Request, Side, BULK, EMPTY, INLINE, KEY, PING, POOL_KEY, SIGNALED, SMALL_DATA, TIMEOUT, WINDOW,
};
use crate::ffi::testing::{no_completion, sys};

/// Bytes of messages whose rates are measured.
const SMALL: u32 = 64;
const MEDIUM: u32 = 64 << 10;
/// Requests of a list.
const LIST: usize = 16;

/// Minimum and median of all but the first tenth.
fn of(mut times: Vec<u64>) -> Value {
    times.drain(..times.len() / 10);
    times.sort_unstable();
    json!({ "min": times[0], "median": times[times.len() / 2] })
}

fn nanoseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap()
}

/// Half of the time until a word that this core has written in a line of its own is answered by the other one's: no protocol can be faster.
fn line(side: &mut Side, rounds: u64) -> Value {
    let (id, other, mut times) = (side.id, side.other(), Vec::new());
    side.meet();
    for round in 1..=rounds {
        let start = Instant::now();
        if id == 0 {
            side.board.put(id, PING, round);
        }
        let mut spins = 0;
        while side.board.get(other, PING) != round {
            spins += 1;
            assert!(
                spins % EMPTY != 0 || start.elapsed() < TIMEOUT,
                "host {id}: no line"
            );
        }
        if id == 1 {
            side.board.put(id, PING, round);
        }
        times.push(nanoseconds(start) / 2);
    }
    of(times)
}

/// Half of a round trip of a SEND of 8 bytes.
fn send_latency(side: &mut Side, rounds: u64) -> Value {
    let mut times = Vec::new();
    side.fill();
    side.meet();
    for round in 0..rounds {
        // A send queue has room again for what completes.
        let signaled = if round % 16 == 0 { SIGNALED } else { 0 };
        let start = Instant::now();
        if side.id == 0 {
            side.send(8, INLINE | signaled);
        }
        side.take(sys::IBV_WC_RECV);
        side.receive();
        if side.id == 1 {
            side.send(8, INLINE | signaled);
        }
        times.push(nanoseconds(start) / 2);
    }
    side.meet();
    of(times)
}

/// A request of 8 bytes until its completion: it writes to memory of the other side, in the pool or not, or reads there.
fn request_latency(side: &mut Side, rounds: u64, request: Request, remote: (u64, u32)) -> Value {
    let mut times = Vec::new();
    side.meet();
    for _ in 0..rounds * u64::from(side.id == 0) {
        let start = Instant::now();
        side.request(request, 8, remote);
        times.push(nanoseconds(start));
    }
    side.meet();
    match side.id {
        0 => of(times),
        _ => Value::Null,
    }
}

/// Messages that one side sends to the other, of so many bytes: how many a second.
fn send_rate(side: &mut Side, len: u32, count: u64) -> f64 {
    let mut posted = 0;
    side.fill();
    side.meet();
    let start = Instant::now();
    let mut done = 0;
    while done < count {
        if side.id == 0 {
            while posted < count && posted - done < WINDOW {
                side.send(len, SIGNALED);
                posted += 1;
            }
            done += u64::from(side.poll());
        } else if side.poll() {
            done += 1;
            side.receive();
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    side.meet();
    count as f64 / seconds
}

/// As [`send_rate`], where programs post messages and receive buffers as lists, and take as many completions at a time.
fn list_rate(side: &mut Side, len: u32, count: u64) -> f64 {
    side.fill();
    side.meet();
    let mut completions = [no_completion(); LIST];
    let start = Instant::now();
    let (mut posted, mut done) = (0, 0);
    while done < count {
        while side.id == 0 && posted < count && posted - done + LIST as u64 <= WINDOW {
            side.send_list::<LIST>(len);
            posted += LIST as u64;
        }
        let found = side.poll_many(&mut completions);
        done += found as u64;
        if side.id == 1 && found != 0 {
            side.receive_list::<LIST>(found);
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    side.meet();
    count as f64 / seconds
}

/// Requests of so many bytes, with some under way: bytes in a nanosecond.
fn request_rate(
    side: &mut Side,
    len: u32,
    count: u64,
    request: Request,
    remote: (u64, u32),
) -> f64 {
    side.meet();
    let start = Instant::now();
    let (mut posted, mut done) = (0, 0);
    while side.id == 0 && done < count {
        while posted < count && posted - done < 4 {
            side.post(request, len, SIGNALED, remote);
            posted += 1;
        }
        done += u64::from(side.poll());
    }
    let time = nanoseconds(start);
    side.meet();
    (count * u64::from(len)) as f64 / time as f64
}

/// Bytes in a nanosecond that a copy from one piece of memory to another moves, again and again: from caches to caches.
fn copy_rate(len: u32) -> f64 {
    let bytes = len as usize;
    let from = vec![1_u8; bytes];
    let mut to = vec![0_u8; bytes];
    let rates = (0..200).map(|_| {
        let start = Instant::now();
        std::hint::black_box(&mut to[..]).copy_from_slice(std::hint::black_box(&from));
        bytes as f64 / nanoseconds(start) as f64
    });
    let mut rates: Vec<f64> = rates.collect();
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

/// What both sides do, with so many round trips. What was written is checked.
pub(super) fn run(side: &mut Side, rounds: u64) -> Value {
    side.connect();
    let other = side.other();
    let key = |number| side.board.get(other, number) as u32;
    let private = (side.node.memory, key(KEY));
    let granted = (DEVICE_MEMORY_BASE, key(POOL_KEY));
    let line = line(side, rounds);
    let count = rounds / 40;
    let mut result = json!({ "line": line, "send_8": send_latency(side, rounds) });
    assert_eq!(side.node.bytes(0, 8), SMALL_DATA, "host {}", side.id);
    result["write_8"] = request_latency(side, rounds, Request::Write, private);
    side.map_region(granted);
    for (name, request) in [
        ("write_8_pool", Request::Write),
        ("read_8_pool", Request::Read),
    ] {
        result[name] = request_latency(side, rounds, request, granted);
    }
    result["sends_64"] = send_rate(side, SMALL, rounds * 10).round().into();
    result["lists_64"] = list_rate(side, SMALL, rounds * 10 / LIST as u64 * LIST as u64)
        .round()
        .into();
    side.prepare(2);
    for (name, len, count) in [("send_64k", MEDIUM, count * 10), ("send_1m", BULK, count)] {
        result[name] = (send_rate(side, len, count) * f64::from(len) / 1e9).into();
    }
    side.check(2);
    side.prepare(3);
    result["write_1m"] = request_rate(side, BULK, count, Request::Write, private).into();
    side.check(3);
    side.prepare(4);
    result["write_1m_pool"] = request_rate(side, BULK, count, Request::Write, granted).into();
    result["read_1m_pool"] = request_rate(side, BULK, count, Request::Read, granted).into();
    side.read_back(granted);
    side.check(4);
    result["memcpy_64k"] = copy_rate(MEDIUM).into();
    result["memcpy_1m"] = copy_rate(BULK).into();
    side.meet();
    result
}
