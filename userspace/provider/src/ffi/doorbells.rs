// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The doorbell pages of a context.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use nupa_proto::doorbell::{PAGE_SIZE, SLOT_NONE};
use nupa_proto::regs::CAP_PUSH;
use nupa_proto::uabi::{self, ContextResponse, CONTEXT_KICK_BY_COMMAND};
use rustix::io::Errno;

use super::kick::{Called, Calls, Owner};
use super::memory::{DoorbellPair, Pages, Slot};

/// Page pairs that queues of this context use, by the offset of the shared page. A pair is unmapped with its last queue.
#[derive(Debug)]
pub(super) struct Doorbells {
    /// Whether there are trapped pages.
    trapped: bool,
    /// Whether the controller looks at push slots.
    push: bool,
    pairs: Mutex<HashMap<u64, Weak<DoorbellPair>>>,
}

/// The slots of a new object.
pub(super) struct Slots {
    /// The one that every queue has.
    pub(super) slot: Slot,
    /// That of a receive queue.
    pub(super) recv: Option<Slot>,
    /// How they are kicked if not by themselves.
    pub(super) calls: Calls,
}

impl Doorbells {
    /// None so far, of a device that the kernel says this of.
    pub(super) fn new(info: &ContextResponse) -> Self {
        Self {
            trapped: info.flags & CONTEXT_KICK_BY_COMMAND == 0,
            push: info.caps.get() & CAP_PUSH != 0,
            pairs: Mutex::default(),
        }
    }

    /// Whether kicks are stores to a trapped page, else calls.
    pub(super) fn are_trapped(&self) -> bool {
        self.trapped
    }

    /// The slots that the kernel gave an object. `device` is the context's file.
    ///
    /// # Safety
    ///
    /// `owner` is whose slots they are: one that the kernel made for this provider, and that exists for as long as its
    /// queues are posted to.
    pub(super) unsafe fn slots(
        &self,
        device: BorrowedFd<'_>,
        doorbell: &uabi::Doorbell,
        owner: Owner,
    ) -> Result<Slots, Errno> {
        let pair = self.pair(device, doorbell)?;
        let slot = Slot::new(&pair, doorbell.slot.get())?;
        let recv = match doorbell.recv_slot.get() {
            SLOT_NONE => None,
            number => Some(Slot::new(&pair, number)?),
        };
        let calls = if self.trapped {
            Calls::default()
        } else {
            // SAFETY: the caller's word.
            let (queue_kick, recv_kick) = unsafe { owner.commands() };
            let recv_kick = recv.as_ref().zip(recv_kick);
            Calls {
                queue: queue_kick.map(|kick| Called::new(&slot, kick)),
                recv: recv_kick.map(|(slot, kick)| Called::new(slot, kick)),
            }
        };
        Ok(Slots { slot, recv, calls })
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
        let page = |offset| Pages::of_file(device, offset, PAGE_SIZE);
        let trapped = match self.trapped {
            true => page(doorbell.trapped_offset.get())?,
            false => Pages::anonymous(PAGE_SIZE)?,
        };
        let pair = Arc::new(DoorbellPair {
            shared: page(key)?,
            trapped,
            push: self.push,
        });
        pairs.retain(|_, pair| pair.strong_count() > 0);
        pairs.insert(key, Arc::downgrade(&pair));
        Ok(pair)
    }
}
