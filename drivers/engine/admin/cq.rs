// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Creation, change and destruction of completion queues.

use crate::{
    hal::{Memory, NoMemory, Platform, SlotWord, Storage},
    node::Node,
    state::{
        cq::{CompletionQueue, Moderation},
        deferred::DeferredEvents,
        list::Links,
        resources::Resize,
        slots::Owner,
        timer::Timer,
    },
};
use nupa_proto::{
    admin::{CreateCq, ModifyCq, ResizeCq, CQ_FLAG_IGNORE_OVERRUN, CQ_FLAG_TIMESTAMP},
    cqe::{phase, Cqe},
    status::AdminStatus,
};
use zerocopy::{little_endian::U32, IntoBytes};

/// Entries copied to another ring under one hold of the node: some 20 us.
const PART: u32 = 256;

impl<S: Storage> Node<S> {
    /// Creates a completion queue.
    pub fn create_cq(
        &mut self,
        platform: &impl Platform,
        body: &CreateCq,
    ) -> Result<u32, AdminStatus> {
        let (page, slot, eqn) = (
            body.doorbell_page.get(),
            body.doorbell_slot.get(),
            body.eqn.get(),
        );
        if body.flags & !(CQ_FLAG_IGNORE_OVERRUN | CQ_FLAG_TIMESTAMP) != 0
            || body.reserved.get() != 0
        {
            return Err(AdminStatus::InvalidField);
        }
        self.eqs.get(eqn).ok_or(AdminStatus::NoSuchObject)?;
        self.slots.check(platform, page, slot)?;
        let size = self.limits().completion_ring(body.log_entries);
        let ring = self.make_ring(platform, &body.ring, size)?;
        let stored = ring.stored_pages();
        let queue = CompletionQueue {
            ring,
            page,
            slot,
            eqn,
            users: 0,
            index: 0,
            consumed: 0,
            fired: 0,
            event_due: false,
            has_rings: false,
            dead: false,
            overruns: body.flags & CQ_FLAG_IGNORE_OVERRUN != 0,
            timestamps: body.flags & CQ_FLAG_TIMESTAMP != 0,
            moderation: Moderation::default(),
            timer: Timer::default(),
            timer_links: Links::default(),
            deferred: DeferredEvents::default(),
        };
        let prepared = self.moderated.prepare();
        prepared.map_err(|NoMemory| AdminStatus::NoResources)?;
        self.slots.claim(platform, page, slot, Owner::Consumer)?;
        let added = self.cqs.insert(|_| queue);
        let cqn = added.map_err(|_| {
            self.slots.release(page, slot);
            AdminStatus::NoResources
        })?;
        if let Some(queue) = self.eqs.get_mut(eqn) {
            queue.users = queue.users.saturating_add(1);
        }
        self.count_pages(stored);
        Ok(cqn)
    }

    /// Changes the event moderation of a completion queue. An event that is being held back is raised at once.
    pub fn modify_cq(
        &mut self,
        platform: &impl Platform,
        body: &ModifyCq,
    ) -> Result<(), AdminStatus> {
        let cqn = body.cqn.get();
        let queue = self.cqs.get_mut(cqn).ok_or(AdminStatus::NoSuchObject)?;
        let (usecs, max_count) = (body.usecs.get(), body.max_count.get());
        let held_back = queue.timer.at_us().is_some();
        (queue.moderation.usecs, queue.moderation.max_count) = (usecs, max_count);
        if held_back {
            self.fire(platform, cqn);
        }
        Ok(())
    }

    /// Destroys a completion queue that no queue pair uses.
    pub fn destroy_cq(&mut self, cqn: u32) -> Result<(), AdminStatus> {
        match self.cqs.get(cqn) {
            None => return Err(AdminStatus::NoSuchObject),
            Some(queue) if queue.users != 0 => return Err(AdminStatus::Busy),
            Some(_) => {}
        }
        self.moderated.stop(&mut self.cqs, cqn);
        self.deferred_cqs.remove(&mut self.cqs, cqn);
        if let Some(queue) = self.cqs.remove(cqn) {
            self.retire_ring(queue.ring);
            self.slots.release(queue.page, queue.slot);
            if let Some(events) = self.eqs.get_mut(queue.eqn) {
                events.users = events.users.saturating_sub(1);
            }
        }
        Ok(())
    }

    /// Gives a completion queue another ring, with all entries that its owner has not taken, and those that come meanwhile. `InvalidField`
    /// if the ring is too small for all of them, `InvalidState` for a queue that takes no more entries.
    ///
    /// That is done in parts: as long as [`Resources::is_in_part`](crate::Resources::is_in_part) of what
    /// [`Node::swap_resources`] hands back, it is to be called again with that.
    pub fn resize_cq(
        &mut self,
        platform: &impl Platform,
        body: &ResizeCq,
    ) -> Result<(), AdminStatus> {
        let cqn = body.cqn.get();
        let begun = self.resources.resize.take();
        let mut resize = match begun.filter(|resize| resize.cqn == cqn) {
            Some(resize) => resize,
            None => self.begin_resize(platform, body)?,
        };
        let queue = self.cqs.get_mut(cqn).ok_or(AdminStatus::Internal)?;
        // It may have overflowed since it began.
        let moved = match queue.dead {
            true => Err(AdminStatus::InvalidState),
            false => queue.move_part(platform, &mut resize),
        };
        let stored = queue.ring.stored_pages();
        match moved {
            Ok(false) => self.resources.resize = Some(resize),
            // What was the queue's until now.
            Ok(true) => {
                self.count_pages(stored);
                self.retire_ring(resize.ring);
            }
            // It is not used after all, and was not counted.
            Err(_) => self.resources.retire(resize.ring.into_map()),
        }
        moved.map(|_| ())
    }

    fn begin_resize(
        &mut self,
        platform: &impl Platform,
        body: &ResizeCq,
    ) -> Result<Resize<S::Pages>, AdminStatus> {
        let cqn = body.cqn.get();
        let queue = self.cqs.get(cqn).ok_or(AdminStatus::NoSuchObject)?;
        if body.reserved != [0; 3] {
            return Err(AdminStatus::InvalidField);
        }
        if queue.dead {
            return Err(AdminStatus::InvalidState);
        }
        let (page, slot) = (queue.page, queue.slot);
        let size = self.limits().completion_ring(body.log_entries);
        let ring = self.make_ring(platform, &body.ring, size)?;
        Ok(Resize {
            cqn,
            ring,
            from: platform.load(page, slot, SlotWord::Index),
            copied: 0,
        })
    }
}

impl<P: AsRef<[u64]> + AsMut<[u64]>> CompletionQueue<P> {
    /// Copies some more entries to another ring; once all are there, goes on in it, and gives the one before in its place. Returns whether
    /// it does.
    fn move_part(
        &mut self,
        platform: &impl Platform,
        resize: &mut Resize<P>,
    ) -> Result<bool, AdminStatus> {
        let count = self.index.wrapping_sub(resize.from);
        if count > self.ring.entries().min(resize.ring.entries()) {
            return Err(AdminStatus::InvalidField);
        }
        let end = count.min(resize.copied.saturating_add(PART));
        for n in resize.copied..end {
            let from = self.ring.addr(resize.from.wrapping_add(n));
            let phase = phase(n, resize.ring.log_entries());
            copy_entry(platform.memory(), from, resize.ring.addr(n), phase)?;
        }
        resize.copied = end;
        if end != count {
            return Ok(false);
        }
        platform.store(self.page, self.slot, SlotWord::Index, 0);
        (self.index, self.consumed) = (count, 0);
        core::mem::swap(&mut self.ring, &mut resize.ring);
        Ok(true)
    }
}

/// Copies an entry to where its phase bit is another. The owner looks for it only once the command is done.
fn copy_entry(
    memory: &impl Memory,
    from: Option<u64>,
    to: Option<u64>,
    valid: u32,
) -> Result<(), AdminStatus> {
    let (from, to) = from.zip(to).ok_or(AdminStatus::Internal)?;
    let mut entry = Cqe::default();
    let read = memory.read(from, entry.as_mut_bytes());
    read.map_err(|_| AdminStatus::BadAddress)?;
    entry.valid = U32::new(valid);
    let written = memory.write(to, entry.as_bytes());
    written.map_err(|_| AdminStatus::BadAddress)
}
