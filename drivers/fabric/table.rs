// SPDX-License-Identifier: GPL-2.0
//! The engine's table, made of a kernel vector.

use kernel::prelude::*;
use nupa_engine::hal::{NoMemory, Table};

/// A table of object slots.
pub(crate) struct Slots<T>(KVVec<Option<T>>);

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self(KVVec::new())
    }
}

impl<T> Table<T> for Slots<T> {
    fn slots(&self) -> &[Option<T>] {
        &self.0
    }

    fn slots_mut(&mut self) -> &mut [Option<T>] {
        &mut self.0
    }

    fn grow(&mut self, len: usize) -> Result<(), NoMemory> {
        let more = len.saturating_sub(self.0.len());
        self.0.reserve(more, GFP_KERNEL).map_err(|_| NoMemory)?;
        self.add_empty(more)
    }
}

impl<T> Slots<T> {
    /// Adds empty slots, for which there is room. By itself because of the space that one takes on the stack, below which there would be the allocation.
    #[inline(never)]
    fn add_empty(&mut self, count: usize) -> Result<(), NoMemory> {
        for _ in 0..count {
            self.0.push(None, GFP_KERNEL).map_err(|_| NoMemory)?;
        }
        Ok(())
    }
}
