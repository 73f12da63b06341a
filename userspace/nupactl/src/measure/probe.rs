// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Measurements with a node that serves.

use std::io::ErrorKind;
use std::net::{SocketAddr, SocketAddrV6, TcpStream};
use std::time::{Duration, Instant, SystemTime};

use super::fault::Fault;
use super::messages::{number, Messages, LAST};
use super::wire::{Kind, Report, Request, Wire, GRACE, MAX_COUNT};

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(3);

/// Sizes and limits of a measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// Bytes of each message.
    pub(super) size: u32,
    /// Messages at most.
    pub(super) count: u32,
    /// Time at most.
    pub(super) time: Duration,
}

/// Bytes in a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Amount {
    pub(super) bytes: u64,
    pub(super) time: Duration,
}

impl Amount {
    /// Bytes in a second.
    pub(super) fn rate(&self) -> u64 {
        let bytes = u128::from(self.bytes).saturating_mul(1_000_000_000);
        // No measurement takes no time at all.
        let rate = bytes.checked_div(self.time.as_nanos());
        rate.map_or(u64::MAX, |rate| rate.try_into().unwrap_or(u64::MAX))
    }
}

impl Plan {
    pub(super) fn request(&self, kind: Kind) -> Request {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let seed = since.map_or(0, |since| since.as_nanos().try_into().unwrap_or(0));
        Request {
            kind,
            size: self.size,
            count: self.count,
            time: self.time,
            seed,
            fabric: 0,
            node: 0,
        }
    }
}

/// Connects.
pub(super) fn connect(to: SocketAddrV6) -> Result<Wire, Fault> {
    let connected = TcpStream::connect_timeout(&SocketAddr::V6(to), CONNECT);
    let stream = connected.map_err(|error| match error.kind() {
        ErrorKind::ConnectionRefused => Fault::Nobody,
        _ => Fault::Silent,
    })?;
    Wire::new(stream, CONNECT)
}

/// Connects, and asks for a measurement.
fn open(to: SocketAddrV6, request: &Request, time: Duration) -> Result<Wire, Fault> {
    let mut wire = connect(to)?;
    wire.ask(request)?;
    wire.give(time.saturating_add(GRACE));
    Ok(wire)
}

/// Nanoseconds of each round trip.
pub(super) fn round_trips(to: SocketAddrV6, plan: &Plan) -> Result<Vec<u64>, Fault> {
    let request = plan.request(Kind::Echo);
    let mut wire = open(to, &request, plan.time)?;
    let mut messages = Messages::new(plan.size, request.seed);
    let mut room = messages.room();
    let mut found = Vec::new();
    let begin = Instant::now();
    for number in 0..u64::from(plan.count) {
        let message = messages.numbered(number);
        let sent = Instant::now();
        wire.write(message)?;
        if !wire.read(&mut room)? {
            return Err(Fault::Ended);
        }
        found.push(sent.elapsed().as_nanos().try_into().unwrap_or(u64::MAX));
        if room != message {
            return Err(Fault::Wrong);
        }
        if begin.elapsed() >= plan.time {
            break;
        }
    }
    Ok(found)
}

/// Sends messages until the plan is done, the last one marked, and returns how many bytes that were.
pub(super) fn send_messages(
    wire: &mut Wire,
    messages: &mut Messages,
    count: u32,
    time: Duration,
) -> Result<u64, Fault> {
    let (begin, mut bytes) = (Instant::now(), 0u64);
    let last = u64::from(count.saturating_sub(1));
    let mut turn = 0u64;
    loop {
        let is_last = turn >= last || begin.elapsed() >= time;
        let message = messages.numbered(if is_last { LAST } else { turn });
        wire.write(message)?;
        bytes = bytes.saturating_add(message.len() as u64);
        if is_last {
            wire.finish()?;
            return Ok(bytes);
        }
        turn = turn.saturating_add(1);
    }
}

/// Takes messages until the last one, and returns how many bytes came. Goes on where bytes are wrong, so that the other side can end.
pub(super) fn receive_messages(wire: &mut Wire, messages: &mut Messages) -> Result<u64, Fault> {
    let mut room = messages.room();
    let (mut bytes, mut turn) = (0u64, 0u64);
    let (mut right, mut ended) = (true, false);
    while wire.read(&mut room)? {
        ended = number(&room) == Some(LAST);
        right &= room == messages.numbered(if ended { LAST } else { turn });
        bytes = bytes.saturating_add(room.len() as u64);
        turn = turn.saturating_add(1);
    }
    match (right, ended) {
        (false, _) => Err(Fault::Wrong),
        (true, false) => Err(Fault::Ended),
        (true, true) => Ok(bytes),
    }
}

/// Sends, until the other side says that it has all.
pub(super) fn send(to: SocketAddrV6, plan: &Plan) -> Result<Amount, Fault> {
    let request = plan.request(Kind::Sink);
    let mut wire = open(to, &request, plan.time)?;
    let mut messages = Messages::new(plan.size, request.seed);
    let begin = Instant::now();
    let bytes = send_messages(&mut wire, &mut messages, plan.count, plan.time)?;
    let (came, _) = wire.reported()??;
    if came != bytes {
        return Err(Fault::Wrong);
    }
    Ok(Amount {
        bytes,
        time: begin.elapsed(),
    })
}

/// Has the other side send.
pub(super) fn receive(to: SocketAddrV6, plan: &Plan) -> Result<Amount, Fault> {
    let request = plan.request(Kind::Source);
    let mut wire = open(to, &request, plan.time)?;
    let mut messages = Messages::new(plan.size, request.seed);
    let begin = Instant::now();
    let bytes = receive_messages(&mut wire, &mut messages)?;
    Ok(Amount {
        bytes,
        time: begin.elapsed(),
    })
}

/// What a pair of nodes is measured by: nanoseconds of the median round trip, bytes in a second to the node.
pub(super) fn pair(to: SocketAddrV6, time: Duration) -> Report {
    let half = time.checked_div(2).unwrap_or_default();
    let short = Plan {
        size: 64,
        count: 1000,
        time: half,
    };
    let long = Plan {
        size: 65536,
        count: MAX_COUNT,
        time: half,
    };
    let mut times = round_trips(to, &short)?;
    times.sort_unstable();
    let median = times.get(times.len().checked_div(2).unwrap_or(0));
    let median = *median.ok_or(Fault::Ended)?;
    Ok((median, send(to, &long)?.rate()))
}

/// Has a node measure to another one of a fabric. The outer error is of the node that is asked.
pub(super) fn ask_pair(
    of: SocketAddrV6,
    fabric: u64,
    node: u16,
    time: Duration,
) -> Result<Report, Fault> {
    let plan = Plan {
        size: 65536,
        count: 1,
        time,
    };
    let request = Request {
        fabric,
        node,
        ..plan.request(Kind::Pair)
    };
    // It connects twice.
    let time = time.saturating_add(CONNECT).saturating_add(GRACE);
    let mut wire = open(of, &request, time)?;
    wire.reported()
}
