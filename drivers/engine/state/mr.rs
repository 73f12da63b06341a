// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Memory keys: regions, and windows onto them.

use crate::{
    hal::Storage,
    state::{copy::Span, pages::PageMap, table::TableOf},
};
use nupa_proto::admin::ACCESS_ALL;

/// Right of every key that is bound to memory of its own, besides the `ACCESS_*`: local reads. A window does not have it,
/// so it is no local key; nor has a key that is not bound.
pub(crate) const LOCAL_READ: u32 = 1 << 31;
const _: () = assert!(ACCESS_ALL & LOCAL_READ == 0);

/// What a memory key stands for.
#[derive(Debug)]
pub(crate) struct Mr<P> {
    pub(crate) backing: Backing<P>,
    pub(crate) iova: u64,
    /// Bytes; 0 while the key is not bound.
    pub(crate) len: u64,
    pub(crate) pd: u32,
    /// `ACCESS_*` and [`LOCAL_READ`]; none while the key is not bound.
    pub(crate) access: u32,
    pub(crate) key: u32,
    pub(crate) kind: Kind,
    /// Windows that are bound to it.
    pub(crate) windows: u32,
}

/// Memory keys of a node.
pub(crate) type Mrs<S> = TableOf<S, Mr<<S as Storage>::Pages>>;

/// How a key came to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `CreateMr`: it is bound for as long as it lives.
    Memory,
    /// `AllocKey`, for FAST_REG to bind.
    FastReg,
    /// `AllocKey`, for BIND_MW to bind.
    Window,
}

/// The memory behind a key.
#[derive(Debug)]
pub(crate) enum Backing<P> {
    /// Its own.
    Own(PageMap<P>),
    /// That of a region, from `offset` on. Only queue pair `qpn` may be used to access it.
    Mr { number: u32, offset: u64, qpn: u32 },
    /// None: a window that is not bound.
    None,
}

impl<P: AsRef<[u64]> + AsMut<[u64]>> Mr<P> {
    /// The span of `len` bytes at `addr`, if they lie inside. `number` is the region's own.
    #[inline(always)]
    pub(crate) fn span(&self, number: u32, addr: u64, len: u32) -> Option<Span> {
        let offset = self.offset(addr, u64::from(len))?;
        Some(match &self.backing {
            Backing::Own(PageMap::Direct(base)) => Span::direct(base.wrapping_add(offset), len),
            Backing::Own(PageMap::Paged { .. }) => Span::in_mr(number, offset, len),
            // The region cannot change while the window is bound to it.
            Backing::Mr {
                number,
                offset: start,
                ..
            } => Span::in_mr(*number, start.checked_add(offset)?, len),
            Backing::None => return None,
        })
    }

    /// Where in the region `len` bytes at `addr` begin, if they lie inside.
    #[inline(always)]
    pub(crate) fn offset(&self, addr: u64, len: u64) -> Option<u64> {
        let offset = addr.checked_sub(self.iova)?;
        (len <= self.len.checked_sub(offset)?).then_some(offset)
    }

    /// DMA address of the byte at `offset`, and how many bytes are contiguous from there.
    #[inline]
    pub(crate) fn locate(&self, offset: u64) -> Option<(u64, u64)> {
        match &self.backing {
            Backing::Own(map) => map.locate(offset),
            Backing::Mr { .. } | Backing::None => None,
        }
    }

    /// Whether requests of queue pair `qpn` may use the key, as far as that is up to windows.
    #[inline(always)]
    pub(crate) fn serves(&self, qpn: u32) -> bool {
        match self.backing {
            Backing::Own(_) => true,
            Backing::Mr { qpn: own, .. } => own == qpn,
            Backing::None => false,
        }
    }

    /// Whether the key is bound to memory.
    pub(crate) fn is_bound(&self) -> bool {
        self.len != 0
    }

    /// Page addresses that it keeps.
    pub(crate) fn stored_pages(&self) -> u64 {
        match &self.backing {
            Backing::Own(map) => map.stored_pages(),
            Backing::Mr { .. } | Backing::None => 0,
        }
    }
}
