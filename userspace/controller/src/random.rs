// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Random bytes that no guest can guess.

use rustix::io::Errno;
use rustix::rand::{getrandom, GetRandomFlags};

/// Fills `buf` from the kernel's generator. Up to 256 bytes it never comes short (getrandom(2)).
pub(crate) fn fill(buf: &mut [u8]) {
    let mut done = 0;
    while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match getrandom(rest, GetRandomFlags::empty()) {
            Ok(n) => done = done.saturating_add(n),
            Err(Errno::INTR) => {}
            // Linux since 3.17 has the system call, and it knows no other error for valid arguments.
            Err(error) => {
                tracing::error!(%error, "no random numbers");
                return;
            }
        }
    }
}

/// A random number.
pub(crate) fn number() -> u32 {
    let mut bytes = [0; 4];
    fill(&mut bytes);
    u32::from_ne_bytes(bytes)
}
