// SPDX-License-Identifier: GPL-2.0
//! The function below the driver, whatever it is: what differs between kinds of functions is here.

mod pci;

pub(crate) use self::pci::Driver;

use crate::doorbell::Window;
use kernel::prelude::*;

/// A function that follows `Documentation/controller.md`: control registers (BAR 0), doorbell pages and device memory
/// (BAR 2), the right to use memory. Once the driver is unbound nothing here has an effect any more.
///
/// It is called through a table: next to a kick or a register access that is nothing, and rings and doorbells in memory
/// are reached without it.
pub(crate) trait Function: Send + Sync {
    /// Reads a 32-bit control register, `REG_*` of [`nupa_proto::regs`]; all ones if the function is gone. May sleep.
    /// `ENODEV` once the driver is unbound, also of the others.
    fn read32(&self, register: usize) -> Result<u32>;

    /// Reads a 64-bit control register. May sleep.
    fn read64(&self, register: usize) -> Result<u64>;

    /// Writes a 32-bit control register. May sleep.
    fn write32(&self, register: usize, value: u32) -> Result;

    /// Writes a 64-bit control register. May sleep.
    fn write64(&self, register: usize, value: u64) -> Result;

    /// Lets the function read and write memory and raise interrupts. May sleep.
    fn allow_dma(&self);

    /// Ends that, however broken the function is. May sleep.
    fn revoke_dma(&self);

    /// Doorbell page pairs that there is room for.
    fn doorbell_room(&self) -> u32;

    /// Loads a word of shared doorbell pages that are not in memory of ours; `offset` is one in BAR 2. Any context.
    fn load32(&self, offset: usize) -> u32;

    /// Stores a word there. Any context.
    fn store32(&self, offset: usize, value: u32);

    /// Stores 8 bytes there. Any context.
    fn store64(&self, offset: usize, value: u64);

    /// Tells the function that the queue of this doorbell page and slot has work up to the free-running `index`; `push`
    /// if the last descriptor of it is in the push slot. Any context.
    fn kick(&self, page: u32, slot: u16, index: u32, push: bool);

    /// Where the CPU has `len` bytes at `offset` of BAR 2; `None` if it has not. Any context.
    fn window(&self, offset: usize, len: u64) -> Option<Window>;
}
