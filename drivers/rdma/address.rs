// SPDX-License-Identifier: GPL-2.0
//! Addresses of other nodes.
//!
//! The RDMA core resolves a GID to a MAC address as for any RoCE device; the node id is part of that.

use crate::device::Rdma;
use kernel::prelude::*;
use nk_rdma::{error::unreachable_host, AhAttributes, Device, Udata};
use nupa_proto::{
    ident::{mac_node, NODE_FLOOD},
    regs::CAP_MULTICAST,
    uabi,
};

/// Node that has this MAC address. `EHOSTUNREACH` if it is not a node's: what is behind a bridge has no controller.
pub(crate) fn node_of(mac: &[u8; 6]) -> Result<u16> {
    mac_node(mac).ok_or_else(unreachable_host)
}

/// Where datagrams for this MAC address go: to its node, or to all nodes if it is that of a multicast group.
pub(crate) fn nodes_of(mac: &[u8; 6]) -> Result<u16> {
    match is_multicast(mac) {
        true => Ok(NODE_FLOOD),
        false => node_of(mac),
    }
}

fn is_multicast(mac: &[u8; 6]) -> bool {
    let [first, ..] = mac;
    first & 1 != 0
}

/// Refuses addresses that the controller cannot send to: errors as of [`node_of`], those of groups included if it knows none.
pub(crate) fn check(dev: &Device<Rdma>, attributes: &AhAttributes) -> Result<u16> {
    let mac = &attributes.dmac;
    if is_multicast(mac) && dev.port().info().caps & CAP_MULTICAST == 0 {
        return Err(unreachable_host());
    }
    nodes_of(mac)
}

/// An address handle: the controller knows nothing of it.
pub(crate) struct Ah {
    /// What it was made from.
    pub(crate) attributes: AhAttributes,
}

impl Ah {
    /// Makes one for a process, which puts what it is told here into its descriptors.
    pub(crate) fn for_user(
        dev: &Device<Rdma>,
        attributes: &AhAttributes,
        udata: &mut Udata<'_, Rdma>,
    ) -> Result<Self> {
        udata.no_request()?;
        udata.respond(&uabi::CreateAhResponse {
            node: check(dev, attributes)?.into(),
            sgid_index: attributes.sgid_index.into(),
            reserved: 0.into(),
        })?;
        Ok(Self {
            attributes: *attributes,
        })
    }
}
