// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The first line of a connection, and lines in general: JSON, one object a line.

use crate::error::{During, Error};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// Longest line that is taken.
const MAX_LINE: u64 = 4096;

/// What the client wants.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) enum Hello {
    /// Verified chunks both ways, see [`crate::stream`].
    Stream {
        /// Seed of the client's bytes; the server's is one above.
        seed: u64,
        /// Largest chunk.
        max: usize,
        /// Bytes that the server sends; without it, it sends until the client is done.
        bytes: Option<u64>,
    },
    /// Verified datagrams, see [`crate::datagram`].
    Datagram {
        /// Seed of the client's bytes; the server's is one above.
        seed: u64,
    },
    /// Counted datagrams, see [`crate::count`].
    Count,
    /// Request and response, see [`crate::roundtrip`].
    RoundTrip {
        /// Bytes of a request and of a response.
        size: usize,
    },
}

/// Port of the datagram socket that the server opened for this client.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) struct Port {
    /// UDP port on the address that the client connected to.
    pub(crate) port: u16,
}

/// How a run went on the server's side.
#[derive(Serialize, Deserialize, Debug, Default)]
pub(crate) struct Verdict {
    /// Bytes that arrived and were right.
    pub(crate) bytes: u64,
    /// Datagrams or chunks that arrived and were right.
    pub(crate) messages: u64,
    /// Seconds from the first to the last of them.
    pub(crate) seconds: f64,
    /// What was wrong with the rest.
    pub(crate) corrupt: Option<String>,
}

/// What a client needs to know to reach the server.
pub(crate) struct Options {
    /// Host and port.
    pub(crate) to: String,
    /// Seed of payloads and sizes.
    pub(crate) seed: u64,
    /// Largest chunk or datagram.
    pub(crate) max: usize,
    /// How long no progress is borne.
    pub(crate) timeout: Duration,
}

/// One TCP connection: buffered reads, plain writes.
pub(crate) struct Connection {
    /// Read side.
    pub(crate) reader: BufReader<TcpStream>,
    /// Write side.
    pub(crate) writer: TcpStream,
}

impl Connection {
    /// Wraps a stream whose reads and writes fail after `timeout` without progress.
    pub(crate) fn new(stream: TcpStream, timeout: Duration) -> Result<Self, Error> {
        stream
            .set_read_timeout(Some(timeout))
            .during("set read timeout")?;
        stream
            .set_write_timeout(Some(timeout))
            .during("set write timeout")?;
        stream.set_nodelay(true).during("set TCP_NODELAY")?;
        let writer = stream.try_clone().during("clone socket")?;
        Ok(Connection {
            reader: BufReader::with_capacity(1 << 16, stream),
            writer,
        })
    }

    /// Connects and says what is wanted.
    pub(crate) fn open(options: &Options, hello: &Hello) -> Result<Self, Error> {
        let addresses = options.to.to_socket_addrs().during("resolve address")?;
        let mut last = Error::Usage(format!("'{}' has no address", options.to));
        for address in addresses {
            match TcpStream::connect_timeout(&address, options.timeout).during("connect") {
                Ok(stream) => {
                    let mut connection = Connection::new(stream, options.timeout)?;
                    connection.send(hello)?;
                    return Ok(connection);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Writes one line.
    pub(crate) fn send<T: Serialize>(&mut self, value: &T) -> Result<(), Error> {
        let mut line = serde_json::to_vec(value).map_err(|error| Error::Peer(error.to_string()))?;
        line.push(b'\n');
        self.writer.write_all(&line).during("send a control line")
    }

    /// Reads one line.
    pub(crate) fn receive<T: DeserializeOwned>(&mut self) -> Result<T, Error> {
        let mut line = Vec::new();
        self.reader
            .by_ref()
            .take(MAX_LINE)
            .read_until(b'\n', &mut line)
            .during("read a control line")?;
        serde_json::from_slice(&line).map_err(|error| {
            Error::Peer(format!(
                "unexpected line {:?}: {error}",
                String::from_utf8_lossy(&line)
            ))
        })
    }
}
