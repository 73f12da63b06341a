// SPDX-License-Identifier: GPL-2.0 OR MIT

//! uverbs commands with a driver's part at their end.

/// A command or an answer of the core, and the driver's part behind it. Driver structures are made of bytes for the
/// compiler (alignment 1), so nothing lies in between.
#[repr(C)]
pub(super) struct WithTail<C, D> {
    pub(super) core: C,
    pub(super) own: D,
}

impl<C, D> WithTail<C, D> {
    /// Bytes of both, as rdma-core is told.
    pub(super) const SIZE: usize = size_of::<C>() + size_of::<D>();

    pub(super) const fn new(core: C, own: D) -> Self {
        const { assert!(align_of::<D>() == 1) };
        Self { core, own }
    }
}
