// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The nodes that an engine serves.

use crate::hal::Platform;
use crate::node::Node;
use crate::storage::Storage;

/// All controllers of one fabric, as their host keeps them.
///
/// The host owns nodes and platforms; the engine borrows them for as long as it needs one step of an operation.
/// Everything runs in one thread, or under one lock.
pub trait Fabric {
    /// Containers of the nodes.
    type Storage: Storage;
    /// Hardware of the nodes.
    type Platform: Platform;

    /// Node ids are below this.
    fn max_nodes(&self) -> u16;

    /// A node that is there, whether or not it is up.
    fn node(&self, id: u16) -> Option<(&Node<Self::Storage>, &Self::Platform)>;

    /// As [`Fabric::node`], to change it.
    fn node_mut(&mut self, id: u16) -> Option<(&mut Node<Self::Storage>, &Self::Platform)>;
}
