// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Changes of the receive filter, and of the table that spreads frames.

use crate::{
    hal::{Platform, Storage},
    node::Node,
};
use nupa_proto::{
    admin::{QpType, SetRss, SetRxFilter},
    status::AdminStatus,
};

impl<S: Storage> Node<S> {
    /// Sets the receive filter.
    pub fn set_rx_filter(
        &mut self,
        platform: &impl Platform,
        body: &SetRxFilter,
    ) -> Result<(), AdminStatus> {
        self.filter.set(platform.memory(), body)
    }

    /// Sets the table that spreads frames over raw queue pairs.
    pub fn set_rss(&mut self, platform: &impl Platform, body: &SetRss) -> Result<(), AdminStatus> {
        let Self { rss, qps, .. } = self;
        let raw = |qpn| {
            qps.get(qpn)
                .is_some_and(|p| p.kind == QpType::Raw && p.has_recv())
        };
        rss.set(platform.memory(), body, raw)
    }
}
