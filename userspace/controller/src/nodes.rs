// SPDX-License-Identifier: GPL-2.0 OR MIT

//! All controllers of the fabric, as the engine borrows them.

use nupa_engine::fabric;
use nupa_engine::node::Node;

use crate::controller::Controller;
use crate::platform::NodePlatform;
use crate::storage::Heap;

/// Controllers by node id.
pub(crate) struct Nodes(pub(crate) Vec<Controller>);

impl Nodes {
    /// The controller of a node.
    pub(crate) fn get(&self, id: u16) -> Option<&Controller> {
        self.0.get(usize::from(id))
    }

    /// The controller of a node, to change it.
    pub(crate) fn get_mut(&mut self, id: u16) -> Option<&mut Controller> {
        self.0.get_mut(usize::from(id))
    }
}

impl fabric::Fabric for Nodes {
    type Storage = Heap;
    type Platform = NodePlatform;

    fn max_nodes(&self) -> u16 {
        u16::try_from(self.0.len()).unwrap_or(u16::MAX)
    }

    #[inline]
    fn node(&self, id: u16) -> Option<(&Node<Heap>, &NodePlatform)> {
        self.get(id)
            .map(|controller| (&controller.node, &controller.platform))
    }

    #[inline]
    fn node_mut(&mut self, id: u16) -> Option<(&mut Node<Heap>, &NodePlatform)> {
        self.get_mut(id)
            .map(|controller| (&mut controller.node, &controller.platform))
    }
}
