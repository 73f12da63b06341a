// SPDX-License-Identifier: GPL-2.0 OR MIT

//! How to reach another node: its id, the controller that sees it, and the link-local address that follows from its MAC address.

use std::fs;
use std::net::{Ipv6Addr, SocketAddrV6};
use std::path::Path;

use anyhow::{bail, ensure, Context};
use nupa_proto::ident::{node_mac, MAX_NODES};

use crate::events::named;
use crate::facts::{Controller, Host};

/// The node is down.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct NodeDown(pub(crate) String);

/// A node that is up, and the way to it.
#[derive(Clone, Debug)]
pub(crate) struct Way {
    /// Id of the node.
    pub(crate) node: u16,
    /// Its name in /etc/nupa/nodes.conf.
    pub(crate) name: Option<String>,
    /// Its address.
    pub(crate) address: Ipv6Addr,
    /// The interface here, and its index.
    pub(crate) netdev: String,
    index: u32,
}

impl Way {
    /// The way to a node by its id or name.
    pub(crate) fn find(
        host: &Host,
        controllers: &[Controller],
        node: &str,
    ) -> anyhow::Result<Self> {
        let node = number(host, node)?;
        let peers = host.peers()?;
        let Some(up) = peers.iter().find(|peer| peer.node == node) else {
            may_be_up(controllers, node)?;
            bail!(NodeDown(format!(
                "node {} is down: `nupactl peers` shows those that are up",
                named(node, host.name(node).as_deref())
            )));
        };
        let controller = controllers.iter().find(|of| of.index == up.controller);
        Self::through(host, controller.context("the controller has gone")?, node)
    }

    /// The way to a node through a controller.
    pub(crate) fn through(host: &Host, controller: &Controller, node: u16) -> anyhow::Result<Self> {
        let (netdev, index) = interface(controller)?;
        Ok(Self {
            node,
            name: host.name(node),
            address: link_local(node),
            netdev,
            index,
        })
    }

    /// One to nowhere.
    #[cfg(test)]
    pub(crate) fn test(node: u16) -> Self {
        Self {
            node,
            name: None,
            address: link_local(node),
            netdev: "nupanet0".to_owned(),
            index: 1,
        }
    }

    /// The node, with its name if it has one.
    pub(crate) fn text(&self) -> String {
        named(self.node, self.name.as_deref())
    }

    /// An address there, of a port.
    pub(crate) fn port(&self, port: u16) -> SocketAddrV6 {
        SocketAddrV6::new(self.address, port, 0, self.index)
    }
}

/// The node that is meant.
fn number(host: &Host, text: &str) -> anyhow::Result<u16> {
    text.parse().or_else(|_| {
        host.node(text).with_context(|| {
            format!("`{text}` is neither the id of a node, nor a name in /etc/nupa/nodes.conf")
        })
    })
}

/// An error if a node that is not up never is, as seen from here.
fn may_be_up(controllers: &[Controller], node: u16) -> anyhow::Result<()> {
    let most = controllers.iter().map(|of| of.max_nodes).max();
    let most = most.unwrap_or(MAX_NODES);
    ensure!(
        node < most,
        "there is no node {node}: ids of this fabric are below {most}"
    );
    ensure!(
        controllers.iter().all(|of| of.node != node),
        "node {node} is this one, and what it sends to itself does not go through the fabric"
    );
    Ok(())
}

/// The interface of a controller, if it is up, and its index.
pub(crate) fn interface(controller: &Controller) -> anyhow::Result<(String, u32)> {
    let netdev = controller.netdevs.first().with_context(|| {
        format!(
            "{} has no network interface here: `modprobe nupa_net` makes one; or it is in another network namespace",
            controller.device
        )
    })?;
    let flags = read(netdev, "flags")?;
    let flags = u32::from_str_radix(flags.trim_start_matches("0x"), 16)
        .with_context(|| format!("{netdev} has flags that are no number: {flags}"))?;
    ensure!(
        flags & 1 != 0,
        "{netdev} is down: `ip link set {netdev} up` (as root) brings it up"
    );
    let index = read(netdev, "ifindex")?;
    let index = index.parse().context("not an index of an interface")?;
    Ok((netdev.clone(), index))
}

/// Reads a file of an interface.
fn read(netdev: &str, file: &str) -> anyhow::Result<String> {
    let path = Path::new("/sys/class/net").join(netdev).join(file);
    let text =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(text.trim().to_owned())
}

/// The link-local address that a node's interface gives itself: the EUI-64 of its MAC address (RFC 4291, appendix A).
pub(crate) fn link_local(node: u16) -> Ipv6Addr {
    let [a, b, c, d, e, f] = node_mac(node);
    let pair = |high, low| u16::from_be_bytes([high, low]);
    let last = [pair(a ^ 0x02, b), pair(c, 0xff), pair(0xfe, d), pair(e, f)];
    let [w, x, y, z] = last;
    Ipv6Addr::new(0xfe80, 0, 0, 0, w, x, y, z)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_follows_from_the_node() {
        assert_eq!(link_local(2).to_string(), "fe80::4e:55ff:fe50:2");
        assert_eq!(link_local(1023).to_string(), "fe80::4e:55ff:fe50:3ff");
    }
}
