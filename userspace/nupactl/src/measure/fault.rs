// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Why a measurement failed, and what to do.

use verbs::status_name;

use super::lack::Lack;
use super::wire::{PORT, VERSION};

/// Why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It speaks another version, this one; 0 if it is not known.
    Version(u16),
    /// It has as many measurements as it takes.
    Busy,
    /// It does not do what it was asked to.
    Refused,
    /// Bytes were not those that were sent.
    Wrong,
    /// There was no answer.
    Silent,
    /// Nobody listens there.
    Nobody,
    /// What listens there is something else.
    OtherProgram,
    /// The connection ended before its time.
    Ended,
    /// It took too long.
    Late,
    /// It does not see the node as up.
    Down,
    /// It has no interface that is up to measure by.
    NoInterface,
    /// It knows nothing of RDMA.
    Older,
    /// It says of its end of a connection what cannot be.
    Strange,
    /// An RDMA request failed with this status.
    Request(u8),
    /// This host lacks something for RDMA.
    Here(Lack),
    /// The other one does.
    There(Lack),
}

/// Those that have no number with them, by their codes.
const CODES: [(Fault, u16); 18] = [
    (Fault::Busy, 2),
    (Fault::Refused, 3),
    (Fault::Wrong, 4),
    (Fault::Silent, 5),
    (Fault::Nobody, 6),
    (Fault::OtherProgram, 7),
    (Fault::Ended, 8),
    (Fault::Late, 9),
    (Fault::Down, 10),
    (Fault::NoInterface, 11),
    (Fault::Strange, 12),
    (Fault::There(Lack::Library), 13),
    (Fault::There(Lack::Provider), 14),
    (Fault::There(Lack::Device), 15),
    (Fault::There(Lack::Gid), 16),
    (Fault::There(Lack::Rights), 17),
    (Fault::There(Lack::Memory), 18),
    (Fault::There(Lack::Service), 19),
];
/// What the codes of failed requests begin with; the status follows.
const REQUEST: u8 = 1;
/// What the codes of other errors of verbs begin with; the errno follows.
const OTHER: u8 = 2;

impl Fault {
    /// Its code on the wire, which is not 0.
    pub(super) fn code(self) -> u16 {
        let known = CODES.iter().find(|(fault, _)| *fault == self);
        match (self, known) {
            (Self::Request(status), _) => u16::from_be_bytes([REQUEST, status]),
            (Self::There(Lack::Other(errno)), _) => u16::from_be_bytes([OTHER, errno]),
            (_, Some((_, code))) => *code,
            (_, None) => 1,
        }
    }

    /// The fault of a code, if it is one. A code that is not known is another version's.
    pub(super) fn check(code: u16) -> Result<(), Self> {
        if code == 0 {
            return Ok(());
        }
        let known = CODES.iter().find(|(_, known)| *known == code);
        Err(match (code.to_be_bytes(), known) {
            ([REQUEST, status], _) => Self::Request(status),
            ([OTHER, errno], _) => Self::There(Lack::Other(errno)),
            (_, Some((fault, _))) => *fault,
            (_, None) => Self::Version(0),
        })
    }

    /// Whether it is about the node that was to be measured to, from any node.
    pub(super) fn is_of_node(self) -> bool {
        matches!(self, Self::Version(_) | Self::Nobody | Self::OtherProgram)
    }

    /// What happened, and what to do.
    pub(crate) fn text(self, node: &str) -> String {
        match self {
            Self::Version(0) => format!(
                "node {node} serves another version of the protocol than this nupactl: install the same version of nupa-tools on both"
            ),
            Self::Version(other) => format!(
                "node {node} serves version {other} of the protocol, and this nupactl speaks version {VERSION}: install the same version of \
                 nupa-tools on both"
            ),
            Self::Busy => format!("node {node} is busy with other measurements: try again later"),
            Self::Refused => format!("node {node} refuses to measure this: `nupactl version` on both tells whether they fit together"),
            Self::Wrong => format!(
                "bytes to or from node {node} were not those that were sent: something damages data; the kernel logs of both may say what"
            ),
            Self::Silent => format!(
                "node {node} does not answer at port {PORT} (TCP): its interface may be down or without IPv6, or a firewall drops it; \
                 `nupactl ping` tells them apart"
            ),
            Self::Nobody => format!(
                "nobody serves on node {node}: run `nupactl serve` there, or `systemctl start nupactl-serve`"
            ),
            Self::OtherProgram => format!(
                "what listens at port {PORT} of node {node} is not `nupactl serve`: `ss -ltnp` there says what it is"
            ),
            Self::Ended => format!("node {node} ended the connection: `nupactl serve` there may have been stopped; try again"),
            Self::Late => format!("node {node} did not go on: it may have gone down, or be overloaded; `nupactl ping` tells"),
            Self::Down => format!("node {node} is down as the other node sees it: `nupactl peers` there shows those that are up"),
            Self::NoInterface => format!(
                "node {node} has no interface that is up: `nupactl status` there says what is wrong"
            ),
            Self::Older => format!(
                "node {node} serves measurements over TCP alone: install the version of nupa-tools there that is here"
            ),
            Self::Strange => format!(
                "node {node} says of its queue pair what cannot be: `nupactl version` on both tells whether they fit together"
            ),
            Self::Request(status) => format!(
                "an RDMA request failed with {} on the way to or from node {node}: its controller or this one may have been reset; \
                 `nupactl events` and the kernel logs of both tell",
                status_name(status)
            ),
            Self::Here(lack) => lack.text("this host"),
            Self::There(lack) => lack.text(&format!("node {node}")),
        }
    }
}

/// A measurement that failed.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub(crate) struct Failed {
    pub(crate) fault: Fault,
    text: String,
}

impl Failed {
    /// With a node.
    pub(super) fn with(fault: Fault, node: &str) -> Self {
        Self {
            fault,
            text: fault.text(node),
        }
    }

    /// Whether it says that the fabric, or the other side, does not work as it should; else nothing is known.
    pub(crate) fn is_trouble(&self) -> bool {
        !matches!(
            self.fault,
            Fault::Busy | Fault::Refused | Fault::Older | Fault::Here(_)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_come_back_and_unknown_ones_are_of_another_version() {
        for (fault, _) in CODES {
            assert_eq!(Fault::check(fault.code()), Err(fault));
        }
        assert_eq!(Fault::check(0), Ok(()));
        for code in [1, 20, u16::MAX] {
            assert_eq!(Fault::check(code), Err(Fault::Version(0)));
        }
        assert_eq!(Fault::Version(7).code(), 1);
        for value in [0, 1, 255] {
            for fault in [Fault::Request(value), Fault::There(Lack::Other(value))] {
                assert_eq!(Fault::check(fault.code()), Err(fault));
            }
        }
    }
}
