// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A client that speaks the protocol over a socket pair, the way QEMU does.

#![allow(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test may fail loudly"
)]

mod common;

use std::os::fd::OwnedFd;

use common::{command, connect, eventfd, memfd, negotiated, TestDevice, FLAG_NO_REPLY};
use proptest::prelude::*;
use rustix::io::Errno;
use vfio_user::{Disconnect, Interest};

#[test]
fn versions_are_negotiated_first() {
    let (mut client, mut server) = connect();
    let mut device = TestDevice::default();
    client.send(command::DEVICE_RESET, 0, &[], &[]);
    server.readable(&mut device).unwrap();
    assert_eq!(client.receive().error(), Some(Errno::PROTO));

    client.send(command::VERSION, 0, &[1, 0, 0, 0], &[]);
    server.readable(&mut device).unwrap();
    assert_eq!(client.receive().error(), Some(Errno::PROTONOSUPPORT));

    for garbage in [&b"{}"[..], b"[]\0", b"{\"capabilities\"\0", b"\xff\0"] {
        let body = [&[0, 0, 0, 0], garbage].concat();
        client.send(command::VERSION, 0, &body, &[]);
        server.readable(&mut device).unwrap();
        assert_eq!(client.receive().error(), Some(Errno::INVAL));
    }

    let caps = b"{\"capabilities\":{\"max_msg_fds\":16,\"write_multiple\":true}}\0";
    client.send(
        command::VERSION,
        0,
        &[&[0, 0, 7, 0], &caps[..]].concat(),
        &[],
    );
    server.readable(&mut device).unwrap();
    let reply = client.receive();
    assert_eq!(reply.error(), None);
    assert_eq!(&reply.body[..4], [0; 4]);
    let text = reply.body[4..].strip_suffix(&[0]).unwrap();
    let value: serde_json::Value = serde_json::from_slice(text).unwrap();
    assert_eq!(value["capabilities"]["max_msg_fds"], 16);
    assert!(value["capabilities"]["write_multiple"].is_null());

    client.send(command::VERSION, 0, &[0, 0, 0, 0], &[]);
    server.readable(&mut device).unwrap();
    assert_eq!(client.receive().error(), Some(Errno::PROTO));
}

#[test]
fn the_device_describes_itself() {
    let (mut client, mut server) = negotiated();
    let mut device = TestDevice::default();
    let reply = client.call(
        &mut server,
        &mut device,
        command::GET_INFO,
        &le32(&[16, 0, 0, 0]),
    );
    assert_eq!(reply.body, le32(&[16, 3, 9, 5]));

    let reply = client.call(
        &mut server,
        &mut device,
        command::GET_IRQ_INFO,
        &le32(&[16, 0, 2, 0]),
    );
    assert_eq!(reply.body, le32(&[16, 1, 2, 65]));
    let reply = client.call(
        &mut server,
        &mut device,
        command::GET_IRQ_INFO,
        &le32(&[16, 0, 5, 0]),
    );
    assert_eq!(reply.error(), Some(Errno::INVAL));
    let reply = client.call(
        &mut server,
        &mut device,
        command::GET_IRQ_INFO,
        &le32(&[15, 0, 2, 0]),
    );
    assert_eq!(reply.error(), Some(Errno::INVAL));
}

#[test]
fn mappable_parts_come_with_a_file_once_there_is_room() {
    let (mut client, mut server) = negotiated();
    let mut device = TestDevice::default();
    let request = |argsz: u32, index: u32| le32(&[argsz, 0, index, 0, 0, 0, 0, 0]);

    let reply = client.call(
        &mut server,
        &mut device,
        command::GET_REGION_INFO,
        &request(32, 0),
    );
    assert_eq!(reply.body, le32(&[32, 3, 0, 0, 0x1000, 0, 0, 0]));
    assert!(reply.fds.is_empty());

    let reply = client.call(
        &mut server,
        &mut device,
        command::GET_REGION_INFO,
        &request(32, 2),
    );
    assert_eq!(reply.body, le32(&[80, 3, 2, 0, 0x4000, 0, 0, 0]));
    assert!(reply.fds.is_empty());

    let reply = client.call(
        &mut server,
        &mut device,
        command::GET_REGION_INFO,
        &request(80, 2),
    );
    let sparse = [
        1 | (1 << 16),
        0,
        2,
        0,
        0,
        0,
        0x1000,
        0,
        0x2000,
        0,
        0x1000,
        0,
    ];
    let expected = [&le32(&[80, 15, 2, 32, 0x4000, 0, 0, 0])[..], &le32(&sparse)].concat();
    assert_eq!(reply.body, expected);
    assert_eq!(reply.fds.len(), 1);

    let reply = client.call(
        &mut server,
        &mut device,
        command::GET_REGION_INFO,
        &request(32, 9),
    );
    assert_eq!(reply.error(), Some(Errno::INVAL));
}

#[test]
fn registers_are_read_and_written_within_bounds() {
    let (mut client, mut server) = negotiated();
    let mut device = TestDevice::default();
    let access = |offset: u64, region: u32, count: u32, data: &[u8]| {
        [&offset.to_le_bytes()[..], &le32(&[region, count]), data].concat()
    };
    let write = access(0x10, 0, 4, &[1, 2, 3, 4]);
    let reply = client.call(&mut server, &mut device, command::REGION_WRITE, &write);
    assert_eq!(reply.body, access(0x10, 0, 4, &[]));
    let read = access(0xe, 0, 8, &[]);
    let reply = client.call(&mut server, &mut device, command::REGION_READ, &read);
    assert_eq!(reply.body, access(0xe, 0, 8, &[0, 0, 1, 2, 3, 4, 0, 0]));

    for bad in [
        access(0xffd, 0, 4, &[0; 4]),
        access(u64::MAX, 0, 4, &[0; 4]),
        access(0, 1, 4, &[0; 4]),
        access(0, 77, 4, &[0; 4]),
        access(0, 0, u32::MAX, &[0; 4]),
        access(0, 0, 8, &[0; 4]),
        vec![0; 3],
    ] {
        let reply = client.call(&mut server, &mut device, command::REGION_WRITE, &bad);
        assert_eq!(reply.error(), Some(Errno::INVAL), "{bad:?}");
        assert!(reply.body.is_empty());
    }
}

#[test]
fn posted_writes_are_served_in_order_and_not_answered() {
    let (mut client, mut server) = negotiated();
    let mut device = TestDevice::default();
    for value in 1..=9_u8 {
        let body = [&0_u64.to_le_bytes()[..], &le32(&[0, 1]), &[value]].concat();
        client.send(command::REGION_WRITE, FLAG_NO_REPLY, &body, &[]);
    }
    let read = [&0_u64.to_le_bytes()[..], &le32(&[0, 1])].concat();
    let reply = client.call(&mut server, &mut device, command::REGION_READ, &read);
    assert_eq!(reply.body[16], 9);
    assert_eq!(device.writes, 9);
}

#[test]
fn memory_comes_with_and_without_a_file() {
    let (mut client, mut server) = negotiated();
    let mut device = TestDevice::default();
    let map = |flags: u32, iova: u64| {
        let mut body = le32(&[32, flags]);
        for word in [0x3000, iova, 0x1000_u64] {
            body.extend_from_slice(&word.to_le_bytes());
        }
        body
    };
    // All in flight at once, as QEMU does during a memory transaction: each descriptor has
    // to find its own message.
    let file = memfd();
    client.send(command::DMA_MAP, 0, &map(1, 0x1000), &[]);
    client.send(command::DMA_MAP, 0, &map(3, 0x2000), &[&file]);
    client.send(command::DMA_MAP, 0, &map(3, 0x3000), &[]);
    client.send(command::DMA_MAP, 0, &map(3, 0x4000), &[&file]);
    client.send(command::DMA_MAP, 0, &map(2, 0x5000), &[&file]);
    for _ in 0..5 {
        server.readable(&mut device).unwrap();
    }
    for _ in 0..4 {
        assert_eq!(client.receive().error(), None);
    }
    assert_eq!(client.receive().error(), Some(Errno::INVAL));
    let seen: Vec<_> = device
        .maps
        .iter()
        .map(|m| (m.iova, m.file.is_some(), m.writable))
        .collect();
    let expected = [
        (0x1000, false, false),
        (0x2000, true, true),
        (0x3000, false, true),
        (0x4000, true, true),
    ];
    assert_eq!(seen, expected);
    assert!(device
        .maps
        .iter()
        .all(|m| m.size == 0x1000 && m.offset == 0x3000));

    let unmap = |flags: u32, iova: u64| {
        [
            &le32(&[24, flags])[..],
            &iova.to_le_bytes(),
            &0x1000_u64.to_le_bytes(),
        ]
        .concat()
    };
    let reply = client.call(
        &mut server,
        &mut device,
        command::DMA_UNMAP,
        &unmap(0, 0x2000),
    );
    assert_eq!((reply.error(), reply.body), (None, unmap(0, 0x2000)));
    let reply = client.call(
        &mut server,
        &mut device,
        command::DMA_UNMAP,
        &unmap(0, 0x2000),
    );
    assert_eq!(reply.error(), Some(Errno::NOENT));
    let reply = client.call(&mut server, &mut device, command::DMA_UNMAP, &unmap(2, 0));
    assert_eq!(reply.error(), None);
    assert!(device.maps.is_empty());
}

#[test]
fn interrupts_are_connected_raised_and_disconnected() {
    let (mut client, mut server) = negotiated();
    let mut device = TestDevice::default();
    let set = |flags: u32, start: u32, count: u32| le32(&[20, flags, 2, start, count]);
    let (trigger, none, eventfds) = (1 << 5, 1 << 0, 1 << 2);
    let fds: Vec<OwnedFd> = (0..16).map(|_| eventfd()).collect();

    let all: Vec<&OwnedFd> = fds.iter().collect();
    client.send(command::SET_IRQS, 0, &set(trigger | eventfds, 3, 16), &all);
    server.readable(&mut device).unwrap();
    assert_eq!(client.receive().error(), None);
    assert!(!device.irqs.raise(2));
    for vector in 3..19 {
        assert!(device.irqs.raise(vector));
    }
    assert!(!device.irqs.raise(19));
    assert!(fds.iter().all(|fd| common::fired(fd) == 1));

    let off = set(trigger | eventfds, 4, 1);
    assert_eq!(
        client
            .call(&mut server, &mut device, command::SET_IRQS, &off)
            .error(),
        None
    );
    assert!(device.irqs.raise(3) && !device.irqs.raise(4));
    let test = set(trigger | none, 3, 2);
    assert_eq!(
        client
            .call(&mut server, &mut device, command::SET_IRQS, &test)
            .error(),
        None
    );
    assert_eq!(common::fired(&fds[0]), 2);
    let all_off = set(trigger | none, 0, 0);
    assert_eq!(
        client
            .call(&mut server, &mut device, command::SET_IRQS, &all_off)
            .error(),
        None
    );
    assert!(!device.irqs.raise(3));

    client.send(
        command::SET_IRQS,
        0,
        &set(trigger | eventfds, 0, 3),
        &all[..2],
    );
    server.readable(&mut device).unwrap();
    assert_eq!(client.receive().error(), Some(Errno::INVAL));
    for bad in [set(trigger | none, 64, 2), set(trigger | none, u32::MAX, 1)] {
        let reply = client.call(&mut server, &mut device, command::SET_IRQS, &bad);
        assert_eq!(reply.error(), Some(Errno::INVAL));
    }
    let mask = set((1 << 3) | none, 0, 1);
    let reply = client.call(&mut server, &mut device, command::SET_IRQS, &mask);
    assert_eq!(reply.error(), Some(Errno::NOTTY));
}

#[test]
fn what_is_unknown_or_too_large_is_skipped_with_an_error() {
    let (mut client, mut server) = negotiated();
    let mut device = TestDevice::default();
    for unknown in [0, 6, 11, 12, 14, 15, 16, 999] {
        let reply = client.call(&mut server, &mut device, unknown, &[7; 100]);
        assert_eq!(reply.error(), Some(Errno::OPNOTSUPP));
    }
    client.send(command::REGION_WRITE, 0, &vec![0; 100_000], &[]);
    for _ in 0..8 {
        server.readable(&mut device).unwrap();
    }
    assert_eq!(client.receive().error(), Some(Errno::TOOBIG));
    let reply = client.call(&mut server, &mut device, command::DEVICE_RESET, &[]);
    assert_eq!(reply.error(), None);
    assert_eq!(device.resets, 1);
}

#[test]
fn messages_may_arrive_in_pieces() {
    let (mut client, mut server) = negotiated();
    let mut device = TestDevice::default();
    let message = client.compose(command::GET_INFO, 0, &le32(&[16, 0, 0, 0]));
    for byte in &message {
        client.send_raw(&[*byte]);
        server.readable(&mut device).unwrap();
    }
    assert_eq!(client.receive().body, le32(&[16, 3, 9, 5]));
}

#[test]
fn a_client_that_reads_no_replies_is_held_up_not_lost() {
    let (mut client, mut server) = negotiated();
    let mut device = TestDevice::default();
    let read = [&0_u64.to_le_bytes()[..], &le32(&[0, 4096])].concat();
    let mut sent = 0;
    while server.interest() == Interest::Readable {
        client.send(command::REGION_READ, 0, &read, &[]);
        server.readable(&mut device).unwrap();
        sent += 1;
        assert!(sent < 10_000);
    }
    client.send(command::DEVICE_RESET, 0, &[], &[]);
    server.readable(&mut device).unwrap();
    assert_eq!(
        device.resets, 0,
        "requests wait for the replies before them"
    );
    for _ in 0..sent {
        assert_eq!(client.receive().body.len(), 16 + 4096);
        server.writable(&mut device).unwrap();
    }
    assert_eq!(server.interest(), Interest::Readable);
    server.readable(&mut device).unwrap();
    assert_eq!(device.resets, 1);
}

#[test]
fn the_end_of_the_connection_is_seen() {
    let (client, mut server) = negotiated();
    drop(client);
    let ended = server.readable(&mut TestDevice::default());
    assert_eq!(ended, Err(Disconnect::Closed));
}

#[test]
fn the_server_ends_without_a_reset() {
    let (mut client, server) = negotiated();
    let file = memfd();
    for _ in 0..100 {
        client.send(command::DMA_MAP, 0, &[0; 32], &[&file]);
    }
    drop(server);
    // Nobody is left waiting for an answer.
    for _ in 0..100 {
        assert_eq!(client.receive().error(), Some(Errno::NODEV));
    }
    assert!(client.has_ended());
}

#[test]
fn what_was_received_in_part_is_refused_too() {
    let (mut client, mut server) = negotiated();
    let message = client.compose(command::REGION_WRITE, 0, &[0; 64]);
    client.send_raw(&message[..40]);
    server.readable(&mut TestDevice::default()).unwrap();
    client.send_raw(&message[40..]);
    client.send(command::DEVICE_RESET, 0, &[], &[]);
    drop(server);
    for _ in 0..2 {
        assert_eq!(client.receive().error(), Some(Errno::NODEV));
    }
    assert!(client.has_ended());
}

#[test]
fn a_header_that_makes_no_sense_ends_the_connection() {
    for message in [le32(&[0, 3, 0, 0]), le32(&[0, 16, 1, 0])] {
        let (mut client, mut server) = negotiated();
        client.send_raw(&message);
        let ended = server.readable(&mut TestDevice::default());
        assert!(matches!(ended, Err(Disconnect::Protocol(_))));
    }
}

fn le32(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

proptest! {
    /// Any bytes at all: errors or a disconnect, never a panic, and the server takes no
    /// more than it was sent.
    #[test]
    fn garbage_is_survived(chunks in prop::collection::vec(
        prop::collection::vec(any::<u8>(), 1..200), 1..20))
    {
        let (mut client, mut server) = negotiated();
        let mut device = TestDevice::default();
        for chunk in &chunks {
            client.send_raw(chunk);
            if server.readable(&mut device).is_err() {
                break;
            }
        }
    }

    /// Well-formed headers of every command around random bodies, with random descriptors.
    #[test]
    fn random_requests_are_answered(requests in prop::collection::vec(
        (0_u16..20, prop::collection::vec(prop_oneof![Just(0_u8), 0_u8..40, any::<u8>()], 0..64),
         0_usize..4), 1..40))
    {
        let (mut client, mut server) = negotiated();
        let mut device = TestDevice::default();
        let file = memfd();
        for (command, body, files) in &requests {
            let files = vec![&file; *files];
            client.send(*command, 0, body, &files);
            server.readable(&mut device).unwrap();
            let _ = client.receive().error();
        }
    }
}
