// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A pool's memory, mapped by a process, for the code of pools (`drivers/pool`).

mod memory;

pub use memory::{HostTime, PoolMemory};
