// SPDX-License-Identifier: GPL-2.0
//! The engine's containers, made of kernel vectors.

use crate::table::Slots;
use kernel::prelude::*;
use nupa_engine::hal::{NoMemory, Storage};

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

impl Storage for KernelStorage {
    type Pages = Pages;
    type Table<T> = Slots<T>;

    fn pages(len: usize) -> Result<Pages, NoMemory> {
        let zeroes = KVVec::from_elem(0, len, GFP_KERNEL_ACCOUNT);
        zeroes.map(Pages).map_err(|_| NoMemory)
    }
}
