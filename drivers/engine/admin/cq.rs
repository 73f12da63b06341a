// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Another ring for a completion queue.

use crate::{
    hal::{Memory, Platform, SlotWord},
    node::Node,
    state::{cq::CompletionQueue, ring::Ring},
    storage::Storage,
};
use nupa_proto::{
    admin::ResizeCq,
    cqe::{phase, Cqe, CQE_SIZE},
    status::AdminStatus,
};
use zerocopy::{little_endian::U32, IntoBytes};

impl<S: Storage> Node<S> {
    /// Gives a completion queue another ring, with all entries that its owner has not taken. `InvalidField` if the ring
    /// is too small for those, `InvalidState` for a queue that takes no more entries.
    pub fn resize_cq(
        &mut self,
        platform: &impl Platform,
        body: &ResizeCq,
    ) -> Result<(), AdminStatus> {
        let cqn = body.cqn.get();
        let queue = self.completions.get(cqn);
        let queue = queue.ok_or(AdminStatus::NoSuchObject)?;
        if body.reserved != [0; 3] {
            return Err(AdminStatus::InvalidField);
        }
        if queue.dead {
            return Err(AdminStatus::InvalidState);
        }
        let log_size = CQE_SIZE.trailing_zeros() as u8;
        let ring = self.make_ring(platform, &body.ring, body.log_entries, log_size)?;
        let queue = self.completions.get_mut(cqn);
        queue.ok_or(AdminStatus::Internal)?.move_to(platform, ring)
    }
}

impl<P: AsRef<[u64]> + AsMut<[u64]>> CompletionQueue<P> {
    /// Goes on in another ring, from its start.
    fn move_to(&mut self, platform: &impl Platform, ring: Ring<P>) -> Result<(), AdminStatus> {
        let taken = platform.load(self.page, self.slot, SlotWord::Index);
        let count = self.index.wrapping_sub(taken);
        if count > self.ring.entries().min(ring.entries()) {
            return Err(AdminStatus::InvalidField);
        }
        for n in 0..count {
            let from = self.ring.addr(taken.wrapping_add(n));
            copy_entry(
                platform.memory(),
                from,
                ring.addr(n),
                phase(n, ring.log_entries()),
            )?;
        }
        platform.store(self.page, self.slot, SlotWord::Index, 0);
        (self.ring, self.index, self.consumed) = (ring, count, 0);
        Ok(())
    }
}

/// Copies an entry to where its phase bit is another. The owner looks for it only once the command is done.
fn copy_entry(
    memory: &impl Memory,
    from: Option<u64>,
    to: Option<u64>,
    valid: u32,
) -> Result<(), AdminStatus> {
    let (from, to) = from.zip(to).ok_or(AdminStatus::Internal)?;
    let mut entry = Cqe::default();
    let read = memory.read(from, entry.as_mut_bytes());
    read.map_err(|_| AdminStatus::BadAddress)?;
    entry.valid = U32::new(valid);
    let written = memory.write(to, entry.as_bytes());
    written.map_err(|_| AdminStatus::BadAddress)
}
