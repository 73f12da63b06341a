// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Sizes of memory devices, as people write and read them.

/// Suffixes of what is typed, and units of what is shown, with the powers of 2 that they are.
const UNITS: [(char, &str, u32); 4] = [
    ('T', "TiB", 40),
    ('G', "GiB", 30),
    ('M', "MiB", 20),
    ('K', "KiB", 10),
];

/// What was typed is no size.
#[derive(Debug, thiserror::Error)]
#[error("a size is a number of bytes above 0, or of units of them by a suffix: K, M, G or T, such as 64M")]
pub(crate) struct BadSize;

/// Reads a size in bytes, with suffixes for powers of 1024.
pub(super) fn parse(text: &str) -> Result<u64, BadSize> {
    let suffixed = UNITS.iter().find_map(|(suffix, _, power)| {
        let digits = text.strip_suffix(*suffix)?;
        Some((digits, 1u64.checked_shl(*power)?))
    });
    let (digits, unit) = suffixed.unwrap_or((text, 1));
    let number: u64 = digits.parse().map_err(|_| BadSize)?;
    let size = number.checked_mul(unit).ok_or(BadSize)?;
    match size {
        0 => Err(BadSize),
        size => Ok(size),
    }
}

/// Shows a size by the largest unit that it is a multiple of.
pub(super) fn show(bytes: u64) -> String {
    let fits = |(_, _, power): &&(char, &str, u32)| bytes != 0 && bytes.trailing_zeros() >= *power;
    match UNITS.iter().find(fits) {
        Some((_, unit, power)) => format!("{} {unit}", bytes.checked_shr(*power).unwrap_or(0)),
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_suffixes() {
        let good = [
            ("1", 1),
            ("4096", 4096),
            ("3K", 3 << 10),
            ("64M", 64 << 20),
            ("1G", 1 << 30),
            ("2T", 2 << 40),
            ("18446744073709551615", u64::MAX),
        ];
        for (text, size) in good {
            assert_eq!(parse(text).ok(), Some(size), "{text}");
        }
        let bad = [
            "",
            "M",
            "0",
            "0G",
            "-1",
            "1.5G",
            "64m",
            "64MiB",
            "1KM",
            " 1",
            "1 K",
            "16777216T",
            "18446744073709551616",
            "1\u{212a}",
        ];
        for text in bad {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_shown_without_rounding() {
        let sizes = [0, 100, 4096, 5 << 20, (1 << 30) + 4096, 1 << 30, 3 << 40];
        assert_eq!(
            sizes.map(show),
            [
                "0 B",
                "100 B",
                "4 KiB",
                "5 MiB",
                "1048580 KiB",
                "1 GiB",
                "3 TiB"
            ]
        );
    }
}
