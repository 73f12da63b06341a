// SPDX-License-Identifier: GPL-2.0
//! Device memory that nodes of a pool share.

use super::{function::PoolFunction, joined::Member, window::PoolWindow};
use crate::hal::{unsupported, Granted, Held, Sharing};
use core::ops::Range;
use kernel::{bindings, page::PAGE_SIZE, prelude::*};
use nk::{mmap::MmapRange, window::Window as Mapping};
use nupa_pool::{Import, Pool, Unshared};
use nupa_proto::pool::sharing::{DmHandle, RingOwner};

/// What it takes to look at the pool without the function's lock.
pub(super) struct Shared {
    window: PoolWindow,
    pool: Pool,
    node: u16,
}

impl Shared {
    pub(super) fn new(membership: &Member, window: &PoolWindow) -> Self {
        Self {
            window: window.clone(),
            pool: *membership.pool(),
            node: membership.node(),
        }
    }

    /// The pool, mapped.
    pub(super) fn mapping(&self) -> &Mapping {
        self.window.mapping()
    }

    /// Where this host has what was imported. Its addresses are physical ones for the engine, too.
    fn locate(&self, import: &Import) -> Result<Held> {
        let len = import.len.checked_next_multiple_of(PAGE_SIZE as u64);
        let pages = self.window.pages(import.offset, len.ok_or(EINVAL)?);
        let window = pages.ok_or(EINVAL)?;
        Ok(Held {
            address: window.start(),
            window,
            len: import.len,
        })
    }
}

impl PoolFunction {
    /// What was imported, and where it is.
    fn held_memory(&self, import: Import) -> Result<(u16, Held)> {
        let held = self.shared.locate(&import);
        let held = held.inspect_err(|_| self.end_hold(import.line))?;
        // What the processor has fetched of it by itself is what lay there before.
        self.forget_lines(&held.window);
        Ok((import.line, held))
    }

    /// Gives back what is not mapped any more. Nothing happens while the host sleeps.
    pub(super) fn settle_unmapped(&self) {
        let give_back =
            |granted: &Granted| self.with(|node| node.unmap_grant(granted.hold, &granted.mapped));
        self.unmapped
            .lock()
            .retain(|granted| give_back(granted).is_err());
    }

    fn end_hold(&self, hold: u16) {
        // Once the driver is unbound the node has left: it holds nothing.
        let _ = self.with(|node| {
            let (member, window) = (&node.membership, &node.window);
            node.sharing.release(window, member, hold);
        });
    }
}

fn error(why: Unshared) -> Error {
    match why {
        Unshared::Invalid => EINVAL,
        Unshared::Unknown => ENOENT,
        Unshared::Stale => Error::from_errno(-(bindings::ESTALE as i32)),
        Unshared::Full => ENOSPC,
        Unshared::Void => ENODEV,
        Unshared::Poisoned { .. } => EIO,
    }
}

impl Sharing for PoolFunction {
    fn export(&self, offset: u64, len: u64, ring: &RingOwner) -> Result<(u16, DmHandle)> {
        if *ring != RingOwner::default() && !self.has_rings() {
            return Err(unsupported());
        }
        let memory = self.shared.pool.device_memory(self.shared.node);
        let place = (memory.start.checked_add(offset).ok_or(EINVAL)?, len);
        let handle = self.with(|node| {
            let (member, window) = (&node.membership, &node.window);
            let secret = nk::random::u64();
            node.sharing.export(window, member, place, ring, secret)
        })?;
        let handle = handle.map_err(error)?;
        Ok((handle.index.get(), handle))
    }

    fn withdraw(&self, export: u16, memory: &MmapRange) {
        // As in `release`: nothing that this host has stored reaches the memory later, over what others that have it store then.
        self.forget_lines(memory);
        // What is exported is pages of the pool.
        let Ok(place) = self.place(memory) else {
            return;
        };
        // Once the driver is unbound the node has left: nothing that it exports is there.
        let _ = self.with(|node| {
            let (member, window) = (&node.membership, &node.window);
            let exported = (export, place.start as u64);
            node.sharing.withdraw(window, member, exported);
        });
    }

    fn let_go(&self, memory: &MmapRange) {
        // As in `withdraw`, which a region of the memory may outlive.
        self.forget_lines(memory);
    }

    fn import(&self, handle: &DmHandle) -> Result<(u16, Held)> {
        let import = self.with(|node| {
            let (member, window) = (&node.membership, &node.window);
            node.sharing.import(window, member, handle)
        })?;
        self.held_memory(import.map_err(error)?)
    }

    fn has_rings(&self) -> bool {
        // Programs store to them and load from them as they do with memory of one host.
        self.shared.mapping().is_coherent()
    }

    fn import_ring(&self, node: u16, ring: &RingOwner) -> Result<(u16, Held)> {
        if !self.has_rings() {
            return Err(unsupported());
        }
        let epoch = self.with(|own| {
            let peer = own.membership.peer(&own.window, node);
            peer.map(|peer| peer.epoch)
        })?;
        let epoch = epoch.ok_or(error(Unshared::Stale))?;
        // Not with the node locked: there may be much to look at.
        let Shared { window, pool, .. } = &self.shared;
        let handle = pool.find_ring(window, node, epoch, ring).map_err(error)?;
        let import = self.with(|own| {
            let (member, window) = (&own.membership, &own.window);
            own.sharing.import_ring(window, member, &handle, ring)
        })?;
        self.held_memory(import.map_err(error)?)
    }

    fn map_grant(&self, qpn: u32, key: u32) -> Result<(Granted, MmapRange)> {
        let mapped = self.with(|node| node.map_grant(qpn, key))?;
        let (hold, mapped) = mapped.map_err(error)?;
        let granted = Granted { hold, mapped };
        let window = self.shared.window.pages(mapped.offset(), mapped.len());
        let window = window.ok_or(EINVAL);
        let window = window.inspect_err(|_| self.unmap_grant(&granted))?;
        Ok((granted, window))
    }

    fn is_granted(&self, granted: &Granted) -> bool {
        // Once the driver is unbound the node has left.
        let holds = self.with(|node| node.is_granted(&granted.mapped));
        holds.unwrap_or(false)
    }

    fn unmap_grant(&self, granted: &Granted) {
        let noted = self.unmapped.lock().push(*granted, GFP_KERNEL);
        if noted.is_err() {
            // There is no memory to note it for later. If the host sleeps just now the slot is lost, and its owner refuses this node when it wants the memory back.
            let _ = self.with(|node| node.unmap_grant(granted.hold, &granted.mapped));
        }
        // If the host sleeps, when it has woken up. Once the driver is unbound the node has left.
        self.settle_unmapped();
    }

    fn release(&self, hold: u16, memory: &Held) {
        // Nothing of it reaches the memory, or is read from a cache of this host, when it is somebody else's.
        self.forget_lines(&memory.window);
        self.end_hold(hold);
    }

    fn held(&self, found: &mut dyn FnMut(Range<u64>)) {
        let Shared { window, pool, node } = &self.shared;
        let start = pool.device_memory(*node).start;
        pool.held(window, *node, |range| {
            found(range.start.saturating_sub(start)..range.end.saturating_sub(start));
        });
    }
}
