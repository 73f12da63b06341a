// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Little-endian fields, one after the other.

use zerocopy::{Immutable, IntoBytes};

/// Bytes of a structure that is made field by field.
#[derive(Debug, Default)]
pub(crate) struct Bytes(Vec<u8>);

impl Bytes {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn u8s<const N: usize>(self, values: [u8; N]) -> Self {
        self.raw(&values)
    }

    pub(crate) fn u16s<const N: usize>(mut self, values: [u16; N]) -> Self {
        values
            .iter()
            .for_each(|value| self.0.extend(value.to_le_bytes()));
        self
    }

    pub(crate) fn u32s<const N: usize>(mut self, values: [u32; N]) -> Self {
        values
            .iter()
            .for_each(|value| self.0.extend(value.to_le_bytes()));
        self
    }

    pub(crate) fn u64s<const N: usize>(mut self, values: [u64; N]) -> Self {
        values
            .iter()
            .for_each(|value| self.0.extend(value.to_le_bytes()));
        self
    }

    pub(crate) fn zeros(mut self, count: usize) -> Self {
        self.0.resize(self.0.len().saturating_add(count), 0);
        self
    }

    pub(crate) fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    /// A structure of the interface.
    pub(crate) fn whole(self, value: &(impl IntoBytes + Immutable)) -> Self {
        self.raw(value.as_bytes())
    }

    pub(crate) fn done(self) -> Vec<u8> {
        self.0
    }
}
