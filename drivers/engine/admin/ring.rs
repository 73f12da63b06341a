// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Ring memory that comes with the creation of a queue.

use crate::{
    hal::{Platform, Storage},
    node::Node,
    state::ring::{Ring, RingSize},
};
use nupa_proto::{admin::PageList, status::AdminStatus};

impl<S: Storage> Node<S> {
    /// Takes ring memory over, of a size that the limits allow. Its pages are counted once the queue is there.
    pub(super) fn make_ring(
        &mut self,
        platform: &impl Platform,
        list: &PageList,
        size: Option<RingSize>,
    ) -> Result<Ring<S::Pages>, AdminStatus> {
        let size = size.ok_or(AdminStatus::InvalidField)?;
        let map = self
            .resources
            .load(platform.memory(), list, 0, size.bytes(), size.align())?;
        // One that is contiguous is not stored.
        self.check_pages(map.stored_pages())?;
        Ok(Ring::new(map, size))
    }
}
