// SPDX-License-Identifier: GPL-2.0
//! Whether a function is a controller that this driver understands.

use crate::fmt;
use nupa_proto::{
    admin::DeviceLimits,
    ident::MAX_NODES,
    regs::{CAP_RAW, MAGIC, VERSION_MAJOR, VERSION_MINOR},
};

/// Why it is not, with what to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unfit {
    /// Reads are all ones: nobody answers.
    Absent,
    /// The magic number is another one.
    Magic(u32),
    /// The interface has another major version.
    Version(u32),
    /// It cannot do Ethernet frames.
    NoFrames(u64),
    /// Its node id or number of nodes is not possible.
    Node(u32, u32),
    /// It has no GUID.
    NoGuid,
    /// It has no doorbell pages.
    NoDoorbells,
    /// It offers too few queues to be of use.
    Limits,
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Absent => f.write_str(
                "controller does not answer (registers read as all ones): check that the fabric switch runs and is connected, then rebind the driver",
            ),
            Self::Magic(value) => {
                write!(f, "not a NUPA controller: magic is {value:#010x}, should be {MAGIC:#010x}")
            }
            Self::Version(value) => write!(
                f,
                "controller speaks interface version {}.{}, this driver {VERSION_MAJOR}.{VERSION_MINOR}: update {}",
                value >> 16,
                value & 0xffff,
                if value >> 16 > u32::from(VERSION_MAJOR) { "the driver" } else { "the controller" },
            ),
            Self::NoFrames(caps) => write!(
                f,
                "controller has no raw frame queue pairs (capabilities {caps:#x}): update the controller",
            ),
            Self::Node(id, max) => write!(
                f,
                "controller says it is node {id} of {max}, at most {MAX_NODES} are possible: check the fabric switch",
            ),
            Self::NoGuid => f.write_str("controller has no GUID: check the fabric switch"),
            Self::NoDoorbells => {
                f.write_str("controller has no doorbell pages, or their BAR is too small: check the fabric switch")
            }
            Self::Limits => f.write_str(
                "controller offers fewer than one queue pair, two completion queues and one event queue: update the controller",
            ),
        }
    }
}

/// Checks magic number and interface version.
pub(crate) fn check_version(magic: u32, version: u32) -> Result<(), Unfit> {
    if magic == u32::MAX && version == u32::MAX {
        return Err(Unfit::Absent);
    }
    if magic != MAGIC {
        return Err(Unfit::Magic(magic));
    }
    if version >> 16 != u32::from(VERSION_MAJOR) {
        return Err(Unfit::Version(version));
    }
    Ok(())
}

/// Checks that there are doorbell pages, and that the BAR has room for them.
pub(crate) fn check_doorbells(pages: u32, room: u32) -> Result<(), Unfit> {
    (pages != 0 && pages <= room)
        .then_some(())
        .ok_or(Unfit::NoDoorbells)
}

/// Checks the identity of the node; returns (id, number of nodes).
pub(crate) fn check_node(
    id: u32,
    max_nodes: u32,
    guid: u64,
    caps: u64,
) -> Result<(u16, u16), Unfit> {
    let unfit = Unfit::Node(id, max_nodes);
    if id >= max_nodes || max_nodes > u32::from(MAX_NODES) {
        return Err(unfit);
    }
    if guid == 0 {
        return Err(Unfit::NoGuid);
    }
    if caps & CAP_RAW == 0 {
        return Err(Unfit::NoFrames(caps));
    }
    Ok((
        u16::try_from(id).map_err(|_| unfit)?,
        u16::try_from(max_nodes).map_err(|_| unfit)?,
    ))
}

/// Checks that the controller has enough objects for one network interface.
pub(crate) fn check_limits(limits: &DeviceLimits) -> Result<(), Unfit> {
    let enough = limits.max_qp.get() >= 1
        && limits.max_cq.get() >= 2
        && limits.max_eq.get() >= 1
        && limits.max_pd.get() >= 1
        && limits.rss_entries.get() >= 1
        && limits.max_log_eq >= crate::event::MIN_LOG_ENTRIES;
    enough.then_some(()).ok_or(Unfit::Limits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nupa_proto::regs::VERSION;

    #[test]
    fn versions() {
        assert_eq!(check_version(MAGIC, VERSION), Ok(()));
        assert_eq!(check_version(MAGIC, VERSION | 0xff), Ok(()));
        assert_eq!(
            check_version(MAGIC, VERSION + 0x1_0000),
            Err(Unfit::Version(VERSION + 0x1_0000))
        );
        assert_eq!(
            check_version(MAGIC, u32::MAX),
            Err(Unfit::Version(u32::MAX))
        );
        assert_eq!(check_version(0, VERSION), Err(Unfit::Magic(0)));
        assert_eq!(check_version(u32::MAX, u32::MAX), Err(Unfit::Absent));
    }

    #[test]
    fn messages_say_who_is_to_be_updated() {
        let next = (u32::from(VERSION_MAJOR) + 1) << 16;
        assert!(Unfit::Version(next)
            .to_string()
            .contains("update the driver"));
        assert!(Unfit::Version(0)
            .to_string()
            .contains("update the controller"));
        assert!(Unfit::Absent.to_string().contains("fabric switch"));
    }

    #[test]
    fn nodes() {
        assert_eq!(check_node(3, 4, 1, CAP_RAW), Ok((3, 4)));
        assert_eq!(check_node(4, 4, 1, CAP_RAW), Err(Unfit::Node(4, 4)));
        assert_eq!(check_node(0, 1025, 1, CAP_RAW), Err(Unfit::Node(0, 1025)));
        assert_eq!(
            check_node(u32::MAX, u32::MAX, 1, CAP_RAW),
            Err(Unfit::Node(u32::MAX, u32::MAX))
        );
        assert_eq!(check_node(0, 2, 0, CAP_RAW), Err(Unfit::NoGuid));
        assert_eq!(check_node(0, 2, 1, 0), Err(Unfit::NoFrames(0)));
    }

    proptest::proptest! {
        #[test]
        fn whatever_the_registers_say_a_node_is_in_range(
            words in proptest::prelude::any::<(u32, u32, u64, u64)>(),
        ) {
            let (id, max_nodes, guid, caps) = words;
            if let Ok((node, nodes)) = check_node(id, max_nodes, guid, caps) {
                assert!(node < nodes && nodes <= MAX_NODES && guid != 0);
            }
        }
    }

    #[test]
    fn doorbells() {
        assert_eq!(check_doorbells(0, 1), Err(Unfit::NoDoorbells));
        assert_eq!(check_doorbells(2, 1), Err(Unfit::NoDoorbells));
        assert_eq!(check_doorbells(1, 1), Ok(()));
    }

    #[test]
    fn limits() {
        assert_eq!(check_limits(&DeviceLimits::default()), Err(Unfit::Limits));
    }
}
