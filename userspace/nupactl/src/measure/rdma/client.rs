// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Measurements with a node that serves.

use std::net::SocketAddrV6;
use std::time::{Duration, Instant};

use super::super::fault::Fault;
use super::super::messages::Messages;
use super::super::probe::{self, Amount, Plan};
use super::super::wire::{Kind, Request, Wire, GRACE};
use super::link::{Link, Local};

/// Connects twice: to the program, and the queue pairs.
fn open(to: SocketAddrV6, plan: &Plan, kind: Kind) -> Result<(Wire, Link, Messages), Fault> {
    let request: Request = plan.request(kind);
    let mut wire = probe::connect(to)?;
    let local = Local::open(&wire, kind, false, plan.size)?;
    // Loading a library here, and making objects on both sides, takes longer than a connection.
    wire.give(GRACE);
    wire.ask(&request).map_err(|fault| match fault {
        // One that knows these kinds says what it lacks.
        Fault::Refused => Fault::Older,
        fault => fault,
    })?;
    wire.give(plan.time.saturating_add(GRACE));
    let link = local.connect(&mut wire)?;
    Ok((wire, link, Messages::new(plan.size, request.seed)))
}

/// Nanoseconds of each round trip.
pub(in super::super) fn round_trips(to: SocketAddrV6, plan: &Plan) -> Result<Vec<u64>, Fault> {
    let (wire, mut link, mut messages) = open(to, plan, Kind::RdmaEcho)?;
    let mut room = messages.room();
    let mut found = Vec::new();
    let begin = Instant::now();
    for number in 0..u64::from(plan.count) {
        let message = messages.numbered(number);
        let done = number.saturating_add(1);
        link.window.put(link.memory(), 0, message)?;
        link.receive(1)?;
        let sent = Instant::now();
        link.send(0)?;
        link.wait(&wire, 0, done)?;
        found.push(sent.elapsed().as_nanos().try_into().unwrap_or(u64::MAX));
        // Its place is used again.
        link.wait(&wire, done, done)?;
        link.window.get(link.memory(), 1, &mut room)?;
        if room != message {
            return Err(Fault::Wrong);
        }
        if begin.elapsed() >= plan.time {
            break;
        }
    }
    Ok(found)
}

/// Writes to the other side's memory, until it says that all is there.
pub(in super::super) fn send(to: SocketAddrV6, plan: &Plan) -> Result<Amount, Fault> {
    let (mut wire, mut link, mut messages) = open(to, plan, Kind::RdmaSink)?;
    let (count, time) = write_messages(&mut link, &wire, &mut messages, plan.count, plan.time)?;
    wire.report(Ok((count, 0)))?;
    let (came, _) = wire.reported()??;
    let bytes = count.saturating_mul(plan.size.into());
    if came != bytes {
        return Err(Fault::Wrong);
    }
    Ok(Amount { bytes, time })
}

/// Has the other side write.
pub(in super::super) fn receive(to: SocketAddrV6, plan: &Plan) -> Result<Amount, Fault> {
    let (mut wire, link, mut messages) = open(to, plan, Kind::RdmaSource)?;
    let begin = Instant::now();
    let (count, nanoseconds) = wire.reported()??;
    let most = begin.elapsed();
    if count == 0 || count > plan.count.into() || nanoseconds == 0 {
        return Err(Fault::Strange);
    }
    link.window.check(link.memory(), &mut messages, count)?;
    Ok(Amount {
        bytes: count.saturating_mul(plan.size.into()),
        time: Duration::from_nanos(nanoseconds).min(most),
    })
}

/// Writes messages until so many are written or the time is over, and returns how many these were and how long it took.
pub(super) fn write_messages(
    link: &mut Link,
    wire: &Wire,
    messages: &mut Messages,
    count: u32,
    time: Duration,
) -> Result<(u64, Duration), Fault> {
    let places = u64::from(link.window.places);
    for place in 0..places {
        link.window
            .put(link.memory(), place, messages.numbered(place))?;
    }
    let begin = Instant::now();
    let mut written = 0u64;
    while written < count.into() && (written == 0 || begin.elapsed() < time) {
        // A place is used again when what was in it has arrived.
        let done = written.saturating_add(1).saturating_sub(places);
        link.wait(wire, done, 0)?;
        link.window
            .put(link.memory(), written, &written.to_le_bytes())?;
        link.write(written)?;
        written = written.saturating_add(1);
    }
    link.wait(wire, written, 0)?;
    Ok((written, begin.elapsed()))
}
