// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The RDMA device that belongs to an address.

use std::fs;
use std::net::{Ipv6Addr, SocketAddrV6};
use std::path::{Path, PathBuf};

use super::super::lack::Lack;
use crate::facts::Host;
use crate::reach;
use crate::sysfs::entries;

/// A device, and the entry of its GID table that an address is in.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) device: String,
    pub(super) index: u8,
}

/// The one of the controller whose interface has this address.
pub(super) fn find(address: SocketAddrV6) -> Result<Found, Lack> {
    let controllers = Host::open().and_then(|host| host.controllers());
    for controller in controllers.map_err(|_| Lack::Device)? {
        let interface = reach::interface(&controller);
        let Some((netdev, _)) = interface
            .ok()
            .filter(|(_, index)| *index == address.scope_id())
        else {
            continue;
        };
        let device = controller.rdma.into_iter().next().ok_or(Lack::Device)?;
        let port = PathBuf::from(format!("/sys/class/infiniband/{device}/ports/1"));
        let index = gid_index(&port, &netdev, *address.ip()).ok_or(Lack::Gid)?;
        return Ok(Found { device, index });
    }
    Err(Lack::Device)
}

/// The entry of a port's GID table that has an address of an interface, for RoCE v2.
fn gid_index(port: &Path, netdev: &str, address: Ipv6Addr) -> Option<u8> {
    let says = |file: String, text: &str| {
        // Entries that are not used cannot be read.
        let found = fs::read_to_string(port.join(file));
        found.is_ok_and(|found| found.trim() == text)
    };
    let fits = |index: &u8| {
        let gid = fs::read_to_string(port.join(format!("gids/{index}")));
        gid.is_ok_and(|gid| gid.trim().parse() == Ok(address))
            && says(format!("gid_attrs/ndevs/{index}"), netdev)
            && says(format!("gid_attrs/types/{index}"), "RoCE v2")
    };
    let names = entries(&port.join("gids")).into_iter();
    names.filter_map(|name| name.parse().ok()).find(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_entry_has_address_interface_and_type() {
        let port = std::env::temp_dir().join(format!("nupactl-gids-{}", std::process::id()));
        let address: Ipv6Addr = "fe80::4e:55ff:fe50:2".parse().unwrap();
        let gid = "fe80:0000:0000:0000:004e:55ff:fe50:0002";
        for (index, gid, netdev, kind) in [
            (0, gid, "nupanet0", "IB/RoCE v1"),
            (1, gid, "nupanet1", "RoCE v2"),
            (
                2,
                "0000:0000:0000:0000:0000:ffff:0a00:0002",
                "nupanet0",
                "RoCE v2",
            ),
            (13, gid, "nupanet0", "RoCE v2"),
        ] {
            for (directory, text) in [
                ("gids", gid),
                ("gid_attrs/ndevs", netdev),
                ("gid_attrs/types", kind),
            ] {
                let directory = port.join(directory);
                fs::create_dir_all(&directory).unwrap();
                fs::write(directory.join(index.to_string()), format!("{text}\n")).unwrap();
            }
        }
        let found =
            ["nupanet0", "nupanet1", "nupanet2"].map(|netdev| gid_index(&port, netdev, address));
        fs::remove_dir_all(&port).unwrap();
        assert_eq!(found, [Some(13), Some(1), None]);
    }
}
