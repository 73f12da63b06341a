// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A hostile host in a memory pool, between two others.
//!
//! It writes what it likes to where it may write: its slot, its side of its rings, their entries and payloads. The others
//! must not fault, and go on with one another. As long as it writes elsewhere, too, they must not fault.

mod decode;
mod forge;
mod scene;
mod steps;

use scene::Scene;

/// Lets a host write to a pool what the bytes say.
pub fn pool(bytes: &[u8]) {
    let mut scene = Scene::new();
    for step in decode::steps(bytes) {
        scene.perform(&step);
    }
    scene.end();
}
