// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the client makes of devices that answer other than they should.

#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "tests fail by panicking"
)]

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use vfio_user::Client;

const COMMAND_VERSION: u16 = 1;
const COMMAND_RESET: u16 = 13;
const REPLY: u32 = 1;
const REPLY_ERROR: u32 = 1 | (1 << 5);

/// A reply without its first two bytes, which are the request's number: command, size, flags, error, body.
fn reply(command: u16, flags: u32, error: u32, body: &[u8]) -> Vec<u8> {
    let size = u32::try_from(16 + body.len()).unwrap();
    let header = [
        command.to_le_bytes().to_vec(),
        size.to_le_bytes().to_vec(),
        flags.to_le_bytes().to_vec(),
        error.to_le_bytes().to_vec(),
    ];
    [&header.concat(), body].concat()
}

/// Connects to a device that gives these replies, one to each request; its request's number is added to that of the reply.
fn answered(replies: Vec<(u16, Vec<u8>)>) -> std::io::Result<Client> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("vfio-user-client-{}-{number}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let listener = UnixListener::bind(&path).unwrap();
    thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        for (other, rest) in replies {
            let mut header = [0; 16];
            socket.read_exact(&mut header).unwrap();
            let size = u32::from_le_bytes(header[4..8].try_into().unwrap());
            let mut body = vec![0; size as usize - header.len()];
            socket.read_exact(&mut body).unwrap();
            let id = u16::from_le_bytes([header[0], header[1]]).wrapping_add(other);
            let bytes = [&id.to_le_bytes(), rest.as_slice()].concat();
            socket.write_all(&bytes).unwrap();
        }
        // The connection stays until the other end is gone.
        let _ = socket.read(&mut [0]);
    });
    let client = Client::connect(&path);
    std::fs::remove_file(&path).unwrap();
    client
}

fn version() -> (u16, Vec<u8>) {
    (0, reply(COMMAND_VERSION, REPLY, 0, &[0, 0, 1, 0]))
}

#[test]
fn errors_are_those_that_the_device_says() {
    for (said, found) in [(22, 22), (5000, 5000), (0, 1), (u32::MAX, 1)] {
        let bad = (0, reply(COMMAND_RESET, REPLY_ERROR, said, &[]));
        let good = (0, reply(COMMAND_RESET, REPLY, 0, &[]));
        let mut client = answered(vec![version(), bad, good]).unwrap();
        let error = client.reset().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(found), "{said}");
        client.reset().unwrap();
    }
}

#[test]
fn who_answers_something_else_is_given_up() {
    let others = [
        (1, reply(COMMAND_RESET, REPLY, 0, &[])),
        (0, reply(COMMAND_VERSION, REPLY, 0, &[])),
        (0, reply(COMMAND_RESET, 0, 0, &[])),
    ];
    for other in others {
        let good = (0, reply(COMMAND_RESET, REPLY, 0, &[]));
        let mut client = answered(vec![version(), other, good]).unwrap();
        let first = client.reset().unwrap_err().kind();
        let second = client.reset().unwrap_err().kind();
        assert_eq!(
            (first, second),
            (ErrorKind::InvalidData, ErrorKind::NotConnected)
        );
    }
}

#[test]
fn another_version_is_not_spoken() {
    let other = (0, reply(COMMAND_VERSION, REPLY, 0, &[1, 0, 0, 0]));
    let error = answered(vec![other]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}
