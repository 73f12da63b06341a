// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Key checks: from keys and addresses to spans.

use crate::{
    hal::Storage,
    state::{
        check::{Check, Refusal},
        copy::Span,
        mr::{Region, Regions, LOCAL_READ},
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
    regions: &Regions<S>,
    holder: KeyHolder,
    sge: &Sge,
    purpose: Purpose,
) -> Result<Span, Refusal> {
    let refused = |check| Refusal::new(WcStatus::LocalProtection, check);
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
    let region = match regions.get(number) {
        Some(region) if region.key == key && region.pd == holder.pd => region,
        _ => return Err(refused(Check::LocalKey)),
    };
    let needed = match purpose {
        Purpose::Source => LOCAL_READ,
        Purpose::Destination => LOCAL_READ | ACCESS_LOCAL_WRITE,
    };
    if region.access & needed != needed {
        return Err(refused(Check::LocalRight));
    }
    region
        .span(number, addr, len)
        .ok_or(refused(Check::LocalRange))
}

/// Checks a remote access, made through queue pair `pair` (number `qpn`) of the node whose regions these are, that needs the rights `right`
/// (`ACCESS_*`).
/// An access of no bytes needs no key.
#[inline(always)]
pub(crate) fn remote_span<S: Storage>(
    regions: &Regions<S>,
    qpn: u32,
    pair: &QueuePair<S::Pages>,
    key: u32,
    addr: u64,
    len: u32,
    right: u32,
) -> Result<Span, Refusal> {
    let refused = |check| Refusal::new(WcStatus::RemoteAccess, check);
    if pair.access & right != right {
        return Err(refused(Check::RemoteRight));
    }
    if len == 0 {
        return Ok(Span::direct(0, 0));
    }
    remote_region::<S>(regions, qpn, pair, key, right)?
        .span(key_index(key), addr, len)
        .ok_or(refused(Check::RemoteRange))
}

/// As [`remote_span`], for a key as a whole.
#[inline(always)]
pub(crate) fn remote_region<'a, S: Storage>(
    regions: &'a Regions<S>,
    qpn: u32,
    pair: &QueuePair<S::Pages>,
    key: u32,
    right: u32,
) -> Result<&'a Region<S::Pages>, Refusal> {
    let refused = |check| Refusal::new(WcStatus::RemoteAccess, check);
    if pair.access & right != right {
        return Err(refused(Check::RemoteRight));
    }
    let region = match regions.get(key_index(key)) {
        Some(region) if region.key == key && region.pd == pair.pd && region.serves(qpn) => region,
        _ => return Err(refused(Check::RemoteKey)),
    };
    if region.access & right != right {
        return Err(refused(Check::RemoteRight));
    }
    Ok(region)
}
