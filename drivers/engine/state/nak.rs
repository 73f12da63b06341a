// SPDX-License-Identifier: GPL-2.0 OR MIT
//! NAKs: why the responder does not carry out a request.

use crate::state::{
    check::{Check, WcError},
    request::Outcome,
};
use nupa_proto::status::WcStatus;

/// Why the responder does not carry a request out.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Nak {
    /// No receive buffer. If a later one is wanted, the responder's owner was asked to kick.
    Rnr { qpn: u32 },
    /// The queue pair does not receive: it is not connected yet, in the error state, or not there any more. Or it has got no receive buffer, though
    /// there are some.
    NotReady { qpn: u32 },
    /// The process of the queue pair takes entries of its process ring just now, which come before the request (another host's only).
    RingHeld,
    /// The receive filter does not want the frame.
    Filtered,
    /// A request before it was not carried out (another host's only).
    OutOfSequence,
    /// It fails.
    Failed(WcError),
}

impl Nak {
    /// What becomes of a request of this host that was for node `node`.
    #[inline]
    pub(crate) fn outcome(self, node: u16) -> Outcome {
        match self {
            Self::Rnr { qpn } => Outcome::Rnr { node, qpn },
            Self::NotReady { qpn } => Outcome::NotReady { node, qpn },
            Self::Failed(error) => Outcome::Failed(error),
            // Nobody there wants it: it was delivered as far as the sender is concerned.
            Self::Filtered => Outcome::Done,
            // Requests within a host are not numbered, and lie behind no ring. Should it happen nevertheless, fail rather than wait.
            Self::OutOfSequence | Self::RingHeld => {
                Outcome::Failed(WcError::new(WcStatus::RetryExceeded, Check::Peer))
            }
        }
    }
}

/// What a request without a receive buffer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RnrPolicy {
    /// It waits.
    Wait,
    /// It is dropped.
    Drop,
}
