// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Memory devices: files that programs map, of memory of a pool that nodes share.
//!
//! Who knows a handle may use the memory. So it is shown only where it was asked for.

mod handle;
mod name;
mod refusal;
mod size;

use std::io::Write;

use anyhow::{anyhow, Context};
use clap::{Args, Subcommand};
use schemars::JsonSchema;
use serde::Serialize;

use self::handle::{Handle, Source};
use self::name::Name;
use self::refusal::Attempt;
use crate::events::named;
use crate::facts::{choose, Controller, Host};
use crate::netlink::RawMemory;
use crate::view;

/// Where the devices are.
const DIRECTORY: &str = "/dev/nupa";

/// What to do with memory devices.
#[derive(Debug, Subcommand)]
pub(crate) enum Memory {
    /// Show the memory devices of this host; only --json has their handles. Needs root
    List,
    /// Allocate memory of this node's share of a pool, all zeroes, make a device of it, and show how other nodes attach it. Needs root
    Create {
        /// Its name: the device is /dev/nupa/NAME
        name: Name,

        /// Bytes, or units of them by a suffix: K, M, G or T, powers of 1024; rounded up to whole pages of 4 KiB
        #[arg(value_parser = size::parse)]
        size: u64,

        #[command(flatten)]
        on: On,
    },
    /// Make a device of memory that another node has created. Needs root
    Attach {
        /// Its name here: the device is /dev/nupa/NAME
        name: Name,

        /// The handle, 64 hexadecimal digits, or - to read it from the standard input, where other users do not see it as they may see
        /// arguments
        handle: Source,

        #[command(flatten)]
        on: On,
    },
    /// Remove a device; the memory stays with other nodes that have attached it. Needs root
    Remove {
        /// Its name
        name: Name,

        /// Also if it is open: programs get SIGBUS when they touch what they have mapped; regions that they registered keep the memory until they
        /// are gone
        #[arg(long)]
        force: bool,
    },
    /// Print the handle of a device, by which other nodes attach the memory: who has it may use the memory. Needs root
    Handle {
        /// Its name
        name: Name,
    },
}

/// Which controller's memory.
#[derive(Debug, Args)]
pub(crate) struct On {
    /// The controller: its device, as `nupactl status` shows it, or its index. The only one, if it is not said
    #[arg(long)]
    controller: Option<String>,
}

/// A memory device of this host.
#[derive(Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct Device {
    /// Index of the controller that it is of.
    controller: u32,
    /// Its name.
    name: String,
    /// The file that programs map.
    path: String,
    /// Its bytes.
    size: u64,
    /// Id of the node whose memory it was when the device was made.
    node: u16,
    /// Name of that node in /etc/nupa/nodes.conf.
    node_name: Option<String>,
    /// Whether the memory was attached by a handle; else it was allocated for the device.
    attached: bool,
    /// How many files of it are open; each region of it counts as one.
    opens: u32,
    /// Handle of the memory, 64 hexadecimal digits: who has it may use the memory.
    handle: String,
}

/// Does it.
pub(crate) fn run(
    host: &Host,
    controllers: &[Controller],
    memory: &Memory,
    json: bool,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let (device, text) = match memory {
        Memory::List => {
            let found = devices(host)?;
            let text = match json {
                true => view::json(&found)?,
                false => table(&found),
            };
            writeln!(out, "{text}")?;
            return Ok(());
        }
        Memory::Create { name, size, on } => {
            let of = choose(controllers, on.controller.as_deref())?;
            host.create_memory(of, name.as_str(), *size)
                .map_err(|error| Attempt::Create(name, *size).refused(error, &of.device))?;
            let device = find_made(host, name)?;
            let text = device.created_text();
            (device, text)
        }
        Memory::Attach { name, handle, on } => {
            let of = choose(controllers, on.controller.as_deref())?;
            let handle = handle.handle()?;
            host.attach_memory(of, name.as_str(), handle.bytes())
                .map_err(|error| Attempt::Attach(name, &handle).refused(error, &of.device))?;
            let device = find_made(host, name)?;
            let text = device.attached_text();
            (device, text)
        }
        Memory::Remove { name, force } => {
            let device = find(host, name)?;
            host.remove_memory(device.controller, name.as_str(), *force)
                .map_err(|error| Attempt::Remove(name).refused(error, ""))?;
            let text = format!("{} is removed", device.path);
            (device, text)
        }
        Memory::Handle { name } => {
            let device = find(host, name)?;
            let text = device.handle.clone();
            (device, text)
        }
    };
    let text = match json {
        true => view::json(&device)?,
        false => text,
    };
    writeln!(out, "{text}")?;
    Ok(())
}

/// All memory devices of this host.
fn devices(host: &Host) -> anyhow::Result<Vec<Device>> {
    let refused = |error| Attempt::List.refused(error, "");
    let found = host.memory().map_err(refused)?;
    let device = |raw: RawMemory| {
        let node_name = host.name(raw.node);
        Device::new(raw, node_name)
    };
    Ok(found.into_iter().map(device).collect())
}

/// The memory devices of this host without their handles, for people.
pub(crate) fn without_handles(host: &Host) -> anyhow::Result<String> {
    Ok(table(&devices(host)?))
}

/// The device of a name.
fn find(host: &Host, name: &Name) -> anyhow::Result<Device> {
    let mut found = devices(host)?.into_iter();
    found
        .find(|device| device.name == name.as_str())
        .ok_or_else(|| {
            anyhow!(
            "this host has no memory device {name}; `nupactl memory list` shows those that it has"
        )
        })
}

/// The device of a name, which was made a moment ago.
fn find_made(host: &Host, name: &Name) -> anyhow::Result<Device> {
    find(host, name)
        .with_context(|| format!("{name} was made, and cannot be shown; it may have been removed, or its controller reset, since"))
}

/// Devices as a table, without their handles.
fn table(devices: &[Device]) -> String {
    if devices.is_empty() {
        return "there are no memory devices; `nupactl memory create` makes one".to_owned();
    }
    let mut table = view::table(&["NAME", "SIZE", "NODE", "ORIGIN", "OPEN", "DEVICE"]);
    for device in devices {
        table.add_row([
            device.name.clone(),
            size::show(device.size),
            device.of_node(),
            device.origin().to_owned(),
            device.opens.to_string(),
            device.path.clone(),
        ]);
    }
    view::trimmed(&table)
}

impl Device {
    fn new(raw: RawMemory, node_name: Option<String>) -> Self {
        Self {
            controller: raw.controller,
            path: format!("{DIRECTORY}/{}", raw.name),
            name: raw.name,
            size: raw.size,
            node: raw.node,
            node_name,
            attached: raw.attached,
            opens: raw.opens,
            handle: Handle::from(raw.handle).to_string(),
        }
    }

    /// How it came to be.
    fn origin(&self) -> &'static str {
        match self.attached {
            true => "attached",
            false => "created",
        }
    }

    /// The node whose memory it was.
    fn of_node(&self) -> String {
        named(self.node, self.node_name.as_deref())
    }

    /// What to say of one that was created just now.
    fn created_text(&self) -> String {
        format!(
            "{}: {}; other nodes attach it with: nupactl memory attach {} {}",
            self.path,
            size::show(self.size),
            self.name,
            self.handle
        )
    }

    /// What to say of one that was attached just now.
    fn attached_text(&self) -> String {
        format!(
            "{}: {} of node {}",
            self.path,
            size::show(self.size),
            self.of_node()
        )
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Verb};

    fn parsed(arguments: &[&str]) -> Result<Cli, clap::Error> {
        Cli::try_parse_from([&["nupactl"], arguments].concat())
    }

    fn memory(arguments: &[&str]) -> Option<Memory> {
        match parsed(&[&["memory"], arguments].concat()).ok()?.verb {
            Verb::Memory(memory) => Some(memory),
            _ => None,
        }
    }

    fn device(attached: bool) -> Device {
        let raw = RawMemory {
            controller: 1,
            name: "kv".to_owned(),
            size: 64 << 20,
            handle: [0xab; 32],
            node: 3,
            attached,
            opens: 2,
        };
        Device::new(raw, attached.then(|| "gamma".to_owned()))
    }

    #[test]
    fn arguments_are_checked_before_the_kernel_is_asked() {
        let text = "ab".repeat(32);
        let created = memory(&["create", "kv", "64M", "--controller", "dax0.0"]);
        let Some(Memory::Create { name, size, on }) = created else {
            panic!("{created:?}");
        };
        assert_eq!((name.as_str(), size), ("kv", 64 << 20));
        assert_eq!(on.controller.as_deref(), Some("dax0.0"));
        assert!(matches!(memory(&["list"]), Some(Memory::List)));
        let given = Source::Given(Handle::from([0xab; 32]));
        let attached = memory(&["attach", "kv", &text]);
        assert!(matches!(attached, Some(Memory::Attach { handle, .. }) if handle == given));
        let attached = memory(&["attach", "kv", "-"]);
        assert!(matches!(
            attached,
            Some(Memory::Attach {
                handle: Source::Input,
                ..
            })
        ));
        let removed = memory(&["remove", "kv", "--force"]);
        assert!(matches!(removed, Some(Memory::Remove { force: true, .. })));
        let bad: [&[&str]; 9] = [
            &[],
            &["create", "kv"],
            &["create", "kv", "0"],
            &["create", "../kv", "1M"],
            &["attach", "kv"],
            &["attach", "kv", "ab"],
            &["remove"],
            &["remove", "kv", "--controller", "0"],
            &["handle", "k v"],
        ];
        for arguments in bad {
            assert!(memory(arguments).is_none(), "{arguments:?}");
        }
        let said = parsed(&["memory", "create", "k/v", "1M"]).unwrap_err();
        assert!(said.to_string().contains("begins with a letter"), "{said}");
    }

    #[test]
    fn a_bare_handle_is_no_json() {
        let cli = parsed(&["--json", "memory", "handle", "kv"]).unwrap();
        assert!(cli.conflict().is_some());
        let cli = parsed(&["--json", "memory", "list"]).unwrap();
        assert!(cli.conflict().is_none());
    }

    #[test]
    fn the_table_has_no_handles() {
        let text = table(&[device(false), device(true)]);
        let rows: Vec<Vec<_>> = text
            .lines()
            .map(|line| {
                line.split("  ")
                    .map(str::trim)
                    .filter(|cell| !cell.is_empty())
                    .collect()
            })
            .collect();
        assert_eq!(
            rows,
            [
                ["NAME", "SIZE", "NODE", "ORIGIN", "OPEN", "DEVICE"],
                ["kv", "64 MiB", "3", "created", "2", "/dev/nupa/kv"],
                ["kv", "64 MiB", "3 (gamma)", "attached", "2", "/dev/nupa/kv"],
            ]
        );
        assert!(!text.contains("abab"));
        assert!(table(&[]).contains("no memory devices"));
    }

    #[test]
    fn what_was_made_is_said_with_the_next_step() {
        assert_eq!(
            device(false).created_text(),
            format!(
                "/dev/nupa/kv: 64 MiB; other nodes attach it with: nupactl memory attach kv {}",
                "ab".repeat(32)
            )
        );
        assert_eq!(
            device(true).attached_text(),
            "/dev/nupa/kv: 64 MiB of node 3 (gamma)"
        );
    }

    #[test]
    fn programs_get_the_handle() {
        let value = serde_json::to_value(device(true)).unwrap();
        let expected = serde_json::json!({
            "controller": 1,
            "name": "kv",
            "path": "/dev/nupa/kv",
            "size": 64 << 20,
            "node": 3,
            "node_name": "gamma",
            "attached": true,
            "opens": 2,
            "handle": "ab".repeat(32),
        });
        assert_eq!(value, expected);
    }
}
