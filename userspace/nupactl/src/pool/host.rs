// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Which node of a pool this host wants to be.

use std::fs;
use std::io;

use anyhow::{ensure, Context};

use crate::facts::Host;

/// The machine's UUID, as the kernel has it from firmware; not there if firmware has none.
const UUID: &str = "/sys/class/dmi/id/product_uuid";
const HOST_NAME: &str = "/proc/sys/kernel/hostname";

/// A node id that this host wants to have.
pub(super) struct ChosenNode {
    node: u16,
    identity: u64,
    /// Also if another host had it last.
    force: bool,
}

impl ChosenNode {
    pub(super) fn new(node: u16, force: bool) -> anyhow::Result<Self> {
        let name = match fs::read_to_string(UUID) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::read_to_string(HOST_NAME).context(HOST_NAME)
            }
            uuid => uuid.context(UUID),
        };
        let identity = nupa_pool::identity(name?.trim_end().as_bytes());
        Ok(Self {
            node,
            identity,
            force,
        })
    }

    /// Gives this host the id in the pool that the memory of a device holds.
    pub(super) fn assign(&self, device: &str) -> anyhow::Result<()> {
        let done = nupa_mkpool::assign(device, self.node, self.identity, self.force);
        done.with_context(|| format!("this host cannot be node {}", self.node))
    }

    /// An error unless a device that is attached has the id.
    pub(super) fn check_attached(&self, device: &str) -> anyhow::Result<()> {
        let controllers = Host::open()?.controllers()?;
        let found = controllers.iter().find(|of| of.device == device);
        let node = found.context("it is attached, but does not run")?.node;
        ensure!(
            node == self.node,
            "it is attached as node {node}; for another id, first: nupactl pool detach {device}"
        );
        Ok(())
    }
}
