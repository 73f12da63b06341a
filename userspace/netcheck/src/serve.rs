// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The answering side: one thread for each connection.

use crate::error::{During, Error};
use crate::hello::{Connection, Hello};
use crate::{count, datagram, roundtrip, stream};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

/// A client that is silent for so long is dropped.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(60);

/// Answers clients on `listen` for ever.
pub(crate) fn run(listen: &str) -> Result<serde_json::Value, Error> {
    let listener = TcpListener::bind(listen).during("listen")?;
    println!("ready");
    loop {
        match listener.accept() {
            Ok((stream, from)) => {
                thread::spawn(move || {
                    if let Err(error) = answer(stream) {
                        eprintln!("netcheck: {from}: {error}");
                    }
                });
            }
            // Such as a connection that was reset before it was accepted: the next one may be well.
            Err(error) => {
                eprintln!("netcheck: accept: {error}");
                thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

fn answer(stream: TcpStream) -> Result<(), Error> {
    let mut connection = Connection::new(stream, CLIENT_TIMEOUT)?;
    match connection.receive()? {
        Hello::Stream { seed, max, bytes } => stream::server(connection, seed, max, bytes),
        Hello::Datagram { seed } => datagram::server(connection, seed),
        Hello::Count => count::server(connection),
        Hello::RoundTrip { size } => roundtrip::server(connection, size),
    }
}
