// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Devices that come and go, and what each is told.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use anyhow::Context;
use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags};
use rustix::io::Errno;
use vfio_user::{send, Listener};

/// Version of the protocol, its first message.
const VERSION: i64 = 0;
/// Announces the memory instead of a device.
const MEMORY: i64 = -1;

/// A connected device.
#[derive(Debug)]
struct Device {
    stream: UnixStream,
    /// Writing to one raises the interrupt of that vector.
    vectors: Vec<OwnedFd>,
}

/// The listening socket, the memory, and all devices by their numbers.
#[derive(Debug)]
pub(crate) struct Server {
    listener: Listener,
    memory: File,
    vectors: u16,
    most: u16,
    /// Where the search for a number begins. QEMU frees what it has of a device that left and, when the number comes
    /// back, writes there (`hw/misc/ivshmem-pci.c`, `close_peer_eventfds`), which ends it some time later; so a number is
    /// not given again before all others were.
    next: u16,
    devices: BTreeMap<u16, Device>,
}

impl Server {
    /// A server of `memory` for `most` devices of `vectors` interrupt vectors each.
    pub(crate) fn new(listener: Listener, memory: File, vectors: u16, most: u16) -> Self {
        Self {
            listener,
            memory,
            vectors,
            most,
            next: 0,
            devices: BTreeMap::new(),
        }
    }

    /// Serves until something fails that is no device's fault.
    pub(crate) fn run(mut self) -> anyhow::Result<()> {
        loop {
            let (connecting, gone) = self.wait().context("cannot wait for devices")?;
            // Those that left first, so that there is room for one that is started again.
            self.leave(gone);
            if connecting {
                while let Some(stream) = self.listener.accept_stream()? {
                    self.join(stream);
                }
            }
        }
    }

    /// Waits; returns whether devices want to connect, and those that are gone.
    fn wait(&self) -> Result<(bool, Vec<u16>), Errno> {
        let mut sources = vec![PollFd::new(&self.listener, PollFlags::IN)];
        sources.extend(
            self.devices
                .values()
                .map(|device| PollFd::new(&device.stream, PollFlags::IN)),
        );
        match poll(&mut sources, None) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok((false, Vec::new())),
            Err(error) => return Err(error),
        }
        let mut ready = sources.iter().map(|source| !source.revents().is_empty());
        let connecting = ready.next().unwrap_or(false);
        // A device says nothing, so that whatever comes is its end.
        let gone = self.devices.keys().zip(ready);
        let gone = gone.filter(|(_, ready)| *ready).map(|(id, _)| *id);
        Ok((connecting, gone.collect()))
    }

    /// Takes a device in and tells all others of it.
    fn join(&mut self, stream: UnixStream) {
        if self.devices.len() >= usize::from(self.most) {
            tracing::warn!("{} devices are connected; one more is refused", self.most);
            return;
        }
        let mut numbers = (self.next..=u16::MAX).chain(0..self.next);
        let Some(id) = numbers.find(|id| !self.devices.contains_key(id)) else {
            return; // there are more numbers than devices
        };
        self.next = id.wrapping_add(1);
        let device = match self.device(stream) {
            Ok(device) => device,
            Err(error) => return tracing::error!("no interrupts for device {id}: {error}"),
        };
        if let Err(error) = self.greet(id, &device) {
            return tracing::warn!("device {id} did not take what it was sent: {error}");
        }
        let others = self.devices.iter();
        let deaf = others.filter(|(_, other)| announce(&other.stream, id, &device).is_err());
        let deaf = deaf.map(|(other, _)| *other).collect();
        self.devices.insert(id, device);
        tracing::info!("device {id} connected");
        self.leave(deaf);
    }

    /// A device with fresh interrupts.
    fn device(&self, stream: UnixStream) -> Result<Device, Errno> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let vectors = (0..self.vectors).map(|_| eventfd(0, flags));
        Ok(Device {
            stream,
            vectors: vectors.collect::<Result<_, _>>()?,
        })
    }

    /// Sends a new device all it needs, its own interrupts last, as the protocol has it.
    fn greet(&self, id: u16, device: &Device) -> Result<(), Errno> {
        let stream = &device.stream;
        tell(stream, VERSION, None)?;
        tell(stream, i64::from(id), None)?;
        tell(stream, MEMORY, Some(self.memory.as_fd()))?;
        for (other, peer) in &self.devices {
            announce(stream, *other, peer)?;
        }
        announce(stream, id, device)
    }

    /// Takes devices out and tells all others of it; one that cannot be told goes, too.
    fn leave(&mut self, mut gone: Vec<u16>) {
        while let Some(id) = gone.pop() {
            if self.devices.remove(&id).is_none() {
                continue;
            }
            tracing::info!("device {id} is gone");
            for (other, device) in &self.devices {
                if tell(&device.stream, i64::from(id), None).is_err() {
                    gone.push(*other);
                }
            }
        }
    }
}

/// Tells of a device's interrupts, vector 0 first.
fn announce(stream: &UnixStream, id: u16, device: &Device) -> Result<(), Errno> {
    let mut vectors = device.vectors.iter();
    vectors.try_for_each(|vector| tell(stream, i64::from(id), Some(vector.as_fd())))
}

/// Sends one message. QEMU reads at once; one that lets its socket run full is an error.
fn tell(stream: &UnixStream, value: i64, file: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
    let message = value.to_le_bytes();
    match send(stream, &message, file)? {
        sent if sent == message.len() => Ok(()),
        _ => Err(Errno::NOBUFS),
    }
}
