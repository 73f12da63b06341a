// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Chunks of random sizes over TCP, both ways at once, verified on both sides.
//!
//! A chunk is its length (u32, little-endian) and so many bytes of the sender's stream. Length 0 ends a direction; a
//! last line from the server says what it saw.

use crate::error::{During, Error};
use crate::hello::{Connection, Hello, Options, Verdict};
use netcheck::pattern::{Pattern, Sizes};
use serde_json::{json, Value};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Largest chunk that is taken.
const MAX_CHUNK: usize = 1 << 20;

/// When a client stops sending.
#[derive(Clone, Copy)]
pub(crate) enum Limit {
    /// After so many bytes.
    Bytes(u64),
    /// After so much time.
    Time(Duration),
}

/// Sends chunks until `done` says so, given the bytes sent; then the end mark. Returns bytes sent.
fn send(
    mut writer: &TcpStream,
    seed: u64,
    max: usize,
    done: impl Fn(u64) -> bool,
) -> Result<u64, Error> {
    let mut pattern = Pattern::new(seed);
    let mut chunk = Vec::new();
    for size in Sizes::new(seed, max.min(MAX_CHUNK)) {
        if done(pattern.offset()) {
            break;
        }
        let length = u32::try_from(size).map_err(|_| Error::Usage("chunk too large".into()))?;
        chunk.clear();
        chunk.extend_from_slice(&length.to_le_bytes());
        chunk.resize(size.saturating_add(4), 0);
        pattern.fill(chunk.get_mut(4..).unwrap_or_default());
        writer.write_all(&chunk).during("send")?;
    }
    writer.write_all(&0u32.to_le_bytes()).during("send")?;
    Ok(pattern.offset())
}

/// Receives and verifies chunks up to the end mark.
fn receive(reader: &mut impl Read, seed: u64) -> Result<Verdict, Error> {
    let mut pattern = Pattern::new(seed);
    let mut verdict = Verdict::default();
    let mut chunk = Vec::new();
    let start = Instant::now();
    loop {
        let mut length = [0; 4];
        reader.read_exact(&mut length).during("receive")?;
        let length = u32::from_le_bytes(length) as usize;
        if length == 0 {
            verdict.seconds = start.elapsed().as_secs_f64();
            return Ok(verdict);
        }
        let at = pattern.offset();
        if length > MAX_CHUNK {
            return Err(Error::Corrupt(format!(
                "chunk of {length} bytes at byte {at} of the stream"
            )));
        }
        chunk.resize(length, 0);
        reader.read_exact(&mut chunk).during("receive")?;
        if let Err(wrong) = pattern.check(&chunk) {
            return Err(Error::Corrupt(format!(
                "byte {wrong} of the stream is wrong (chunk at {at}, {length} bytes)"
            )));
        }
        verdict.bytes = pattern.offset();
        verdict.messages = verdict.messages.saturating_add(1);
    }
}

/// The server's side of a connection.
pub(crate) fn server(
    mut connection: Connection,
    seed: u64,
    max: usize,
    bytes: Option<u64>,
) -> Result<(), Error> {
    let client_done = AtomicBool::new(false);
    let done = |sent| match bytes {
        Some(bytes) => sent >= bytes,
        None => client_done.load(Ordering::Relaxed),
    };
    let Connection { reader, writer } = &mut connection;
    let received = thread::scope(|scope| {
        let sender = scope.spawn(|| send(writer, seed.wrapping_add(1), max, done));
        let received = receive(reader, seed);
        client_done.store(true, Ordering::Relaxed);
        if let Err(Error::Network(..)) = received {
            // The sender may be stuck on the same dead connection.
            let _ = writer.shutdown(Shutdown::Both);
        }
        join(sender).and(received)
    });
    let verdict = match received {
        Err(Error::Corrupt(text)) => Verdict {
            corrupt: Some(text),
            ..Verdict::default()
        },
        other => other?,
    };
    connection.send(&verdict)
}

/// Runs a client: sends up to `limit`, verifies what the server sends, and takes its verdict.
pub(crate) fn client(options: &Options, limit: Limit) -> Result<Value, Error> {
    let bytes = match limit {
        Limit::Bytes(bytes) => Some(bytes),
        Limit::Time(_) => None,
    };
    let hello = Hello::Stream {
        seed: options.seed,
        max: options.max,
        bytes,
    };
    let mut connection = Connection::open(options, &hello)?;
    let start = Instant::now();
    let done = |sent| match limit {
        Limit::Bytes(bytes) => sent >= bytes,
        Limit::Time(time) => start.elapsed() >= time,
    };
    let Connection { reader, writer } = &mut connection;
    let (sent, received) = thread::scope(|scope| {
        let sender = scope.spawn(|| send(writer, options.seed, options.max, done));
        let received = receive(reader, options.seed.wrapping_add(1));
        if received.is_err() {
            let _ = writer.shutdown(Shutdown::Both);
        }
        (join(sender), received)
    });
    // Wrong bytes say more than the connection that was closed because of them.
    let received = received?;
    let sent = sent?;
    let peer: Verdict = connection.receive()?;
    if let Some(text) = peer.corrupt {
        return Err(Error::Corrupt(format!("at the server: {text}")));
    }
    if peer.bytes != sent {
        return Err(Error::Corrupt(format!(
            "sent {sent} bytes, the server got {}",
            peer.bytes
        )));
    }
    Ok(json!({
        "sent": sent, "received": received.bytes, "chunks": received.messages,
        "seconds": start.elapsed().as_secs_f64(),
    }))
}

fn join<T>(thread: thread::ScopedJoinHandle<'_, Result<T, Error>>) -> Result<T, Error> {
    thread
        .join()
        .unwrap_or_else(|_| Err(Error::Peer("sending thread panicked".into())))
}
