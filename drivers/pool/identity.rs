// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Telling hosts apart.

/// Bytes of a host's name that count.
const MAX_NAME: usize = 63;

/// What a host says in its slot that it is: made from the UUID of the machine as firmware tells it, or without one from the host's name. Never 0.
pub fn identity(name: &[u8]) -> u64 {
    // FNV-1a.
    let hash = name
        .iter()
        .take(MAX_NAME)
        .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
    hash.max(1)
}
