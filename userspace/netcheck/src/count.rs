// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Datagrams of one size as fast as one thread sends them; the server counts those that arrive.

use crate::datagram::{connect, finished, is_timeout, open};
use crate::error::{During, Error};
use crate::hello::{Connection, Hello, Options, Verdict};
use serde_json::{json, Value};
use std::net::Shutdown;
use std::time::{Duration, Instant};

/// Datagrams sent between two looks at the clock.
const BATCH: u64 = 64;

/// The server's side: counts until the client is done and nothing more comes.
pub(crate) fn server(mut connection: Connection) -> Result<(), Error> {
    let socket = open(&mut connection)?;
    let mut verdict = Verdict::default();
    let mut first = None;
    let mut last = None;
    let mut buffer = vec![0; 65_536];
    loop {
        match socket.recv(&mut buffer) {
            Ok(len) => {
                let now = Instant::now();
                first.get_or_insert(now);
                last = Some(now);
                verdict.messages = verdict.messages.saturating_add(1);
                verdict.bytes = verdict.bytes.saturating_add(len as u64);
            }
            Err(error) if is_timeout(&error) => {
                if finished(&mut connection)? {
                    break;
                }
            }
            Err(error) => return Err(error).during("receive a datagram"),
        }
    }
    if let (Some(first), Some(last)) = (first, last) {
        verdict.seconds = last.duration_since(first).as_secs_f64();
    }
    connection.send(&verdict)
}

/// Runs a client that sends datagrams of `size` bytes for `time`.
pub(crate) fn client(options: &Options, size: usize, time: Duration) -> Result<Value, Error> {
    let mut connection = Connection::open(options, &Hello::Count)?;
    let socket = connect(&mut connection)?;
    let data = vec![0x5a; size];
    let start = Instant::now();
    let mut sent = 0u64;
    while start.elapsed() < time {
        for _ in 0..BATCH {
            socket.send(&data).during("send a datagram")?;
        }
        sent = sent.saturating_add(BATCH);
    }
    let sending = start.elapsed().as_secs_f64();
    connection.writer.shutdown(Shutdown::Write).during("end")?;
    let verdict: Verdict = connection.receive()?;
    let rate = |count: u64, seconds: f64| {
        if seconds > 0.0 {
            count as f64 / seconds
        } else {
            0.0
        }
    };
    Ok(json!({
        "sent": sent, "received": verdict.messages,
        "sent_pps": rate(sent, sending), "received_pps": rate(verdict.messages, verdict.seconds),
    }))
}
