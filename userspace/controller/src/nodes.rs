// SPDX-License-Identifier: GPL-2.0 OR MIT

//! All controllers of the fabric, as the engine and their model borrow them.

use nupa_engine::{hal::VecStorage, node::Node, NoLink};
use nupa_function::{Function, Functions};

use crate::platform::NodePlatform;

/// One node's controller.
pub(crate) type Controller = Function<VecStorage, NodePlatform>;

/// Controllers by node id.
pub(crate) struct Nodes(pub(crate) Vec<Controller>);

impl nupa_engine::NodeTable for Nodes {
    type Storage = VecStorage;
    type Platform = NodePlatform;
    type Link = NoLink;

    fn max_nodes(&self) -> u16 {
        u16::try_from(self.0.len()).unwrap_or(u16::MAX)
    }

    #[inline]
    fn node(&self, id: u16) -> Option<(&Node<VecStorage>, &NodePlatform)> {
        self.function(id)
            .map(|controller| (&controller.node, &controller.host))
    }

    #[inline]
    fn node_mut(&mut self, id: u16) -> Option<(&mut Node<VecStorage>, &NodePlatform)> {
        self.function_mut(id)
            .map(|controller| (&mut controller.node, &controller.host))
    }
}

impl Functions for Nodes {
    #[inline]
    fn function(&self, id: u16) -> Option<&Controller> {
        self.0.get(usize::from(id))
    }

    #[inline]
    fn function_mut(&mut self, id: u16) -> Option<&mut Controller> {
        self.0.get_mut(usize::from(id))
    }
}
