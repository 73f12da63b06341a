// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Datagrams of random sizes, one in flight: each is answered by another of the same size, both verified.
//!
//! There is no header in them, so that a datagram of one byte is possible; both sides count. The fabric loses nothing, so a lost
//! datagram is an error and not sent again.

use crate::error::{During, Error};
use crate::hello::{Connection, Hello, Options, Port, Verdict};
use netcheck::pattern::{Pattern, Sizes};
use serde_json::{json, Value};
use std::io::{self, Read};
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

/// How often the server looks whether the client is done.
const TICK: Duration = Duration::from_millis(100);
/// Largest datagram there is, and one byte more to notice longer ones.
const BUFFER: usize = 65_536;

/// Opens a datagram socket on the address that the client connected to, and tells the client.
pub(crate) fn open(connection: &mut Connection) -> Result<UdpSocket, Error> {
    let mut local = connection.writer.local_addr().during("own address")?;
    local.set_port(0);
    let socket = UdpSocket::bind(local).during("bind a datagram socket")?;
    socket.set_read_timeout(Some(TICK)).during("set timeout")?;
    let port = socket.local_addr().during("own port")?.port();
    connection.send(&Port { port })?;
    Ok(socket)
}

/// Connects a datagram socket to the port that the server opened.
pub(crate) fn connect(connection: &mut Connection) -> Result<UdpSocket, Error> {
    let Port { port } = connection.receive()?;
    let mut local = connection.writer.local_addr().during("own address")?;
    let mut peer: SocketAddr = connection
        .writer
        .peer_addr()
        .during("address of the peer")?;
    local.set_port(0);
    peer.set_port(port);
    let socket = UdpSocket::bind(local).during("bind a datagram socket")?;
    socket.connect(peer).during("connect a datagram socket")?;
    Ok(socket)
}

/// Whether the control connection is at its end: the client is done or gone.
pub(crate) fn finished(connection: &mut Connection) -> Result<bool, Error> {
    connection
        .reader
        .get_ref()
        .set_nonblocking(true)
        .during("set non-blocking")?;
    let finished = match connection.reader.read(&mut [0]) {
        Ok(_) => true,
        Err(error) => error.kind() != io::ErrorKind::WouldBlock,
    };
    connection
        .reader
        .get_ref()
        .set_nonblocking(false)
        .during("set blocking")?;
    Ok(finished)
}

/// Whether a receive failed only because nothing came in time.
pub(crate) fn is_timeout(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

/// The server's side: checks and answers until the client closes its half of the control connection.
pub(crate) fn server(mut connection: Connection, seed: u64) -> Result<(), Error> {
    let socket = open(&mut connection)?;
    let mut verdict = Verdict::default();
    let mut buffer = vec![0; BUFFER];
    loop {
        let (len, from) = match socket.recv_from(&mut buffer) {
            Ok(got) => got,
            Err(error) if is_timeout(&error) => {
                if finished(&mut connection)? {
                    return connection.send(&verdict);
                }
                continue;
            }
            Err(error) => return Err(error).during("receive a datagram"),
        };
        let data = buffer.get_mut(..len).unwrap_or_default();
        let number = verdict.messages;
        if let Err(at) = Pattern::numbered(seed, number).check(data) {
            verdict.corrupt = Some(format!(
                "byte {at} of datagram {number} ({len} bytes) is wrong"
            ));
            return connection.send(&verdict);
        }
        Pattern::numbered(seed.wrapping_add(1), number).fill(data);
        socket.send_to(data, from).during("send a datagram")?;
        verdict.messages = number.saturating_add(1);
        verdict.bytes = verdict.bytes.saturating_add(len as u64);
    }
}

/// Runs a client that sends `count` datagrams.
pub(crate) fn client(options: &Options, count: u64) -> Result<Value, Error> {
    let mut connection = Connection::open(options, &Hello::Datagram { seed: options.seed })?;
    let socket = connect(&mut connection)?;
    socket
        .set_read_timeout(Some(options.timeout))
        .during("set timeout")?;
    let start = Instant::now();
    let mut bytes = 0u64;
    let mut buffer = vec![0; BUFFER];
    for (number, size) in (0..count).zip(Sizes::new(options.seed, options.max)) {
        let data = buffer
            .get_mut(..size)
            .ok_or_else(|| Error::Usage("datagram too large".into()))?;
        Pattern::numbered(options.seed, number).fill(data);
        socket.send(data).during("send a datagram")?;
        let len = socket
            .recv(&mut buffer)
            .map_err(|error| lost(error, number, size))?;
        let answer = buffer.get(..len).unwrap_or_default();
        if len != size {
            return Err(Error::Corrupt(format!(
                "answer {number} has {len} bytes, not {size}"
            )));
        }
        if let Err(at) = Pattern::numbered(options.seed.wrapping_add(1), number).check(answer) {
            return Err(Error::Corrupt(format!(
                "byte {at} of answer {number} ({size} bytes) is wrong"
            )));
        }
        bytes = bytes.saturating_add(size as u64);
    }
    connection
        .writer
        .shutdown(std::net::Shutdown::Write)
        .during("end")?;
    let verdict: Verdict = connection.receive()?;
    match verdict.corrupt {
        Some(text) => Err(Error::Corrupt(format!("at the server: {text}"))),
        None => Ok(json!({
            "datagrams": verdict.messages, "bytes": bytes, "seconds": start.elapsed().as_secs_f64(),
        })),
    }
}

fn lost(error: io::Error, number: u64, size: usize) -> Error {
    if is_timeout(&error) {
        Error::Peer(format!(
            "datagram {number} of {size} bytes, or its answer, did not arrive"
        ))
    } else {
        Error::Network("receive a datagram", error)
    }
}
