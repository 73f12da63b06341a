// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Requests that change memory keys: fast registration, binding of windows, invalidation.
//!
//! All of them are carried out while they are fetched, so whatever is posted before them has been done with the key as it
//! was, and whatever is posted behind them finds it as it is.

use crate::{
    hal::{Platform, Storage},
    node::Node,
    nodes::Fabric,
    path::engine::Engine,
    state::{
        check::{Check, Refusal},
        mr::{Backing, Kind, Region, LOCAL_READ},
        pages::{BadList, Paging},
        request::{Outcome, Request},
        wqe::Descriptor,
    },
};
use nupa_proto::{
    admin::{
        ACCESS_ALL, ACCESS_FLUSH_GLOBAL, ACCESS_FLUSH_PERSISTENT, ACCESS_LOCAL_WRITE,
        ACCESS_MW_BIND, ACCESS_REMOTE_ATOMIC, ACCESS_REMOTE_READ, ACCESS_REMOTE_WRITE,
        ACCESS_ZERO_BASED, QP_FLAG_PRIVILEGED,
    },
    ident::{key_index, same_key_slot},
    status::WcStatus,
    wqe::{BindSegment, FastRegSegment, Opcode},
};

/// Rights of a window that a region must have as well.
const FLUSHES: u32 = ACCESS_FLUSH_GLOBAL | ACCESS_FLUSH_PERSISTENT;
/// Rights of a window that change memory: the region must be writable.
const CHANGES: u32 = ACCESS_REMOTE_WRITE | ACCESS_REMOTE_ATOMIC;
/// All rights that a window can have.
const WINDOW_ACCESS: u32 = CHANGES | FLUSHES | ACCESS_REMOTE_READ;

const fn refused(check: Check) -> Refusal {
    Refusal::new(WcStatus::MwBind, check)
}

impl Engine {
    /// Carries out the request at hand, which concerns nobody but the initiator.
    pub(crate) fn execute_local<F: Fabric>(&self, fabric: &mut F) -> Outcome {
        let Some((node, platform)) = fabric.node_mut(self.request.source.node) else {
            return Outcome::Refused(refused(Check::LocalKey));
        };
        match node.change_key(platform, &self.request, &self.descriptor) {
            Ok(()) => Outcome::Done,
            Err(refusal) => Outcome::Refused(refusal),
        }
    }
}

impl<S: Storage> Node<S> {
    fn change_key(
        &mut self,
        platform: &impl Platform,
        request: &Request,
        descriptor: &Descriptor,
    ) -> Result<(), Refusal> {
        let (qpn, key) = (request.source.qpn, request.imm);
        match request.opcode {
            Opcode::FastReg => self.fast_register(platform, qpn, key, descriptor.fast_reg()?),
            Opcode::BindMw => self.bind_window(qpn, key, descriptor.bind()?),
            _ => {
                self.check_invalidate(qpn, key).map_err(refused)?;
                self.unbind(key_index(key));
                Ok(())
            }
        }
    }

    /// Protection domain of a queue pair.
    fn domain_of(&self, qpn: u32) -> Result<u32, Refusal> {
        let pair = self.pairs.get(qpn).ok_or(refused(Check::LocalKey))?;
        Ok(pair.pd)
    }

    /// Binds pages to a key. Their addresses are DMA addresses, so only a privileged queue pair may do that.
    fn fast_register(
        &mut self,
        platform: &impl Platform,
        qpn: u32,
        key: u32,
        segment: &FastRegSegment,
    ) -> Result<(), Refusal> {
        let pair = self.pairs.get(qpn).ok_or(refused(Check::LocalKey))?;
        if pair.flags & QP_FLAG_PRIVILEGED == 0 {
            return Err(Refusal::new(WcStatus::LocalQpOperation, Check::Opcode));
        }
        let (pd, most) = (pair.pd, self.limits().max_mr_size);
        let region = self.regions.get_mut(key_index(key));
        let region = region
            .filter(|region| region.may_become(key, Kind::FastReg, pd))
            .ok_or(refused(Check::LocalKey))?;
        if region.is_bound() {
            return Err(refused(Check::KeyState));
        }
        let (iova, len) = (segment.iova.get(), segment.len.get());
        let (access, count) = (segment.access.get(), segment.pages.get());
        if access & !ACCESS_ALL != 0 {
            return Err(refused(Check::LocalRight));
        }
        if len > most || iova.checked_add(len).is_none() {
            return Err(refused(Check::LocalRange));
        }
        let paging = Paging::new(segment.page_shift, iova, len, count);
        let paging = paging.ok_or(refused(Check::PageList))?;
        let Backing::Own(map) = &mut region.backing else {
            return Err(refused(Check::LocalKey));
        };
        let filled = map.refill(
            platform.memory(),
            segment.list.get(),
            paging,
            count as usize,
        );
        filled.map_err(|bad| refused(bad.into()))?;
        (region.iova, region.len, region.key) = (iova, len, key);
        region.access = access | LOCAL_READ;
        Ok(())
    }

    /// Binds a window to a range of a region, or takes it away if the range is empty.
    fn bind_window(&mut self, qpn: u32, key: u32, segment: &BindSegment) -> Result<(), Refusal> {
        let (pd, number) = (self.domain_of(qpn)?, key_index(key));
        let window = self.regions.get(number);
        let window = window
            .filter(|window| window.may_become(key, Kind::Window, pd))
            .ok_or(refused(Check::LocalKey))?;
        let bound = window.is_bound();
        let unbinds = segment.len.get() == 0;
        if bound && !(unbinds && window.serves(qpn)) {
            return Err(refused(Check::KeyState));
        }
        if unbinds {
            self.unbind(number);
        } else {
            self.attach_window(qpn, number, segment)?;
        }
        if let Some(window) = self.regions.get_mut(number) {
            window.key = key;
        }
        Ok(())
    }

    /// Binds the free window `number` of the queue pair's domain.
    fn attach_window(
        &mut self,
        qpn: u32,
        number: u32,
        segment: &BindSegment,
    ) -> Result<(), Refusal> {
        let (pd, key) = (self.domain_of(qpn)?, segment.region_key.get());
        let (addr, len) = (segment.addr.get(), segment.len.get());
        let region = self.region_of(key).ok_or(refused(Check::LocalKey))?;
        if region.pd != pd || region.kind == Kind::Window || !region.is_bound() {
            return Err(refused(Check::LocalKey));
        }
        let access = segment.access.get() & !ACCESS_ZERO_BASED;
        if !region.allows_window(access) {
            return Err(refused(Check::LocalRight));
        }
        let offset = region.offset(addr, len);
        let backing = Backing::Region {
            number: key_index(key),
            offset: offset.ok_or(refused(Check::LocalRange))?,
            qpn,
        };
        if let Some(region) = self.regions.get_mut(key_index(key)) {
            region.windows = region.windows.saturating_add(1);
        }
        if let Some(pair) = self.pairs.get_mut(qpn) {
            pair.windows = pair.windows.saturating_add(1);
        }
        if let Some(window) = self.regions.get_mut(number) {
            let zero_based = segment.access.get() & ACCESS_ZERO_BASED != 0;
            window.iova = if zero_based { 0 } else { addr };
            (window.len, window.access, window.backing) = (len, access, backing);
        }
        Ok(())
    }

    /// Whether a request that arrives at, or is posted to, a queue pair may invalidate a key.
    pub(crate) fn check_invalidate(&self, qpn: u32, key: u32) -> Result<(), Check> {
        let pair = self.pairs.get(qpn).ok_or(Check::LocalKey)?;
        let region = self.region_of(key).ok_or(Check::LocalKey)?;
        let may = region.pd == pair.pd && region.kind != Kind::Memory;
        if !may || (region.is_bound() && !region.serves(qpn)) {
            return Err(Check::LocalKey);
        }
        match region.windows {
            0 => Ok(()),
            _ => Err(Check::KeyState),
        }
    }

    /// Takes the memory away from a key, if it has some.
    pub(crate) fn unbind(&mut self, number: u32) {
        let region = self.regions.get_mut(number);
        let Some((number, qpn)) = region.and_then(Region::release) else {
            return;
        };
        if let Some(region) = self.regions.get_mut(number) {
            region.windows = region.windows.saturating_sub(1);
        }
        if let Some(pair) = self.pairs.get_mut(qpn) {
            pair.windows = pair.windows.saturating_sub(1);
        }
    }

    /// Unbinds all windows that are bound to a queue pair.
    pub(crate) fn unbind_windows(&mut self, qpn: u32) {
        for number in 0..self.regions.end() {
            if self.pairs.get(qpn).is_none_or(|pair| pair.windows == 0) {
                return;
            }
            let window = self.regions.get(number);
            if window.is_some_and(
                |key| matches!(key.backing, Backing::Region { qpn: own, .. } if own == qpn),
            ) {
                self.unbind(number);
            }
        }
    }
}

impl<P> Region<P> {
    /// Whether it may be bound as `key` by a queue pair of domain `pd`, as a key of this kind.
    fn may_become(&self, key: u32, kind: Kind, pd: u32) -> bool {
        same_key_slot(self.key, key) && self.kind == kind && self.pd == pd
    }

    /// Whether a window with these rights may be bound to it.
    fn allows_window(&self, access: u32) -> bool {
        let writable = self.access & ACCESS_LOCAL_WRITE != 0;
        access & !WINDOW_ACCESS == 0
            && self.access & ACCESS_MW_BIND != 0
            && (access & CHANGES == 0 || writable)
            && access & FLUSHES & !self.access == 0
    }

    /// Takes its memory away; storage for pages stays. A window returns the region and queue pair that it was bound to.
    fn release(&mut self) -> Option<(u32, u32)> {
        (self.iova, self.len, self.access) = (0, 0, 0);
        match self.backing {
            Backing::Region { number, qpn, .. } => {
                self.backing = Backing::None;
                Some((number, qpn))
            }
            Backing::Own(_) | Backing::None => None,
        }
    }
}

impl From<BadList> for Check {
    fn from(bad: BadList) -> Self {
        match bad {
            BadList::Unreadable => Self::LocalMemory,
            BadList::Page => Self::PageList,
        }
    }
}
