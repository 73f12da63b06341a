// SPDX-License-Identifier: GPL-2.0
//! What the driver above calls of the function in software.

use super::{Asleep, PoolFunction, DOORBELL_PAGES, STEP};
use crate::hal::{in_steps, pool::poller::Poller, Function, Sharing};
use kernel::prelude::*;
use nk::{bh, hostmem::HostMemory, kthread::is_online, mmap::MmapRange};
use nupa_proto::doorbell::device_memory_offset;

impl Function for PoolFunction {
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

    // As the register, which would wait for the engine.
    fn clock(&self) -> Result<u64> {
        Ok(self.clock.now_ns())
    }

    fn allow_dma(&self) {
        self.set_reachable(true);
    }

    fn revoke_dma(&self) {
        self.set_reachable(false);
    }

    fn poll_cpu(&self) -> Option<u32> {
        self.polling_cpu()
    }

    fn set_poll_cpu(&self, cpu: Option<u32>) -> Result {
        let _turn = self.switching.lock();
        if cpu.is_some_and(|cpu| !is_online(cpu)) {
            return Err(EINVAL);
        }
        // Before the one that polls stops.
        let room = cpu.map(|_| KBox::<Poller>::new_uninit(GFP_KERNEL));
        let room = room.transpose()?;
        let poller = self.disable().ok_or(ENODEV)?;
        self.set_polling_cpu(cpu);
        let (Some(cpu), Some(room)) = (cpu, room) else {
            return self.enable_napi(poller);
        };
        self.enable_thread(cpu, room.write(poller))
            .or_else(|(_, poller)| {
                self.set_polling_cpu(None);
                self.enable_napi(KBox::into_inner(poller))?;
                // No memory for a thread, or no more threads.
                Err(ENOMEM)
            })
    }

    fn suspend(&self) {
        let _turn = self.switching.lock();
        self.set_beating(false);
        // Its timer ends with that.
        let poller = self.disable();
        let node = self.take_node();
        if let (Some(poller), Some(node)) = (poller, node) {
            *self.asleep.lock() = Some(Asleep { poller, node });
        }
    }

    fn resume(&self) -> Result {
        let _turn = self.switching.lock();
        let asleep = self.asleep.lock().take();
        let Asleep { poller, node } = asleep.ok_or(ENODEV)?;
        if !node.is_member() {
            // Of the pool, nothing is this node's any more.
            return Err(ENODEV);
        }
        self.owner.open(node);
        self.settle_unmapped();
        self.set_beating(true);
        // Only a thread can fail to start.
        self.enable(poller).inspect_err(|_| self.close())
    }

    fn shutdown(&self) {
        let _turn = self.switching.lock();
        self.set_beating(false);
        // Programs may run on until the processors stop, with device memory mapped. So the node keeps its slot, and what
        // it holds, as one that crashes does.
        drop(self.disable());
        if let Some(own) = &self.own {
            self.forget_lines(own);
        }
        if let Some(mut node) = self.take_node() {
            node.membership.keep();
        }
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
        if self.polling_cpu().is_some() {
            // The thread takes it. It has the node all the time, and to wait for that takes longer.
            return;
        }
        if bh::are_disabled() {
            // Mostly a frame: it is sent when this returns, without a poll.
            if self.poll_state.wakeable {
                self.service_inline(|node| node.send(&self.kicks));
            } else {
                self.service_inline(|node| node.work(&self.kicks));
            }
        } else {
            self.poller.schedule();
        }
    }

    fn kick_now(&self, page: u32, slot: u16, _index: u32) {
        self.kicks.add(page, slot);
        self.work_for_program(false);
    }

    fn kick_peer(&self, qpn: u32) {
        // Not as a kick, which somebody else finds later if the node is taken at the moment. Once the driver is unbound nobody is reached.
        let sent = self.with(|node| node.kick_peer(&self.kicks, qpn));
        if sent.is_ok() {
            // What it raised, and what is due.
            self.poller.schedule();
        }
    }

    fn kick_event(&self, qpn: u32) {
        let made = self.with(|node| node.kick_event(&self.kicks, qpn));
        if made.is_ok() {
            // As above.
            self.poller.schedule();
        }
    }

    fn service(&self) {
        self.work_for_program(true);
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
            if !self.with(|node| node.membership.is_valid(&node.window))? {
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
