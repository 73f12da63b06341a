// SPDX-License-Identifier: GPL-2.0
//! The engine's containers, made of kernel vectors.

use kernel::prelude::*;
use nupa_engine::storage::{NoMemory, Storage, Table};

/// Containers in memory of the kernel, contiguous for the CPU.
pub(super) struct KernelStorage;

/// A list of page addresses.
pub(super) struct Pages(KVVec<u64>);

impl AsRef<[u64]> for Pages {
    fn as_ref(&self) -> &[u64] {
        &self.0
    }
}

impl AsMut<[u64]> for Pages {
    fn as_mut(&mut self) -> &mut [u64] {
        &mut self.0
    }
}

/// A table of object slots.
pub(super) struct Slots<T>(KVVec<Option<T>>);

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

impl Storage for KernelStorage {
    type Pages = Pages;
    type Table<T> = Slots<T>;

    fn pages(len: usize) -> Result<Pages, NoMemory> {
        let zeroes = KVVec::from_elem(0, len, GFP_KERNEL_ACCOUNT);
        zeroes.map(Pages).map_err(|_| NoMemory)
    }
}
