// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the event loop waits on.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::Timespec;
use rustix::io::Errno;

/// Sources looked at in one round; more are seen in the next.
const BATCH: usize = 64;

/// What became ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// A VMM wants to connect to this port.
    Listener(u16),
    /// The VMM on this port sent something, takes replies again, or is gone.
    Guest(u16),
    /// Someone wants to connect to the control socket.
    Control,
    /// A client of the control socket sent something.
    Client(u16),
    /// A signal came in.
    Signal,
}

impl Source {
    fn encode(self) -> EventData {
        let (kind, index) = match self {
            Self::Listener(index) => (0, index),
            Self::Guest(index) => (1, index),
            Self::Control => (2, 0),
            Self::Client(index) => (3, index),
            Self::Signal => (4, 0),
        };
        EventData::new_u64((kind << 16) | u64::from(index))
    }

    fn decode(data: EventData) -> Option<Self> {
        let value = data.u64();
        let index = u16::try_from(value & 0xffff).ok()?;
        Some(match value >> 16 {
            0 => Self::Listener(index),
            1 => Self::Guest(index),
            2 => Self::Control,
            3 => Self::Client(index),
            4 => Self::Signal,
            _ => return None,
        })
    }
}

/// An epoll instance, level-triggered but for listening sockets.
#[derive(Debug)]
pub(crate) struct Poller(OwnedFd);

impl Poller {
    pub(crate) fn new() -> Result<Self, Errno> {
        epoll::create(CreateFlags::CLOEXEC).map(Self)
    }

    /// Waits until `fd` is readable. Closing `fd` takes it out again.
    pub(crate) fn add(&self, fd: impl AsFd, source: Source) -> Result<(), Errno> {
        epoll::add(&self.0, fd, source.encode(), EventFlags::IN)
    }

    /// Reports a listening socket once for each batch of connections, which are to be
    /// accepted until none is left. One that cannot be accepted (no descriptors are left)
    /// then does not keep the loop busy.
    pub(crate) fn add_listener(&self, fd: impl AsFd, source: Source) -> Result<(), Errno> {
        epoll::add(
            &self.0,
            fd,
            source.encode(),
            EventFlags::IN | EventFlags::ET,
        )
    }

    /// From now on waits until `fd` is writable, or else readable.
    pub(crate) fn rearm(&self, fd: impl AsFd, source: Source, writable: bool) -> Result<(), Errno> {
        let flags = if writable {
            EventFlags::OUT
        } else {
            EventFlags::IN
        };
        epoll::modify(&self.0, fd, source.encode(), flags)
    }

    /// Waits, for ever without a timeout, and replaces what is in `ready`.
    pub(crate) fn wait(&self, ready: &mut Ready, timeout: Option<Duration>) -> Result<(), Errno> {
        ready.0.clear();
        let timeout = timeout.map(|time| Timespec {
            tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(time.subsec_nanos()),
        });
        match epoll::wait(&self.0, spare_capacity(&mut ready.0), timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Sources that are ready. Its allocation is kept from round to round.
pub(crate) struct Ready(Vec<Event>);

impl Ready {
    pub(crate) fn new() -> Self {
        Self(Vec::with_capacity(BATCH))
    }

    /// Takes them out.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Source> + '_ {
        self.0
            .drain(..)
            .filter_map(|event| Source::decode(event.data))
    }
}
