// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Names of memory devices, by the kernel's rule.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use nupa_proto::netlink::memory::MAX_NAME;

/// Name of a memory device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Name(String);

/// What was given is no name.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("a name has 1 to {MAX_NAME} letters (A to Z, a to z), digits, `.`, `_` and `-`, and begins with a letter or a digit")]
pub(crate) struct BadName;

impl FromStr for Name {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        let begins = text.starts_with(|c: char| c.is_ascii_alphanumeric());
        let fits = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        match begins && text.len() <= MAX_NAME && text.chars().all(fits) {
            true => Ok(Self(text.to_owned())),
            false => Err(BadName),
        }
    }
}

impl Display for Name {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Name {
    /// Its text.
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_the_kernel_takes() {
        let longest = "a".repeat(MAX_NAME);
        for name in ["a", "0", "Kv-Cache_1.old", &longest] {
            assert_eq!(name.parse(), Ok(Name(name.to_owned())));
        }
        let longer = "a".repeat(MAX_NAME + 1);
        for name in [
            "", ".", "..", "-a", "_a", "a/b", "a b", "a\n", "\u{e4}", "a!b", &longer,
        ] {
            assert_eq!(name.parse::<Name>(), Err(BadName), "{name}");
        }
    }
}
