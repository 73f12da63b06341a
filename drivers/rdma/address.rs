// SPDX-License-Identifier: GPL-2.0
//! Addresses of other nodes.
//!
//! The RDMA core resolves a GID to a MAC address as for any RoCE device; the node id is part of that.

use crate::device::Rdma;
use kernel::prelude::*;
use nk_rdma::{error::unreachable_host, AhAttributes, Udata};
use nupa_proto::{ident::mac_node, uabi};

/// Node that has this MAC address. `EHOSTUNREACH` if it is not a node's: what is behind a bridge has no controller.
pub(crate) fn node_of(mac: &[u8; 6]) -> Result<u16> {
    mac_node(mac).ok_or_else(unreachable_host)
}

/// An address handle: the controller knows nothing of it.
pub(crate) struct Ah {
    /// What it was made from.
    pub(crate) attributes: AhAttributes,
}

impl Ah {
    /// Makes one for a process, which puts what it is told here into its descriptors.
    pub(crate) fn for_user(attributes: &AhAttributes, udata: &mut Udata<'_, Rdma>) -> Result<Self> {
        udata.no_request()?;
        udata.respond(&uabi::CreateAhResponse {
            node: node_of(&attributes.dmac)?.into(),
            sgid_index: attributes.sgid_index.into(),
            reserved: 0.into(),
        })?;
        Ok(Self {
            attributes: *attributes,
        })
    }
}
