// SPDX-License-Identifier: GPL-2.0
//! What `rdma resource show ... -dd` tells beyond what the RDMA core knows.

use crate::{cq::Cq, qp::Qp, region::Region};
use kernel::{prelude::*, sync::atomic::Relaxed};
use nk_rdma::Details;

impl Qp {
    /// Sizes that were granted, how far the controller has come, and what went through the pair. Sleeps.
    pub(crate) fn describe(&self, details: &mut Details) -> Result {
        let sizes = &self.capabilities;
        details.add(c"sq_requests", sizes.max_send_wr)?;
        details.add(c"sq_sges", sizes.max_send_sge)?;
        details.add(c"inline_bytes", sizes.max_inline_data)?;
        details.add(c"rq_requests", sizes.max_recv_wr)?;
        details.add(c"rq_sges", sizes.max_recv_sge)?;
        if let Some(node) = self.remote_node() {
            details.add(c"remote_node", node.into())?;
        }
        // A controller that was lost knows nothing; what is known otherwise is told all the same.
        let Ok(state) = self.object.query() else {
            return Ok(());
        };
        details.add(c"sq_index", state.sq_index.get())?;
        details.add(c"rq_index", state.rq_index.get())?;
        let traffic = &state.traffic;
        details.add_u64(c"requests", traffic.requests.get())?;
        details.add_u64(c"served", traffic.served.get())?;
        details.add_u64(c"sent_bytes", traffic.sent_bytes.get())?;
        details.add_u64(c"received_bytes", traffic.received_bytes.get())
    }
}

impl Cq {
    /// Entries of the ring, of which there may be more than were asked for, and where events go.
    pub(crate) fn describe(&self, details: &mut Details) -> Result {
        details.add(c"ring_entries", self.ring_entries.load(Relaxed))?;
        details.add(c"vector", self.vector)
    }
}

impl Region {
    /// How the controller knows the memory: pages of a size, or no list of them where it is contiguous; and whether it is of a memory device.
    pub(crate) fn describe(&self, details: &mut Details) -> Result {
        let (pages, shift) = self.layout();
        details.add(c"pages", pages)?;
        details.add(c"page_shift", shift)?;
        match &self.mapped {
            Some(_) => details.add(c"memory_device", 1),
            None => Ok(()),
        }
    }
}
