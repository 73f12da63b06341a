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
    /// What a node says about another, in a pool with inboxes.
    Pair {
        /// The node.
        node: u64,
        /// The other one.
        other: u64,
    },
    /// What others write to a node, in such a pool.
    Inbox {
        /// The node.
        node: u64,
        /// Which of its inboxes it is.
        inbox: u64,
        /// The ring, with its payload area; none if it is about the words.
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
            Self::Pair { node, other } => {
                write!(f, "what node {node} says about node {other}")
            }
            Self::Inbox { node, inbox, class } => {
                write!(f, "{} in inbox {inbox} of node {node}", name(class))
            }
            Self::Link {
                source,
                target,
                class,
            } => write!(f, "{} from node {source} to node {target}", name(class)),
        }
    }
}

/// What the rings of a class are, or the words of all.
fn name(class: Option<Class>) -> &'static str {
    match class {
        None => "indices of the rings",
        Some(Class::Request) => "ring of requests",
        Some(Class::Response) => "ring of responses",
        Some(Class::Frame) => "ring of frames",
        Some(Class::ShortRequest) => "ring of short requests",
        Some(Class::ShortResponse) => "ring of short responses",
    }
}
