// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Why the kernel does not do what it was told with a memory device, and what to do.

use nupa_proto::pool::sharing::{EXPORTS, HOLDS};
use rustix::io::Errno;

use super::handle::Handle;
use super::name::Name;
use super::size;
use crate::talk::Refused;

/// What was to be done.
pub(super) enum Attempt<'a> {
    /// To say which there are.
    List,
    /// To make one of so many bytes.
    Create(&'a Name, u64),
    /// To make one of another's memory.
    Attach(&'a Name, &'a Handle),
    /// To remove one.
    Remove(&'a Name),
}

impl Attempt<'_> {
    /// An error of the kernel, with what it means for people. `device`: that of the controller, where one is to have a device made.
    pub(super) fn refused(&self, error: anyhow::Error, device: &str) -> anyhow::Error {
        let refused = error.downcast_ref::<Refused>();
        let why = refused.and_then(|refused| Errno::from_io_error(&refused.0));
        let text = format!("{}: {}", self.outcome(), self.reason(why, device));
        error.context(text)
    }

    /// What became of it.
    fn outcome(&self) -> String {
        match self {
            Self::List => "memory devices are not shown".to_owned(),
            Self::Create(name, _) | Self::Attach(name, _) => format!("{name} was not made"),
            Self::Remove(name) => format!("{name} stays as it was"),
        }
    }

    /// Why it could not be done, and what to do.
    fn reason(&self, why: Option<Errno>, device: &str) -> String {
        match (self, why) {
            (Self::List, Some(Errno::PERM)) => {
                "who knows a handle may use the memory, so this takes CAP_NET_ADMIN: run it as root".to_owned()
            }
            (_, Some(Errno::PERM)) => "this takes CAP_NET_ADMIN: run it as root".to_owned(),
            // Generic netlink says this of a command that it does not know, too.
            (Self::Create(..) | Self::Attach(..), Some(Errno::OPNOTSUPP)) => format!(
                "{device} is a fabric controller, whose memory is its own: nodes share that of a pool; or the module nupa_fabric that is \
                 loaded cannot do this, because it is older than this program (`nupactl version`)"
            ),
            (_, Some(Errno::OPNOTSUPP)) => {
                "the module nupa_fabric that is loaded cannot do this: it is older than this program".to_owned()
            }
            (Self::Create(..) | Self::Attach(..), Some(Errno::NODEV)) => format!(
                "{device} does not run now, or has gone: `nupactl status` shows how it is; try again when it runs"
            ),
            (Self::Create(..) | Self::Attach(..), Some(Errno::EXIST)) => {
                "this host has a memory device of that name: take another name, or remove that one (`nupactl memory list`)".to_owned()
            }
            (Self::Create(_, bytes), Some(Errno::NOMEM)) => format!(
                "this node's share of the pool has no room for {} in one piece: ask for less, or remove memory devices (`nupactl memory \
                 list`), here and on nodes that have attached memory of this one; memory of a device that was removed by force is free when no program has \
                 a region of it any more; device memory of RDMA programs lies there, too, and who lacks CAP_SYS_RESOURCE may have \
                 half of it",
                size::show(*bytes)
            ),
            (Self::Create(..), Some(Errno::NOSPC)) => format!(
                "this node lets others use {EXPORTS} pieces of its memory already, and cannot do more: remove memory devices (`nupactl \
                 memory list`), or end RDMA programs that export device memory"
            ),
            (Self::Attach(..), Some(Errno::NOSPC)) => format!(
                "this node uses {HOLDS} pieces of memory that nodes share already, and cannot do more: remove memory devices (`nupactl \
                 memory list`), or end RDMA programs that import device memory"
            ),
            (Self::Create(..), Some(Errno::INTR)) => "a signal ended it before the memory was zeroed".to_owned(),
            (Self::Create(..), Some(Errno::INVAL)) => {
                "the module nupa_fabric takes no such name or size; `nupactl version` says whether it fits this program".to_owned()
            }
            (Self::Attach(_, handle), Some(Errno::INVAL)) => format!(
                "the handle is of fabric {:016x}, and `nupactl status` shows which one {device} is in: attach it on a node of its fabric, or \
                 say which controller by --controller",
                handle.fabric()
            ),
            (Self::Attach(_, handle), Some(Errno::NOENT)) => format!(
                "node {} has nothing under this handle, or nothing any more because it was removed there: `nupactl memory handle` prints \
                 the handle on a node that has the memory",
                handle.node()
            ),
            (Self::Attach(_, handle), Some(Errno::STALE)) => format!(
                "node {}, whose memory it was, has left, died or been reset since the handle was made: create it there again, and attach \
                 that",
                handle.node()
            ),
            (Self::Remove(_), Some(Errno::NOENT | Errno::NODEV)) => {
                "it is there no more: somebody else removed it, or its controller was reset".to_owned()
            }
            (Self::Remove(name), Some(Errno::BUSY)) => format!(
                "programs have it open, have it mapped, have a DMA buffer of it, or have registered it: end them (`fuser -v` on its file shows the \
                 first two, `grep -ls nupa/{name}$ /proc/*/fdinfo/*` those with buffers, and `rdma resource show mr` those with regions), or remove it \
                 with --force. Then programs get SIGBUS when they touch their mappings; regions go on working, and their memory is free once they are \
                 gone"
            ),
            _ => "`nupactl status` shows how the controllers are, and the kernel log may say why".to_owned(),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn said(attempt: &Attempt<'_>, errno: Errno) -> String {
        let error = std::io::Error::from_raw_os_error(errno.raw_os_error());
        let error = attempt.refused(Refused(error).into(), "dax0.0");
        assert!(error.is::<Refused>());
        format!("{error:#}")
    }

    #[test]
    fn each_refusal_says_what_happened_and_what_to_do() {
        let name = "kv".parse().unwrap();
        let handle = Handle::from([3; 32]);
        let create = Attempt::Create(&name, 64 << 20);
        let attach = Attempt::Attach(&name, &handle);
        let remove = Attempt::Remove(&name);
        let expected = [
            (
                &Attempt::List,
                Errno::PERM,
                "not shown: who knows a handle may use",
            ),
            (&Attempt::List, Errno::OPNOTSUPP, "older than this program"),
            (
                &create,
                Errno::PERM,
                "kv was not made: this takes CAP_NET_ADMIN",
            ),
            (&create, Errno::EXIST, "take another name"),
            (&create, Errno::NOMEM, "no room for 64 MiB"),
            (&create, Errno::OPNOTSUPP, "dax0.0 is a fabric controller"),
            (&create, Errno::OPNOTSUPP, "older than this program"),
            (&create, Errno::NODEV, "dax0.0 does not run now"),
            (&create, Errno::NOSPC, "lets others use 256 pieces"),
            (&create, Errno::INVAL, "no such name or size"),
            (&attach, Errno::EXIST, "kv was not made: this host has"),
            (&attach, Errno::OPNOTSUPP, "dax0.0 is a fabric controller"),
            (&attach, Errno::NODEV, "try again when it runs"),
            (&attach, Errno::NOSPC, "uses 256 pieces"),
            (&attach, Errno::INVAL, "of fabric 0303030303030303"),
            (
                &attach,
                Errno::NOENT,
                "node 771 has nothing under this handle",
            ),
            (&attach, Errno::STALE, "create it there again"),
            (&remove, Errno::PERM, "kv stays as it was: this takes"),
            (&remove, Errno::NOENT, "it is there no more"),
            (&remove, Errno::NODEV, "it is there no more"),
            (&remove, Errno::BUSY, "--force"),
            (&remove, Errno::IO, "kernel log"),
        ];
        for (attempt, errno, part) in expected {
            let text = said(attempt, errno);
            assert!(text.contains(part), "{errno:?}: {text}");
            assert!(!text.contains(&handle.to_string()), "{text}");
        }
    }

    #[test]
    fn what_is_no_refusal_of_the_kernel_keeps_its_text() {
        let text = format!("{:#}", Attempt::List.refused(anyhow::anyhow!("lost"), ""));
        assert!(
            text.starts_with("memory devices are not shown") && text.ends_with("lost"),
            "{text}"
        );
    }
}
