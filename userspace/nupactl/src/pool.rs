// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Memory that hosts share: what it holds, and which driver has it.

mod host;
mod place;

use std::io::Write;
use std::time::Duration;

use anyhow::{bail, ensure, Context};
use clap::Subcommand;
use nupa_pool::{NodeSet, Refusal};
use schemars::JsonSchema;
use serde::Serialize;

use self::host::ChosenNode;
use self::place::{Place, DEVICE_DAX};
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
    /// Show what the memory of a device holds, ask, and make it hold no pool; nobody may use it. Needs root
    Discard(nupa_mkpool::Discard),
    /// Check the pool that the memory of a device holds, and write nothing: superblock, node slots, rings, directories. Other hosts may use
    /// it meanwhile; nupa_fabric must not have it here. Needs root
    Fsck {
        /// An ivshmem device's address on the PCI bus, or a DAX device, which has to be in devdax mode
        device: String,
    },
    /// Hand a device that holds a pool to nupa_fabric, which has to be loaded. Needs root
    Attach {
        /// An ivshmem device's address on the PCI bus, or a DAX device
        device: String,

        /// Wait so long for the device to come
        #[arg(long, value_name = "SECONDS", default_value_t = 0)]
        wait: u32,

        /// Be the node with this id, now and whenever this host is attached; an id that another host has is refused
        #[arg(long, value_name = "ID")]
        node: Option<u16>,

        /// With --node: also if another host, which is not attached, had that id last
        #[arg(long, requires = "node")]
        force: bool,
    },
    /// Take a device away from nupa_fabric: this host leaves the pool, and its interfaces go. A DAX device goes to device_dax. Needs root
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

/// What is wrong in the pool that the memory of a device holds.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Check {
    /// Name of the device on its bus.
    device: String,
    /// Empty if nothing is.
    problems: Vec<Problem>,
}

/// Something that is wrong in a pool.
#[derive(Debug, Serialize, JsonSchema)]
struct Problem {
    /// Where, from the pool's start.
    offset: u64,
    /// What lies there: superblock, slot, ring or directory, and whose.
    area: String,
    /// What is wrong with it.
    fault: String,
}

/// Does it. False if what is shown is no pool that can be used, or something is wrong in it.
pub(crate) fn run(pool: &Pool, json: bool, out: &mut impl Write) -> anyhow::Result<bool> {
    match pool {
        Pool::Show { device } => return show(device, json, out),
        Pool::Fsck { device } => return fsck(device, json, out),
        Pool::Format(format) => {
            nupa_mkpool::format(format).with_context(|| format.device.clone())?
        }
        Pool::Discard(discard) => {
            nupa_mkpool::discard(discard).with_context(|| discard.device.clone())?
        }
        Pool::Attach {
            device,
            wait,
            node,
            force,
        } => {
            let limit = Duration::from_secs(u64::from(*wait));
            let chosen = node
                .map(|node| host::ChosenNode::new(node, *force))
                .transpose()?;
            let text = attach(device, limit, chosen.as_ref()).with_context(|| device.clone())?;
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

fn fsck(device: &str, json: bool, out: &mut impl Write) -> anyhow::Result<bool> {
    let found = nupa_mkpool::check(device).with_context(|| device.to_owned())?;
    let (device, sound) = (device.to_owned(), found.is_empty());
    if json {
        let problem = |problem: &nupa_pool::Problem| Problem {
            offset: problem.offset,
            area: problem.area().to_string(),
            fault: problem.fault.to_string(),
        };
        let problems = found.iter().map(problem).collect();
        writeln!(out, "{}", view::json(&Check { device, problems })?)?;
        return Ok(sound);
    }
    for problem in &found {
        writeln!(out, "{device}: {problem}")?;
    }
    match found.len() {
        0 => writeln!(out, "{device}: nothing is wrong with the pool")?,
        count => writeln!(
            out,
            "{device}: problems: {count}; a pool that nobody uses can be formatted anew: nupactl pool format {device}"
        )?,
    }
    Ok(sound)
}

fn contents(device: &str, found: &nupa_mkpool::Contents) -> Contents {
    let pool = found.pool();
    let holds = match &pool {
        Ok(_) => Holds::Pool,
        Err(Refusal::Unformatted) if found.is_blank() => Holds::Nothing,
        Err(Refusal::Unformatted) => Holds::Unknown,
        Err(_) => Holds::UnusablePool,
    };
    let ids = |nodes: &NodeSet| nodes.iter().collect();
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

/// Hands a device with a pool to nupa_fabric; says what there is now. What it refuses is left as it was.
fn attach(
    device: &str,
    limit: Duration,
    chosen: Option<&ChosenNode>,
) -> anyhow::Result<&'static str> {
    let place = Place::await_device(device, limit)?;
    place.check()?;
    ensure!(
        place.is_loaded(),
        "the module nupa_fabric is not loaded; first: modprobe nupa_fabric"
    );
    let before = place.driver();
    match before.as_deref() {
        _ if place.is_ours() => {
            chosen.map_or(Ok(()), |chosen| chosen.check_attached(device))?;
            return Ok("it is attached already");
        }
        None | Some(DEVICE_DAX) => {}
        Some("kmem") => bail!(
            "it is system memory, perhaps of other hosts, too; if of none: daxctl reconfigure-device -m devdax -f {device}"
        ),
        Some(other) => bail!(
            "driver {other} has it; first: echo {device} >{}",
            place.unbind(other).display()
        ),
    }
    let programs = before.is_some();
    inspect(&place, device, programs, chosen)?;
    place.take()?;
    if place.give_to_us()? {
        return Ok("attached");
    }
    if programs {
        place.give_to_programs()?;
    }
    bail!("nupa_fabric does not take it, and `dmesg | grep nupa` says why")
}

/// An error if the memory of a device holds no pool that this host can use, or not as the node that it wants to be. Nothing else is changed.
/// `programs`: they can map it.
fn inspect(
    place: &Place,
    device: &str,
    programs: bool,
    chosen: Option<&ChosenNode>,
) -> anyhow::Result<()> {
    let assign = || chosen.map_or(Ok(()), |chosen| chosen.assign(device));
    if programs || !place.is_dax() {
        holds_pool(device, &nupa_mkpool::look(device)?)?;
        return assign();
    }
    // A DAX device without a driver can be read only while device_dax has it. Where that cannot be, nupa_fabric looks by itself.
    if !place.give_to_programs()? {
        ensure!(
            chosen.is_none(),
            "--node has to map the memory, which needs device_dax; first: modprobe device_dax"
        );
        return Ok(());
    }
    let found = nupa_mkpool::look(device).map_or(Ok(()), |found| holds_pool(device, &found));
    let found = found.and_then(|()| assign());
    place.take()?;
    found
}

/// An error, which says what is there and what to do, if memory holds no pool that this host can use.
fn holds_pool(device: &str, found: &nupa_mkpool::Contents) -> anyhow::Result<()> {
    let formats = format!("`nupactl pool format {device}` makes a pool of it");
    let (what, remedy) = match found.pool() {
        Ok(_) => return Ok(()),
        Err(Refusal::Unformatted) if found.is_blank() => (
            "the memory holds no pool, it reads as zeroes".to_owned(),
            formats,
        ),
        Err(Refusal::Unformatted) => (
            "the memory holds no pool, but something else".to_owned(),
            formats,
        ),
        Err(refusal @ Refusal::Corrupt) => (refusal.to_string(), formats),
        Err(refusal) => (
            refusal.to_string(),
            format!("if no host uses it, `nupactl pool discard {device}` gives it up"),
        ),
    };
    bail!("{what}. `nupactl pool show {device}` says what is there; {remedy}")
}

/// Takes a device away from nupa_fabric; says what there is now.
fn detach(device: &str) -> anyhow::Result<&'static str> {
    let place = Place::find(device)?;
    place.check()?;
    if !place.is_ours() {
        return match place.driver().as_deref() {
            None | Some(DEVICE_DAX) => Ok("it is not attached"),
            Some(other) => bail!("driver {other} has it, not nupa_fabric"),
        };
    }
    place.take()?;
    if !place.is_dax() {
        return Ok("detached");
    }
    // So that its memory can be looked at, and formatted.
    Ok(match place.give_to_programs()? {
        true => "detached; device_dax has it now",
        false => "detached; no driver has it now",
    })
}
