// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The far side.

use super::super::fault::Fault;
use super::super::messages::Messages;
use super::super::wire::{Kind, Request, Wire, GRACE};
use super::client::write_messages;
use super::link::{to_other, Link, Local};

/// Does what a client wants.
pub(in super::super) fn serve(wire: &mut Wire, request: &Request) -> Result<(), Fault> {
    wire.give(request.time.saturating_add(GRACE));
    let local = match prepare(wire, request) {
        Ok(local) => local,
        Err(fault) => return wire.answer(Err(to_other(fault))),
    };
    wire.answer(Ok(()))?;
    let mut link = local.connect(wire)?;
    let mut messages = Messages::new(request.size, request.seed);
    match request.kind {
        Kind::RdmaSink => {
            let (count, _) = wire.reported()??;
            let checked = link.window.check(link.memory(), &mut messages, count);
            let bytes = count.saturating_mul(request.size.into());
            wire.report(checked.map(|()| (bytes, 0)))
        }
        Kind::RdmaSource => {
            let (count, time) = (request.count, request.time);
            let written = write_messages(&mut link, wire, &mut messages, count, time);
            let nanoseconds = |(count, time): (u64, std::time::Duration)| {
                (count, time.as_nanos().try_into().unwrap_or(u64::MAX))
            };
            wire.report(written.map(nanoseconds).map_err(to_other))
        }
        _ => echo(&mut link, wire, request.count),
    }
}

fn prepare(wire: &Wire, request: &Request) -> Result<Local, Fault> {
    let local = Local::open(wire, request.kind, true, request.size)?;
    if request.kind == Kind::RdmaEcho {
        local.receive(0)?;
    }
    Ok(local)
}

/// Sends back what comes, until the client has enough. Messages come to the two places in turn.
fn echo(link: &mut Link, wire: &mut Wire, count: u32) -> Result<(), Fault> {
    for number in 0..u64::from(count) {
        let next = number.saturating_add(1);
        // What was in the other place has arrived.
        match link.wait(wire, number, next) {
            Err(Fault::Ended) => return Ok(()),
            waited => waited?,
        }
        link.receive(next)?;
        link.send(number)?;
    }
    link.wait(wire, count.into(), count.into())?;
    // The client has the connection end, and the queue pair stays until then.
    wire.read(&mut [0]).map(|_| ())
}
