// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Creation, change and destruction of shared receive queues.

use crate::{
    hal::{NoMemory, Platform, Storage},
    node::Node,
    state::{
        access::KeyHolder,
        deferred::DeferredEvents,
        list::{Links, List},
        rq::RecvQueue,
        slots::Owner,
        srq::Srq,
        timer::Timer,
    },
};
use nupa_proto::{
    admin::{CreateSrq, ModifySrq, SrqState, QP_FLAG_PRIVILEGED},
    status::AdminStatus,
};
use zerocopy::little_endian::U32;

impl<S: Storage> Node<S> {
    /// Creates a shared receive queue.
    pub fn create_srq(
        &mut self,
        platform: &impl Platform,
        body: &CreateSrq,
    ) -> Result<u32, AdminStatus> {
        let (pd, flags) = (body.pd.get(), body.flags);
        if flags & !QP_FLAG_PRIVILEGED != 0 || body.reserved != [0; 3] {
            return Err(AdminStatus::InvalidField);
        }
        self.pds.get(pd).ok_or(AdminStatus::NoSuchObject)?;
        let (page, slot) = (body.doorbell_page.get(), body.doorbell_slot.get());
        self.slots.check(platform, page, slot)?;
        let prepared = self.srq_timers.prepare();
        prepared.map_err(|NoMemory| AdminStatus::NoResources)?;
        let size = self.limits().recv_ring(body.log_entries, body.log_stride);
        let ring = self.make_ring(platform, &body.ring, size)?;
        let stored = ring.stored_pages();
        let srq = Srq {
            queue: RecvQueue::new(ring, page, slot),
            holder: KeyHolder::new(pd, flags),
            users: 0,
            limit: 0,
            kept: 0,
            waiters: List::default(),
            dead: false,
            timer: Timer::default(),
            timer_links: Links::default(),
            deferred: DeferredEvents::default(),
        };
        let srqn = self
            .srqs
            .insert(|_| srq)
            .map_err(|_| AdminStatus::NoResources)?;
        let claimed = self.slots.claim(platform, page, slot, Owner::Shared(srqn));
        if let Err(status) = claimed {
            self.srqs.remove(srqn);
            return Err(status);
        }
        self.use_pd(pd);
        self.count_pages(stored);
        Ok(srqn)
    }

    /// Arms the limit event of a shared receive queue; it is raised at once if fewer entries than that are left.
    pub fn modify_srq(
        &mut self,
        platform: &impl Platform,
        body: &ModifySrq,
    ) -> Result<(), AdminStatus> {
        let (srqn, limit) = (body.srqn.get(), body.limit.get());
        let srq = self.srqs.get_mut(srqn).ok_or(AdminStatus::NoSuchObject)?;
        if limit > srq.queue.entries() {
            return Err(AdminStatus::InvalidField);
        }
        srq.limit = limit;
        self.check_limit(platform, srqn);
        Ok(())
    }

    /// Reads the state of a shared receive queue.
    pub fn query_srq(&self, srqn: u32) -> Result<SrqState, AdminStatus> {
        let srq = self.srqs.get(srqn).ok_or(AdminStatus::NoSuchObject)?;
        Ok(SrqState {
            limit: U32::new(srq.limit),
            index: U32::new(srq.queue.index),
        })
    }

    /// Destroys a shared receive queue that no queue pair uses.
    pub fn destroy_srq(&mut self, srqn: u32) -> Result<(), AdminStatus> {
        match self.srqs.get(srqn) {
            None => return Err(AdminStatus::NoSuchObject),
            Some(srq) if srq.users != 0 => return Err(AdminStatus::Busy),
            Some(_) => {}
        }
        self.srq_timers.stop(&mut self.srqs, srqn);
        self.deferred_srqs.remove(&mut self.srqs, srqn);
        if let Some(srq) = self.srqs.remove(srqn) {
            self.slots.release(srq.queue.page, srq.queue.slot);
            self.release_pd(srq.holder.pd);
            self.retire_ring(srq.queue.into_ring());
        }
        Ok(())
    }
}
