// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Objects as an honest provider makes them, so that lies about them come further than the first check.

use std::sync::Arc;

use nupa_proto::doorbell::SLOT_NONE;
use nupa_proto::uabi::{CreateCqRequest, CreateQpRequest, CreateSrqRequest};
use rustix::io::Errno;

use crate::bytes::Bytes;
use crate::draw::Draw;
use crate::ffi::Pages;
use crate::objects::{keep, Kind, Pair, Queue, Use};
use crate::shared::Shared;
use crate::uverbs::{
    ALLOC_MW, ALLOC_PD, CREATE_CQ, CREATE_QP, CREATE_SRQ, GET_CONTEXT, MODIFY_QP, REG_MR,
};
use crate::world::{World, AREA_PAGES, PAGE};

/// Types of queue pairs (`enum ib_qp_type`).
pub(crate) const RC: u8 = 2;
pub(crate) const UD: u8 = 4;
/// log2 of the entries of rings that are made rightly.
const LOG_ENTRIES: u8 = 6;
/// All rights but on demand.
const ACCESS: u32 = 0x1f;
/// States (`enum ib_qp_state`).
const RESET: u8 = 0;
const INIT: u8 = 1;
const RTR: u8 = 2;
const RTS: u8 = 3;
/// What a change of state names (`enum ib_qp_attr_mask`): to RESET, then to the others, of connected queue pairs and of those for
/// datagrams.
const TO_RESET: u32 = 1;
/// State, rights, key index, port.
pub(crate) const RC_TO_INIT: u32 = 0x39;
/// State, path, MTU, PSN, READs, RNR timer, peer.
pub(crate) const RC_TO_RTR: u32 = 0x12_9181;
/// State, timeout, both retries, PSN, READs.
pub(crate) const RC_TO_RTS: u32 = 0x1_2e01;
/// State, key index, port, queue key; then the state; then state and PSN.
const UD_CHANGES: [u32; 3] = [0x71, 1, 0x1_0001];

/// One thread's way to make objects.
pub(crate) struct Maker<'a> {
    pub(crate) world: &'a World,
    /// The thread's number.
    pub(crate) thread: usize,
}

impl Maker<'_> {
    /// A context with one object of each kind, and queue pairs that are connected to each other.
    ///
    /// # Errors
    ///
    /// If the context or what all others need cannot be made; what else fails is left out.
    pub(crate) fn prepare(&self, draw: &mut Draw) -> Result<(), Errno> {
        self.command(GET_CONTEXT, &[], &[])?;
        self.domain()?;
        self.completion_queue(draw)?;
        self.region(draw)?;
        let _ = self.shared_queue(draw);
        for kind in [RC, RC, UD] {
            self.pair(draw, kind)?;
        }
        let _ = self.window(draw);
        for _ in 0..3 {
            let _ = self.revive(draw);
        }
        Ok(())
    }

    fn command(&self, number: u32, core: &[u8], own: &[u8]) -> Result<(), Errno> {
        self.world.clear_answer(self.thread);
        let answer = self.world.answer(self.thread);
        self.world.device.command(number, Some(answer), core, own)
    }

    /// A word of the answer.
    fn word(&self, offset: usize) -> u32 {
        self.world.answered(self.thread, offset)
    }

    pub(crate) fn domain(&self) -> Result<(), Errno> {
        self.command(ALLOC_PD, &[], &[])?;
        self.world.objects().add(Kind::Pd, self.word(0));
        Ok(())
    }

    /// A region of all of the area, at its own addresses.
    pub(crate) fn region(&self, draw: &mut Draw) -> Result<(), Errno> {
        let pd = self.world.objects().pick(Kind::Pd, draw);
        let (start, bytes) = (self.world.address(0), AREA_PAGES.saturating_mul(PAGE));
        let core = Bytes::new()
            .u64s([start, bytes as u64, start])
            .u32s([pd, ACCESS]);
        self.command(REG_MR, &core.done(), &[])?;
        let mut objects = self.world.objects();
        objects.add(Kind::Mr, self.word(0));
        keep(&mut objects.keys, self.word(4));
        Ok(())
    }

    /// A window of type 2.
    pub(crate) fn window(&self, draw: &mut Draw) -> Result<(), Errno> {
        let pd = self.world.objects().pick(Kind::Pd, draw);
        let core = Bytes::new().u32s([pd]).u8s([2, 0, 0, 0]);
        self.command(ALLOC_MW, &core.done(), &[])?;
        let mut objects = self.world.objects();
        objects.add(Kind::Mw, self.word(0));
        keep(&mut objects.keys, self.word(4));
        Ok(())
    }

    pub(crate) fn completion_queue(&self, draw: &mut Draw) -> Result<(), Errno> {
        let ring = self.world.page(draw);
        let core = Bytes::new()
            .u64s([1])
            .u32s([1 << LOG_ENTRIES, 0, u32::MAX, 0]);
        let own = CreateCqRequest {
            ring: self.world.address(ring).into(),
            log_entries: LOG_ENTRIES,
            ..CreateCqRequest::default()
        };
        let own = Bytes::new().whole(&own).done();
        self.command(CREATE_CQ, &core.done(), &own)?;
        let handle = self.word(0);
        self.world.objects().add(Kind::Cq, handle);
        self.queues(8, handle, &[(Use::Completions, ring, false)])
    }

    pub(crate) fn shared_queue(&self, draw: &mut Draw) -> Result<(), Errno> {
        let (ring, pd) = (
            self.world.page(draw),
            self.world.objects().pick(Kind::Pd, draw),
        );
        let core = Bytes::new().u64s([1]).u32s([pd, 1 << LOG_ENTRIES, 1, 0]);
        let own = CreateSrqRequest {
            ring: self.world.address(ring).into(),
            log_entries: LOG_ENTRIES,
            log_stride: 6,
            ..CreateSrqRequest::default()
        };
        let own = Bytes::new().whole(&own).done();
        self.command(CREATE_SRQ, &core.done(), &own)?;
        let handle = self.word(0);
        self.world.objects().add(Kind::Srq, handle);
        self.queues(16, handle, &[(Use::Receive, ring, true)])
    }

    pub(crate) fn pair(&self, draw: &mut Draw, kind: u8) -> Result<(), Errno> {
        let (send, receive) = (self.world.page(draw), self.world.page(draw));
        let core = {
            let objects = self.world.objects();
            let mut pick = |kind| objects.pick(kind, draw);
            let (pd, cq, other) = (pick(Kind::Pd), pick(Kind::Cq), pick(Kind::Cq));
            let sizes = [16, 16, 1, 1, 0];
            let bytes = Bytes::new().u64s([1]).u32s([pd, cq, other, 0]);
            bytes.u32s(sizes).u8s([0, kind, 0, 0]).done()
        };
        let own = CreateQpRequest {
            send_ring: self.world.address(send).into(),
            recv_ring: self.world.address(receive).into(),
            log_send_blocks: LOG_ENTRIES,
            log_recv_entries: LOG_ENTRIES,
            log_recv_stride: 6,
            ..CreateQpRequest::default()
        };
        let own = Bytes::new().whole(&own).done();
        self.command(CREATE_QP, &core, &own)?;
        let pair = Pair {
            handle: self.word(0),
            number: self.word(4),
            kind,
        };
        {
            let mut objects = self.world.objects();
            objects.add(Kind::Qp, pair.handle);
            keep(&mut objects.pairs, pair);
        }
        let queues = [(Use::Send, send, false), (Use::Receive, receive, false)];
        self.queues(32, pair.handle, &queues)
    }

    /// Maps the doorbells that an answer names behind so many bytes, and keeps the rings of an object.
    fn queues(
        &self,
        answer: usize,
        handle: u32,
        rings: &[(Use, usize, bool)],
    ) -> Result<(), Errno> {
        let long = |at: usize| {
            self.world
                .answered_long(self.thread, answer.saturating_add(at))
        };
        let (shared, trapped) = (long(0), long(8));
        let slots = self.word(answer.saturating_add(16)).to_le_bytes();
        let [slot, receive] = [[slots[0], slots[1]], [slots[2], slots[3]]].map(u16::from_le_bytes);
        let doorbell = self.world.map(shared, 1)?;
        let trapped = match trapped {
            0 => None,
            offset => Some((offset, self.world.map(offset, 1)?)),
        };
        let mut objects = self.world.objects();
        keep(&mut objects.offsets, shared);
        if let Some((offset, _)) = &trapped {
            keep(&mut objects.offsets, *offset);
        }
        let trapped: Option<Arc<Pages>> = trapped.map(|(_, pages)| pages);
        for ((purpose, ring, is_shared), slot) in rings.iter().zip([slot, receive]) {
            if slot == SLOT_NONE {
                continue;
            }
            let queue = Queue {
                purpose: *purpose,
                handle,
                shared: *is_shared,
                ring: *ring,
                log_entries: LOG_ENTRIES,
                doorbell: doorbell.clone(),
                trapped: trapped.clone(),
                slot,
            };
            keep(&mut objects.queues, queue);
        }
        Ok(())
    }

    /// Has a queue pair work again, connected to itself, to another one of this worker, or to what may be another's.
    pub(crate) fn revive(&self, draw: &mut Draw) -> Result<(), Errno> {
        let (pair, other) = {
            let objects = self.world.objects();
            let pair = draw.one(&objects.pairs).ok_or(Errno::NOENT)?;
            (pair, draw.one_or(&objects.pairs, pair))
        };
        let number = match draw.small(8) {
            0 => draw.small(1 << 10),
            1 => draw.lie(),
            2 => pair.number,
            _ => other.number,
        };
        let (index, own) = draw.one(&self.world.own).ok_or(Errno::ADDRNOTAVAIL)?;
        let any = draw.bytes(16).try_into().unwrap_or(own);
        let gid = match draw.small(10) {
            0 => any,
            1..3 => draw.one_or(&self.world.peers, own),
            _ => own,
        };
        self.modify(pair, RESET, TO_RESET, &Route::default())?;
        let objects = self.world.objects();
        for queue in objects
            .queues
            .iter()
            .filter(|queue| queue.handle == pair.handle)
        {
            let slot = usize::from(queue.slot).saturating_mul(nupa_proto::doorbell::SLOT_SIZE);
            if queue.purpose != Use::Completions && !queue.shared {
                queue.doorbell.store(slot, 0);
            }
        }
        drop(objects);
        let [to_init, to_rtr, to_rts] = match pair.kind {
            RC => [RC_TO_INIT, RC_TO_RTR, RC_TO_RTS],
            _ => UD_CHANGES,
        };
        self.modify(pair, INIT, to_init, &Route::default())?;
        let route = Route { gid, index, number };
        self.modify(pair, RTR, to_rtr, &route)?;
        self.modify(pair, RTS, to_rts, &route)
    }

    fn modify(&self, pair: Pair, state: u8, mask: u32, route: &Route) -> Result<(), Errno> {
        let core = modify_command(pair.handle, state, mask, route);
        self.world.device.command(MODIFY_QP, None, &core, &[])
    }
}

/// Whom a queue pair is connected to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Route {
    pub(crate) gid: [u8; 16],
    pub(crate) index: u8,
    pub(crate) number: u32,
}

/// `struct ib_uverbs_modify_qp`
pub(crate) fn modify_command(handle: u32, state: u8, mask: u32, route: &Route) -> Vec<u8> {
    let address = Bytes::new().raw(&route.gid).u32s([0]).u16s([0, 0]);
    let address = address.u8s([route.index, 64, 0, 0, 0, 0, 1, 1]);
    let numbers = [handle, mask, 0, 0, 0, route.number & 0x00ff_ffff, 0x0f];
    // The key index, then: state, the one before, MTU of 4096, migration, SQD event, two depths of READs, RNR timer, port, timeout,
    // retries, RNR retries, and the other path.
    let rest = [state, state, 5, 0, 0, 16, 16, 1, 1, 10, 1, 1, 0, 0, 0, 0];
    address
        .zeros(32)
        .u32s(numbers)
        .u16s([0, 0])
        .u8s(rest)
        .done()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_as_long_as_the_interface_has_them() {
        assert_eq!(modify_command(1, 2, 3, &Route::default()).len(), 112);
    }
}
