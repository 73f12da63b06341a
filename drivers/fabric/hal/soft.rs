// SPDX-License-Identifier: GPL-2.0
//! The function as software, for hosts that share a pool of memory instead of having a controller.
//!
//! It is the same function as the controller's: registers, admin commands, engine. It runs in softirq context, and in the
//! time of programs that post or wait; the engines of hosts that share a pool work together through rings in it
//! (`Documentation/pool.md`).

mod dax;
mod desk;
mod host;
mod ivshmem;
mod kicks;
mod limit;
mod memory;
mod nodes;
mod pace;
mod plan;
mod poison;
mod runner;
mod sharing;
mod start;
mod station;
mod storage;
mod window;

pub(crate) use self::{dax::DaxDriver, ivshmem::IvshmemDriver};

use self::{
    desk::Desk,
    kicks::Kicks,
    pace::Wait,
    plan::Plan,
    runner::Runner,
    sharing::Shared,
    station::{Station, Turn},
    window::HostClock,
};
use super::{in_steps, Function, Sharing};
use core::ops::Range;
use kernel::{
    prelude::*,
    sync::{Arc, Mutex},
    time::Delta,
};
use nk::{
    bh,
    hostmem::HostMemory,
    mmap::MmapRange,
    net::{DetachedNapi, Repeat},
};
use nupa_proto::doorbell::device_memory_offset;

/// Has the function look for work.
type Poller = DetachedNapi<Runner>;

/// Doorbell page pairs.
const DOORBELL_PAGES: u32 = 512;

/// Bytes of device memory that are worked on before others may run.
const STEP: usize = 256 << 10;

/// A function of this host.
#[pin_data]
pub(crate) struct SoftFunction {
    poller: Arc<Poller>,
    clock: HostClock,
    plan: Plan,
    kicks: Kicks,
    /// The memory that counts as the function's own, if there is any.
    own: Option<MmapRange>,
    /// Whether that is known to outlive a loss of power.
    persistent: bool,
    /// Of all nodes, what they share.
    shared: Shared,
    /// Open until the driver is unbound.
    #[pin]
    desk: Desk,
    /// What works otherwise, while the host sleeps.
    #[pin]
    asleep: Mutex<Option<Asleep>>,
}

/// What is taken from its place while the host sleeps, so that nobody works with it.
struct Asleep {
    runner: Runner,
    station: KBox<Station>,
}

impl SoftFunction {
    /// Has the station do something without sleeping; `None` if somebody else has it, who has it looked at again then, or
    /// once the driver is unbound. With softirqs off.
    fn serve(&self, f: impl FnOnce(&mut Station) -> Turn) -> Option<Turn> {
        let begun_us = self.clock.now_us();
        let turn = self.desk.try_with(f)?;
        self.plan.looked(begun_us, self.clock.now_us(), &turn);
        self.mind_missed();
        Some(turn)
    }

    /// Does `f`, which leaves interrupts, in the caller's time. With softirqs off.
    fn help(&self, f: impl FnOnce(&mut Station) -> Turn) {
        let Some(turn) = self.serve(f) else {
            return;
        };
        self.plan.set_alone(false);
        // Handlers of completions are no business of the caller's.
        if turn.raised != 0 || turn.due_us == Some(0) {
            self.poller.schedule();
        } else {
            self.plan_next(&turn);
        }
    }

    /// Has the next look at its time after a turn. Any context.
    fn plan_next(&self, turn: &Turn) {
        let planned_ns = u64::try_from(self.poller.until_due().as_nanos()).unwrap_or(0);
        let planned_us = (planned_ns > 0).then_some(planned_ns / 1000);
        let repeat = match self.plan.next(self.clock.now_us(), planned_us, turn) {
            None => return,
            Some(Wait::Tick) => Repeat::Tick,
            Some(Wait::Us(us)) => {
                Repeat::Period(Delta::from_micros(i64::try_from(us).unwrap_or(i64::MAX)))
            }
        };
        self.poller.schedule_every(repeat);
    }

    /// Has the station looked at if somebody did not get it meanwhile.
    fn mind_missed(&self) {
        if self.desk.take_missed() {
            self.poller.schedule();
        }
    }

    /// Runs `f`. `ENODEV` once the driver is unbound. Sleeps.
    fn with<R>(&self, f: impl FnOnce(&mut Station) -> R) -> Result<R> {
        let result = self.desk.with(f);
        self.mind_missed();
        result
    }

    /// Leaves the fabric for good. Sleeps.
    fn close(&self) {
        // No process maps device memory any more.
        if let Some(own) = &self.own {
            self.forget_lines(own);
        }
        if let Some(mut station) = self.desk.close() {
            station.leave();
        }
    }

    /// Where pages are in the pool.
    fn place(&self, pages: &MmapRange) -> Result<Range<usize>> {
        let len = usize::try_from(pages.len())?;
        let start = self.shared.mapping().offset_of(pages.start(), len);
        let start = start.ok_or(EINVAL)?;
        Ok(start..start.saturating_add(len))
    }

    /// Where caches are not coherent: writes what programs of this host have stored in device memory back, and keeps no copy of
    /// it, before other hosts use the memory or have used it. Sleeps.
    fn forget_lines(&self, pages: &MmapRange) {
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
        self.with(|station| {
            let mut data = [0; N];
            let own = &mut station.model.functions.own;
            own.read_control(register as u64, &mut data);
            data
        })
    }

    fn write(&self, register: usize, data: &[u8]) -> Result {
        self.with(|station| {
            let (id, epoch) = (station.id(), station.model.functions.own.node.epoch());
            station.model.write_control(id, register as u64, data);
            station.follow(epoch);
        })?;
        // Events, answers to others, timers.
        self.poller.schedule();
        Ok(())
    }

    fn set_reachable(&self, on: bool) {
        // Once the driver is unbound it reaches nothing.
        let _ = self.with(|station| station.model.functions.own.host.memory.set_reachable(on));
    }
}

impl Function for SoftFunction {
    fn read32(&self, register: usize) -> Result<u32> {
        self.read(register).map(u32::from_le_bytes)
    }

    fn read64(&self, register: usize) -> Result<u64> {
        self.read(register).map(u64::from_le_bytes)
    }

    fn write32(&self, register: usize, value: u32) -> Result {
        self.write(register, &value.to_le_bytes())
    }

    fn write64(&self, register: usize, value: u64) -> Result {
        self.write(register, &value.to_le_bytes())
    }

    fn allow_dma(&self) {
        self.set_reachable(true);
    }

    fn revoke_dma(&self) {
        self.set_reachable(false);
    }

    fn suspend(&self) {
        // Its timer ends with that.
        let runner = self.poller.disable();
        let station = self.desk.close();
        if let (Some(runner), Some(station)) = (runner, station) {
            *self.asleep.lock() = Some(Asleep { runner, station });
        }
    }

    fn resume(&self) -> Result {
        let asleep = self.asleep.lock().take();
        let Asleep { runner, station } = asleep.ok_or(ENODEV)?;
        if !station.is_member() {
            // Of the pool, nothing is this node's any more.
            return Err(ENODEV);
        }
        self.desk.open(station);
        self.poller.enable(runner)?;
        self.poller.schedule();
        Ok(())
    }

    fn shutdown(&self) {
        // Programs may run on until the processors stop, with device memory mapped. So the node keeps its slot, and what
        // it holds, as one that crashes does.
        drop(self.poller.disable());
        if let Some(own) = &self.own {
            self.forget_lines(own);
        }
        drop(self.desk.close());
    }

    fn doorbell_room(&self) -> u32 {
        DOORBELL_PAGES
    }

    // Shared doorbell pages are in the driver's memory, always.
    fn load32(&self, _offset: usize) -> u32 {
        0
    }

    fn store32(&self, _offset: usize, _value: u32) {}

    fn store64(&self, _offset: usize, _value: u64) {}

    fn kick(&self, page: u32, slot: u16, _index: u32, _push: bool) {
        self.kicks.add(page, slot);
        if bh::are_disabled() {
            // Mostly a frame, which is sent when this returns: nobody need be told later.
            if self.plan.wakeable {
                self.help(|station| station.send(&self.kicks));
            } else {
                self.help(|station| station.work(&self.kicks));
            }
        } else {
            self.poller.schedule();
        }
    }

    fn kick_now(&self, page: u32, slot: u16, _index: u32) {
        self.kicks.add(page, slot);
        self.look();
    }

    fn look(&self) {
        let lingers = self.plan.is_tended();
        bh::disabled(|| {
            self.help(|station| {
                let turn = match lingers {
                    true => station.linger(&self.kicks),
                    false => station.work(&self.kicks),
                };
                self.plan.polled(&turn);
                turn
            });
        });
    }

    fn window(&self, offset: usize, len: u64) -> Option<MmapRange> {
        // There are no trapped pages; device memory lies behind where they would be.
        let offset = offset.checked_sub(device_memory_offset(DOORBELL_PAGES))?;
        self.own.as_ref()?.slice(u64::try_from(offset).ok()?, len)
    }

    fn is_persistent(&self) -> bool {
        self.persistent
    }

    fn can_reach(&self, address: u64, len: usize, write: bool) -> bool {
        HostMemory::is_memory(address, len, write)
    }

    fn clear(&self, offset: usize, len: u64) -> Result {
        let window = self.window(offset, len).ok_or(EINVAL)?;
        let mapping = self.shared.mapping();
        in_steps(self.place(&window)?, STEP, |piece| {
            // The memory of a node that was taken for dead may be another's by now.
            if !self.with(|station| station.membership.is_valid(&station.window))? {
                return Err(ENODEV);
            }
            let cleared = mapping.clear(piece.clone());
            cleared.and_then(|()| mapping.publish(piece)).ok_or(EINVAL)
        })
    }

    fn sharing(&self) -> Option<&dyn Sharing> {
        Some(self)
    }
}
