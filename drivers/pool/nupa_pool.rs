// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A shared memory pool through which hosts without a controller make up a fabric (`Documentation/pool.md`).
//!
//! A host maps the pool as a [`Window`]. [`Pool::attach`] checks what is there, and writes nothing; [`Survey`] formats it, and
//! `check` tells all that is wrong with it.
//! [`Pool::join`] takes a node slot; [`Membership::look_around`] shows the others that the node lives, and tells who came and went.
//! For each node that came, [`Membership::open_in`] makes a [`Link`]: a [`Sender`] and a [`Receiver`] for each class of
//! messages; where nodes have inboxes, once one of the two has [asked](Membership::ask) for it. Payload is not copied here: a sender reserves a place for it in the pool, a receiver is told where it lies.
//! Device memory that programs of several nodes use is [`Sharing`]'s.
//!
//! Everything that lies in the pool can be changed by others at any time. It is copied once, checked, then used; what a
//! peer must not have written is a [`Violation`], after which [`Membership::isolate`] has no more to do with that peer until
//! it comes back with another epoch. So is a line of its that cannot be read ([`Poisoned`]).
//!
//! Nothing here allocates, panics on what the pool holds, or needs `unsafe`. [`Pool::attach`] and [`Pool::join`] sleep, all
//! else is good in any context; the caller sees to it that there is one at a time.

#![cfg_attr(not(MODULE), no_std)]
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod area;
#[cfg(not(MODULE))]
mod assign;
mod attach;
#[cfg(not(MODULE))]
mod check;
mod demand;
mod events;
#[cfg(not(MODULE))]
mod forge;
#[cfg(not(MODULE))]
mod format;
mod geometry;
mod grants;
mod heartbeat;
mod identity;
mod join;
mod line;
mod link;
mod membership;
mod message;
mod node_set;
mod pair;
mod peer;
mod place;
mod receiver;
mod refusal;
mod sender;
mod sharing;
mod window;

pub use self::{
    area::Area,
    attach::{Pool, Survey},
    events::{Event, Events},
    geometry::Geometry,
    grants::{Grant, Grants, InUse},
    heartbeat::Heartbeat,
    identity::identity,
    join::JoinOptions,
    link::{Link, PerClass},
    membership::{Membership, PeerInfo},
    message::{Acknowledged, Body, Message, Outgoing, Violation},
    node_set::{NodeCursor, NodeSet},
    pair::LinkState,
    peer::Peer,
    place::Place,
    receiver::Receiver,
    refusal::Refusal,
    sender::{Blocked, Reservation, Sender, Stale},
    sharing::{Import, Sharing, Unshared},
    window::{Poisoned, Time, Window},
};
#[cfg(not(MODULE))]
pub use self::{
    assign::{AssignOptions, NotAssigned},
    check::{check, Fault, Must, Problem},
    forge::{behind_lines, in_lines, of_line},
    format::FormatOptions,
    geometry::Format,
};

/// How long a claim is left alone before it counts. More than anybody takes from reading such a word to seeing their own claim in
/// the pool: whoever read it before and claims later shows within this time.
const SETTLE_US: u64 = 100_000;
