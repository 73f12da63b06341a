// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A queue pair, from when it is made to what goes through it.

use std::hint::spin_loop;
use std::net::Ipv6Addr;
use std::thread::{sleep, yield_now};
use std::time::{Duration, Instant, SystemTime};

use verbs::{
    CompletionQueue, Context, Domain, Error, Memory, Peer, QueuePair, Region, Remote, Sizes, Target,
};
use zerocopy::IntoBytes;

use super::super::fault::Fault;
use super::super::lack::Lack;
use super::super::wire::{Kind, Wire};
use super::device::{self, Found};
use super::end::{End, RawEnd};
use super::window::Window;

/// Ids of requests.
const SENT: u64 = 1;
const RECEIVED: u64 = 2;
/// After so many looks for nothing others have a turn.
const LOOKS: u32 = 64;
/// After so long without anything it is looked whether the other side is there.
const QUIET: Duration = Duration::from_millis(20);
/// After so long it is looked less often, so that a peer which does nothing costs little.
const LONG: Duration = Duration::from_millis(100);
const PAUSE: Duration = Duration::from_millis(1);
/// How long it may take until a peer's connection ends after its queue pair has.
const GONE: Duration = Duration::from_secs(1);

/// What a side does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Sends and receives.
    Echo,
    /// Writes to the other side's memory.
    Writes,
    /// Has memory that is written to.
    IsWritten,
}

/// A queue pair that is not connected, and memory for it.
pub(super) struct Local {
    pair: QueuePair,
    region: Region,
    window: Window,
    role: Role,
    found: Found,
    address: Ipv6Addr,
    /// What its requests begin to count from.
    psn: u32,
}

impl Local {
    /// Makes one on the device that belongs to this side of a connection.
    pub(super) fn open(wire: &Wire, kind: Kind, is_server: bool, size: u32) -> Result<Self, Fault> {
        let role = match (kind, is_server) {
            (Kind::RdmaSink, false) | (Kind::RdmaSource, true) => Role::Writes,
            (Kind::RdmaSink, true) | (Kind::RdmaSource, false) => Role::IsWritten,
            _ => Role::Echo,
        };
        let window = match role {
            Role::Echo => Window::for_two(size),
            _ => Window::new(size),
        };
        let (own, _) = wire.addresses()?;
        let found = device::find(own).map_err(Fault::Here)?;
        let (pair, region) = make(&found.device, role, window).map_err(of_verbs)?;
        Ok(Self {
            pair,
            region,
            window,
            role,
            found,
            address: *own.ip(),
            psn: any_psn(),
        })
    }

    /// Tells the other side of it, and connects the two.
    pub(super) fn connect(self, wire: &mut Wire) -> Result<Link, Fault> {
        wire.write(self.end().raw(self.window.bytes()).as_bytes())?;
        let raw: RawEnd = wire.take()?;
        let (_, other) = wire.addresses()?;
        let offered = match self.role {
            Role::Writes => self.window.bytes(),
            _ => 0,
        };
        let connected = End::parse(&raw, *other.ip(), offered).and_then(|end| {
            let connected = self.pair.connect(&end.peer, self.found.index, self.psn);
            connected.map_err(of_verbs).map(|()| end)
        });
        wire.report(connected.map(|_| (0, 0)).map_err(to_other))?;
        let theirs = wire.reported();
        let end = connected?;
        theirs??;
        Ok(Link {
            pair: self.pair,
            region: self.region,
            window: self.window,
            remote: end.memory,
            sent: 0,
            received: 0,
        })
    }

    fn end(&self) -> End {
        let memory = (self.role == Role::IsWritten).then(|| Remote {
            address: self.region.address(),
            key: self.region.remote_key(),
        });
        End {
            peer: Peer {
                gid: self.address.octets(),
                number: self.pair.number(),
                psn: self.psn,
            },
            memory,
        }
    }

    /// Posts a receive request for the place of a message, before the other side can send.
    pub(super) fn receive(&self, number: u64) -> Result<(), Fault> {
        receive(&self.pair, &self.region, self.window, number)
    }
}

fn make(device: &str, role: Role, window: Window) -> Result<(QueuePair, Region), Error> {
    let context = Context::open(device)?;
    let domain = Domain::new(&context)?;
    let remote = role == Role::IsWritten;
    let region = Region::new(&domain, window.memory(), remote)?;
    let sizes = Sizes {
        send: window.places,
        receive: 2,
    };
    let completions = CompletionQueue::new(&context, window.places.saturating_add(2))?;
    let pair = QueuePair::new(&domain, &completions, sizes, remote)?;
    Ok((pair, region))
}

/// Any packet sequence number, so that what an earlier connection left behind is not taken for this one's.
fn any_psn() -> u32 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.subsec_nanos()) & 0x00ff_ffff
}

/// What verbs refuse here.
fn of_verbs(error: Error) -> Fault {
    Fault::Here(Lack::of(&error))
}

/// The same as the other side sees it.
pub(super) fn to_other(fault: Fault) -> Fault {
    match fault {
        Fault::Here(lack) => Fault::There(lack),
        fault => fault,
    }
}

fn receive(pair: &QueuePair, region: &Region, window: Window, number: u64) -> Result<(), Fault> {
    let range = (window.place(number), window.size);
    pair.post_receive(RECEIVED, region, range).map_err(of_verbs)
}

/// A queue pair that is connected.
pub(super) struct Link {
    pair: QueuePair,
    region: Region,
    pub(super) window: Window,
    remote: Option<Remote>,
    /// Requests that are done.
    sent: u64,
    received: u64,
}

impl Link {
    /// The memory here.
    pub(super) fn memory(&self) -> &Memory {
        self.region.memory()
    }

    /// Posts a receive request for the place of a message.
    pub(super) fn receive(&self, number: u64) -> Result<(), Fault> {
        receive(&self.pair, &self.region, self.window, number)
    }

    /// Sends what is in the place of a message.
    pub(super) fn send(&self, number: u64) -> Result<(), Fault> {
        self.post(number, Target::Receiver)
    }

    /// Writes what is in the place of a message to the same place of the other side.
    pub(super) fn write(&self, number: u64) -> Result<(), Fault> {
        let remote = self.remote.ok_or(Fault::Strange)?;
        let address = remote.address.checked_add(self.window.offset(number));
        let remote = Remote {
            address: address.ok_or(Fault::Strange)?,
            ..remote
        };
        self.post(number, Target::Memory(remote))
    }

    fn post(&self, number: u64, target: Target) -> Result<(), Fault> {
        let range = (self.window.place(number), self.window.size);
        let posted = self.pair.post_send(SENT, &self.region, range, target);
        posted.map_err(of_verbs)
    }

    /// Waits until so many requests are done since the beginning.
    pub(super) fn wait(&mut self, wire: &Wire, sent: u64, received: u64) -> Result<(), Fault> {
        let mut waiting = Waiting::default();
        while self.sent < sent || self.received < received {
            if self.look(wire)? {
                waiting = Waiting::default();
                continue;
            }
            match waiting.go_on(wire) {
                // What came before it ended counts.
                Err(Fault::Ended) if self.look(wire)? => {}
                result => result?,
            }
        }
        Ok(())
    }

    /// Takes a completion, if there is one.
    fn look(&mut self, wire: &Wire) -> Result<bool, Fault> {
        let completions = self.pair.completions();
        let Some(found) = completions.poll().map_err(of_verbs)? else {
            return Ok(false);
        };
        if found.status != 0 {
            return Err(failed(wire, found.status));
        }
        let count = match found.id {
            SENT => &mut self.sent,
            _ => &mut self.received,
        };
        *count = count.saturating_add(1);
        Ok(true)
    }
}

/// Why a request failed: the queue pair of a program that ends is gone before its connection.
fn failed(wire: &Wire, status: u8) -> Fault {
    let begin = Instant::now();
    while begin.elapsed() < GONE {
        if wire.has_ended() {
            return Fault::Ended;
        }
        sleep(QUIET);
    }
    Fault::Request(status)
}

/// Looking for something again and again.
#[derive(Default)]
struct Waiting {
    looks: u32,
    since: Option<Instant>,
}

impl Waiting {
    /// What to do after a look for nothing.
    fn go_on(&mut self, wire: &Wire) -> Result<(), Fault> {
        self.looks = self.looks.wrapping_add(1);
        if self.looks % LOOKS != 0 {
            spin_loop();
            return Ok(());
        }
        let waited = self.since.get_or_insert_with(Instant::now).elapsed();
        wire.in_time()?;
        if waited > QUIET && wire.has_ended() {
            return Err(Fault::Ended);
        }
        match waited > LONG {
            true => sleep(PAUSE),
            false => yield_now(),
        }
        Ok(())
    }
}
