// SPDX-License-Identifier: GPL-2.0
//! Text in fixed-size C arrays.

use crate::bindings;
use core::fmt::{self, Write};

/// Bytes of a name in a string set.
const NAME_LEN: usize = bindings::ETH_GSTRING_LEN as usize;

/// Text that ends where the array does.
struct Text<'a> {
    rest: &'a mut [u8],
}

impl Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let fits = text.len().min(self.rest.len());
        let (now, later) = core::mem::take(&mut self.rest).split_at_mut(fits);
        for (to, from) in now.iter_mut().zip(text.bytes()) {
            *to = from;
        }
        self.rest = later;
        Ok(())
    }
}

/// Writes text to a C array: cut if need be, NUL-terminated, rest zeroed.
pub fn write_text(array: &mut [u8], text: fmt::Arguments<'_>) {
    array.fill(0);
    if let Some((_, room)) = array.split_last_mut() {
        // Cutting is what is wanted, so there is no error.
        let _ = Text { rest: room }.write_fmt(text);
    }
}

/// Names of one set, to be filled in order.
pub struct StringSet<'a>(core::slice::ChunksExactMut<'a, u8>);

impl<'a> StringSet<'a> {
    pub(super) fn new(array: &'a mut [u8]) -> Self {
        Self(array.chunks_exact_mut(NAME_LEN))
    }

    /// Appends a name; names beyond the number that was announced are dropped.
    pub fn push(&mut self, name: fmt::Arguments<'_>) {
        if let Some(entry) = self.0.next() {
            write_text(entry, name);
        }
    }
}

pub(super) const fn set_bytes(count: usize) -> usize {
    count.saturating_mul(NAME_LEN)
}
