// SPDX-License-Identifier: GPL-2.0
//! The function in software: the lock, and when work is done.

mod calls;

use super::{
    copies::{Copies, Worker},
    heartbeat::{Beating, HeartbeatTimer},
    kicks::Kicks,
    lock::OwnerLock,
    memory::NodeMemory,
    node::PoolNode,
    poll_interval::Wait,
    poll_state::PollState,
    poller::Poller,
    sharing::Shared,
    storage::KernelStorage,
    window::HostClock,
};
use crate::hal::{in_steps, Granted};
use core::ops::Range;
use kernel::{
    prelude::*,
    sync::{
        atomic::{Atomic, Full, Relaxed},
        Arc, Mutex,
    },
    time::{delay::fsleep, Delta},
};
use nk::{
    bh,
    kthread::PollThread,
    mmap::MmapRange,
    net::{DetachedNapi, Repeat},
    sched::cond_resched,
};
use nupa_engine::WRITERS_PAUSE_US;
use nupa_function::{pool::Turn, Executed, PreparedCommand};

/// Polls for the function in softirq context.
pub(super) type PollerNapi = DetachedNapi<Poller>;

impl Worker for PollerNapi {
    fn wake(&self) {
        self.schedule();
    }
}

/// Polls for the function in a thread.
pub(super) type PollerThread = PollThread<Poller>;

/// Doorbell page pairs.
pub(super) const DOORBELL_PAGES: u32 = 512;

/// No processor.
pub(super) const NO_CPU: u32 = u32::MAX;

/// Bytes of device memory that are worked on without rescheduling.
const STEP: usize = 256 << 10;

/// Between two looks at who writes to memory that a command takes out of use.
const WRITERS_PAUSE: Delta = Delta::from_micros(WRITERS_PAUSE_US as i64);

/// A function of this host.
#[pin_data]
pub(super) struct PoolFunction {
    /// Disabled where a thread polls: then it does no harm to schedule it.
    pub(super) poller: Arc<PollerNapi>,
    /// The processor of the thread that polls instead, or [`NO_CPU`].
    pub(super) poll_cpu: Atomic<u32>,
    #[pin]
    pub(super) thread: Mutex<Option<PollerThread>>,
    /// Held while it changes who polls, or whether anybody does. Taken before all others.
    #[pin]
    pub(super) switching: Mutex<()>,
    pub(super) clock: HostClock,
    pub(super) poll_state: PollState,
    pub(super) kicks: Kicks,
    /// The memory that counts as the function's own, if there is any.
    pub(super) own: Option<MmapRange>,
    /// Whether that is known to outlive a loss of power.
    pub(super) persistent: bool,
    /// What each node of the pool shares.
    pub(super) shared: Shared,
    /// Open until the driver is unbound.
    #[pin]
    pub(super) owner: OwnerLock,
    /// Held while a register is written and all admin commands that this sets off are executed, and while it changes whether the function
    /// may use memory. Taken before `owner`. The command that is executed lies here: it is large.
    #[pin]
    pub(super) registers: Mutex<CommandPlace>,
    /// Writes the heartbeat, except while the host sleeps.
    pub(super) heartbeat: Arc<HeartbeatTimer>,
    #[pin]
    pub(super) beating: Mutex<Option<Beating>>,
    /// What works otherwise, while the host sleeps.
    #[pin]
    pub(super) asleep: Mutex<Option<Asleep>>,
    /// What processes have not mapped any more, and is to be given back.
    #[pin]
    pub(super) unmapped: Mutex<KVec<Granted>>,
    /// Payload that a DMA channel copies, if there is one. While that ends nobody works with the node.
    pub(super) copies: Option<Arc<Copies>>,
}

/// Where an admin command lies while it is executed.
pub(super) type CommandPlace = Option<PreparedCommand<KernelStorage>>;

/// What is taken from its place while the host sleeps, so that nobody works with it.
pub(super) struct Asleep {
    poller: Poller,
    node: KBox<PoolNode>,
}

impl PoolFunction {
    /// Has the function look for work from now on. `EINVAL` if a thread is to do that and there can be no such processor. Sleeps.
    pub(super) fn enable(&self, poller: Poller) -> Result {
        match self.polling_cpu() {
            None => self.enable_napi(poller),
            Some(cpu) => {
                let poller = KBox::new(poller, GFP_KERNEL)?;
                self.enable_thread(cpu, poller).map_err(|(error, _)| error)
            }
        }
    }

    fn enable_napi(&self, poller: Poller) -> Result {
        self.poller.enable(poller)?;
        self.poller.schedule();
        Ok(())
    }

    /// The poller comes back with an error.
    fn enable_thread(
        &self,
        cpu: u32,
        poller: KBox<Poller>,
    ) -> core::result::Result<(), (Error, KBox<Poller>)> {
        let thread = PollThread::new(c"nupa-poll", cpu, poller)?;
        *self.thread.lock() = Some(thread);
        Ok(())
    }

    /// The processor of the thread that polls, if one does. Any context.
    #[inline]
    fn polling_cpu(&self) -> Option<u32> {
        let cpu = self.poll_cpu.load(Relaxed);
        (cpu != NO_CPU).then_some(cpu)
    }

    /// Has a thread on this processor poll, or none. A kick that still sees the value before is taken by the next poll: this and
    /// [`Kicks::add`] are fully ordered.
    fn set_polling_cpu(&self, cpu: Option<u32>) {
        self.poll_cpu.xchg(cpu.unwrap_or(NO_CPU), Full);
    }

    /// Has it look for none any more, and returns what did. Sleeps.
    pub(super) fn disable(&self) -> Option<Poller> {
        let thread = self.thread.lock().take();
        match thread {
            Some(thread) => Some(KBox::into_inner(thread.stop())),
            None => self.poller.disable(),
        }
    }

    /// Runs `f` on the node without sleeping. `None` if somebody else holds it, who then schedules another poll, or while a DMA channel
    /// [ends](Self::is_ending), which has the function woken when it has, or once the driver is unbound. Softirqs are off.
    pub(super) fn serve(&self, f: impl FnOnce(&mut PoolNode) -> Turn) -> Option<Turn> {
        let begun_us = self.clock.now_us();
        // Asked with the lock held: a turn before this one may just have begun to wait for that.
        let turn = self
            .owner
            .try_with(|node| (!self.is_ending()).then(|| f(node)))??;
        self.poll_state
            .note_turn(begun_us, self.clock.now_us(), &turn);
        self.reschedule_if_missed();
        Some(turn)
    }

    /// Runs `f`, which leaves interrupts raised, in the caller's time. Softirqs are off.
    fn service_inline(&self, f: impl FnOnce(&mut PoolNode) -> Turn) {
        let Some(turn) = self.serve(f) else {
            return;
        };
        self.poll_state.set_alone(false);
        // Completion handlers do not run in the caller's time.
        if turn.raised != 0 || turn.due_in_us(self.clock.now_us()) == Some(0) {
            self.poller.schedule();
        } else {
            self.schedule_next(&turn);
        }
    }

    /// Works in the time of the program that runs; `polls`: because it waits for something. Process context.
    fn work_for_program(&self, polls: bool) {
        if self.polling_cpu().is_some() {
            return;
        }
        let lingers = self.poll_state.programs_poll();
        bh::disabled(|| {
            self.service_inline(|node| {
                let turn = match lingers {
                    true => node.poll_for_program(&self.kicks),
                    false => node.work(&self.kicks),
                };
                if polls {
                    let now_us = self.clock.now_us();
                    self.poll_state.note_program_poll(now_us, &turn);
                }
                turn
            });
        });
    }

    /// Schedules the next poll after a turn. Any context.
    pub(super) fn schedule_next(&self, turn: &Turn) {
        if self.polling_cpu().is_some() {
            return;
        }
        let planned_ns = u64::try_from(self.poller.until_due().as_nanos()).unwrap_or(0);
        let planned_us = (planned_ns > 0).then_some(planned_ns / 1000);
        let repeat = match self.poll_state.next(self.clock.now_us(), planned_us, turn) {
            None => return,
            Some(Wait::Tick) => Repeat::Tick,
            Some(Wait::Us(us)) => {
                Repeat::Period(Delta::from_micros(i64::try_from(us).unwrap_or(i64::MAX)))
            }
        };
        self.poller.schedule_every(repeat);
    }

    /// Schedules a poll if somebody could not get the node meanwhile.
    fn reschedule_if_missed(&self) {
        if self.owner.take_missed() {
            self.poller.schedule();
        }
    }

    /// Runs `f`. `ENODEV` once the driver is unbound; then no DMA channel reads or stores anything either. Sleeps.
    pub(super) fn with<R>(&self, f: impl FnOnce(&mut PoolNode) -> R) -> Result<R> {
        let mut f = Some(f);
        loop {
            self.settle();
            let result = self.owner.with(|node| match self.is_ending() {
                true => None,
                false => f.take().map(|f| f(node)),
            });
            self.reschedule_if_missed();
            if result.is_err() {
                // The last turn before it was closed may have left a channel that ends, and the caller gives memory back now.
                self.settle();
            }
            if let Some(result) = result.transpose() {
                return result;
            }
        }
    }

    /// Whether a DMA channel may still store something for a copy that failed. Then the node is in the middle of a turn. Any context.
    fn is_ending(&self) -> bool {
        self.copies
            .as_ref()
            .is_some_and(|copies| copies.is_ending())
    }

    /// Waits until that is over. Sleeps.
    fn settle(&self) {
        if let Some(copies) = &self.copies {
            copies.settle();
        }
    }

    /// Takes the node away once nothing is stored for it any more. Sleeps.
    fn take_node(&self) -> Option<KBox<PoolNode>> {
        let node = self.owner.close();
        self.settle();
        node
    }

    /// Leaves the fabric for good. Sleeps.
    pub(super) fn close(&self) {
        self.set_beating(false);
        // No process maps device memory any more.
        if let Some(own) = &self.own {
            self.forget_lines(own);
        }
        if let Some(mut node) = self.take_node() {
            node.leave();
        }
    }

    /// Where pages are in the pool.
    pub(super) fn place(&self, pages: &MmapRange) -> Result<Range<usize>> {
        let len = usize::try_from(pages.len())?;
        let start = self.shared.mapping().offset_of(pages.start(), len);
        let start = start.ok_or(EINVAL)?;
        Ok(start..start.saturating_add(len))
    }

    /// Where caches are not coherent: writes what programs of this host have stored in device memory back, and keeps no copy of
    /// it, before other hosts use the memory or have used it. Sleeps.
    pub(super) fn forget_lines(&self, pages: &MmapRange) {
        let mapping = self.shared.mapping();
        if mapping.is_coherent() {
            return;
        }
        // What lies outside is nothing.
        let _ = self
            .place(pages)
            .and_then(|range| in_steps(range, STEP, |piece| mapping.refresh(piece).ok_or(EINVAL)));
    }

    fn read<const N: usize>(&self, register: usize) -> Result<[u8; N]> {
        self.with(|node| {
            let mut data = [0; N];
            let own = &mut node.model.functions.own;
            own.read_control(register as u64, &mut data);
            data
        })
    }

    fn write(&self, register: usize, data: &[u8]) -> Result {
        // One command after the other, and the memory that they name stays within reach until they are done.
        let mut command = self.registers.lock();
        let done = self.write_and_execute(register, data, &mut command);
        // One that could not be executed.
        *command = None;
        done?;
        // Events, answers to others, timers.
        self.poller.schedule();
        Ok(())
    }

    fn write_and_execute(
        &self,
        register: usize,
        data: &[u8],
        command: &mut CommandPlace,
    ) -> Result {
        self.begin_write(register, data)?;
        self.fetch(command)?;
        while let Some(prepared) = command {
            self.execute(prepared)?;
            self.fetch(command)?;
        }
        Ok(())
    }

    /// Writes a register. Sleeps. By itself because of the space that it takes on the stack, as what follows.
    #[inline(never)]
    fn begin_write(&self, register: usize, data: &[u8]) -> Result {
        self.with(|node| node.write_register(register, data))
    }

    /// Prepares the admin command that waits, in place of the one that was there. Sleeps.
    fn fetch(&self, place: &mut CommandPlace) -> Result {
        // What there was may take long to drop.
        *place = None;
        let memory = self.take_command(place)?;
        if let (Some(command), Some(memory)) = (place, memory) {
            command.prepare(&memory);
        }
        Ok(())
    }

    /// Takes the admin command that waits, and the memory that it is about. Sleeps.
    #[inline(never)]
    fn take_command(&self, place: &mut CommandPlace) -> Result<Option<NodeMemory>> {
        let next = self.with(PoolNode::fetch_command)?;
        Ok(next.map(|(command, memory)| {
            *place = Some(PreparedCommand::new(command));
            memory
        }))
    }

    /// Executes an admin command; softirqs go on with the node between parts of it. Sleeps.
    #[inline(never)]
    fn execute(&self, command: &mut PreparedCommand<KernelStorage>) -> Result {
        loop {
            match self.with(|node| node.model.execute_command(command))? {
                Executed::Done | Executed::Forgotten => return Ok(()),
                Executed::InPart => {}
                Executed::Waits => fsleep(WRITERS_PAUSE),
            }
            cond_resched();
        }
    }

    /// Has the sign of life given from now on, or no more. Sleeps.
    pub(super) fn set_beating(&self, on: bool) {
        let mut beating = self.beating.lock();
        // One that is there goes on until it is dropped, here.
        *beating = None;
        if on {
            *beating = Some(self.heartbeat.set());
        }
    }

    fn set_reachable(&self, on: bool) {
        let _turn = self.registers.lock();
        // Once the driver is unbound it reaches nothing.
        let _ = self.with(|node| node.model.functions.own.host.memory.set_reachable(on));
    }
}
