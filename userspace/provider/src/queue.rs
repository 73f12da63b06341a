// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The queues as a program uses them: the rings of [`nupa_engine::rings`] with the limits, the accounting and the
//! piecemeal requests that verbs have on top. Nothing here locks; whoever calls holds the queue's lock.

mod bypass;
mod completion;
mod done;
mod draft;
mod members;
mod pair;
mod recv;
mod regions;
mod send;
mod shared;
mod size;
mod wall;

pub(crate) use bypass::{Connection, Keeper, MappedRegion, Owner, Ring, RingSource};
pub(crate) use completion::{CompletionQueue, Member, SharedReceives};
pub(crate) use draft::gather;
pub(crate) use pair::{QueuePair, Received, SharedCompletions};
pub(crate) use recv::RecvQueue;
pub(crate) use regions::{Lookup, Region, Regions};
pub(crate) use send::{Refused, SendQueue};
pub(crate) use size::{log_of, RecvSize, SendSize, MAX_SGE};
pub(crate) use wall::Moment;
