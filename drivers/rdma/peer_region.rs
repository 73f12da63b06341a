// SPDX-License-Identifier: GPL-2.0
//! Regions of device memory of other nodes that processes have mapped (`Documentation/pool.md`, "Mapped regions").

use kernel::{
    impl_has_delayed_work, new_delayed_work, new_mutex,
    prelude::*,
    sync::{Arc, Mutex},
    time::msecs_to_jiffies,
    workqueue::{DelayedWork, WorkItem},
};
use nk::work::{disable_delayed_sync, unbound};
use nk_rdma::Revocable;
use nupa_fabric::{Charge, GrantedMemory, MappingMark};

/// Milliseconds between two looks at whether the owner of a region allows it still: it waits for that, and no longer than a second.
const LOOKS_MS: u32 = 10;

/// A region that a process has mapped, until it is ended.
#[pin_data]
struct PeerRegion {
    memory: Arc<Revocable>,
    mark: MappingMark,
    /// None: it was ended.
    #[pin]
    granted: Mutex<Option<GrantedMemory>>,
    /// Looks whether it is to end. Of its own: one that ends late keeps no other one.
    #[pin]
    work: DelayedWork<Self>,
}

impl_has_delayed_work! {
    impl HasDelayedWork<Self> for PeerRegion { self.work }
}

impl WorkItem for PeerRegion {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        if this.goes_on() {
            this.look_later();
        } else {
            this.end();
        }
    }
}

impl PeerRegion {
    fn look_later(self: Arc<Self>) {
        // An error means that nobody uses it any more.
        let _ = unbound().enqueue_delayed(self, msecs_to_jiffies(LOOKS_MS));
    }

    /// Takes it away from the process, which finds that out, and gives it back to its owner. Sleeps.
    fn end(&self) {
        // With the lock held: who ends it meanwhile goes on when it has ended.
        let mut granted = self.granted.lock();
        if granted.is_some() {
            self.mark.end_copies();
            self.memory.revoke();
            *granted = None;
        }
    }

    /// Whether it has not ended, and is not to. Sleeps.
    fn goes_on(&self) -> bool {
        let granted = self.granted.lock();
        granted.as_ref().is_some_and(GrantedMemory::is_granted)
    }
}

/// A region that a process has mapped. Ends with this.
pub(crate) struct MappedRegion {
    region: Arc<PeerRegion>,
    _charge: Charge,
}

impl MappedRegion {
    /// One that a process is about to map. Sleeps.
    pub(crate) fn new(granted: GrantedMemory, mark: MappingMark, charge: Charge) -> Result<Self> {
        let memory = Arc::new(Revocable::new(granted.window())?, GFP_KERNEL_ACCOUNT)?;
        let region = Arc::pin_init(
            pin_init!(PeerRegion {
                memory,
                mark,
                granted <- new_mutex!(Some(granted)),
                work <- new_delayed_work!("nupa_rdma::PeerRegion"),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        region.clone().look_later();
        Ok(Self {
            region,
            _charge: charge,
        })
    }

    /// What the process maps.
    pub(crate) fn memory(&self) -> &Arc<Revocable> {
        &self.region.memory
    }

    /// The part of its queue pair.
    pub(crate) fn of_pair(&self) -> PairsRegion {
        PairsRegion(self.region.clone())
    }
}

impl Drop for MappedRegion {
    fn drop(&mut self) {
        self.region.end();
        // The module may go next.
        disable_delayed_sync(&self.region);
    }
}

/// A region that a process has mapped for a queue pair. Ends with this, if it has not ended before.
pub(crate) struct PairsRegion(Arc<PeerRegion>);

impl PairsRegion {
    /// Whether it has ended. Sleeps.
    pub(crate) fn is_over(&self) -> bool {
        self.0.granted.lock().is_none()
    }
}

impl Drop for PairsRegion {
    fn drop(&mut self) {
        self.0.end();
    }
}
