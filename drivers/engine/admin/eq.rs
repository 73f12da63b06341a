// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Creation and destruction of event queues.

use crate::{
    hal::{Platform, Storage},
    node::Node,
    state::{eq::EventQueue, slots::Owner},
};
use nupa_proto::{admin::CreateEq, status::AdminStatus};

impl<S: Storage> Node<S> {
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
        let size = self.limits().event_ring(body.log_entries);
        let ring = self.make_ring(platform, &body.ring, size)?;
        let stored = ring.stored_pages();
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
        let added = self.eqs.insert(|_| queue);
        let eqn = added.map_err(|_| {
            self.slots.release(page, slot);
            AdminStatus::NoResources
        })?;
        self.count_pages(stored);
        Ok(eqn)
    }

    /// Destroys an event queue that no completion queue reports to.
    pub fn destroy_eq(&mut self, eqn: u32) -> Result<(), AdminStatus> {
        match self.eqs.get(eqn) {
            None => return Err(AdminStatus::NoSuchObject),
            Some(queue) if queue.users != 0 => return Err(AdminStatus::Busy),
            Some(_) => {}
        }
        if let Some(queue) = self.eqs.remove(eqn) {
            self.slots.release(queue.page, queue.slot);
            self.retire_ring(queue.ring);
        }
        Ok(())
    }
}
