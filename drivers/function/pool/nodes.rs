// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The fabric as the engine of a host sees it: one function here, links to the nodes of other hosts.

use super::hal::PoolHal;
use crate::{
    function::Function,
    host::{Functions, NodeStatus},
};
use core::ops::Range;
use nupa_engine::{Node, NodeTable, Peer, PoolLink};

/// One function, and its peers by node id.
pub struct PoolNodes<H: PoolHal> {
    /// The function of this host.
    pub own: H::Function,
    /// Links to all nodes; that to this one is never used.
    pub peers: H::Peers,
}

impl<H: PoolHal> PoolNodes<H> {
    fn is_own(&self, id: u16) -> bool {
        id == self.own.node.id()
    }

    /// A node of another host.
    pub(super) fn peer(&self, id: u16) -> Option<&Peer<PoolLink<H::Window>>> {
        self.peers.get(usize::from(id)).filter(|_| !self.is_own(id))
    }
}

impl<H: PoolHal> NodeTable for PoolNodes<H> {
    type Storage = H::Storage;
    type Platform = H::Host;
    type Link = PoolLink<H::Window>;

    #[inline]
    fn max_nodes(&self) -> u16 {
        u16::try_from(self.peers.len()).unwrap_or(u16::MAX)
    }

    #[inline]
    fn homes(&self) -> Range<u16> {
        let id = self.own.node.id();
        id..id.saturating_add(1)
    }

    #[inline]
    fn node(&self, id: u16) -> Option<(&Node<H::Storage>, &H::Host)> {
        self.is_own(id).then_some((&self.own.node, &self.own.host))
    }

    #[inline]
    fn node_mut(&mut self, id: u16) -> Option<(&mut Node<H::Storage>, &H::Host)> {
        let own = self.is_own(id).then_some(&mut *self.own)?;
        Some((&mut own.node, &own.host))
    }

    #[inline]
    fn peer_mut(&mut self, id: u16) -> Option<&mut Peer<Self::Link>> {
        let own = self.is_own(id);
        self.peers.get_mut(usize::from(id)).filter(|_| !own)
    }
}

impl<H: PoolHal> Functions for PoolNodes<H> {
    fn function(&self, id: u16) -> Option<&Function<H::Storage, H::Host>> {
        self.is_own(id).then_some(&*self.own)
    }

    fn function_mut(&mut self, id: u16) -> Option<&mut Function<H::Storage, H::Host>> {
        self.is_own(id).then_some(&mut *self.own)
    }

    fn node_status(&self, id: u16) -> Option<NodeStatus> {
        if self.is_own(id) {
            let node = &self.own.node;
            return Some(NodeStatus {
                epoch: node.epoch(),
                up: node.is_up(),
            });
        }
        let epoch = self.peer(id)?.epoch();
        Some(NodeStatus {
            epoch: epoch.unwrap_or(0),
            up: epoch.is_some(),
        })
    }
}
