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
        for _ in 0..more {
            self.0.push(None, GFP_KERNEL).map_err(|_| NoMemory)?;
        }
        Ok(())
    }
}
