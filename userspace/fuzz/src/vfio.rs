// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What a VMM sends to its controller over the socket, and which files with it.

mod message;

use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use arbitrary::{Result, Unstructured};
use nupa_controller::DoorbellPlace;
use nupa_proto::regs;
use nupa_switch::function::Function;
use nupa_testguest::World;
use rustix::cmsg_space;
use rustix::event::{eventfd, EventfdFlags};
use rustix::fs::{ftruncate, memfd_create, MemfdFlags};
use rustix::net::{sendmsg, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use vfio_user::{Connection, Disconnect, Interest};

use message::{File, Message, HEADER, READ_REGION, VERSION};

/// Most messages of one input.
const MOST: usize = 40;
/// Most files that go with one message here: more than the other end takes.
const MOST_FILES: usize = 20;
const NODE: u16 = 1;

/// Sends what the bytes say. Panics if the controller's end answers what it should not, or the next VMM is not served.
pub fn vfio(bytes: &[u8]) {
    let world = World::with_doorbells(2, DoorbellPlace::Bar);
    // Too short: it sends less.
    let _ = hostile(&mut Unstructured::new(bytes), &world);
    world.fabric.borrow_mut().disconnect(NODE);
    let mut next = Vmm::connect(&world);
    for request in [
        Message::new(VERSION, vec![0; 4]),
        Message::new(READ_REGION, message::read_magic()),
    ] {
        next.send(&request, request.bytes.len());
        next.serve().unwrap();
        next.take_replies();
    }
    assert!(next.expected.is_empty(), "the next VMM has no answer");
    assert_eq!(next.last[HEADER + 16..], regs::MAGIC.to_le_bytes());
}

fn hostile(input: &mut Unstructured<'_>, world: &World) -> Result<()> {
    let mut vmm = Vmm::connect(world);
    if input.ratio(15, 16)? {
        let version = Message::new(VERSION, vec![0; 4]);
        vmm.send(&version, version.bytes.len());
        vmm.serve().unwrap();
    }
    for _ in 0..MOST {
        if input.is_empty() {
            break;
        }
        let message = message::any(input)?;
        let cut = match input.ratio(1, 4)? {
            true => input.int_in_range(0..=message.bytes.len())?,
            false => message.bytes.len(),
        };
        vmm.send(&message, cut);
        if input.ratio(3, 4)? && vmm.serve().is_err() {
            return Ok(());
        }
        if input.ratio(7, 8)? {
            vmm.take_replies();
        }
        world.pass(input.int_in_range(0..=1000)?);
    }
    // All that is there is served in the end, if it takes its replies.
    for _ in 0..2 * MOST {
        if vmm.serve().is_err() {
            return Ok(());
        }
        vmm.take_replies();
    }
    assert!(
        !vmm.framed || vmm.expected.is_empty(),
        "no answers to {:?}",
        vmm.expected
    );
    Ok(())
}

/// Both ends of a connection.
struct Vmm {
    world: World,
    near: UnixStream,
    connection: Connection,
    function: Function,
    /// Files that go with messages.
    memory: OwnedFd,
    event: OwnedFd,
    /// Requests that have no answer yet.
    expected: VecDeque<u16>,
    /// All that was sent so far is whole messages.
    framed: bool,
    received: Vec<u8>,
    /// The reply that came last.
    last: Vec<u8>,
}

impl Vmm {
    fn connect(world: &World) -> Self {
        let (near, far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        let memory =
            memfd_create("nupa-fuzz", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&memory, message::MEMORY).unwrap();
        let function = Function::attach(&mut world.fabric.borrow_mut(), NODE).unwrap();
        Self {
            world: world.clone(),
            near,
            connection: Connection::new(far.into()),
            function,
            memory,
            event: eventfd(0, EventfdFlags::NONBLOCK).unwrap(),
            expected: VecDeque::new(),
            framed: true,
            received: Vec::new(),
            last: Vec::new(),
        }
    }

    /// Sends a message in two pieces, the files with the first; what the socket does not take is lost.
    fn send(&mut self, message: &Message, cut: usize) {
        let files: Vec<BorrowedFd<'_>> = message
            .files
            .iter()
            .take(MOST_FILES)
            .map(|file| match file {
                File::Memory => self.memory.as_fd(),
                File::Event => self.event.as_fd(),
                File::Socket => self.near.as_fd(),
            })
            .collect();
        let mut sent = 0;
        for (piece, files) in [
            (&message.bytes[..cut], &files[..]),
            (&message.bytes[cut..], &files[..0]),
        ] {
            if piece.is_empty() {
                continue;
            }
            let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MOST_FILES))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !files.is_empty() {
                assert!(control.push(SendAncillaryMessage::ScmRights(files)));
            }
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            sent += sendmsg(&self.near, &[IoSlice::new(piece)], &mut control, flags).unwrap_or(0);
        }
        self.framed &= message.whole && sent == message.bytes.len();
        if self.framed && message.answered {
            self.expected.push_back(message.id);
        }
    }

    /// Has the other end do what it is called for.
    fn serve(&mut self) -> std::result::Result<(), Disconnect> {
        let mut fabric = self.world.fabric.borrow_mut();
        let mut device = self.function.plugged(&mut fabric);
        match self.connection.interest() {
            Interest::Readable => self.connection.readable(&mut device)?,
            Interest::Writable => self.connection.writable(&mut device)?,
        }
        fabric.run();
        Ok(())
    }

    /// Takes what it answers, which has to be whole messages, for those that were sent in their order.
    fn take_replies(&mut self) {
        let mut piece = [0; 16384];
        loop {
            match self.near.read(&mut piece) {
                Ok(0) => break,
                Ok(len) => self.received.extend_from_slice(&piece[..len]),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    break;
                }
            }
        }
        while let Some(size) = message::size(&self.received) {
            assert!(
                (HEADER..=HEADER + 16 + 16384 + 4096).contains(&size),
                "{size}"
            );
            if self.received.len() < size {
                break;
            }
            self.last = self.received.drain(..size).collect();
            let (id, failed) = message::reply(&self.last);
            assert!(!failed || size == HEADER);
            if self.framed {
                assert_eq!(Some(id), self.expected.pop_front());
            }
        }
    }
}
