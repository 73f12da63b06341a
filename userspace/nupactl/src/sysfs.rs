// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Which interfaces a controller has, from sysfs.

use std::fs;
use std::path::{Path, PathBuf};

/// Buses that controllers are on.
const BUSES: [&str; 2] = ["pci", "dax"];

/// Interfaces of a controller.
#[derive(Debug, Default)]
pub(crate) struct Interfaces {
    pub(crate) driver: Option<String>,
    pub(crate) netdevs: Vec<String>,
    pub(crate) rdma: Vec<String>,
}

/// Those of a device. What cannot be read is left out.
pub(crate) fn interfaces(device: &str) -> Interfaces {
    let Some(place) = place(device) else {
        return Interfaces::default();
    };
    let mut found = Interfaces {
        driver: fs::read_link(place.join("driver"))
            .ok()
            .and_then(|path| last(&path)),
        ..Interfaces::default()
    };
    for child in entries(&place)
        .into_iter()
        .filter(|child| child.starts_with("nupa_fabric."))
    {
        found
            .netdevs
            .extend(entries(&place.join(&child).join("net")));
        found
            .rdma
            .extend(entries(&place.join(&child).join("infiniband")));
    }
    // Those of a PCI device may be made its own.
    found.netdevs.extend(entries(&place.join("net")));
    found.rdma.extend(entries(&place.join("infiniband")));
    found.netdevs.sort();
    found.rdma.sort();
    found
}

/// Directory of a device on its bus.
pub(crate) fn place(device: &str) -> Option<PathBuf> {
    let places = BUSES.map(|bus| PathBuf::from(format!("/sys/bus/{bus}/devices/{device}")));
    places.into_iter().find(|place| place.exists())
}

/// Names in a directory; none if it cannot be read.
pub(crate) fn entries(place: &Path) -> Vec<String> {
    let entries = fs::read_dir(place).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}

/// The last part of a path.
fn last(path: &Path) -> Option<String> {
    Some(path.file_name()?.to_str()?.to_owned())
}
