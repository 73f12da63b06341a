// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The server as a process, with clients that are told what QEMU's device would be told.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    missing_docs,
    reason = "a test may fail loudly"
)]

use std::fs::File;
use std::io::{BufRead, BufReader, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::cmsg_space;
use rustix::net::{recvmsg, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

const VECTORS: usize = 2;
const SIZE: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(10);

/// A running server with a directory of its own; both are gone when it is dropped.
struct Server {
    child: Child,
    dir: PathBuf,
}

fn directory(name: &str) -> PathBuf {
    let dir = format!("nupa-ivshmem-{}-{name}", std::process::id());
    let dir = std::env::temp_dir().join(dir);
    std::fs::create_dir(&dir).unwrap();
    dir
}

fn command(dir: &std::path::Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nupa-ivshmem"));
    let vectors = VECTORS.to_string();
    command
        .arg("--socket")
        .arg(dir.join("sock"))
        .arg("--memory")
        .arg(dir.join("memory"));
    command.args(["--size", "1M", "--devices", "3", "--vectors", &vectors]);
    command.stdout(Stdio::piped());
    command
}

impl Server {
    fn start(name: &str) -> Self {
        let dir = directory(name);
        let mut child = command(&dir).spawn().unwrap();
        let mut ready = String::new();
        let stdout = child.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut ready).unwrap();
        assert_eq!(ready, "nupa-ivshmem: ready, 1048576 bytes\n");
        Self { child, dir }
    }

    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.dir.join("sock")).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    fn device(&self) -> Device {
        Device::greeted(self.connect())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Receives one message; none when the server closed the connection.
fn receive(stream: &UnixStream) -> Option<(i64, Option<OwnedFd>)> {
    let mut bytes = [0; 8];
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut buffers = [IoSliceMut::new(&mut bytes)];
    let message = recvmsg(stream, &mut buffers, &mut control, RecvFlags::WAITALL).unwrap();
    let mut file = None;
    for item in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut rights) = item {
            file = rights.next();
        }
    }
    match message.bytes {
        0 => None,
        8 => Some((i64::from_le_bytes(bytes), file)),
        other => panic!("a message of {other} bytes"),
    }
}

/// What QEMU's device knows: its number, the memory, and the interrupts of each device.
struct Device {
    stream: UnixStream,
    id: i64,
    memory: File,
    vectors: Vec<File>,
    peers: Vec<(i64, Vec<File>)>,
}

impl Device {
    /// Goes through the messages that a new device gets, and insists on their order.
    fn greeted(stream: UnixStream) -> Self {
        let next = || receive(&stream).expect("the server hung up");
        assert!(matches!(next(), (0, None)), "protocol version 0");
        let (id, None) = next() else {
            panic!("the number comes with a file")
        };
        let (-1, Some(memory)) = next() else {
            panic!("no memory")
        };
        let mut peers = Vec::new();
        loop {
            let (peer, vectors) = interrupts(&stream);
            if peer == id {
                return Self {
                    id,
                    memory: memory.into(),
                    vectors,
                    peers,
                    stream,
                };
            }
            peers.push((peer, vectors));
        }
    }

    fn peer(&self, id: i64) -> &[File] {
        let peer = self.peers.iter().find(|(peer, _)| *peer == id);
        &peer.expect("no such peer").1
    }

    /// Waits for news of a peer that came.
    fn hear_of_peer(&mut self) {
        let peer = interrupts(&self.stream);
        self.peers.push(peer);
    }
}

/// The interrupts of one device.
fn interrupts(stream: &UnixStream) -> (i64, Vec<File>) {
    let mut messages = (0..VECTORS).map(|_| receive(stream).expect("the server hung up"));
    let (id, first) = messages.next().unwrap();
    let mut vectors = vec![File::from(first.expect("no eventfd"))];
    for (other, vector) in messages {
        assert_eq!(other, id);
        vectors.push(vector.expect("no eventfd").into());
    }
    (id, vectors)
}

/// How often an interrupt was raised since the last look.
fn raised(mut vector: &File) -> u64 {
    let mut count = [0; 8];
    match vector.read(&mut count) {
        Ok(8) => u64::from_ne_bytes(count),
        Ok(other) => panic!("an eventfd gave {other} bytes"),
        Err(error) => {
            assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
            0
        }
    }
}

fn raise(mut vector: &File) {
    std::io::Write::write_all(&mut vector, &1u64.to_ne_bytes()).unwrap();
}

#[test]
fn devices_share_memory() {
    let server = Server::start("memory");
    let (first, second) = (server.device(), server.device());
    assert_eq!(first.memory.metadata().unwrap().len(), SIZE);
    first.memory.write_all_at(b"pool", SIZE - 4).unwrap();
    let mut bytes = [0; 4];
    second.memory.read_exact_at(&mut bytes, SIZE - 4).unwrap();
    assert_eq!(&bytes, b"pool");
    let named = File::open(server.dir.join("memory")).unwrap();
    named.read_exact_at(&mut bytes, SIZE - 4).unwrap();
    assert_eq!(&bytes, b"pool");
}

#[test]
fn each_vector_of_each_device_is_an_interrupt_of_its_own() {
    let server = Server::start("vectors");
    let mut devices = vec![server.device()];
    for _ in 1..3 {
        let device = server.device();
        devices.iter_mut().for_each(Device::hear_of_peer);
        devices.push(device);
    }
    let ids: Vec<i64> = devices.iter().map(|device| device.id).collect();
    assert_eq!(ids, [0, 1, 2]);
    for from in &devices {
        for to in devices.iter().filter(|to| to.id != from.id) {
            for vector in 0..VECTORS {
                raise(&from.peer(to.id)[vector]);
                for device in &devices {
                    for (number, file) in device.vectors.iter().enumerate() {
                        let expected = device.id == to.id && number == vector;
                        assert_eq!(raised(file), u64::from(expected));
                    }
                }
            }
        }
    }
}

#[test]
fn a_device_that_goes_is_told_of_and_its_number_is_not_given_again() {
    let server = Server::start("leave");
    let first = server.device();
    let mut second = server.device();
    drop(first);
    assert!(matches!(receive(&second.stream), Some((0, None))));
    let third = server.device();
    assert_eq!(third.id, 2, "QEMU breaks if it hears of 0 again");
    second.peers.clear();
    second.hear_of_peer();
    raise(&second.peer(2)[1]);
    assert_eq!(
        (raised(&third.vectors[0]), raised(&third.vectors[1])),
        (0, 1)
    );
}

#[test]
fn one_device_too_many_is_refused_and_the_others_go_on() {
    let server = Server::start("full");
    let devices = [server.device(), server.device(), server.device()];
    assert!(receive(&server.connect()).is_none());
    drop(devices);
    // Only that it takes one in shows that the server has seen the others go.
    while receive(&server.connect()).is_none() {}
}

#[test]
fn what_the_memory_holds_is_kept_but_not_its_size() {
    let dir = directory("size");
    std::fs::write(dir.join("memory"), [7; 100]).unwrap();
    let output = command(&dir).stderr(Stdio::piped()).output().unwrap();
    assert!(!output.status.success());
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        error.contains("it has 100 bytes and not 1048576"),
        "{error}"
    );
    assert_eq!(std::fs::read(dir.join("memory")).unwrap(), [7; 100]);
    std::fs::remove_dir_all(&dir).unwrap();
}
