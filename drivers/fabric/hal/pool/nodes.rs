// SPDX-License-Identifier: GPL-2.0
//! The fabric as this host's engine sees it: one function here, links to the nodes of other hosts.

use super::{host::PoolHost, storage::KernelStorage, window::PoolWindow};
use kernel::prelude::*;
use nupa_engine::{node::Node, NodeTable, Peer, PoolLink};
use nupa_function::{Function, Functions, NodeStatus};

/// The way to a node of another host.
pub(super) type Link = PoolLink<PoolWindow>;

/// One function, and its peers by node id.
pub(super) struct Nodes {
    /// In a place of its own, which it is moved to from the stack.
    pub(super) own: KBox<Function<KernelStorage, PoolHost>>,
    pub(super) peers: KVVec<Peer<Link>>,
}

impl Nodes {
    fn is_own(&self, id: u16) -> bool {
        id == self.own.node.id()
    }

    /// A node of another host.
    pub(super) fn peer(&self, id: u16) -> Option<&Peer<Link>> {
        self.peers.get(usize::from(id)).filter(|_| !self.is_own(id))
    }
}

impl NodeTable for Nodes {
    type Storage = KernelStorage;
    type Platform = PoolHost;
    type Link = Link;

    #[inline]
    fn max_nodes(&self) -> u16 {
        u16::try_from(self.peers.len()).unwrap_or(u16::MAX)
    }

    #[inline]
    fn node(&self, id: u16) -> Option<(&Node<KernelStorage>, &PoolHost)> {
        self.is_own(id).then_some((&self.own.node, &self.own.host))
    }

    #[inline]
    fn node_mut(&mut self, id: u16) -> Option<(&mut Node<KernelStorage>, &PoolHost)> {
        let own = self.is_own(id).then_some(&mut *self.own)?;
        Some((&mut own.node, &own.host))
    }

    #[inline]
    fn peer_mut(&mut self, id: u16) -> Option<&mut Peer<Link>> {
        let own = self.is_own(id);
        self.peers.get_mut(usize::from(id)).filter(|_| !own)
    }
}

impl Functions for Nodes {
    fn function(&self, id: u16) -> Option<&Function<KernelStorage, PoolHost>> {
        self.is_own(id).then_some(&self.own)
    }

    fn function_mut(&mut self, id: u16) -> Option<&mut Function<KernelStorage, PoolHost>> {
        self.is_own(id).then_some(&mut self.own)
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
