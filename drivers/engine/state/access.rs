// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Key checks: from keys and addresses to spans.

use crate::{
    hal::Storage,
    state::{
        check::{Check, WcError},
        copy::Span,
        mr::{Mr, Mrs, LOCAL_READ},
        qp::QueuePair,
    },
};
use nupa_proto::{
    admin::{ACCESS_LOCAL_WRITE, QP_FLAG_PRIVILEGED},
    ident::{key_index, DMA_LKEY},
    status::WcStatus,
    wqe::Sge,
};

/// What a local access is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Data is taken from there.
    Source,
    /// Data is put there.
    Destination,
}

/// Whose local keys are used: those of a queue pair, or of a shared receive queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyHolder {
    /// Its protection domain.
    pub(crate) pd: u32,
    /// It may use [`DMA_LKEY`].
    privileged: bool,
}

impl KeyHolder {
    /// `flags`: `QP_FLAG_*`.
    #[inline(always)]
    pub(crate) fn new(pd: u32, flags: u8) -> Self {
        let privileged = flags & QP_FLAG_PRIVILEGED != 0;
        Self { pd, privileged }
    }
}

/// Checks one scatter/gather entry.
#[inline(always)]
pub(crate) fn local<S: Storage>(
    mrs: &Mrs<S>,
    holder: KeyHolder,
    sge: &Sge,
    purpose: Purpose,
) -> Result<Span, WcError> {
    let refused = |check| WcError::new(WcStatus::LocalProtection, check);
    let (addr, len, key) = (sge.addr.get(), sge.len.get(), sge.lkey.get());
    if key == DMA_LKEY {
        if !holder.privileged {
            return Err(refused(Check::LocalKey));
        }
        addr.checked_add(u64::from(len))
            .ok_or(refused(Check::LocalRange))?;
        return Ok(Span::direct(addr, len));
    }
    let number = key_index(key);
    let mr = match mrs.get(number) {
        Some(mr) if mr.key == key && mr.pd == holder.pd => mr,
        _ => return Err(refused(Check::LocalKey)),
    };
    let needed = match purpose {
        Purpose::Source => LOCAL_READ,
        Purpose::Destination => LOCAL_READ | ACCESS_LOCAL_WRITE,
    };
    if mr.access & needed != needed {
        return Err(refused(Check::LocalRight));
    }
    mr.span(number, addr, len).ok_or(refused(Check::LocalRange))
}

/// Checks a remote access through queue pair `qp` (number `qpn`) to the node that `mrs` belongs to. `right`: the `ACCESS_*` that it needs.
/// An access of no bytes needs no key.
#[inline(always)]
pub(crate) fn remote_span<S: Storage>(
    mrs: &Mrs<S>,
    qpn: u32,
    qp: &QueuePair<S::Pages>,
    key: u32,
    addr: u64,
    len: u32,
    right: u32,
) -> Result<Span, WcError> {
    let refused = |check| WcError::new(WcStatus::RemoteAccess, check);
    if qp.access & right != right {
        return Err(refused(Check::RemoteRight));
    }
    if len == 0 {
        return Ok(Span::direct(0, 0));
    }
    remote_mr::<S>(mrs, qpn, qp, key, right)?
        .span(key_index(key), addr, len)
        .ok_or(refused(Check::RemoteRange))
}

/// As [`remote_span`], for a key as a whole.
#[inline(always)]
pub(crate) fn remote_mr<'a, S: Storage>(
    mrs: &'a Mrs<S>,
    qpn: u32,
    qp: &QueuePair<S::Pages>,
    key: u32,
    right: u32,
) -> Result<&'a Mr<S::Pages>, WcError> {
    let refused = |check| WcError::new(WcStatus::RemoteAccess, check);
    if qp.access & right != right {
        return Err(refused(Check::RemoteRight));
    }
    let mr = match mrs.get(key_index(key)) {
        Some(mr) if mr.key == key && mr.pd == qp.pd && mr.serves(qpn) => mr,
        _ => return Err(refused(Check::RemoteKey)),
    };
    if mr.access & right != right {
        return Err(refused(Check::RemoteRight));
    }
    Ok(mr)
}
