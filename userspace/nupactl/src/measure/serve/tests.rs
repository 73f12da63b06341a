// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Both sides on the loopback interface.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, Ordering};

use super::super::messages::LAST;
use super::super::probe::Plan;
use super::super::wire::MAX_COUNT;
use super::*;

/// Serves until it is dropped.
struct Server {
    address: SocketAddrV6,
    clients: Clients,
    ends: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Server {
    fn start() -> Self {
        let listener = listen(SocketAddrV6::new(Ipv6Addr::LOCALHOST, 0, 0, 0)).unwrap();
        let SocketAddr::V6(address) = listener.local_addr().unwrap() else {
            panic!("no IPv6");
        };
        let (clients, ends) = (Clients::default(), Arc::new(AtomicBool::new(false)));
        let (of, end) = (clients.clone(), ends.clone());
        let serve = move || {
            while !end.load(Ordering::Relaxed) {
                of.accept(&listener);
                thread::sleep(Duration::from_millis(1));
            }
        };
        Self {
            address,
            clients,
            ends,
            thread: Some(thread::spawn(serve)),
        }
    }

    fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).unwrap()
    }

    fn count(&self) -> usize {
        self.clients.addresses.lock().unwrap().len()
    }

    /// Waits until so many clients are there.
    fn wait(&self, count: usize) {
        while self.count() != count {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

fn plan(size: u32, count: u32) -> Plan {
    Plan {
        size,
        count,
        time: Duration::from_secs(60),
    }
}

#[test]
fn as_many_round_trips_are_measured_as_are_wanted() {
    let server = Server::start();
    for size in [1, 64, 100_000] {
        let times = probe::round_trips(server.address, &plan(size, 20)).unwrap();
        assert_eq!(times.len(), 20);
        assert!(times.iter().all(|time| *time > 0));
    }
    server.wait(0);
}

#[test]
fn all_bytes_arrive_both_ways() {
    let server = Server::start();
    for (size, count) in [(8, 3), (1 << 20, 5), (999, 1)] {
        let bytes = u64::from(size) * u64::from(count);
        let plan = plan(size, count);
        assert_eq!(probe::send(server.address, &plan).unwrap().bytes, bytes);
        assert_eq!(probe::receive(server.address, &plan).unwrap().bytes, bytes);
    }
    let short = Plan {
        time: Duration::from_millis(20),
        ..plan(4096, MAX_COUNT)
    };
    assert!(probe::send(server.address, &short).unwrap().bytes >= 4096);
    assert!(probe::receive(server.address, &short).unwrap().bytes >= 4096);
    server.wait(0);
}

/// Asks for messages to be taken.
fn sink(server: &Server) -> (Wire, Messages) {
    let request = Request {
        kind: Kind::Sink,
        size: 64,
        count: 10,
        time: Duration::from_secs(1),
        seed: 7,
        fabric: 0,
        node: 0,
    };
    let mut wire = Wire::new(server.connect(), HELLO).unwrap();
    wire.ask(&request).unwrap();
    (wire, Messages::new(64, 7))
}

#[test]
fn bytes_that_differ_are_told() {
    let server = Server::start();
    let (mut wire, mut messages) = sink(&server);
    let mut wrong = messages.numbered(0).to_vec();
    wrong[63] ^= 1;
    wire.write(&wrong).unwrap();
    wire.write(messages.numbered(LAST)).unwrap();
    wire.finish().unwrap();
    assert_eq!(wire.reported(), Ok(Err(Fault::Wrong)));
    // One is missing.
    let (mut wire, mut messages) = sink(&server);
    wire.write(messages.numbered(1)).unwrap();
    wire.write(messages.numbered(LAST)).unwrap();
    wire.finish().unwrap();
    assert_eq!(wire.reported(), Ok(Err(Fault::Wrong)));
    // There is no end.
    let (mut wire, mut messages) = sink(&server);
    wire.write(messages.numbered(0)).unwrap();
    wire.finish().unwrap();
    assert_eq!(wire.reported(), Ok(Err(Fault::Ended)));
}

#[test]
fn an_address_has_a_few_places_and_gets_them_back() {
    let server = Server::start();
    let silent: Vec<_> = (0..CLIENTS_EACH).map(|_| server.connect()).collect();
    server.wait(CLIENTS_EACH);
    let busy = probe::round_trips(server.address, &plan(64, 1));
    assert_eq!(busy.unwrap_err(), Fault::Busy);
    assert_eq!(server.count(), CLIENTS_EACH);
    drop(silent);
    server.wait(0);
    assert!(probe::round_trips(server.address, &plan(64, 1)).is_ok());
}

#[test]
fn there_are_no_more_places_than_that_for_all_addresses() {
    let clients = Clients::default();
    let place = |number: usize| clients.place(Ipv6Addr::from(number as u128));
    let places: Vec<_> = (0..CLIENTS).filter_map(place).collect();
    assert_eq!(places.len(), CLIENTS);
    assert!(place(99).is_none());
    drop(places);
    assert!(place(99).is_some());
}

#[test]
fn who_says_something_else_is_told_and_left() {
    let server = Server::start();
    let mut stream = server.connect();
    stream.write_all(&[b'x'; 48]).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert_eq!(answer[8..12], [1, 0, 3, 0], "version 1, refused");
    assert_eq!(answer.len(), 16);
    // One that ends in the middle of its request, and one that goes before it has said anything.
    let mut stream = server.connect();
    stream.write_all(b"NUPAmeas").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    stream.read_to_end(&mut answer).unwrap();
    drop(server.connect());
    server.wait(0);
}

/// Answers one client with some bytes, and what the client makes of it.
fn answered(answer: &'static [u8]) -> Fault {
    let listener = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).unwrap();
    let SocketAddr::V6(address) = listener.local_addr().unwrap() else {
        panic!("no IPv6");
    };
    let answer = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0; 48]).unwrap();
        stream.write_all(answer).unwrap();
    });
    let found = probe::round_trips(address, &plan(64, 1)).unwrap_err();
    answer.join().unwrap();
    found
}

#[test]
fn strangers_and_other_versions_are_told_apart() {
    assert_eq!(answered(b"NUPAmeas\x02\0\0\0\0\0\0\0"), Fault::Version(2));
    assert_eq!(answered(b"NUPAmeas\x01\0\x02\0\0\0\0\0"), Fault::Busy);
    assert_eq!(answered(b"220 mail ESMTP ready"), Fault::OtherProgram);
    assert_eq!(answered(b"NUPA"), Fault::Ended);
    // It agrees, and goes.
    assert_eq!(answered(b"NUPAmeas\x01\0\0\0\0\0\0\0"), Fault::Ended);
    let listener = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).unwrap();
    let SocketAddr::V6(address) = listener.local_addr().unwrap() else {
        panic!("no IPv6");
    };
    drop(listener);
    let nobody = probe::round_trips(address, &plan(64, 1));
    assert_eq!(nobody.unwrap_err(), Fault::Nobody);
}
