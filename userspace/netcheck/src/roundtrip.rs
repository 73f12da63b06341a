// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Request and response on one TCP connection, one in flight, as netperf's TCP_RR does.

use crate::error::{During, Error};
use crate::hello::{Connection, Hello, Options};
use serde_json::{json, Value};
use std::io::{Read, Write};
use std::time::{Duration, Instant};

/// Largest request that is taken.
const MAX_SIZE: usize = 1 << 20;

/// The server's side: answers until the client closes.
pub(crate) fn server(mut connection: Connection, size: usize) -> Result<(), Error> {
    if size == 0 || size > MAX_SIZE {
        return Err(Error::Peer(format!("transactions of {size} bytes")));
    }
    let mut buffer = vec![0; size];
    while connection.reader.read_exact(&mut buffer).is_ok() {
        connection.writer.write_all(&buffer).during("respond")?;
    }
    Ok(())
}

/// Runs a client for `time`.
pub(crate) fn client(options: &Options, size: usize, time: Duration) -> Result<Value, Error> {
    if size == 0 || size > MAX_SIZE {
        return Err(Error::Usage(format!("size must be 1 to {MAX_SIZE}")));
    }
    let mut connection = Connection::open(options, &Hello::RoundTrip { size })?;
    let mut buffer = vec![0x5a; size];
    let start = Instant::now();
    let mut transactions = 0u64;
    while start.elapsed() < time {
        connection.writer.write_all(&buffer).during("request")?;
        connection
            .reader
            .read_exact(&mut buffer)
            .during("await the response")?;
        transactions = transactions.saturating_add(1);
    }
    let seconds = start.elapsed().as_secs_f64();
    Ok(json!({
        "transactions": transactions, "seconds": seconds, "per_second": transactions as f64 / seconds,
        "mean_us": seconds * 1e6 / transactions.max(1) as f64,
    }))
}
