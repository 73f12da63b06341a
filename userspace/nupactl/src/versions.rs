// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Versions of all parts of NUPA on this host, and whether they fit together.

mod library;
mod mismatch;
mod module;

use std::fs;
use std::io::Write;
use std::path::Path;

use anyhow::Context;
use comfy_table::Table;
use schemars::JsonSchema;
use serde::Serialize;

use crate::facts::Host;
use crate::netlink::NoDriver;
use crate::view;

pub(crate) use library::Verbs;
pub(crate) use module::Module;

/// Versions of all parts.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Versions {
    /// Version of this program.
    nupactl: String,
    /// Release of the kernel that runs.
    kernel: String,
    /// The kernel modules of NUPA.
    modules: Vec<Module>,
    /// The controllers that nupa_fabric tells of.
    controllers: Vec<Firmware>,
    /// ABI between nupa_rdma and the provider that the RDMA devices here have.
    abi: Option<u32>,
    /// Libraries for verbs programs.
    verbs: Verbs,
    /// What does not fit together, a sentence each.
    mismatches: Vec<String>,
}

/// The firmware of a controller.
#[derive(Debug, Serialize, JsonSchema)]
struct Firmware {
    /// Name of its device on its bus.
    device: String,
    /// Version of the firmware.
    firmware: String,
}

/// Prints them. Whether they fit together.
pub(crate) fn show(json: bool, out: &mut impl Write) -> anyhow::Result<bool> {
    let versions = Versions::read()?;
    let text = match json {
        true => view::json(&versions)?,
        false => versions.text(),
    };
    writeln!(out, "{text}")?;
    Ok(versions.mismatches.is_empty())
}

impl Versions {
    /// Those of this host. A driver that is not loaded is no error.
    pub(crate) fn read() -> anyhow::Result<Self> {
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")
            .context("cannot find out which kernel runs")?
            .trim()
            .to_owned();
        let mut mismatches = Vec::new();
        let controllers = match Host::open().and_then(|host| host.controllers()) {
            Ok(controllers) => controllers,
            Err(error) => {
                if !error.is::<NoDriver>() {
                    mismatches.push(format!("{error:#}"));
                }
                Vec::new()
            }
        };
        let firmware = controllers.iter().map(|controller| Firmware {
            device: controller.device.clone(),
            firmware: controller.firmware.clone(),
        });
        let rdma = controllers.iter().flat_map(|controller| &controller.rdma);
        let mut versions = Self {
            nupactl: env!("CARGO_PKG_VERSION").to_owned(),
            modules: module::all(Path::new("/"), &kernel),
            kernel,
            controllers: firmware.collect(),
            abi: rdma.into_iter().find_map(|device| library::abi(device)),
            verbs: Verbs::read(Path::new("/")),
            mismatches,
        };
        versions.mismatches.extend(mismatch::all(&versions));
        Ok(versions)
    }

    /// As a table, and what does not fit below it.
    fn text(&self) -> String {
        let mut table = view::table(&["PART", "VERSION", "DETAILS"]);
        let mut add = |part: &str, version: &str, details: &str| {
            table.add_row([part, version, details]);
        };
        add("nupactl", &self.nupactl, "");
        add("kernel", &self.kernel, "");
        for module in &self.modules {
            let abi = self.abi.filter(|_| module.name == "nupa_rdma");
            let details = [abi.map(|abi| format!("ABI {abi}")), module.details()];
            let details: Vec<_> = details.into_iter().flatten().collect();
            add(&module.name, module.version_text(), &details.join(", "));
        }
        for controller in &self.controllers {
            add(&controller.device, &controller.firmware, "firmware");
        }
        self.verbs.rows(&mut table);
        self.with_mismatches(&table)
    }

    fn with_mismatches(&self, table: &Table) -> String {
        let mut text = view::trimmed(table);
        for mismatch in &self.mismatches {
            text.push('\n');
            text.push_str(mismatch);
        }
        text
    }
}
