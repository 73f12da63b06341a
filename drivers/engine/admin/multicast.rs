// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Queue pairs that join and leave multicast groups.

use crate::{
    hal::Storage,
    node::Node,
    state::{
        gid::{Gid, IPV4_MAPPED},
        multicast::Attachment,
    },
};
use nupa_proto::{
    admin::{GroupMember, QpType},
    status::AdminStatus,
};

/// First byte of every multicast address, as of its GID.
const MULTICAST: u8 = 0xff;

impl<S: Storage> Node<S> {
    /// Attaches a UD queue pair to a group, in whatever state it is. It stays attached until it is detached or destroyed; to attach it
    /// again changes nothing.
    pub fn attach_multicast(&mut self, body: &GroupMember) -> Result<(), AdminStatus> {
        let attachment = attachment(body)?;
        let qp = self.qps.get(attachment.qpn);
        let qp = qp.ok_or(AdminStatus::NoSuchObject)?;
        if qp.kind != QpType::Ud {
            return Err(AdminStatus::InvalidField);
        }
        self.groups.add(attachment)
    }

    /// Detaches a queue pair from a group. `NoSuchObject` if it is not attached.
    pub fn detach_multicast(&mut self, body: &GroupMember) -> Result<(), AdminStatus> {
        let attachment = attachment(body)?;
        let was_there = self.groups.remove(|entry| *entry == attachment);
        was_there.then_some(()).ok_or(AdminStatus::NoSuchObject)
    }
}

fn attachment(body: &GroupMember) -> Result<Attachment, AdminStatus> {
    let group = body.gid;
    if body.reserved.get() != 0 || !is_multicast(&group) {
        return Err(AdminStatus::InvalidField);
    }
    let qpn = body.qpn.get();
    Ok(Attachment { group, qpn })
}

/// Whether a GID is that of a group: an IPv6 multicast address, or a mapped one of IPv4 (224.0.0.0/4).
fn is_multicast(gid: &Gid) -> bool {
    match gid.strip_prefix(&IPV4_MAPPED) {
        Some([first, ..]) => first & 0xf0 == 0xe0,
        _ => gid.first() == Some(&MULTICAST),
    }
}
