// SPDX-License-Identifier: GPL-2.0
//! What users share by the rule of [`Quota`]. Queues are bounded by doorbell slots, memory by a share of its own.

use crate::multicast::GroupPlaces;
use core::ops::Deref;
use kernel::{prelude::*, sync::Arc};
use nupa_fabric::{Charge, Pd, Port, Quota};
use nupa_proto::{
    admin::MAX_ATTACHMENTS,
    pool::sharing::{EXPORTS, HOLDS, MAX_RINGS},
};

/// Regions of peers that processes of a node may have mapped. Each takes a hold, of which there are some for rings, too.
const MAX_REGIONS: u32 = HOLDS as u32 / 4;

/// What of the device is counted for users.
pub(crate) struct Limits {
    /// Memory keys: regions and windows.
    pub(crate) keys: Arc<Quota>,
    /// Protection domains.
    pub(crate) domains: Arc<Quota>,
    /// Queue pairs in multicast groups.
    pub(crate) attachments: Arc<Quota>,
    /// How many of those a user has in each group.
    pub(crate) group_places: Arc<GroupPlaces>,
    /// Device memory that other nodes may import.
    pub(crate) exports: Arc<Quota>,
    /// Device memory that was imported.
    pub(crate) imports: Arc<Quota>,
    /// Process rings that queue pairs receive from.
    pub(crate) rings: Arc<Quota>,
    /// Process rings that queue pairs send to.
    pub(crate) peer_rings: Arc<Quota>,
    /// Regions of peers that processes have mapped.
    pub(crate) regions: Arc<Quota>,
}

impl Limits {
    /// Those of a port's controller.
    pub(crate) fn new(port: &Port) -> Result<Self> {
        let limits = &port.info().limits;
        Ok(Self {
            keys: Quota::new(limits.max_mr.get())?,
            domains: Quota::new(limits.max_pd.get())?,
            attachments: Quota::new(MAX_ATTACHMENTS)?,
            group_places: GroupPlaces::new()?,
            exports: Quota::of_processes(EXPORTS.into())?,
            imports: Quota::of_processes(HOLDS.into())?,
            rings: Quota::of_processes(MAX_RINGS.into())?,
            peer_rings: Quota::of_processes(MAX_RINGS.into())?,
            regions: Quota::of_processes(MAX_REGIONS)?,
        })
    }
}

/// A protection domain. Fields are dropped in order.
pub(crate) struct Domain {
    object: Arc<Pd>,
    _charge: Charge,
}

impl Domain {
    /// Makes one that is counted already.
    pub(crate) fn new(port: &Port, charge: Charge) -> Result<Self> {
        Ok(Self {
            object: port.alloc_pd()?,
            _charge: charge,
        })
    }
}

impl Deref for Domain {
    type Target = Arc<Pd>;

    fn deref(&self) -> &Arc<Pd> {
        &self.object
    }
}
