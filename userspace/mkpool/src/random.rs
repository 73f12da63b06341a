// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Random numbers.

use std::fs::File;
use std::io::Read;

/// A random number.
pub(crate) fn random() -> anyhow::Result<u64> {
    let mut bytes = [0; 8];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}
