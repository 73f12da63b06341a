// SPDX-License-Identifier: GPL-2.0 OR MIT

//! libibverbs, called.
//!
//! Each object of the library has one owner here, which keeps what it depends on by an [`Rc`](std::rc::Rc); none of them goes to another thread.

mod context;
mod library;
mod pair;
mod queue;
mod region;
mod sys;

pub use context::{Context, Domain};
pub use pair::{Peer, QueuePair, Remote, Sizes, Target};
pub use queue::{Completion, CompletionQueue};
pub use region::Region;

/// Some values of a completion's status, as the header has them.
#[cfg(test)]
pub(crate) const STATUS_SAMPLES: [(u32, &str); 4] = [
    (sys::IBV_WC_WR_FLUSH_ERR, "WR_FLUSH_ERR"),
    (sys::IBV_WC_REM_ACCESS_ERR, "REM_ACCESS_ERR"),
    (sys::IBV_WC_RNR_RETRY_EXC_ERR, "RNR_RETRY_EXC_ERR"),
    (sys::IBV_WC_GENERAL_ERR, "GENERAL_ERR"),
];
