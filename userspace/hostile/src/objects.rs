// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What a worker has of the device, for all of its threads: handles, keys, numbers, queues and mappings. Any of it may be gone
//! meanwhile, which makes it all the more useful.

use std::sync::Arc;

use nupa_proto::cqe::CQE_SIZE;
use nupa_proto::wqe::BLOCK_SIZE;

use crate::draw::Draw;
use crate::ffi::Pages;

/// Kinds of objects that commands make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Pd,
    Cq,
    Qp,
    Srq,
    Mr,
    Mw,
    Ah,
    Dm,
}

/// Number of kinds.
const KINDS: usize = 8;

/// What a ring is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Send,
    Receive,
    Completions,
}

/// A ring and its doorbell.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    pub(crate) purpose: Use,
    /// Of the queue pair, shared receive queue or completion queue.
    pub(crate) handle: u32,
    /// Whether that is a shared receive queue.
    pub(crate) shared: bool,
    /// Offset in the area.
    pub(crate) ring: usize,
    /// log2 of its entries.
    pub(crate) log_entries: u8,
    /// The doorbell page, its trapped page if there is one, and the slot.
    pub(crate) doorbell: Arc<Pages>,
    pub(crate) trapped: Option<Arc<Pages>>,
    pub(crate) slot: u16,
}

impl Queue {
    /// Bytes of an entry. Receive queues of ours have those of a block.
    pub(crate) fn entry(&self) -> usize {
        match self.purpose {
            Use::Completions => CQE_SIZE,
            Use::Send | Use::Receive => BLOCK_SIZE,
        }
    }

    /// Offset in the area of the entry of an index.
    pub(crate) fn place(&self, index: u32) -> usize {
        let entries = 1u32.wrapping_shl(self.log_entries.into());
        let at = index & entries.wrapping_sub(1);
        let bytes = (at as usize).saturating_mul(self.entry());
        self.ring.saturating_add(bytes)
    }
}

/// A queue pair that is there, or was.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair {
    pub(crate) handle: u32,
    pub(crate) number: u32,
    /// `IB_QPT_*`.
    pub(crate) kind: u8,
}

/// All of it.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    handles: [Vec<u32>; KINDS],
    /// Keys of regions and windows.
    pub(crate) keys: Vec<u32>,
    pub(crate) pairs: Vec<Pair>,
    pub(crate) queues: Vec<Queue>,
    /// Offsets that the kernel named for `mmap()`.
    pub(crate) offsets: Vec<u64>,
    /// What is mapped of the device.
    pub(crate) pages: Vec<Arc<Pages>>,
}

/// Most entries of each list: the oldest goes for one more.
const MOST: usize = 64;

/// Adds to a list that keeps [`MOST`].
pub(crate) fn keep<T>(list: &mut Vec<T>, new: T) {
    if list.len() >= MOST {
        list.remove(0);
    }
    list.push(new);
}

impl Objects {
    pub(crate) fn add(&mut self, kind: Kind, handle: u32) {
        if let Some(list) = self.handles.get_mut(kind as usize) {
            keep(list, handle);
        }
    }

    /// A handle of what was made once, or else any.
    pub(crate) fn pick(&self, kind: Kind, draw: &mut Draw) -> u32 {
        let any = draw.small(20);
        let list = self.handles.get(kind as usize);
        list.map_or(any, |list| draw.one_or(list, any))
    }

    /// A key, mostly of what was made once.
    pub(crate) fn key(&self, draw: &mut Draw) -> u32 {
        let any = draw.lie();
        match draw.small(8) {
            0 => any,
            1 => draw.one_or(&self.keys, any) ^ (1u32.wrapping_shl(any)),
            _ => draw.one_or(&self.keys, any),
        }
    }
}
