// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What `nupactl serve` and those who measure say to each other, on a connection of its own for each measurement.
//!
//! The client sends a [`Request`], the server answers with a head, and what follows depends on the kind. All has a fixed size but the messages
//! that are measured, whose size is in the request. The first 12 bytes of both sides, magic, version and kind or status, never change: so
//! that other versions can be told. Integers are little endian.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, SocketAddrV6, TcpStream};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{recv, RecvFlags};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::fault::Fault;

/// The port that is served.
pub(crate) const PORT: u16 = 6872;
/// Version of what is said.
pub(crate) const VERSION: u16 = 1;
/// Most bytes of a message.
pub(crate) const MAX_SIZE: u32 = 1 << 20;
/// Least bytes of a message whose bandwidth is measured: its number has to fit.
pub(crate) const MIN_SIZE: u32 = 8;
/// Most round trips or messages of a measurement.
pub(crate) const MAX_COUNT: u32 = 10_000_000;
/// Longest measurement.
pub(crate) const MAX_TIME: Duration = Duration::from_secs(60);
/// What a measurement may take longer than it was asked to.
pub(super) const GRACE: Duration = Duration::from_secs(10);

const MAGIC: [u8; 8] = *b"NUPAmeas";
/// How often a thread that waits looks at its deadline.
const TICK: Duration = Duration::from_millis(250);

/// What to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The server sends each message back.
    Echo,
    /// The server takes messages, and answers with a [`Report`] of what came.
    Sink,
    /// The server sends messages.
    Source,
    /// The server measures to another node, and answers with a [`Report`].
    Pair,
    /// As [`Kind::Echo`], by RDMA: see [`rdma`](super::rdma) for what follows.
    RdmaEcho,
    /// The client writes messages to the server's memory.
    RdmaSink,
    /// The server writes messages to the client's memory.
    RdmaSource,
}

/// The number of each kind.
const KINDS: [(Kind, u16); 7] = [
    (Kind::Echo, 1),
    (Kind::Sink, 2),
    (Kind::Source, 3),
    (Kind::Pair, 4),
    (Kind::RdmaEcho, 5),
    (Kind::RdmaSink, 6),
    (Kind::RdmaSource, 7),
];

impl Kind {
    /// Whether it is measured by RDMA.
    pub(super) fn is_rdma(self) -> bool {
        matches!(self, Self::RdmaEcho | Self::RdmaSink | Self::RdmaSource)
    }
}

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) kind: Kind,
    /// Bytes of each message.
    pub(super) size: u32,
    /// Messages at most.
    pub(super) count: u32,
    /// Time at most.
    pub(super) time: Duration,
    /// What the bytes of messages follow from.
    pub(super) seed: u64,
    /// Identity of the fabric of the node that is measured to; of [`Kind::Pair`].
    pub(super) fabric: u64,
    /// Id of that node.
    pub(super) node: u16,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawRequest {
    magic: [u8; 8],
    version: U16,
    kind: U16,
    size: U32,
    count: U32,
    milliseconds: U32,
    seed: U64,
    fabric: U64,
    node: U16,
    zero: [u8; 6],
}

const _: () = assert!(size_of::<RawRequest>() == 48);

impl Request {
    fn raw(&self) -> RawRequest {
        let known = KINDS.iter().find(|(kind, _)| *kind == self.kind);
        let kind = known.map_or(0, |(_, number)| *number);
        let milliseconds = self.time.as_millis().try_into().unwrap_or(u32::MAX);
        RawRequest {
            magic: MAGIC,
            version: VERSION.into(),
            kind: kind.into(),
            size: self.size.into(),
            count: self.count.into(),
            milliseconds: milliseconds.into(),
            seed: self.seed.into(),
            fabric: self.fabric.into(),
            node: self.node.into(),
            zero: [0; 6],
        }
    }

    /// Checks what a stranger has sent.
    fn parse(raw: &RawRequest) -> Result<Self, Fault> {
        if raw.magic != MAGIC {
            return Err(Fault::Refused);
        }
        if raw.version.get() != VERSION {
            return Err(Fault::Version(raw.version.get()));
        }
        let known = KINDS.iter().find(|(_, number)| *number == raw.kind.get());
        let (kind, _) = *known.ok_or(Fault::Refused)?;
        let time = Duration::from_millis(raw.milliseconds.get().into());
        let least = match kind {
            Kind::Echo | Kind::RdmaEcho => 1,
            _ => MIN_SIZE,
        };
        let fits = (least..=MAX_SIZE).contains(&raw.size.get())
            && (1..=MAX_COUNT).contains(&raw.count.get())
            && time <= MAX_TIME
            && raw.zero == [0; 6];
        if !fits {
            return Err(Fault::Refused);
        }
        Ok(Self {
            kind,
            size: raw.size.get(),
            count: raw.count.get(),
            time,
            seed: raw.seed.get(),
            fabric: raw.fabric.get(),
            node: raw.node.get(),
        })
    }
}

/// The beginning of each answer.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Head {
    magic: [u8; 8],
    version: U16,
    /// 0, or a fault's code.
    status: U16,
    zero: [u8; 4],
}

const _: () = assert!(size_of::<Head>() == 16);

/// What came of a measurement.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawReport {
    status: U16,
    zero: [u8; 6],
    first: U64,
    second: U64,
}

const _: () = assert!(size_of::<RawReport>() == 24);

/// Two numbers: bytes that came and 0 of [`Kind::Sink`], nanoseconds of a round trip and bytes in a second of [`Kind::Pair`], and those that
/// [`rdma`](super::rdma) says.
pub(super) type Report = Result<(u64, u64), Fault>;

/// A connection with a time by which it ends.
pub(super) struct Wire {
    stream: TcpStream,
    deadline: Instant,
}

impl Wire {
    /// Takes a connection, which has so much time.
    pub(super) fn new(stream: TcpStream, time: Duration) -> Result<Self, Fault> {
        let prepare = || {
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(TICK))?;
            stream.set_write_timeout(Some(TICK))
        };
        prepare().map_err(|_| Fault::Ended)?;
        let mut wire = Self {
            stream,
            deadline: Instant::now(),
        };
        wire.give(time);
        Ok(wire)
    }

    /// Gives it so much time from now on.
    pub(super) fn give(&mut self, time: Duration) {
        let now = Instant::now();
        self.deadline = now.checked_add(time).unwrap_or(now);
    }

    /// Reads as many bytes as there is room for. False if the other side ended before the first of them.
    pub(super) fn read(&mut self, mut room: &mut [u8]) -> Result<bool, Fault> {
        let mut any = false;
        while !room.is_empty() {
            match self.stream.read(room) {
                Ok(0) if any => return Err(Fault::Ended),
                Ok(0) => return Ok(false),
                Ok(len) => {
                    any = true;
                    room = room.get_mut(len..).unwrap_or_default();
                }
                Err(error) => again(&error)?,
            }
            self.in_time()?;
        }
        Ok(true)
    }

    /// Sends all bytes.
    pub(super) fn write(&mut self, mut bytes: &[u8]) -> Result<(), Fault> {
        while !bytes.is_empty() {
            match self.stream.write(bytes) {
                Ok(0) => return Err(Fault::Ended),
                Ok(len) => bytes = bytes.get(len..).unwrap_or_default(),
                Err(error) => again(&error)?,
            }
            self.in_time()?;
        }
        Ok(())
    }

    /// Says that nothing more is sent.
    pub(super) fn finish(&mut self) -> Result<(), Fault> {
        self.stream
            .shutdown(Shutdown::Write)
            .map_err(|_| Fault::Ended)
    }

    /// An error if its time is over.
    pub(super) fn in_time(&self) -> Result<(), Fault> {
        if Instant::now() > self.deadline {
            return Err(Fault::Late);
        }
        Ok(())
    }

    /// Whether the other side has ended it, and nothing is left to read.
    pub(super) fn has_ended(&self) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        match recv(&self.stream, &mut [0u8][..], flags) {
            Ok((len, _)) => len == 0,
            Err(Errno::AGAIN | Errno::INTR) => false,
            Err(_) => true,
        }
    }

    /// The addresses of this side and of the other one.
    pub(super) fn addresses(&self) -> Result<(SocketAddrV6, SocketAddrV6), Fault> {
        let both = (self.stream.local_addr(), self.stream.peer_addr());
        match both {
            (Ok(SocketAddr::V6(own)), Ok(SocketAddr::V6(other))) => Ok((own, other)),
            _ => Err(Fault::Ended),
        }
    }

    /// Reads something of a fixed size.
    pub(super) fn take<T: FromBytes + IntoBytes>(&mut self) -> Result<T, Fault> {
        let mut raw = T::new_zeroed();
        match self.read(raw.as_mut_bytes())? {
            true => Ok(raw),
            false => Err(Fault::Ended),
        }
    }

    /// Asks, and reads the head of the answer.
    pub(super) fn ask(&mut self, request: &Request) -> Result<(), Fault> {
        // One who is busy answers and closes at once, without having read.
        let sent = self.write(request.raw().as_bytes());
        let head: Head = self.take().map_err(|fault| sent.err().unwrap_or(fault))?;
        if head.magic != MAGIC {
            return Err(Fault::OtherProgram);
        }
        if head.version.get() != VERSION {
            return Err(Fault::Version(head.version.get()));
        }
        Fault::check(head.status.get())
    }

    /// Reads what is asked for.
    pub(super) fn request(&mut self) -> Result<Request, Fault> {
        Request::parse(&self.take()?)
    }

    /// Sends the head of an answer.
    pub(super) fn answer(&mut self, answer: Result<(), Fault>) -> Result<(), Fault> {
        let head = Head {
            magic: MAGIC,
            version: VERSION.into(),
            status: answer.map_or_else(Fault::code, |()| 0).into(),
            zero: [0; 4],
        };
        self.write(head.as_bytes())
    }

    /// Reads a report. The outer error is of this connection.
    pub(super) fn reported(&mut self) -> Result<Report, Fault> {
        let raw: RawReport = self.take()?;
        let numbers = (raw.first.get(), raw.second.get());
        Ok(Fault::check(raw.status.get()).map(|()| numbers))
    }

    /// Sends a report.
    pub(super) fn report(&mut self, report: Report) -> Result<(), Fault> {
        let (first, second) = report.unwrap_or_default();
        let raw = RawReport {
            status: report.map_or_else(Fault::code, |_| 0).into(),
            zero: [0; 6],
            first: first.into(),
            second: second.into(),
        };
        self.write(raw.as_bytes())
    }
}

/// Whether to go on after an error: the time of one step is over, or a signal came.
fn again(error: &std::io::Error) -> Result<(), Fault> {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => Ok(()),
        _ => Err(Fault::Ended),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> Request {
        Request {
            kind: Kind::Sink,
            size: 64,
            count: 9,
            time: Duration::from_millis(1500),
            seed: 1 << 40,
            fabric: 3,
            node: 7,
        }
    }

    #[test]
    fn a_request_arrives_as_it_was_sent() {
        for (kind, _) in KINDS {
            let request = Request { kind, ..request() };
            assert_eq!(Request::parse(&request.raw()), Ok(request));
        }
    }

    #[test]
    fn what_is_out_of_bounds_is_refused() {
        let wrong: [fn(&mut RawRequest); 9] = [
            |raw| raw.magic[7] = 0,
            |raw| raw.kind = 0.into(),
            |raw| raw.kind = 8.into(),
            |raw| raw.size = (MIN_SIZE - 1).into(),
            |raw| raw.size = (MAX_SIZE + 1).into(),
            |raw| raw.count = 0.into(),
            |raw| raw.count = u32::MAX.into(),
            |raw| raw.milliseconds = 60_001.into(),
            |raw| raw.zero[5] = 1,
        ];
        for (change, number) in wrong.iter().zip(0..) {
            let mut raw = request().raw();
            change(&mut raw);
            assert_eq!(Request::parse(&raw), Err(Fault::Refused), "{number}");
        }
        let mut raw = request().raw();
        raw.version = 2.into();
        assert_eq!(Request::parse(&raw), Err(Fault::Version(2)));
    }
}
