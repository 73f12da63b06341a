// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What goes into the archive.

use std::io::Write;
use std::path::Path;
use std::process::Command;

use anyhow::{ensure, Context};
use serde::Serialize;

use super::bundle::{read, Bundle};
use super::log;
use crate::facts::{Controller, Host};
use crate::memory;
use crate::resources::Resources;
use crate::sysfs::{entries, place};
use crate::versions::Versions;
use crate::view;

/// Files of the system as a whole.
const SYSTEM: [&str; 3] = [
    "/etc/nupa/nodes.conf",
    "/etc/modprobe.d/nupa.conf",
    "/etc/os-release",
];
/// Modules, ours and those that ours need.
const MODULES: [&str; 5] = [
    "nupa_fabric",
    "nupa_net",
    "nupa_rdma",
    "ib_core",
    "ib_uverbs",
];
const OF_MODULE: [&str; 6] = [
    "version",
    "srcversion",
    "initstate",
    "refcnt",
    "taint",
    "coresize",
];
/// Attributes of a device on a bus that say what it is: those of PCI, and those of DAX. None is an address.
const OF_DEVICE: [&str; 20] = [
    "uevent",
    "modalias",
    "vendor",
    "device",
    "subsystem_vendor",
    "subsystem_device",
    "class",
    "revision",
    "enable",
    "irq",
    "numa_node",
    "power_state",
    "current_link_speed",
    "current_link_width",
    "max_link_speed",
    "max_link_width",
    "size",
    "align",
    "target_node",
    "local_cpulist",
];
const OF_NETDEV: [&str; 9] = [
    "address",
    "mtu",
    "operstate",
    "carrier",
    "carrier_changes",
    "speed",
    "flags",
    "tx_queue_len",
    "addr_assign_type",
];
const OF_RDMA: [&str; 7] = [
    "fw_ver",
    "node_guid",
    "node_type",
    "ports/1/state",
    "ports/1/phys_state",
    "ports/1/rate",
    "ports/1/link_layer",
];

/// Adds everything.
pub(super) fn all<W: Write>(bundle: &mut Bundle<W>) -> anyhow::Result<()> {
    let versions = Versions::read().and_then(json);
    bundle.add_if("nupactl/version.json", versions)?;
    let controllers = of_driver(bundle)?;
    for controller in &controllers {
        of_controller(bundle, controller)?;
    }
    let debug = Path::new("/sys/kernel/debug");
    for name in entries(debug)
        .iter()
        .filter(|name| name.starts_with("nupa_fabric-"))
    {
        bundle.add_file(
            &format!("debugfs/{name}/peers"),
            &debug.join(name).join("peers"),
        )?;
    }
    if !controllers.is_empty() && entries(debug).is_empty() {
        bundle.miss("debugfs", "it is for root, and is not mounted everywhere");
    }
    for module in MODULES {
        of_module(bundle, module)?;
    }
    bundle.add_if("kernel.log", log::lines())?;
    bundle.add_if("interrupts", interrupts())?;
    for path in SYSTEM {
        bundle.add_file(path.trim_start_matches('/'), Path::new(path))?;
    }
    Ok(())
}

/// What the verbs print that ask the driver. Returns the controllers.
fn of_driver<W: Write>(bundle: &mut Bundle<W>) -> anyhow::Result<Vec<Controller>> {
    let found = Host::open().and_then(|host| Ok((host.controllers()?, host)));
    let (controllers, host) = match found {
        Ok(found) => found,
        Err(error) => {
            bundle.miss("nupactl", format!("{error:#}"));
            return Ok(Vec::new());
        }
    };
    bundle.add_if("nupactl/status.json", json(&controllers))?;
    bundle.add_if("nupactl/peers.json", host.peers().and_then(json))?;
    let counters = host.counters(&controllers).and_then(json);
    bundle.add_if("nupactl/stats.json", counters)?;
    // Without handles: who knows one may use the memory.
    bundle.add_if("nupactl/memory.txt", memory::without_handles(&host))?;
    match Resources::open(&host, &controllers) {
        Ok(resources) => {
            bundle.add_if("nupactl/qp.json", resources.queue_pairs().and_then(json))?;
            bundle.add_if("nupactl/mr.json", resources.regions().and_then(json))?;
            bundle.add_if("nupactl/queues.json", resources.queues().and_then(json))?;
        }
        Err(error) => bundle.miss(
            "nupactl/qp.json, mr.json, queues.json",
            format!("{error:#}"),
        ),
    }
    Ok(controllers)
}

/// A controller's device and its interfaces.
fn of_controller<W: Write>(bundle: &mut Bundle<W>, of: &Controller) -> anyhow::Result<()> {
    if let Some(place) = place(&of.device) {
        attributes(
            bundle,
            &format!("devices/{}", of.device),
            &place,
            &OF_DEVICE,
        )?;
    }
    for netdev in &of.netdevs {
        let (name, place) = (
            format!("net/{netdev}"),
            Path::new("/sys/class/net").join(netdev),
        );
        attributes(bundle, &name, &place, &OF_NETDEV)?;
        directory(
            bundle,
            &format!("{name}/statistics"),
            &place.join("statistics"),
        )?;
        bundle.add_if(
            &format!("{name}/ethtool-S"),
            command("ethtool", &["-S", netdev]),
        )?;
    }
    for device in &of.rdma {
        let (name, place) = (
            format!("infiniband/{device}"),
            Path::new("/sys/class/infiniband").join(device),
        );
        attributes(bundle, &name, &place, &OF_RDMA)?;
        for counters in ["counters", "hw_counters"] {
            directory(
                bundle,
                &format!("{name}/{counters}"),
                &place.join("ports/1").join(counters),
            )?;
        }
    }
    Ok(())
}

fn of_module<W: Write>(bundle: &mut Bundle<W>, module: &str) -> anyhow::Result<()> {
    let (name, place) = (
        format!("modules/{module}"),
        Path::new("/sys/module").join(module),
    );
    if !place.exists() {
        bundle.miss(&name, "it is not loaded");
        return Ok(());
    }
    attributes(bundle, &name, &place, &OF_MODULE)?;
    let parameters = place.join("parameters");
    match parameters.exists() {
        true => directory(bundle, &format!("{name}/parameters"), &parameters),
        false => {
            bundle.miss(
                &format!("{name}/parameters"),
                "the module shows none in sysfs",
            );
            Ok(())
        }
    }
}

/// Adds attributes of a directory as one file, a line each. Those that it has not are left out.
fn attributes<W: Write>(
    bundle: &mut Bundle<W>,
    name: &str,
    place: &Path,
    wanted: &[&str],
) -> anyhow::Result<()> {
    let mut text = String::new();
    for attribute in wanted {
        let path = place.join(attribute);
        match read(&path) {
            Ok(value) => text.push_str(&format!(
                "{attribute}: {}\n",
                value.trim_end().replace('\n', "; ")
            )),
            Err(_) if !path.exists() => {}
            Err(error) => bundle.miss(&format!("{name}: {attribute}"), error),
        }
    }
    bundle.add(&format!("{name}/attributes"), &text)
}

/// Adds all files of a directory as one file, a line each.
fn directory<W: Write>(bundle: &mut Bundle<W>, name: &str, place: &Path) -> anyhow::Result<()> {
    let mut files = entries(place);
    files.sort();
    let mut text = String::new();
    for file in files {
        match read(&place.join(&file)) {
            Ok(value) => text.push_str(&format!("{file}: {}\n", value.trim_end())),
            Err(error) => bundle.miss(&format!("{name}: {file}"), error),
        }
    }
    bundle.add(name, &text)
}

/// What a command prints.
fn command(program: &str, arguments: &[&str]) -> anyhow::Result<String> {
    let done = Command::new(program)
        .args(arguments)
        .output()
        .with_context(|| format!("cannot run {program}; is it installed?"))?;
    let error = String::from_utf8_lossy(&done.stderr);
    ensure!(done.status.success(), "{program} failed: {}", error.trim());
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

/// The heading of /proc/interrupts, and our lines.
fn interrupts() -> anyhow::Result<String> {
    let text = read(Path::new("/proc/interrupts"))?;
    let ours = text.lines().skip(1).filter(|line| line.contains("nupa"));
    let lines: Vec<_> = text.lines().take(1).chain(ours).collect();
    Ok(lines.join("\n") + "\n")
}

fn json(value: impl Serialize) -> anyhow::Result<String> {
    Ok(view::json(&value)? + "\n")
}
