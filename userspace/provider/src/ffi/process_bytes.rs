// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Memory of the process that the program has registered.

/// A range of the process's memory.
///
/// # Invariants
///
/// The program has said, by registering it, that the range is its own memory, readable, and writable where messages are received or peers may write
/// there; and it does not unmap what requests that are posted name, or what peers may write to. It may be written by anybody meanwhile, so no reference to it is made.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ProcessBytes {
    addr: usize,
    len: usize,
}

impl ProcessBytes {
    /// # Safety
    ///
    /// The range is as the invariants say, until it is not looked up any more.
    pub(crate) unsafe fn new(addr: usize, len: usize) -> Self {
        Self { addr, len }
    }

    /// `len` bytes at `offset`, if they are inside.
    #[inline]
    pub(crate) fn part(self, offset: usize, len: usize) -> Option<Self> {
        if offset.checked_add(len)? > self.len {
            return None;
        }
        let addr = self.addr.checked_add(offset)?;
        Some(Self { addr, len })
    }

    /// Bytes of it.
    #[inline]
    pub(crate) fn len(self) -> usize {
        self.len
    }

    /// Where it begins.
    #[inline]
    pub(super) fn pointer(self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.addr)
    }
}
