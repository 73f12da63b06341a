// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Where the engine keeps its objects: containers that the host lends it.
//!
//! The engine itself never allocates. User space implements these traits over `Vec`, the kernel over `KVec`; growing
//! happens in admin commands only, never on the data path.

/// No memory is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoMemory;

/// Kinds of containers.
pub trait Storage {
    /// A list of page addresses, of fixed length.
    type Pages: AsRef<[u64]> + AsMut<[u64]>;

    /// A table of objects.
    type Table<T>: Table<T>;

    /// Makes a list of `len` zeroes. May allocate, may sleep.
    fn pages(len: usize) -> Result<Self::Pages, NoMemory>;
}

/// A table of object slots that can grow. A new one is empty.
pub trait Table<T>: Default {
    /// All slots.
    fn slots(&self) -> &[Option<T>];

    /// All slots.
    fn slots_mut(&mut self) -> &mut [Option<T>];

    /// Makes the table at least `len` slots long; new slots are `None`. May allocate, may sleep.
    fn grow(&mut self, len: usize) -> Result<(), NoMemory>;
}
