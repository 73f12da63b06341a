// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Protection domains.

/// A protection domain.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pd {
    /// Regions and queue pairs in it.
    pub(crate) users: u32,
}
