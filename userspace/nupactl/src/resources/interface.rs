// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Queues of network interfaces, by the generic netlink family `ethtool` (`include/uapi/linux/ethtool_netlink.h`).

use std::collections::BTreeMap;

use neli::attr::Attribute;
use neli::utils::Groups;
use schemars::JsonSchema;
use serde::Serialize;

use crate::facts::Controller;
use crate::genl::{Message, Socket};
use crate::talk::{find, Attributes};

/// `ETHTOOL_MSG_RINGS_GET`
const GET_RINGS: u8 = 15;
/// `ETHTOOL_MSG_CHANNELS_GET`
const GET_CHANNELS: u8 = 17;
/// The attribute of all messages that says which interface it is about, and that of its name in there.
const HEADER: u16 = 1;
const HEADER_NAME: u16 = 2;
/// `ETHTOOL_A_RINGS_RX` and `ETHTOOL_A_RINGS_TX`
const RX: u16 = 6;
const TX: u16 = 9;
/// `ETHTOOL_A_CHANNELS_COMBINED_COUNT`
const COMBINED: u16 = 9;

/// A network interface's queues.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Interface {
    /// Name of the interface.
    pub(crate) netdev: String,
    /// Its queue pairs, each with an interrupt; there are that many while the interface is up.
    pub(crate) queue_pairs: Option<u32>,
    /// Buffers that the receive queue of each has room for.
    pub(crate) receive_buffers: Option<u32>,
    /// Frames that the send queue of each has room for.
    pub(crate) send_frames: Option<u32>,
}

/// Those of controllers.
pub(super) fn all(controllers: &[Controller]) -> anyhow::Result<Vec<Interface>> {
    let netdevs = controllers.iter().flat_map(|of| &of.netdevs);
    let netdevs: Vec<_> = netdevs.collect();
    if netdevs.is_empty() {
        return Ok(Vec::new());
    }
    let socket = Socket::open(Groups::empty())?;
    let family = socket.family("ethtool", "monitor")?.id;
    let rings = by_name(socket.dump(family, GET_RINGS)?);
    let channels = by_name(socket.dump(family, GET_CHANNELS)?);
    let interface = |netdev: &String| Interface {
        netdev: netdev.clone(),
        queue_pairs: number(channels.get(netdev), COMBINED),
        receive_buffers: number(rings.get(netdev), RX),
        send_frames: number(rings.get(netdev), TX),
    };
    Ok(netdevs.into_iter().map(interface).collect())
}

/// Messages by the interface that each is about.
fn by_name(messages: Vec<Message>) -> BTreeMap<String, Message> {
    let named = messages.into_iter().filter_map(|message| {
        let header = find(message.attrs(), HEADER)?;
        let header: Attributes = header.get_payload_as_with_len().ok()?;
        let name = find(&header, HEADER_NAME)?.get_payload_as_with_len();
        Some((name.ok()?, message))
    });
    named.collect()
}

fn number(message: Option<&Message>, number: u16) -> Option<u32> {
    find(message?.attrs(), number)?.get_payload_as().ok()
}
