// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A hostile host in a memory pool, between two others.
//!
//! It writes what it likes to where it may write: its slot, its side of its rings, their entries and payloads. The others
//! must not fault, and go on with one another. As long as it writes elsewhere, too, they must not fault.

mod decode;
mod forge;
mod scene;
mod steps;

use nupa_testing::Mode;
use scene::Scene;

/// Lets a host write to a pool what the bytes say, with entries of 256 bytes and with those of lines.
pub fn pool(bytes: &[u8]) {
    for mode in [Mode::Pooled, Mode::Lines] {
        let mut scene = Scene::new(mode);
        for step in decode::steps(bytes) {
            scene.perform(&step);
        }
        scene.end();
    }
}
