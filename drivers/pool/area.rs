// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What lies at an offset of a pool, as people are told of it.

use core::fmt;
use nupa_proto::pool::Class;

/// A part of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Area {
    /// Superblock and state word.
    Superblock,
    /// A node's slot.
    Slot {
        /// The node.
        node: u64,
    },
    /// What two nodes share.
    Link {
        /// The node that writes entries.
        source: u64,
        /// The node that they are for.
        target: u64,
        /// The ring, with its payload area; none if it is about the words that say how far the two are.
        class: Option<Class>,
    },
    /// A node's directory.
    Directory {
        /// The node.
        node: u64,
    },
    /// What a node offers to programs.
    DeviceMemory {
        /// The node.
        node: u64,
    },
}

impl fmt::Display for Area {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Superblock => f.write_str("superblock"),
            Self::Slot { node } => write!(f, "slot of node {node}"),
            Self::Directory { node } => write!(f, "directory of node {node}"),
            Self::DeviceMemory { node } => write!(f, "device memory of node {node}"),
            Self::Link {
                source,
                target,
                class,
            } => {
                let what = match class {
                    None => "indices of the rings",
                    Some(Class::Request) => "ring of requests",
                    Some(Class::Response) => "ring of responses",
                    Some(Class::Frame) => "ring of frames",
                    Some(Class::ShortRequest) => "ring of short requests",
                    Some(Class::ShortResponse) => "ring of short responses",
                };
                write!(f, "{what} from node {source} to node {target}")
            }
        }
    }
}
