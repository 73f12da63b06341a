// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The nodes that an engine serves.

use crate::{
    hal::{Platform, Storage},
    link::Link,
    node::Node,
    state::peer::Peer,
};
use core::ops::Range;

/// All controllers of one fabric, as their host keeps them; or those of one host, and links to those of others.
///
/// The host owns nodes and platforms; the engine borrows them for as long as it needs one step of an operation.
/// Everything runs in one thread, or under one lock.
pub trait NodeTable {
    /// Containers of the nodes.
    type Storage: Storage;
    /// Hardware of the nodes.
    type Platform: Platform;
    /// The way to nodes of other hosts; [`NoLink`](crate::NoLink) if all are here.
    type Link: Link;

    /// Node ids are below this, those of other hosts' nodes as well.
    fn max_nodes(&self) -> u16;

    /// Ids that nodes of this host may have: none of theirs is outside. Most turns find nothing to do, so what is none of them costs no look.
    #[inline]
    fn homes(&self) -> Range<u16> {
        0..self.max_nodes()
    }

    /// A node of this host that is there, whether or not it is up.
    fn node(&self, id: u16) -> Option<(&Node<Self::Storage>, &Self::Platform)>;

    /// As [`NodeTable::node`], to change it.
    fn node_mut(&mut self, id: u16) -> Option<(&mut Node<Self::Storage>, &Self::Platform)>;

    /// A node of another host that there may be a link to, whether or not it is up. [`NodeTable::node`] has none of this id.
    #[inline(always)]
    fn peer_mut(&mut self, id: u16) -> Option<&mut Peer<Self::Link>> {
        let _ = id;
        None
    }
}
