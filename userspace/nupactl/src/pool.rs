// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Memory that hosts share: what it holds, and which driver has it.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{bail, ensure, Context};
use clap::Subcommand;
use nupa_pool::{NodeSet, Refusal};
use schemars::JsonSchema;
use serde::Serialize;

use crate::view;

/// What to do with memory that hosts share.
#[derive(Debug, Subcommand)]
pub(crate) enum Pool {
    /// Show what the memory of a device holds; nupa_fabric must not have it. Needs root
    Show {
        /// An ivshmem device's address on the PCI bus (0000:00:04.0), or a DAX device (dax0.0), which has to be in devdax mode
        device: String,
    },
    /// Show what the memory of a device holds, ask, and make a pool of it. Needs root
    Format(nupa_mkpool::Format),
    /// Hand a device with a pool to nupa_fabric, which has to be loaded. Needs root
    Attach {
        /// An ivshmem device's address on the PCI bus, or a DAX device
        device: String,
    },
    /// Take a device away from nupa_fabric: this host leaves the pool, and its interfaces go. Needs root
    Detach {
        /// An ivshmem device's address on the PCI bus, or a DAX device
        device: String,
    },
}

/// What the memory of a device holds.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Contents {
    /// Name of the device on its bus.
    device: String,
    /// Bytes of its memory.
    bytes: u64,
    /// What is there.
    holds: Holds,
    /// Identity of the fabric, 16 hexadecimal digits; of a pool.
    fabric: Option<String>,
    /// Node slots; of a pool.
    slots: Option<u16>,
    /// Ids of the nodes that use it.
    live: Vec<u16>,
    /// Ids of the nodes that have died, and have not left their slots.
    dead: Vec<u16>,
    /// Why it is no pool that this program can use.
    reason: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum Holds {
    /// A pool.
    Pool,
    /// Zeroes, as far as was looked.
    Nothing,
    /// Something else than a pool.
    Unknown,
    /// A pool that cannot be used.
    UnusablePool,
}

/// Does it. False if what is shown is no pool that can be used.
pub(crate) fn run(pool: &Pool, json: bool, out: &mut impl Write) -> anyhow::Result<bool> {
    match pool {
        Pool::Show { device } => return show(device, json, out),
        Pool::Format(format) => {
            nupa_mkpool::format(format).with_context(|| format.device.clone())?
        }
        Pool::Attach { device } => {
            let text = attach(device).with_context(|| device.clone())?;
            writeln!(out, "{device}: {text}")?;
        }
        Pool::Detach { device } => {
            let text = detach(device).with_context(|| device.clone())?;
            writeln!(out, "{device}: {text}")?;
        }
    }
    Ok(true)
}

fn show(device: &str, json: bool, out: &mut impl Write) -> anyhow::Result<bool> {
    let found = nupa_mkpool::look(device).with_context(|| device.to_owned())?;
    if json {
        writeln!(out, "{}", view::json(&contents(device, &found))?)?;
    } else {
        writeln!(out, "{device}: {}", found.to_string().trim_end())?;
    }
    Ok(found.pool().is_ok())
}

fn contents(device: &str, found: &nupa_mkpool::Contents) -> Contents {
    let pool = found.pool();
    let holds = match &pool {
        Ok(_) => Holds::Pool,
        Err(Refusal::Unformatted) if found.is_blank() => Holds::Nothing,
        Err(Refusal::Unformatted) => Holds::Unknown,
        Err(_) => Holds::UnusablePool,
    };
    let ids = |nodes: NodeSet| nodes.iter().collect();
    let (live, dead) = found.nodes();
    let usable = pool.as_ref().ok();
    Contents {
        device: device.to_owned(),
        bytes: u64::try_from(found.size()).unwrap_or(u64::MAX),
        holds,
        fabric: usable.map(|pool| format!("{:016x}", pool.fabric_id())),
        slots: usable.map(|pool| pool.geometry().max_nodes()),
        live: ids(live),
        dead: ids(dead),
        reason: pool.err().map(|refusal| refusal.to_string()),
    }
}

/// A device, and nupa_fabric's driver for it.
struct Place {
    /// Its directory in sysfs.
    directory: PathBuf,
    /// Directory of the driver.
    ours: PathBuf,
    /// Whether the driver has to be told of it, because it is of the type that another one takes.
    told: bool,
}

impl Place {
    fn find(device: &str) -> anyhow::Result<Self> {
        ensure!(
            !device.contains('/') && !device.is_empty(),
            "not the name of a device"
        );
        let told = device.starts_with("dax");
        let (bus, driver) = if told {
            ("dax", "nupa_fabric")
        } else {
            ("pci", "nupa_ivshmem")
        };
        let bus = Path::new("/sys/bus").join(bus);
        let directory = bus.join("devices").join(device);
        ensure!(
            directory.exists(),
            "there is no such device: `lspci -Dnd 1af4:1110` lists ivshmem devices, `daxctl list` DAX devices"
        );
        Ok(Self {
            directory,
            ours: bus.join("drivers").join(driver),
            told,
        })
    }

    /// Name of the driver that has the device.
    fn driver(&self) -> Option<String> {
        let link = fs::read_link(self.directory.join("driver")).ok()?;
        Some(link.file_name()?.to_string_lossy().into_owned())
    }

    /// An error if it is something else than memory that hosts share.
    fn check(&self) -> anyhow::Result<()> {
        ensure!(
            self.told || self.driver().as_deref() != Some("nupa_fabric"),
            "it is a fabric controller, which nupa_fabric has without being told to"
        );
        Ok(())
    }

    fn is_ours(&self) -> bool {
        self.driver()
            .is_some_and(|driver| self.ours.ends_with(driver))
    }
}

/// Writes a device's name to a file of a driver.
fn tell(file: &Path, device: &str) -> anyhow::Result<()> {
    fs::write(file, device)
        .with_context(|| format!("cannot write to {}, which takes root", file.display()))
}

/// Hands a device to nupa_fabric; says what there is now.
fn attach(device: &str) -> anyhow::Result<&'static str> {
    let place = Place::find(device)?;
    place.check()?;
    ensure!(
        place.ours.exists(),
        "the module nupa_fabric is not loaded; first: modprobe nupa_fabric"
    );
    match place.driver().as_deref() {
        _ if place.is_ours() => return Ok("it is attached already"),
        Some("kmem") => bail!(
            "it is system memory, perhaps of other hosts, too; if of none: daxctl reconfigure-device -m devdax -f {device}"
        ),
        Some("device_dax") => {
            // Also forgotten, or the driver would take it back at the next occasion.
            let driver = place.ours.with_file_name("device_dax");
            tell(&driver.join("remove_id"), device)?;
            tell(&driver.join("unbind"), device)?;
        }
        Some(other) => {
            let unbind = place.ours.with_file_name(other).join("unbind");
            bail!("driver {other} has it; first: echo {device} >{}", unbind.display())
        }
        None => {}
    }
    // A device that the driver does not take is an error of `bind`, and none of `new_id`.
    let told = tell(
        &place.ours.join(if place.told { "new_id" } else { "bind" }),
        device,
    );
    if place.is_ours() {
        return Ok("attached");
    }
    match told {
        Err(error) if is_denied(&error) => Err(error),
        _ => bail!(
            "nupa_fabric does not take it, and `dmesg | grep nupa` says why; \
             if the memory holds no pool: nupactl pool format {device}"
        ),
    }
}

fn is_denied(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<std::io::Error>();
    error.is_some_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
}

/// Takes a device away from nupa_fabric; says what there is now.
fn detach(device: &str) -> anyhow::Result<&'static str> {
    let place = Place::find(device)?;
    place.check()?;
    if !place.is_ours() {
        return match place.driver() {
            None => Ok("it is not attached"),
            Some(other) => bail!("driver {other} has it, not nupa_fabric"),
        };
    }
    if place.told {
        tell(&place.ours.join("remove_id"), device)?;
    }
    tell(&place.ours.join("unbind"), device)?;
    Ok("detached")
}
