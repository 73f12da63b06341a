// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Memory and queues that a process, or a driver, shares with the controller.

use std::sync::MutexGuard;

use rustix::io::Errno;

use crate::draw::Draw;
use crate::ffi::Pages;
use crate::objects::{Objects, Queue};

/// Memory with rings and data, doorbells, and objects that were made.
pub(crate) trait Shared {
    /// Memory that rings and regions are in.
    fn area(&self) -> &Pages;

    /// The objects. Nobody changes them meanwhile.
    fn objects(&self) -> MutexGuard<'_, Objects>;

    /// Where memory may be said to be: mostly where it is.
    fn any_address(&self, draw: &mut Draw) -> u64;

    /// An address of a node: of this one, or of another.
    fn any_gid(&self, draw: &mut Draw) -> [u8; 16];

    /// Memory of others: an address and its key.
    fn any_remote(&self, _: &mut Draw) -> Option<(u64, u32)> {
        None
    }

    /// Stores to a queue's trapped page, if there is one, and may read there.
    fn trap(&self, queue: &Queue, offset: usize, value: u32);

    /// Tells the controller of a queue in another way than by its trapped page.
    fn kick(&self, draw: &mut Draw, queue: &Queue) -> Result<(), Errno>;
}
