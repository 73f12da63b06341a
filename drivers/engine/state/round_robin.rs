// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Round robin over queue pairs: those whose send queue can be served, or those that wait for room in a ring.
//!
//! Turns go around processes, and within each around its queue pairs, so that many queue pairs get no more than few. A process is known
//! by its doorbell page: it has one for each context that it opened, and drivers see to it that nobody has many.

use crate::{
    hal::{NoMemory, Storage, Table},
    state::{
        list::List,
        qp::{QueuePair, Waiting},
        table::Objects,
    },
};

/// Queue pairs of one process.
#[derive(Debug, Default)]
pub(crate) struct Process {
    qps: List<Waiting>,
    /// It is in the queue of processes, if only because it has not been noticed yet that it has no queue pair left.
    listed: bool,
    /// The process behind it there.
    next: Option<u32>,
}

/// Queue pairs in the order in which they are served: round robin over processes, and over the queue pairs of each.
pub(crate) struct RoundRobin<S: Storage> {
    /// By doorbell page.
    processes: S::Table<Process>,
    first: Option<u32>,
    last: Option<u32>,
    len: u32,
}

impl<S: Storage> Default for RoundRobin<S> {
    fn default() -> Self {
        Self {
            processes: S::Table::default(),
            first: None,
            last: None,
            len: 0,
        }
    }
}

impl<S: Storage> RoundRobin<S> {
    /// Makes room for queue pairs with this doorbell page. May allocate.
    pub(crate) fn prepare(&mut self, page: u32) -> Result<(), NoMemory> {
        let count = (page as usize).saturating_add(1);
        if self.processes.slots().len() < count {
            self.processes.grow(count)?;
        }
        if let Some(slot) = self.processes.slots_mut().get_mut(page as usize) {
            slot.get_or_insert_with(Process::default);
        }
        Ok(())
    }

    /// Queue pairs in it.
    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends a queue pair that is in no list.
    pub(crate) fn push<L: Table<QueuePair<S::Pages>>, M: Table<u64>>(
        &mut self,
        qps: &mut Objects<QueuePair<S::Pages>, L, M>,
        qpn: u32,
    ) {
        let Some(page) = qps.get(qpn).map(|qp| qp.page) else {
            return;
        };
        let Some(process) = self.process(page) else {
            return;
        };
        process.qps.push(qps, qpn);
        self.len = self.len.saturating_add(1);
        self.enqueue(page);
    }

    /// Takes a queue pair out that is in it.
    pub(crate) fn remove<L: Table<QueuePair<S::Pages>>, M: Table<u64>>(
        &mut self,
        qps: &mut Objects<QueuePair<S::Pages>, L, M>,
        qpn: u32,
    ) {
        let Some(qp) = qps.get(qpn).filter(|qp| qp.links.is_listed()) else {
            return;
        };
        if let Some(process) = self.process(qp.page) {
            process.qps.remove(qps, qpn);
            self.len = self.len.saturating_sub(1);
        }
    }

    /// Takes out the queue pair whose turn it is. Its process has the next turn when all others had theirs.
    pub(crate) fn pop<L: Table<QueuePair<S::Pages>>, M: Table<u64>>(
        &mut self,
        qps: &mut Objects<QueuePair<S::Pages>, L, M>,
    ) -> Option<u32> {
        let qpn = self.first()?;
        let page = self.first?;
        let process = self.process(page)?;
        process.qps.remove(qps, qpn);
        let more = !process.qps.is_empty();
        self.dequeue();
        if more {
            self.enqueue(page);
        }
        self.len = self.len.saturating_sub(1);
        Some(qpn)
    }

    /// The queue pair whose turn it is.
    pub(crate) fn first(&mut self) -> Option<u32> {
        while let Some(page) = self.first {
            let process = self.process(page)?;
            if let Some(qpn) = process.qps.first() {
                return Some(qpn);
            }
            self.dequeue();
        }
        None
    }

    /// Takes the first process out.
    fn dequeue(&mut self) {
        let Some(process) = self.first.and_then(|page| self.process(page)) else {
            return;
        };
        process.listed = false;
        self.first = process.next.take();
        if self.first.is_none() {
            self.last = None;
        }
    }

    /// Puts a process at the tail, unless it is in the queue.
    fn enqueue(&mut self, page: u32) {
        let Some(process) = self.process(page) else {
            return;
        };
        if core::mem::replace(&mut process.listed, true) {
            return;
        }
        let last = self.last.replace(page);
        match last.and_then(|last| self.process(last)) {
            Some(last) => last.next = Some(page),
            None => self.first = Some(page),
        }
    }

    fn process(&mut self, page: u32) -> Option<&mut Process> {
        self.processes.slots_mut().get_mut(page as usize)?.as_mut()
    }
}
