// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The file that is the shared memory.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{bail, ensure};

/// Smallest size: a page, below which no BAR is useful.
const SMALLEST: u64 = 4096;

/// Reads a size in bytes, with the suffixes K, M and G for powers of 1024.
pub(crate) fn parse_size(text: &str) -> anyhow::Result<u64> {
    let (digits, shift) = match text.char_indices().last() {
        Some((end, 'K')) => (text.get(..end), 10),
        Some((end, 'M')) => (text.get(..end), 20),
        Some((end, 'G')) => (text.get(..end), 30),
        _ => (Some(text), 0),
    };
    let number: u64 = digits.unwrap_or_default().parse()?;
    let size = number.checked_mul(1 << shift).unwrap_or(0);
    ensure!(
        size >= SMALLEST && size.is_power_of_two(),
        "expected a power of two of at least {SMALLEST} bytes"
    );
    Ok(size)
}

/// Opens the file, and gives it its size if it is new. What it holds is kept.
pub(crate) fn open(path: &Path, size: u64) -> anyhow::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)?;
    match file.metadata()?.len() {
        0 => file.set_len(size)?,
        length if length == size => {}
        length => bail!("it has {length} bytes and not {size}"),
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::parse_size;

    #[test]
    fn sizes_have_suffixes_and_are_powers_of_two() {
        for (text, size) in [("4096", 4096), ("64M", 64 << 20), ("1G", 1 << 30)] {
            assert_eq!(parse_size(text).ok(), Some(size), "{text}");
        }
        for bad in ["", "M", "0", "1K", "3M", "-1", "1T", "99999999999G"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }
}
