// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the environment says of a run.

use std::env;
use std::str::FromStr;
use std::time::Duration;

/// Nodes, and the seconds in which nodes are killed.
const NODES: &str = "NUPA_MESH_NODES";
const SECONDS: &str = "NUPA_MESH_SECONDS";
/// `make test-long` sets it.
const LONG: &str = "NUPA_TEST_LONG";

pub(crate) struct Options {
    pub(crate) nodes: u16,
    pub(crate) time: Duration,
    /// What is sent, and who is killed after how long.
    pub(crate) seed: u64,
    /// The pool has inboxes, not rings for every two nodes.
    pub(crate) inboxes: bool,
    /// By which all limits are multiplied.
    pub(crate) patience: u32,
}

fn number<T: FromStr>(name: &str) -> Option<T> {
    let text = env::var(name).ok()?;
    let found = text.parse().ok();
    assert!(found.is_some(), "{name} is no number: {text}");
    found
}

impl Options {
    pub(crate) fn of_environment(inboxes: bool) -> Self {
        let is_long = env::var_os(LONG).is_some();
        let seconds = number(SECONDS).unwrap_or(if is_long { 60 } else { 3 });
        let nodes = number(NODES).unwrap_or(16);
        assert!((2..=64).contains(&nodes), "a pool has 2 to 64 nodes");
        Self {
            nodes,
            time: Duration::from_secs(seconds),
            seed: number("NUPA_SEED").unwrap_or(1),
            inboxes,
            patience: number("NUPA_PATIENCE").unwrap_or(1),
        }
    }
}
