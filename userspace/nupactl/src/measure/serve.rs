// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The far side of measurements.
//!
//! Peers are not trusted. A client costs a thread, a descriptor and at most two messages of [`MAX_SIZE`](super::wire::MAX_SIZE); there are at most
//! [`CLIENTS`], and of one address [`CLIENTS_EACH`]. Each ends at a time that is known when it begins. No client has anything logged.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Write};
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::fault::Fault;
use super::messages::Messages;
use super::probe;
use super::rdma;
use super::wire::{Kind, Request, Wire, GRACE, PORT};
use crate::facts::{Controller, Host};
use crate::reach::{self, Way};

/// Clients at a time.
const CLIENTS: usize = 16;
/// Clients of one address at a time.
const CLIENTS_EACH: usize = 4;
/// Bytes of the stack of a client's thread.
const STACK: usize = 512 << 10;
/// How long a client may take to say what it wants.
const HELLO: Duration = Duration::from_secs(5);
/// How often it is looked whether there are other interfaces.
const LOOK: Duration = Duration::from_secs(2);
/// How long nobody is accepted after one was refused, or none could be.
const PAUSE: Duration = Duration::from_millis(20);

/// Serves until it is interrupted.
pub(super) fn run(host: &mut Host, out: &mut impl Write) -> anyhow::Result<()> {
    let mut listeners = Listeners::default();
    let clients = Clients::default();
    let mut looked: Option<Instant> = None;
    loop {
        // Clients that come do not make it look more often.
        if looked.is_none_or(|looked| looked.elapsed() >= LOOK) {
            let controllers = host.if_loaded(Host::controllers)?;
            listeners.update(controllers.unwrap_or_default(), out)?;
            looked = Some(Instant::now());
        }
        let mut waited: Vec<_> = listeners
            .open
            .values()
            .map(|listener| PollFd::new(listener, PollFlags::IN))
            .collect();
        match poll(&mut waited, Some(&Timespec::try_from(LOOK)?)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for listener in listeners.open.values() {
            clients.accept(listener);
        }
    }
}

/// Addresses that are listened on.
#[derive(Default)]
struct Listeners {
    open: BTreeMap<SocketAddrV6, TcpListener>,
    /// What was said of controllers that cannot be listened at, by their devices.
    said: BTreeMap<String, String>,
}

impl Listeners {
    /// Listens at the interfaces that there are now.
    fn update(&mut self, controllers: Vec<Controller>, out: &mut impl Write) -> anyhow::Result<()> {
        let mut wanted = BTreeMap::new();
        let mut troubles = BTreeMap::new();
        for controller in controllers {
            match reach::interface(&controller) {
                Ok((netdev, index)) => {
                    let address = reach::link_local(controller.node);
                    let address = SocketAddrV6::new(address, PORT, 0, index);
                    wanted.insert(address, (controller.device, netdev));
                }
                Err(error) => {
                    troubles.insert(controller.device, format!("{error:#}"));
                }
            }
        }
        self.open.retain(|address, _| wanted.contains_key(address));
        for (address, (device, netdev)) in wanted {
            if self.open.contains_key(&address) {
                continue;
            }
            match listen(address) {
                Ok(listener) => {
                    writeln!(out, "serving on {}%{netdev}, port {PORT}", address.ip())?;
                    self.open.insert(address, listener);
                }
                Err(error) => {
                    let text = format!(
                        "{netdev} cannot be served on, at its link-local address {}: {error}",
                        address.ip()
                    );
                    troubles.insert(device, text);
                }
            }
        }
        out.flush()?;
        self.say(troubles);
        Ok(())
    }

    /// Says what is wrong, once.
    fn say(&mut self, troubles: BTreeMap<String, String>) {
        for (device, text) in &troubles {
            if self.said.get(device) != Some(text) {
                eprintln!("nupactl: {text}; waiting");
            }
        }
        self.said = troubles;
    }
}

fn listen(address: SocketAddrV6) -> std::io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Clients that there are.
#[derive(Clone, Default)]
struct Clients {
    addresses: Arc<Mutex<Vec<Ipv6Addr>>>,
    /// Held by the one that has this node measure to another.
    measures: Arc<Mutex<()>>,
}

/// A client's place among those that there may be.
struct Place {
    of: Clients,
    address: Ipv6Addr,
}

impl Clients {
    /// Takes a place; `None` if there is none left, or the address has as many as one may have.
    fn place(&self, address: Ipv6Addr) -> Option<Place> {
        let mut addresses = self
            .addresses
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let own = addresses.iter().filter(|other| **other == address).count();
        if addresses.len() >= CLIENTS || own >= CLIENTS_EACH {
            return None;
        }
        addresses.push(address);
        Some(Place {
            of: self.clone(),
            address,
        })
    }

    /// Accepts a client, if one waits.
    fn accept(&self, listener: &TcpListener) {
        let (stream, from) = match listener.accept() {
            Ok((stream, SocketAddr::V6(from))) => (stream, *from.ip()),
            Ok(_) => return,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            // No descriptor is left, or the client has gone already.
            Err(_) => return thread::sleep(PAUSE),
        };
        if stream.set_nonblocking(false).is_err() {
            return;
        }
        match self.place(from) {
            Some(place) => {
                // What goes wrong is the client's.
                let serve = move || client(stream, &place);
                let _ = thread::Builder::new().stack_size(STACK).spawn(serve);
            }
            None => {
                refuse(stream);
                thread::sleep(PAUSE);
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut addresses = self
            .of
            .addresses
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = addresses.iter().position(|other| *other == self.address) {
            addresses.swap_remove(at);
        }
    }
}

/// Says that there is no place. A new connection has room for that.
fn refuse(stream: TcpStream) {
    let wire = Wire::new(stream, PAUSE);
    let _ = wire.and_then(|mut wire| wire.answer(Err(Fault::Busy)));
}

/// Does what a client wants.
fn client(stream: TcpStream, place: &Place) -> Result<(), Fault> {
    let mut wire = Wire::new(stream, HELLO)?;
    let request = match wire.request() {
        Ok(request) => request,
        Err(fault) => return wire.answer(Err(fault)),
    };
    if request.kind == Kind::Pair {
        return measure(&mut wire, &request, place);
    }
    if request.kind.is_rdma() {
        return rdma::serve(&mut wire, &request);
    }
    wire.give(request.time.saturating_add(GRACE));
    wire.answer(Ok(()))?;
    let mut messages = Messages::new(request.size, request.seed);
    match request.kind {
        Kind::Echo => echo(&mut wire, &mut messages.room(), request.count),
        Kind::Sink => {
            let came = probe::receive_messages(&mut wire, &mut messages);
            wire.report(came.map(|bytes| (bytes, 0)))
        }
        _ => {
            probe::send_messages(&mut wire, &mut messages, request.count, request.time).map(|_| ())
        }
    }
}

/// Sends back what comes.
fn echo(wire: &mut Wire, room: &mut [u8], count: u32) -> Result<(), Fault> {
    for _ in 0..count {
        if !wire.read(room)? {
            break;
        }
        wire.write(room)?;
    }
    Ok(())
}

/// Measures to another node. One at a time does.
fn measure(wire: &mut Wire, request: &Request, place: &Place) -> Result<(), Fault> {
    let Ok(_only) = place.of.measures.try_lock() else {
        return wire.answer(Err(Fault::Busy));
    };
    wire.answer(Ok(()))?;
    let measured = way(request).and_then(|way| probe::pair(way.port(PORT), request.time));
    // What it takes is bounded by what it does.
    wire.give(GRACE);
    wire.report(measured)
}

/// The way to the node that is to be measured to.
fn way(request: &Request) -> Result<Way, Fault> {
    let found = || -> anyhow::Result<Option<Way>> {
        let host = Host::open()?;
        let fabric = format!("{:016x}", request.fabric);
        let controllers = host.controllers()?;
        let Some(controller) = controllers.iter().find(|of| of.fabric == fabric) else {
            return Ok(None);
        };
        let peers = host.peers()?;
        let up = peers
            .iter()
            .any(|peer| peer.controller == controller.index && peer.node == request.node);
        if !up {
            return Ok(None);
        }
        Way::through(&host, controller, request.node).map(Some)
    };
    match found() {
        Ok(Some(way)) => Ok(way),
        Ok(None) => Err(Fault::Down),
        Err(_) => Err(Fault::NoInterface),
    }
}

#[cfg(test)]
mod tests;
