// SPDX-License-Identifier: GPL-2.0 OR MIT
//! All that the queue engine does, whatever lies between its nodes: nothing, plain rings, or a pool of any kind.
//!
//! All tests are compiled once, which takes most of the time. A process runs them in the mode that `NUPA_MODE` names. Without that it does so in a pool,
//! and runs itself once more in each of the other modes.

#![allow(clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "as above"
)]

#[path = "links/hostile_peer.rs"]
mod hostile_peer;
mod links;
#[path = "links/poison.rs"]
mod poison;
mod suite;

use std::{
    env,
    io::{stdout, Write},
    process::Command,
    sync::LazyLock,
};

use nupa_testing::Mode;

/// What lies between the nodes of all tests.
static MODE: LazyLock<Mode> = LazyLock::new(|| {
    let Ok(name) = env::var(VARIABLE) else {
        return Mode::Pooled;
    };
    let other = OTHERS.iter().find(|other| other.0 == name);
    other.expect("a mode that there is").1
});

const VARIABLE: &str = "NUPA_MODE";

/// The other modes, by their names, with arguments that leave out what is not about them.
const OTHERS: [(&str, Mode, &[&str]); 5] = [
    ("local", Mode::Local, &["suite::"]),
    ("linked", Mode::Linked, &["--skip", "poison::"]),
    ("lines", Mode::Lines, &[]),
    ("stale", Mode::Stale, &["--skip", "poison::"]),
    ("stale-lines", Mode::StaleLines, &["--skip", "poison::"]),
];

/// Between nodes that share no memory there is a test of a hostile host as well.
fn is_about_hostile_hosts() -> bool {
    *MODE == Mode::Linked
}

#[test]
fn all_of_it_in_the_other_modes() {
    if env::var_os(VARIABLE).is_some() {
        return;
    }
    let failed = OTHERS.iter().filter(|(name, _, arguments)| {
        let this = env::current_exe().expect("has a name");
        let mut command = Command::new(this);
        command.env(VARIABLE, name).args(*arguments);
        let done = command.args(["--skip", "all_of_it_in"]).output();
        let done = done.expect("runs once more");
        // What tests print is shown if they fail; this is to be seen, and counted, in any case.
        let mut out = stdout().lock();
        let shown = writeln!(out, "{VARIABLE}={name}").and_then(|()| out.write_all(&done.stdout));
        shown.expect("somebody reads it");
        eprint!("{}", String::from_utf8_lossy(&done.stderr));
        !done.status.success()
    });
    let failed: Vec<_> = failed.map(|(name, ..)| name).collect();
    assert!(failed.is_empty(), "with {VARIABLE}={failed:?}");
}
