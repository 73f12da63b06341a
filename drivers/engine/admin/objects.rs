// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Creation and destruction of a node's objects: the admin commands that touch no other node.
//!
//! Arguments are command bodies as they came from the driver; each function checks all of its fields, and has no effect
//! if it returns an error.

use crate::{
    hal::Platform,
    node::{Domain, Node},
    path::events::Held,
    state::{
        cq::{CompletionQueue, Moderation},
        eq::EventQueue,
        list::Links,
        ring::Ring,
        slots::Owner,
    },
    storage::Storage,
};
use nupa_proto::{
    admin::{CreateCq, CreateEq, ModifyCq, PageList, QpType, SetRss, SetRxFilter},
    cqe::CQE_SIZE,
    eqe::EQE_SIZE,
    status::AdminStatus,
};

impl<S: Storage> Node<S> {
    /// Takes ring memory over, after a check of its size against the limits.
    pub(crate) fn make_ring(
        &self,
        platform: &impl Platform,
        list: &PageList,
        log_entries: u8,
        log_size: u8,
    ) -> Result<Ring<S::Pages>, AdminStatus> {
        if log_entries > self.limits().max_log_ring.min(24) {
            return Err(AdminStatus::InvalidField);
        }
        Ring::new::<S>(platform.memory(), list, log_entries, log_size)
    }

    /// Creates an event queue; the first one gets number 0 and takes all events but those of completion
    /// queues.
    pub fn create_eq(
        &mut self,
        platform: &impl Platform,
        body: &CreateEq,
    ) -> Result<u32, AdminStatus> {
        let (page, slot, vector) = (
            body.doorbell_page.get(),
            body.doorbell_slot.get(),
            body.vector.get(),
        );
        if body.reserved != [0; 7] || vector >= platform.vectors() {
            return Err(AdminStatus::InvalidField);
        }
        self.slots.check(platform, page, slot)?;
        let log_size = EQE_SIZE.trailing_zeros() as u8;
        let ring = self.make_ring(platform, &body.ring, body.log_entries, log_size)?;
        let queue = EventQueue {
            ring,
            page,
            slot,
            vector,
            users: 0,
            index: 0,
            consumed: 0,
            fired: 0,
        };
        self.slots.claim(platform, page, slot, Owner::Consumer)?;
        let added = self.events.insert(|_| queue);
        added.map_err(|_| {
            self.slots.release(page, slot);
            AdminStatus::NoResources
        })
    }

    /// Destroys an event queue that no completion queue reports to.
    pub fn destroy_eq(&mut self, eqn: u32) -> Result<(), AdminStatus> {
        match self.events.get(eqn) {
            None => return Err(AdminStatus::NoSuchObject),
            Some(queue) if queue.users != 0 => return Err(AdminStatus::Busy),
            Some(_) => {}
        }
        if let Some(queue) = self.events.remove(eqn) {
            self.slots.release(queue.page, queue.slot);
        }
        Ok(())
    }

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
        if body.reserved != 0 || body.reserved1.get() != 0 {
            return Err(AdminStatus::InvalidField);
        }
        self.events.get(eqn).ok_or(AdminStatus::NoSuchObject)?;
        self.slots.check(platform, page, slot)?;
        let log_size = CQE_SIZE.trailing_zeros() as u8;
        let ring = self.make_ring(platform, &body.ring, body.log_entries, log_size)?;
        let queue = CompletionQueue {
            ring,
            page,
            slot,
            eqn,
            users: 0,
            index: 0,
            consumed: 0,
            fired: 0,
            dead: false,
            moderation: Moderation::default(),
            links: Links::default(),
            held: Held::default(),
        };
        self.slots.claim(platform, page, slot, Owner::Consumer)?;
        let added = self.completions.insert(|_| queue);
        let cqn = added.map_err(|_| {
            self.slots.release(page, slot);
            AdminStatus::NoResources
        })?;
        if let Some(queue) = self.events.get_mut(eqn) {
            queue.users = queue.users.saturating_add(1);
        }
        Ok(cqn)
    }

    /// Changes the event moderation of a completion queue. An event that is being held back is raised at once.
    pub fn modify_cq(
        &mut self,
        platform: &impl Platform,
        body: &ModifyCq,
    ) -> Result<(), AdminStatus> {
        let cqn = body.cqn.get();
        let queue = self
            .completions
            .get_mut(cqn)
            .ok_or(AdminStatus::NoSuchObject)?;
        let (usecs, max_count) = (body.usecs.get(), body.max_count.get());
        let held = queue.moderation.deadline.is_some();
        (queue.moderation.usecs, queue.moderation.max_count) = (usecs, max_count);
        if held {
            self.fire(platform, cqn);
        }
        Ok(())
    }

    /// Destroys a completion queue that no queue pair uses.
    pub fn destroy_cq(&mut self, cqn: u32) -> Result<(), AdminStatus> {
        match self.completions.get(cqn) {
            None => return Err(AdminStatus::NoSuchObject),
            Some(queue) if queue.users != 0 => return Err(AdminStatus::Busy),
            Some(_) => {}
        }
        self.moderated.remove(&mut self.completions, cqn);
        if let Some(queue) = self.completions.remove(cqn) {
            self.slots.release(queue.page, queue.slot);
            if let Some(events) = self.events.get_mut(queue.eqn) {
                events.users = events.users.saturating_sub(1);
            }
        }
        Ok(())
    }

    /// Allocates a protection domain.
    pub fn alloc_pd(&mut self) -> Result<u32, AdminStatus> {
        self.domains
            .insert(|_| Domain::default())
            .map_err(|_| AdminStatus::NoResources)
    }

    /// Frees a protection domain that nothing uses.
    pub fn dealloc_pd(&mut self, pd: u32) -> Result<(), AdminStatus> {
        match self.domains.get(pd) {
            None => return Err(AdminStatus::NoSuchObject),
            Some(domain) if domain.users != 0 => return Err(AdminStatus::Busy),
            Some(_) => {}
        }
        self.domains.remove(pd);
        Ok(())
    }

    pub(crate) fn use_domain(&mut self, pd: u32) {
        if let Some(domain) = self.domains.get_mut(pd) {
            domain.users = domain.users.saturating_add(1);
        }
    }

    pub(crate) fn release_domain(&mut self, pd: u32) {
        if let Some(domain) = self.domains.get_mut(pd) {
            domain.users = domain.users.saturating_sub(1);
        }
    }

    /// Sets the receive filter.
    pub fn set_rx_filter(
        &mut self,
        platform: &impl Platform,
        body: &SetRxFilter,
    ) -> Result<(), AdminStatus> {
        self.filter.set(platform.memory(), body)
    }

    /// Sets the table that spreads frames over raw queue pairs.
    pub fn set_rss(&mut self, platform: &impl Platform, body: &SetRss) -> Result<(), AdminStatus> {
        let Self { spread, pairs, .. } = self;
        let raw = |qpn| {
            pairs
                .get(qpn)
                .is_some_and(|p| p.kind == QpType::Raw && p.has_recv())
        };
        spread.set(platform.memory(), body, raw)
    }
}
