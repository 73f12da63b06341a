// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What there is to show at a time.

use std::time::Instant;

use crate::facts::{Controller, Counters, Host, Peer};
use crate::resources::{QueuePair, Queues, Region, Resources};

/// A look at the host.
pub(super) struct Sample {
    pub(super) when: Instant,
    pub(super) controllers: Vec<Controller>,
    pub(super) counters: Vec<Counters>,
    pub(super) peers: Vec<Peer>,
    pub(super) queue_pairs: Vec<QueuePair>,
    pub(super) regions: Vec<Region>,
    pub(super) queues: Queues,
}

impl Sample {
    /// Looks. `None` while the module is not loaded.
    pub(super) fn read(host: &mut Host) -> anyhow::Result<Option<Self>> {
        host.if_loaded(|host| {
            let controllers = host.controllers()?;
            let resources = Resources::open(host, &controllers)?;
            let (queue_pairs, regions) = (resources.queue_pairs()?, resources.regions()?);
            let queues = resources.queues()?;
            Ok(Self {
                when: Instant::now(),
                counters: host.counters(&controllers)?,
                peers: host.peers()?,
                queue_pairs,
                regions,
                queues,
                controllers,
            })
        })
    }

    /// By how much counters of a controller went up in a second since an earlier look. `None` if there was none, or it was reset meanwhile.
    pub(super) fn rate(&self, before: &Self, controller: u32, names: &[&str]) -> Option<u64> {
        let of = |sample: &Self| {
            let mut all = sample.counters.iter();
            let counters = all.find(|counters| counters.controller == controller)?;
            // Counters wrap, so their sums may.
            names.iter().try_fold(0u64, |sum, name| {
                Some(sum.wrapping_add(*counters.counters.get(*name)?))
            })
        };
        let difference = of(self)?.checked_sub(of(before)?)?;
        let time = self.when.duration_since(before.when).as_millis();
        let rate = u128::from(difference)
            .saturating_mul(1000)
            .checked_div(time);
        rate?.try_into().ok()
    }
}
