// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Interrupts: the request that sets them up, and the eventfds that carry them.

use std::os::fd::OwnedFd;

use rustix::fs::{fcntl_getfl, fcntl_setfl, OFlags};
use rustix::io::Errno;
use zerocopy::FromBytes;

use crate::proto::IrqSet;

const DATA_NONE: u32 = 1 << 0;
const DATA_BOOL: u32 = 1 << 1;
const DATA_EVENTFD: u32 = 1 << 2;
const DATA_MASK: u32 = DATA_NONE | DATA_BOOL | DATA_EVENTFD;
const ACTION_TRIGGER: u32 = 1 << 5;

/// `VFIO_USER_DEVICE_SET_IRQS`, decoded (struct vfio_irq_set in `linux/vfio.h`).
#[derive(Debug)]
pub enum IrqRequest {
    /// Interrupts `start..` of kind `index` are to be signalled through these eventfds.
    Connect {
        /// Kind.
        index: u32,
        /// First interrupt.
        start: u32,
        /// One for each interrupt.
        eventfds: Vec<OwnedFd>,
    },
    /// Interrupts `start..start + count` of kind `index` are no longer to be signalled.
    Disconnect {
        /// Kind.
        index: u32,
        /// First interrupt.
        start: u32,
        /// Interrupts.
        count: u32,
    },
    /// No interrupt of this kind is to be signalled any more.
    DisconnectAll {
        /// Kind.
        index: u32,
    },
    /// Interrupts `start..start + count` of kind `index` are to be raised once, for testing.
    Raise {
        /// Kind.
        index: u32,
        /// First interrupt.
        start: u32,
        /// Interrupts.
        count: u32,
    },
}

impl IrqRequest {
    /// Decodes a request. `count_of` tells how many interrupts of a kind there are.
    ///
    /// Masking is refused: vfio defines it for INTx only, MSI-X masks in its table, which
    /// the VMM keeps.
    pub(crate) fn decode(
        body: &[u8],
        fds: Vec<OwnedFd>,
        count_of: impl FnOnce(u32) -> u32,
    ) -> Result<Self, Errno> {
        let (set, _bools) = IrqSet::read_from_prefix(body).map_err(|_| Errno::INVAL)?;
        let (index, start, count) = (set.index.get(), set.start.get(), set.count.get());
        let end = start.checked_add(count).ok_or(Errno::INVAL)?;
        if end > count_of(index) {
            return Err(Errno::INVAL);
        }
        if set.flags.get() & !DATA_MASK != ACTION_TRIGGER {
            return Err(Errno::NOTTY);
        }
        match set.flags.get() & DATA_MASK {
            DATA_EVENTFD if fds.is_empty() => Ok(Self::Disconnect {
                index,
                start,
                count,
            }),
            DATA_EVENTFD if u32::try_from(fds.len()) == Ok(count) => Ok(Self::Connect {
                index,
                start,
                eventfds: fds,
            }),
            DATA_NONE if count == 0 => Ok(Self::DisconnectAll { index }),
            DATA_NONE => Ok(Self::Raise {
                index,
                start,
                count,
            }),
            _ => Err(Errno::INVAL),
        }
    }
}

/// The eventfds of one kind of interrupt.
#[derive(Debug, Default)]
pub struct EventFds {
    fds: Vec<Option<OwnedFd>>,
}

impl EventFds {
    /// For `count` interrupts, none connected.
    pub fn new(count: u32) -> Self {
        Self {
            fds: (0..count).map(|_| None).collect(),
        }
    }

    /// Number of interrupts.
    pub fn count(&self) -> u32 {
        u32::try_from(self.fds.len()).unwrap_or(u32::MAX)
    }

    /// Carries out a request for this kind of interrupt, whose bounds were checked against
    /// [`count`](Self::count).
    pub fn apply(&mut self, request: IrqRequest) -> Result<(), Errno> {
        match request {
            IrqRequest::Connect {
                start, eventfds, ..
            } => {
                for fd in &eventfds {
                    set_nonblocking(fd)?;
                }
                for (slot, fd) in self.range(start, eventfds.len()).zip(eventfds) {
                    *slot = Some(fd);
                }
            }
            IrqRequest::Disconnect { start, count, .. } => {
                let count = usize::try_from(count).unwrap_or(usize::MAX);
                self.range(start, count).for_each(|slot| *slot = None);
            }
            IrqRequest::DisconnectAll { .. } => self.clear(),
            IrqRequest::Raise { start, count, .. } => {
                let end = start.saturating_add(count).min(self.count());
                (start..end).for_each(|vector| {
                    self.raise(vector);
                });
            }
        }
        Ok(())
    }

    /// Disconnects all.
    pub fn clear(&mut self) {
        self.fds.iter_mut().for_each(|slot| *slot = None);
    }

    /// Raises interrupt `vector`; `false` if it is not connected. One system call.
    pub fn raise(&self, vector: u32) -> bool {
        let slot = usize::try_from(vector).ok().and_then(|v| self.fds.get(v));
        let Some(Some(fd)) = slot else { return false };
        // A full counter (EAGAIN) has an interrupt pending already, and no other error of
        // a descriptor that the VMM chose is ours to handle.
        let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
        true
    }

    fn range(&mut self, start: u32, count: usize) -> impl Iterator<Item = &mut Option<OwnedFd>> {
        let start = usize::try_from(start).unwrap_or(usize::MAX);
        self.fds.iter_mut().skip(start).take(count)
    }
}

/// A descriptor from outside must never block the event loop.
fn set_nonblocking(fd: &OwnedFd) -> Result<(), Errno> {
    let flags = fcntl_getfl(fd)?;
    if flags.contains(OFlags::NONBLOCK) {
        return Ok(());
    }
    fcntl_setfl(fd, flags | OFlags::NONBLOCK)
}
