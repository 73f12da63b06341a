// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The engine's containers for hosts in user space: vectors.

extern crate std;

use super::{NoMemory, Storage, Table};
use std::vec::Vec;

/// Containers in the process's heap.
#[derive(Debug)]
pub struct VecStorage;

/// A table of objects in a vector.
#[derive(Debug)]
pub struct VecTable<T>(Vec<Option<T>>);

impl<T> Default for VecTable<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Table<T> for VecTable<T> {
    fn slots(&self) -> &[Option<T>] {
        &self.0
    }

    fn slots_mut(&mut self) -> &mut [Option<T>] {
        &mut self.0
    }

    fn grow(&mut self, len: usize) -> Result<(), NoMemory> {
        let more = len.saturating_sub(self.0.len());
        self.0.try_reserve(more).map_err(|_| NoMemory)?;
        self.0
            .resize_with(self.0.len().saturating_add(more), || None);
        Ok(())
    }
}

impl Storage for VecStorage {
    type Pages = Vec<u64>;
    type Table<T> = VecTable<T>;

    fn pages(len: usize) -> Result<Vec<u64>, NoMemory> {
        let mut pages = Vec::new();
        pages.try_reserve_exact(len).map_err(|_| NoMemory)?;
        pages.resize(len, 0);
        Ok(pages)
    }
}
