// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Giving a host the node id of its choice, before it joins.
//!
//! The choice is kept in the pool: the slot has the host's identity, so the host takes it whenever it joins ([`Pool::join`]).

use crate::{
    attach::Pool,
    join::{watch, JoinOptions, Slots, TakenSlot},
    membership::Membership,
    node_set::NodeSet,
    peer::Peer,
    Time, Window,
};
use core::fmt;
use nupa_proto::pool::{DEAD_AFTER_US, MAX_NODES};

/// Which node id is to be whose.
#[derive(Clone, Copy, Debug)]
pub struct AssignOptions {
    /// A random number.
    pub token: u64,
    /// Of the host, as in [`JoinOptions::identity`]; not 0.
    pub identity: u64,
    /// The node id.
    pub node: u16,
    /// Also if another host had it last, which gets another one when it comes back.
    pub force: bool,
}

/// Why a host does not get a node id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotAssigned {
    /// There is no such node.
    NoSuchNode {
        /// Node slots of the pool.
        nodes: u16,
    },
    /// A node that lives has it.
    Taken {
        /// The node.
        node: u16,
    },
    /// A node that lives has this host's identity, so this host has joined, or another one says that it is the same.
    Joined {
        /// The node.
        node: u16,
    },
    /// Another host had it last, and would take it again.
    Reserved {
        /// The node.
        node: u16,
    },
    /// Its slot cannot be read.
    Poisoned {
        /// The node.
        node: u16,
    },
    /// Somebody else has written to the slot meanwhile.
    Busy {
        /// The node.
        node: u16,
    },
}

impl fmt::Display for NotAssigned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NoSuchNode { nodes } => {
                let last = nodes.saturating_sub(1);
                write!(f, "the pool is for {nodes} nodes, 0 to {last}")
            }
            Self::Taken { node } => write!(f, "node {node} is another host's, which uses the pool"),
            Self::Joined { node } => write!(
                f,
                "node {node} uses the pool and has this host's identity: hosts need different ones"
            ),
            Self::Reserved { node } => write!(
                f,
                "another host was node {node} last, and would be that again when it comes back"
            ),
            Self::Poisoned { node } => write!(f, "memory error in the slot of node {node}"),
            Self::Busy { node } => {
                write!(
                    f,
                    "somebody else has taken the slot of node {node} meanwhile"
                )
            }
        }
    }
}

/// What the slots are to a host.
#[derive(Default)]
struct Owners {
    /// With its identity.
    own: NodeSet,
    /// With another one.
    others: NodeSet,
}

impl Pool {
    /// Gives a host a node id: its slot gets the host's identity, and no other slot keeps it. The host must not have joined. Sleeps for as
    /// long as a node may be silent where slots are taken.
    pub fn assign(
        &self,
        window: &impl Window,
        time: &impl Time,
        options: &AssignOptions,
    ) -> Result<(), NotAssigned> {
        let (node, nodes) = (options.node, self.geometry().max_nodes());
        if node >= nodes {
            return Err(NotAssigned::NoSuchNode { nodes });
        }
        let mut peers = [Peer::UNKNOWN; MAX_NODES as usize];
        let (mut slots, mut owners) = (Slots::unread(&mut peers), Owners::default());
        slots.read(self, window, |node, found| match found.identity {
            0 => {}
            identity if identity == options.identity => owners.own.insert(node),
            _ => owners.others.insert(node),
        });
        self.may_assign(window, time, options, &slots, &owners)?;
        let is_there = owners.own.contains(node) && slots.free.contains(node);
        // An interruption between these leaves the host without an id of its choice, not with two.
        for other in owners.own.iter().filter(|other| *other != node) {
            self.mark(window, time, &slots, other, options.token, 0)?;
        }
        match is_there {
            true => Ok(()),
            false => self.mark(window, time, &slots, node, options.token, options.identity),
        }
    }

    /// Whether nobody is in the way.
    fn may_assign(
        &self,
        window: &impl Window,
        time: &impl Time,
        options: &AssignOptions,
        slots: &Slots<'_>,
        owners: &Owners,
    ) -> Result<(), NotAssigned> {
        let node = options.node;
        if !slots.readable.contains(node) {
            return Err(NotAssigned::Poisoned { node });
        }
        let concerned = |held: &u16| *held == node || owners.own.contains(*held);
        let is_same = |node: u16| slots.is_same(self, window, node);
        let held = || slots.held().filter(concerned);
        watch(time, DEAD_AFTER_US, || !held().any(is_same));
        if let Some(live) = held().find(|held| !is_same(*held)) {
            return Err(match owners.own.contains(live) {
                true => NotAssigned::Joined { node: live },
                false => NotAssigned::Taken { node },
            });
        }
        match owners.others.contains(node) && !options.force {
            true => Err(NotAssigned::Reserved { node }),
            false => Ok(()),
        }
    }

    /// Takes a slot that was found free or dead, and leaves it with an identity.
    fn mark(
        &self,
        window: &impl Window,
        time: &impl Time,
        slots: &Slots<'_>,
        node: u16,
        token: u64,
        identity: u64,
    ) -> Result<(), NotAssigned> {
        let claim = self.claim(window, time, node, slots.claim(node), token);
        let options = JoinOptions {
            identity,
            ..JoinOptions::new(token)
        };
        let slot = TakenSlot {
            pool: *self,
            node,
            claim: claim.ok_or(NotAssigned::Busy { node })?,
            options,
            taken_us: time.now_us(),
        };
        let mut membership = Membership::new(&slot, [Peer::UNKNOWN; 0]);
        membership.enter(window, &options);
        membership.leave(window);
        Ok(())
    }
}
