// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Requests that change memory keys: fast registration, binding of windows, invalidation.
//!
//! All of them are carried out while they are fetched, so whatever is posted before them has been done with the key as it
//! was, and whatever is posted behind them finds it as it is.

use crate::{
    hal::{Platform, Storage},
    node::Node,
    nodes::NodeTable,
    path::engine::Engine,
    state::{
        check::{Check, WcError},
        mr::{Backing, Kind, Mr, LOCAL_READ},
        pages::{BadList, Paging},
        request::{Outcome, Request},
        wqe::Wqe,
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

const fn refused(check: Check) -> WcError {
    WcError::new(WcStatus::MwBind, check)
}

impl Engine {
    /// Carries out the current request, which concerns nobody but the requester.
    pub(crate) fn execute_local<N: NodeTable>(&self, nodes: &mut N) -> Outcome {
        let Some((node, platform)) = nodes.node_mut(self.request.source.node) else {
            return Outcome::Failed(refused(Check::LocalKey));
        };
        match node.change_key(platform, &self.request, &self.wqe) {
            Ok(()) => Outcome::Done,
            Err(error) => Outcome::Failed(error),
        }
    }
}

impl<S: Storage> Node<S> {
    fn change_key(
        &mut self,
        platform: &impl Platform,
        request: &Request,
        wqe: &Wqe,
    ) -> Result<(), WcError> {
        let (qpn, key) = (request.source.qpn, request.imm);
        match request.opcode {
            Opcode::FastReg => self.fast_register(platform, qpn, key, wqe.fast_reg()?),
            Opcode::BindMw => self.bind_window(qpn, key, wqe.bind()?),
            _ => {
                self.check_invalidate(qpn, key).map_err(refused)?;
                self.unbind(key_index(key));
                Ok(())
            }
        }
    }

    /// Protection domain of a queue pair.
    fn pd_of(&self, qpn: u32) -> Result<u32, WcError> {
        let qp = self.qps.get(qpn).ok_or(refused(Check::LocalKey))?;
        Ok(qp.pd)
    }

    /// Binds pages to a key. Their addresses are DMA addresses, so only a privileged queue pair may do that.
    fn fast_register(
        &mut self,
        platform: &impl Platform,
        qpn: u32,
        key: u32,
        segment: &FastRegSegment,
    ) -> Result<(), WcError> {
        let qp = self.qps.get(qpn).ok_or(refused(Check::LocalKey))?;
        if qp.flags & QP_FLAG_PRIVILEGED == 0 {
            return Err(WcError::new(WcStatus::LocalQpOperation, Check::Opcode));
        }
        let (pd, most) = (qp.pd, self.limits().max_mr_size);
        let mr = self.mrs.get_mut(key_index(key));
        let mr = mr
            .filter(|mr| mr.may_become(key, Kind::FastReg, pd))
            .ok_or(refused(Check::LocalKey))?;
        if mr.is_bound() {
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
        let Backing::Own(map) = &mut mr.backing else {
            return Err(refused(Check::LocalKey));
        };
        let filled = map.refill(
            platform.memory(),
            segment.list.get(),
            paging,
            count as usize,
        );
        filled.map_err(|bad| refused(bad.into()))?;
        (mr.iova, mr.len, mr.key) = (iova, len, key);
        mr.access = access | LOCAL_READ;
        Ok(())
    }

    /// Binds a window to a range of a region, or takes it away if the range is empty.
    fn bind_window(&mut self, qpn: u32, key: u32, segment: &BindSegment) -> Result<(), WcError> {
        let (pd, number) = (self.pd_of(qpn)?, key_index(key));
        let window = self.mrs.get(number);
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
        if let Some(window) = self.mrs.get_mut(number) {
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
    ) -> Result<(), WcError> {
        let (pd, key) = (self.pd_of(qpn)?, segment.mr_key.get());
        let (addr, len) = (segment.addr.get(), segment.len.get());
        let mr = self.mr_of(key).ok_or(refused(Check::LocalKey))?;
        if mr.pd != pd || mr.kind == Kind::Window || !mr.is_bound() {
            return Err(refused(Check::LocalKey));
        }
        let access = segment.access.get() & !ACCESS_ZERO_BASED;
        if !mr.allows_window(access) {
            return Err(refused(Check::LocalRight));
        }
        let offset = mr.offset(addr, len);
        let backing = Backing::Mr {
            number: key_index(key),
            offset: offset.ok_or(refused(Check::LocalRange))?,
            qpn,
        };
        if let Some(mr) = self.mrs.get_mut(key_index(key)) {
            mr.windows = mr.windows.saturating_add(1);
        }
        if let Some(qp) = self.qps.get_mut(qpn) {
            qp.windows = qp.windows.saturating_add(1);
        }
        if let Some(window) = self.mrs.get_mut(number) {
            let zero_based = segment.access.get() & ACCESS_ZERO_BASED != 0;
            window.iova = if zero_based { 0 } else { addr };
            (window.len, window.access, window.backing) = (len, access, backing);
        }
        Ok(())
    }

    /// Whether a request that arrives at, or is posted to, a queue pair may invalidate a key.
    pub(crate) fn check_invalidate(&self, qpn: u32, key: u32) -> Result<(), Check> {
        let qp = self.qps.get(qpn).ok_or(Check::LocalKey)?;
        let mr = self.mr_of(key).ok_or(Check::LocalKey)?;
        let may = mr.pd == qp.pd && mr.kind != Kind::Memory;
        if !may || (mr.is_bound() && !mr.serves(qpn)) {
            return Err(Check::LocalKey);
        }
        match mr.windows {
            0 => Ok(()),
            _ => Err(Check::KeyState),
        }
    }

    /// Takes the memory away from a key, if it has some.
    pub(crate) fn unbind(&mut self, number: u32) {
        let mr = self.mrs.get_mut(number);
        let Some((number, qpn)) = mr.and_then(Mr::release) else {
            return;
        };
        if let Some(mr) = self.mrs.get_mut(number) {
            mr.windows = mr.windows.saturating_sub(1);
        }
        if let Some(qp) = self.qps.get_mut(qpn) {
            qp.windows = qp.windows.saturating_sub(1);
        }
    }

    /// Unbinds all windows that are bound to a queue pair.
    pub(crate) fn unbind_windows(&mut self, qpn: u32) {
        for number in 0..self.mrs.end() {
            if self.qps.get(qpn).is_none_or(|qp| qp.windows == 0) {
                return;
            }
            let window = self.mrs.get(number);
            if window.is_some_and(
                |key| matches!(key.backing, Backing::Mr { qpn: own, .. } if own == qpn),
            ) {
                self.unbind(number);
            }
        }
    }
}

impl<P> Mr<P> {
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
            Backing::Mr { number, qpn, .. } => {
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
