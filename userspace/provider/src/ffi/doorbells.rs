// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The doorbell pages of a context.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use nupa_proto::doorbell::{PAGE_SIZE, SLOT_NONE};
use nupa_proto::uabi;
use rustix::io::Errno;

use super::memory::{DoorbellPair, Pages, Slot};

/// Page pairs that queues of this context use, by the offset of the shared page. A pair is unmapped with its last queue.
#[derive(Debug, Default)]
pub(super) struct Doorbells {
    pairs: Mutex<HashMap<u64, Weak<DoorbellPair>>>,
}

impl Doorbells {
    /// The slots that the kernel gave a queue: the one that every queue has, and that of a receive queue. `device` is
    /// the context's file.
    pub(super) fn slots(
        &self,
        device: BorrowedFd<'_>,
        doorbell: &uabi::Doorbell,
    ) -> Result<(Slot, Option<Slot>), Errno> {
        let pair = self.pair(device, doorbell)?;
        let recv = match doorbell.recv_slot.get() {
            SLOT_NONE => None,
            number => Some(Slot::new(&pair, number)?),
        };
        Ok((Slot::new(&pair, doorbell.slot.get())?, recv))
    }

    fn pair(
        &self,
        device: BorrowedFd<'_>,
        doorbell: &uabi::Doorbell,
    ) -> Result<Arc<DoorbellPair>, Errno> {
        let key = doorbell.shared_offset.get();
        let mut pairs = self.pairs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pair) = pairs.get(&key).and_then(Weak::upgrade) {
            return Ok(pair);
        }
        let pair = Arc::new(DoorbellPair {
            shared: Pages::of_file(device, key, PAGE_SIZE)?,
            trapped: Pages::of_file(device, doorbell.trapped_offset.get(), PAGE_SIZE)?,
        });
        pairs.retain(|_, pair| pair.strong_count() > 0);
        pairs.insert(key, Arc::downgrade(&pair));
        Ok(pair)
    }
}
