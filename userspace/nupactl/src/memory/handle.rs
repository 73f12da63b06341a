// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Handles of memory that nodes share: who has one may use the memory.

use std::fmt::{self, Display, Formatter};
use std::io::{self, BufRead};
use std::str::FromStr;

use anyhow::Context;
use nupa_proto::pool::sharing::DmHandle;
use zerocopy::{FromZeros, IntoBytes};

/// Bytes of a handle.
const LEN: usize = size_of::<DmHandle>();
/// Digits of a handle.
const DIGITS: usize = 64;
const _: () = assert!(DIGITS == 2 * LEN);
/// Most bytes that are read in search of a handle.
const MOST: u64 = 1024;

/// A handle. People see it as 64 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle(DmHandle);

/// What was given is no handle. It does not say what it was: it may be all of a handle but for a digit.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("a handle is {DIGITS} hexadecimal digits, and this is not: `nupactl memory handle` prints it, on a node that has the memory")]
pub(crate) struct BadHandle;

/// Where a handle is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// On the command line.
    Given(Handle),
    /// In the first line of the standard input.
    Input,
}

impl Handle {
    /// Of so many bytes; others are left out, and those that are missing are 0.
    fn of(bytes: impl Iterator<Item = u8>) -> Self {
        let mut handle = DmHandle::new_zeroed();
        for (to, from) in handle.as_mut_bytes().iter_mut().zip(bytes) {
            *to = from;
        }
        Self(handle)
    }

    /// Its bytes, as the kernel takes them.
    pub(super) fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// Id of the node whose memory it is.
    pub(super) fn node(&self) -> u16 {
        self.0.node.get()
    }

    /// Identity of the fabric that it is of.
    pub(super) fn fabric(&self) -> u64 {
        self.0.fabric_id.get()
    }
}

impl From<[u8; LEN]> for Handle {
    fn from(bytes: [u8; LEN]) -> Self {
        Self::of(bytes.into_iter())
    }
}

impl FromStr for Handle {
    type Err = BadHandle;

    fn from_str(text: &str) -> Result<Self, BadHandle> {
        if text.len() != DIGITS {
            return Err(BadHandle);
        }
        let value = |digit: &u8| char::from(*digit).to_digit(16);
        let byte = |pair: &[u8]| {
            let digits = pair.iter().try_fold(0u32, |sum, digit| {
                sum.checked_mul(16)?.checked_add(value(digit)?)
            });
            digits.and_then(|sum| u8::try_from(sum).ok())
        };
        let bytes: Option<Vec<u8>> = text.as_bytes().chunks(2).map(byte).collect();
        Ok(Self::of(bytes.ok_or(BadHandle)?.into_iter()))
    }
}

impl Display for Handle {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.bytes()
            .iter()
            .try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Source {
    type Err = BadHandle;

    fn from_str(text: &str) -> Result<Self, BadHandle> {
        match text {
            "-" => Ok(Self::Input),
            text => text.parse().map(Self::Given),
        }
    }
}

impl Source {
    /// The handle.
    pub(super) fn handle(&self) -> anyhow::Result<Handle> {
        match self {
            Self::Given(handle) => Ok(*handle),
            Self::Input => read(io::stdin().lock()).context("the standard input"),
        }
    }
}

/// Reads the handle that is in the first line of something.
fn read(from: impl BufRead) -> anyhow::Result<Handle> {
    let mut line = Vec::new();
    from.take(MOST).read_until(b'\n', &mut line)?;
    let line = String::from_utf8(line).map_err(|_| BadHandle)?;
    Ok(line.trim().parse()?)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_shown_and_read_as_hexadecimal_digits() {
        let bytes: [u8; LEN] = std::array::from_fn(|at| u8::try_from(at * 8 + 1).unwrap());
        let handle = Handle::from(bytes);
        let text = handle.to_string();
        assert_eq!(text.get(..10), Some("0109111921"));
        assert_eq!(text.len(), DIGITS);
        assert_eq!(text.parse(), Ok(handle));
        assert_eq!(text.to_uppercase().parse(), Ok(handle));
        assert_eq!(handle.bytes(), bytes);
        assert_eq!(handle.node(), u16::from_le_bytes([28 * 8 + 1, 29 * 8 + 1]));
    }

    #[test]
    fn other_text_is_no_handle() {
        let digits = "0".repeat(DIGITS);
        let bad = [
            String::new(),
            "0".repeat(DIGITS - 2),
            "0".repeat(DIGITS - 1),
            format!("{digits}0"),
            format!("{digits}00"),
            format!("{}g", "0".repeat(DIGITS - 1)),
            format!("+{}", "0".repeat(DIGITS - 1)),
            format!("0x{}", "0".repeat(DIGITS - 2)),
            format!("{} ", "0".repeat(DIGITS - 1)),
            format!("{}\u{e4}", "0".repeat(DIGITS - 2)),
        ];
        for text in bad {
            assert_eq!(text.parse::<Handle>(), Err(BadHandle), "{text}");
        }
        assert!(!BadHandle.to_string().contains('0'));
    }

    #[test]
    fn a_handle_may_come_by_the_standard_input() {
        assert_eq!("-".parse(), Ok(Source::Input));
        let text = "12".repeat(LEN);
        let handle = Handle::from([0x12; LEN]);
        assert_eq!(text.parse(), Ok(Source::Given(handle)));
        for input in [
            text.clone(),
            format!("{text}\r\n"),
            format!(" {text}\nmore"),
        ] {
            assert_eq!(read(input.as_bytes()).unwrap(), handle, "{input}");
        }
        for input in [&b""[..], b"\n", b"12\n", b"\xff", &[b'1'; 4096]] {
            assert!(read(input).unwrap_err().is::<BadHandle>());
        }
    }
}
