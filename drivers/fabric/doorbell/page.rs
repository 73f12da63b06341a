// SPDX-License-Identifier: GPL-2.0
//! Doorbell pages and slots that somebody has.

use super::Doorbells;
use crate::{
    quota::refusal,
    slots::{Holder, TakenSlots, Wanted},
};
use kernel::{prelude::*, sync::Arc};
use nk::{
    barrier::full_fence,
    mmap::MmapRange,
    process::Process,
    ring::RingMemory,
    user::{charged_user, may_exceed_limits},
};
use nupa_engine::hal::SlotWord;
use nupa_proto::{
    doorbell::{host_slot_offset, slot_offset, PAGE_SIZE, SLOTS, SLOT_DRIVER, SLOT_SIZE},
    uabi::{next_in, SLOT_COPIES, SLOT_LIVE},
};

/// A use of a pair of doorbell pages, which belongs to the kernel or to one process and was cleared when it became theirs.
/// Queues on it can be rung through it and through no other.
///
/// It can go to somebody else once all uses are dropped: no mapping of it may be left by then. It stays mapped and without
/// effect while the controller is lost, and can be used again afterwards.
pub struct DoorbellPage {
    doorbells: Arc<Doorbells>,
    number: u32,
}

impl DoorbellPage {
    /// Number of the pair. What has one use of it has the same page.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The shared page, to be mapped for reading and writing. Any context.
    pub fn shared(&self) -> Option<MmapRange> {
        match &self.doorbells.memory {
            Some(memory) => memory.page(host_slot_offset(self.number, 0)),
            None => {
                let offset = slot_offset(self.number, 0);
                let function = &self.doorbells.function;
                function.window(offset, PAGE_SIZE as u64)
            }
        }
    }

    /// The trapped page, to be mapped for writing, if the function has one. Without it whoever maps the shared page has
    /// the driver kick ([`crate::Qp::kick_send`] and the like). Any context.
    pub fn trapped(&self) -> Option<MmapRange> {
        self.doorbells.trapped(self.number)
    }
}

/// May sleep.
impl Clone for DoorbellPage {
    fn clone(&self) -> Self {
        self.doorbells.pages.lock().keep(self.number);
        Self {
            doorbells: self.doorbells.clone(),
            number: self.number,
        }
    }
}

impl Drop for DoorbellPage {
    fn drop(&mut self) {
        self.doorbells.pages.lock().give(self.number, None);
    }
}

/// A doorbell slot of a page; goes back when dropped, which must be after the queue it was given to is destroyed.
pub struct DoorbellSlot {
    doorbells: Arc<Doorbells>,
    page: u32,
    number: u16,
}

impl DoorbellSlot {
    /// Takes what is wanted for the running process, on a page that it has if one has room. May sleep. `ENOSPC` if no page is
    /// left for processes, `EDQUOT` if the user has its share of them.
    pub(crate) fn for_process(
        doorbells: &Arc<Doorbells>,
        wanted: Wanted,
    ) -> Result<(Self, Option<Self>)> {
        let holder = Holder::Process {
            process: Process::current()?,
            user: charged_user(),
        };
        Self::take(doorbells, &holder, wanted)
    }

    /// Takes what is wanted for the kernel. May sleep. `ENOSPC` if all pages are taken.
    pub(super) fn for_kernel(
        doorbells: &Arc<Doorbells>,
        wanted: Wanted,
    ) -> Result<(Self, Option<Self>)> {
        Self::take(doorbells, &Holder::Kernel, wanted)
    }

    fn take(
        doorbells: &Arc<Doorbells>,
        holder: &Holder<Process>,
        wanted: Wanted,
    ) -> Result<(Self, Option<Self>)> {
        let mut pages = doorbells.pages.lock();
        let TakenSlots {
            page,
            fresh,
            slot: number,
            recv_slot,
        } = pages
            .take(holder, wanted, may_exceed_limits)
            .map_err(refusal)?;
        if fresh {
            doorbells.clear(page);
        }
        drop(pages);
        let slot = |number| Self {
            doorbells: doorbells.clone(),
            page,
            number,
        };
        Ok((slot(number), recv_slot.map(slot)))
    }

    /// Number within the page.
    #[inline]
    pub fn number(&self) -> u16 {
        self.number
    }

    /// Number of the page.
    #[inline]
    pub(crate) fn page_number(&self) -> u32 {
        self.page
    }

    /// Whether the other one is of the same page.
    pub(crate) fn is_beside(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.doorbells, &other.doorbells) && self.page == other.page
    }

    /// The page. May sleep.
    pub fn page(&self) -> DoorbellPage {
        self.doorbells.pages.lock().keep(self.page);
        DoorbellPage {
            doorbells: self.doorbells.clone(),
            number: self.page,
        }
    }

    pub(super) fn doorbells(&self) -> &Arc<Doorbells> {
        &self.doorbells
    }

    /// Tells the function that the slot's queue has work up to where the doorbell says, for an owner that cannot do so
    /// itself. May sleep. Without effect once the driver is unbound, or if no queue has the slot.
    pub(crate) fn kick(&self) {
        let index = self.doorbells.load(self.page, self.number, SlotWord::Index);
        let function = &self.doorbells.function;
        function.kick_now(self.page, self.number, index);
    }
}

/// How often to try to change the driver's word of a slot: its process changes it as well.
const TRIES: u32 = 100;

impl DoorbellSlot {
    /// The driver's word, where processes map memory of peers. Any context.
    fn word(&self) -> Option<(&RingMemory, usize)> {
        let memory = self.doorbells.memory.as_deref()?;
        let slot = host_slot_offset(self.page, self.number);
        Some((memory, slot.wrapping_add(SLOT_DRIVER)))
    }

    /// Puts the next number into some bits of the driver's word, as a full fence. Any context.
    pub(crate) fn change_mark(&self, bits: u32) {
        let Some((memory, at)) = self.word() else {
            return;
        };
        for _ in 0..TRIES {
            let now = memory.load_acquire(at);
            if memory.compare_exchange(at, now, next_in(now | SLOT_LIVE, bits)) {
                return;
            }
        }
        // Its process does nothing but change it. As if it copied something: it may have said that just now.
        let now = memory.load_acquire(at) | SLOT_LIVE | SLOT_COPIES;
        memory.store_release(at, next_in(now, bits));
        full_fence();
    }

    /// Whether the process says that it copies to or from a peer's memory. Any context.
    pub(crate) fn copies(&self) -> bool {
        let word = self.word();
        word.is_some_and(|(memory, at)| memory.load_acquire(at) & SLOT_COPIES != 0)
    }
}

impl Drop for DoorbellSlot {
    fn drop(&mut self) {
        let mut pages = self.doorbells.pages.lock();
        pages.give(self.page, Some(self.number));
    }
}

impl Doorbells {
    /// Clears what an earlier holder has left, and marks the slots as live for user space. What the controller reads of a
    /// slot it clears itself, when it gives the slot to a queue.
    fn clear(&self, page: u32) {
        const ZEROES: [u8; PAGE_SIZE] = [0; PAGE_SIZE];
        let slots = (0..SLOTS).map(|slot| usize::from(slot).wrapping_mul(SLOT_SIZE));
        let marks = slots.map(|slot| slot.wrapping_add(SLOT_DRIVER));
        if let Some(memory) = &self.memory {
            let start = host_slot_offset(page, 0);
            memory.write(start, &ZEROES);
            marks.for_each(|mark| memory.store_release(start.wrapping_add(mark), SLOT_LIVE));
            return;
        }
        let start = slot_offset(page, 0);
        for offset in (start..start.wrapping_add(PAGE_SIZE)).step_by(8) {
            self.function.store64(offset, 0);
        }
        marks.for_each(|mark| self.function.store32(start.wrapping_add(mark), SLOT_LIVE));
    }
}
