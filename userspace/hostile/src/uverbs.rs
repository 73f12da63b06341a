// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A context of the device, spoken to in bytes: the interface that libibverbs and the provider stand on, with nothing in between.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use rustix::io::Errno;

use crate::bytes::Bytes;
use crate::ffi::{self, REQUEST};

/// Numbers of commands (include/uapi/rdma/ib_user_verbs.h), and their names.
pub(crate) const COMMANDS: [(u32, &str); 33] = [
    (GET_CONTEXT, "GET_CONTEXT"),
    (1, "QUERY_DEVICE"),
    (2, "QUERY_PORT"),
    (ALLOC_PD, "ALLOC_PD"),
    (4, "DEALLOC_PD"),
    (CREATE_AH, "CREATE_AH"),
    (8, "DESTROY_AH"),
    (REG_MR, "REG_MR"),
    (REREG_MR, "REREG_MR"),
    (13, "DEREG_MR"),
    (ALLOC_MW, "ALLOC_MW"),
    (16, "DEALLOC_MW"),
    (17, "CREATE_COMP_CHANNEL"),
    (CREATE_CQ, "CREATE_CQ"),
    (RESIZE_CQ, "RESIZE_CQ"),
    (20, "DESTROY_CQ"),
    (21, "POLL_CQ"),
    (23, "REQ_NOTIFY_CQ"),
    (CREATE_QP, "CREATE_QP"),
    (25, "QUERY_QP"),
    (MODIFY_QP, "MODIFY_QP"),
    (27, "DESTROY_QP"),
    (28, "POST_SEND"),
    (29, "POST_RECV"),
    (30, "ATTACH_MCAST"),
    (31, "DETACH_MCAST"),
    (CREATE_SRQ, "CREATE_SRQ"),
    (33, "MODIFY_SRQ"),
    (34, "QUERY_SRQ"),
    (35, "DESTROY_SRQ"),
    (36, "POST_SRQ_RECV"),
    (37, "OPEN_XRCD"),
    (39, "CREATE_XSRQ"),
];
pub(crate) const GET_CONTEXT: u32 = 0;
pub(crate) const ALLOC_PD: u32 = 3;
pub(crate) const CREATE_AH: u32 = 5;
pub(crate) const REG_MR: u32 = 9;
pub(crate) const REREG_MR: u32 = 11;
pub(crate) const ALLOC_MW: u32 = 14;
pub(crate) const CREATE_CQ: u32 = 18;
pub(crate) const RESIZE_CQ: u32 = 19;
pub(crate) const CREATE_QP: u32 = 24;
pub(crate) const MODIFY_QP: u32 = 26;
pub(crate) const CREATE_SRQ: u32 = 32;

/// Objects of the newer interface (`enum uverbs_default_objects`).
pub(crate) const OBJECT_CQ: u16 = 3;
pub(crate) const OBJECT_QP: u16 = 4;
pub(crate) const OBJECT_SRQ: u16 = 5;
pub(crate) const OBJECT_MR: u16 = 7;
pub(crate) const OBJECT_DM: u16 = 14;

/// An attribute of a request: its number, its length, and a value or an address.
pub(crate) type Attribute = (u16, u16, u64);
/// Bytes of an attribute, and of the header before them.
const ATTRIBUTE: usize = 16;
const HEADER: usize = 24;
/// Most attributes of a request.
pub(crate) const ATTRIBUTES: usize = (REQUEST - HEADER) / ATTRIBUTE;

/// Where an answer is to be written, and how many bytes there are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    pub(crate) address: u64,
    pub(crate) room: u16,
}

/// A context's file.
#[derive(Debug)]
pub(crate) struct Uverbs(File);

impl Uverbs {
    /// Opens a device's file, without a context as yet.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = File::options().read(true).write(true).open(path);
        file.map(Self)
    }

    /// The file, for `mmap()`.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// A command of the older interface: the core's part and the driver's.
    pub(crate) fn command(
        &self,
        number: u32,
        answer: Option<Answer>,
        core: &[u8],
        own: &[u8],
    ) -> Result<(), Errno> {
        let address = answer.map(|answer| answer.address.to_le_bytes());
        let address = address.as_ref().map_or(&[][..], |bytes| bytes);
        let body = address
            .len()
            .saturating_add(core.len())
            .saturating_add(own.len());
        let words = body.div_ceil(4);
        let said = u16::try_from(words.saturating_add(2)).unwrap_or(u16::MAX);
        let room = answer.map_or(0, |answer| answer.room / 4);
        let bytes = Bytes::new().u32s([number]).u16s([said, room]);
        let bytes = bytes.raw(address).raw(core).raw(own);
        let bytes = bytes
            .zeros(words.saturating_mul(4).saturating_sub(body))
            .done();
        rustix::io::write(&self.0, &bytes).map(drop)
    }

    /// A request of the newer interface. Returns what the kernel wrote into the first attribute, which is the handle of what was made.
    pub(crate) fn method(
        &self,
        object: u16,
        method: u16,
        driver: u32,
        attributes: &[Attribute],
    ) -> Result<u32, Errno> {
        let count = attributes.len().min(ATTRIBUTES);
        let length = count.saturating_mul(ATTRIBUTE).saturating_add(HEADER);
        let short = |number: usize| u16::try_from(number).unwrap_or(u16::MAX);
        let header = Bytes::new().u16s([short(length), object, method, short(count)]);
        let mut bytes = header.u64s([0]).u32s([driver, 0]);
        for (number, len, data) in attributes.iter().take(count) {
            bytes = bytes.u16s([*number, *len, MANDATORY, 0]).u64s([*data]);
        }
        let mut buffer = [0; REQUEST];
        buffer
            .iter_mut()
            .zip(bytes.done())
            .for_each(|(to, from)| *to = from);
        ffi::request(self.file(), &mut buffer)?;
        let first = buffer
            .get(HEADER.saturating_add(8)..)
            .and_then(|rest| rest.first_chunk());
        Ok(first.map_or(0, |bytes| u32::from_le_bytes(*bytes)))
    }
}

/// `UVERBS_ATTR_F_MANDATORY`
const MANDATORY: u16 = 1;

/// A device's file.
pub(crate) fn file_of(device: &str) -> anyhow::Result<PathBuf> {
    let class = "/sys/class/infiniband_verbs";
    let entries = fs::read_dir(class).with_context(|| {
        format!("cannot read {class}: load nupa_rdma and ib_uverbs, for example by nupa-up")
    })?;
    let found = entries.flatten().find(|entry| {
        let name = fs::read_to_string(entry.path().join("ibdev"));
        name.is_ok_and(|name| name.trim() == device)
    });
    let found =
        found.with_context(|| format!("no RDMA device {device}; `rdma link` lists them"))?;
    Ok(Path::new("/dev/infiniband").join(found.file_name()))
}

/// Addresses that a device has: (index, GID), of RoCE v2 for IPv4.
pub(crate) fn gids(device: &str) -> Vec<(u8, [u8; 16])> {
    let port = Path::new("/sys/class/infiniband")
        .join(device)
        .join("ports/1");
    let read = |index: u8| {
        let kind = fs::read_to_string(port.join(format!("gid_attrs/types/{index}"))).ok()?;
        let text = fs::read_to_string(port.join(format!("gids/{index}"))).ok()?;
        let gid = parse_gid(text.trim())?;
        let wanted = kind.trim() == "RoCE v2" && gid.starts_with(&IPV4_PREFIX);
        wanted.then_some((index, gid))
    };
    (0..64).filter_map(read).collect()
}

/// What GIDs of IPv4 addresses begin with.
const IPV4_PREFIX: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

/// A GID of its text.
pub(crate) fn parse_gid(text: &str) -> Option<[u8; 16]> {
    text.parse::<std::net::Ipv6Addr>()
        .ok()
        .map(|address| address.octets())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gids_are_read() {
        let gid = parse_gid("0000:0000:0000:0000:0000:ffff:0a4d:0001");
        let mut wanted = [0; 16];
        wanted[10..].copy_from_slice(&[0xff, 0xff, 10, 77, 0, 1]);
        assert_eq!(gid, Some(wanted));
        assert_eq!(parse_gid("none"), None);
    }
}
