// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What a host lacks that RDMA takes, and what to do.

use std::io;

use rustix::io::Errno;
use verbs::Error;

/// What is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lack {
    /// libibverbs.
    Library,
    /// The provider, by which libibverbs knows the device.
    Provider,
    /// The device.
    Device,
    /// An entry of the device's GID table for the address that the connection has.
    Gid,
    /// The right to open the device.
    Rights,
    /// The right to lock memory.
    Memory,
    /// A controller in service.
    Service,
    /// Something else, for which the kernel or libibverbs has this errno.
    Other(u8),
}

impl Lack {
    /// What an error of verbs comes from.
    pub(super) fn of(error: &Error) -> Self {
        match error {
            Error::Library(_) => Self::Library,
            Error::Device(_) => Self::Provider,
            Error::Open(errno) => match Errno::from_raw_os_error(*errno) {
                Errno::ACCESS | Errno::PERM | Errno::NOENT => Self::Rights,
                _ => Self::other(*errno),
            },
            Error::Range => Self::other(Errno::RANGE.raw_os_error()),
            Error::Refused { errno, .. } => match Errno::from_raw_os_error(*errno) {
                Errno::ACCESS | Errno::PERM => Self::Rights,
                Errno::NOMEM => Self::Memory,
                Errno::SHUTDOWN => Self::Service,
                _ => Self::other(*errno),
            },
        }
    }

    fn other(errno: i32) -> Self {
        Self::Other(errno.try_into().unwrap_or(0))
    }

    /// What is missing on a host, and what to do.
    pub(super) fn text(self, host: &str) -> String {
        match self {
            Self::Library => format!(
                "{host} has no libibverbs, which RDMA takes: install the packages libibverbs1 (on Fedora libibverbs) and libnupa-verbs on it"
            ),
            Self::Provider => format!(
                "libibverbs on {host} has no provider for the RDMA device: install the package libnupa-verbs on it, and start `nupactl serve` \
                 again; `nupactl version` tells what is there"
            ),
            Self::Device => format!("{host} has no RDMA device on this fabric: `modprobe nupa_rdma` on it makes one"),
            Self::Gid => format!(
                "the RDMA device of {host} has no GID for the link-local address of its interface: `ip -6 address` and `rdma link` on it show both"
            ),
            Self::Rights => format!(
                "{host} does not let nupactl open the RDMA device: `ls -l /dev/infiniband` on it tells who may"
            ),
            Self::Memory => format!(
                "{host} does not let nupactl lock the memory that RDMA takes: raise the limit there, by `ulimit -l` or by LimitMEMLOCK= of a unit"
            ),
            Self::Service => format!(
                "the controller of {host} is drained, so there are no new queue pairs: `nupactl drain --undo` on it puts it back into service"
            ),
            Self::Other(errno) => format!(
                "{host} cannot set up a queue pair ({}): its kernel log may say why",
                io::Error::from_raw_os_error(errno.into())
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_verbs_say_what_is_missing() {
        let refused = |errno: Errno| Error::Refused {
            what: "do it",
            errno: errno.raw_os_error(),
        };
        for (error, lack, part) in [
            (
                Error::Library("none".into()),
                Lack::Library,
                "install the packages libibverbs1",
            ),
            (
                Error::Device("nupa_rdma0".into()),
                Lack::Provider,
                "libnupa-verbs",
            ),
            (refused(Errno::ACCESS), Lack::Rights, "/dev/infiniband"),
            (
                Error::Open(Errno::NOENT.raw_os_error()),
                Lack::Rights,
                "ls -l",
            ),
            (refused(Errno::NOMEM), Lack::Memory, "`ulimit -l`"),
            (refused(Errno::SHUTDOWN), Lack::Service, "drain --undo"),
            (refused(Errno::IO), Lack::Other(5), "kernel log"),
        ] {
            assert_eq!(Lack::of(&error), lack);
            let text = lack.text("node 2");
            assert!(text.contains("node 2 ") && text.contains(part), "{text}");
        }
    }
}
