// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Faults that a controller can be told to show, so that drivers can be tested against broken hardware.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{json_schema, JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};

/// How a controller misbehaves until told otherwise. Its text is the word that names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(into = "&'static str", try_from = "String")]
pub enum Fault {
    /// Not at all.
    #[default]
    None,
    /// The version register shows a major version that no driver knows.
    Version,
    /// The magic register shows something else.
    Magic,
    /// Admin commands are taken and never completed.
    Mute,
    /// Admin commands are executed a fifth of a second late.
    Delay,
    /// Doorbells of work queues are ignored: what is posted is not looked at, until the fault ends.
    Stall,
    /// It stops at once, for it could not write an event, and stays so until it is reset. Afterwards it does not misbehave any more.
    Die,
    /// Enabling the function never makes it ready.
    Hang,
    /// Admin completions and entries of completion and event queues hold random bytes (with the right phase).
    Garbage,
    /// As `Garbage`, but only completion queues.
    Cqe,
    /// Every admin command completes with a status that is not defined.
    BadStatus,
    /// The receive filter cannot be set, as if there were no room for it.
    Filter,
    /// Every register reads as all ones, and nothing else happens: the function was pulled out.
    AllOnes,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::None,
        Self::Version,
        Self::Magic,
        Self::Mute,
        Self::Delay,
        Self::Stall,
        Self::Die,
        Self::Hang,
        Self::Garbage,
        Self::Cqe,
        Self::BadStatus,
        Self::Filter,
        Self::AllOnes,
    ];

    /// The word that names it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Version => "version",
            Self::Magic => "magic",
            Self::Mute => "mute",
            Self::Delay => "delay",
            Self::Stall => "stall",
            Self::Die => "die",
            Self::Hang => "hang",
            Self::Garbage => "garbage",
            Self::Cqe => "cqe",
            Self::BadStatus => "badstatus",
            Self::Filter => "filter",
            Self::AllOnes => "allones",
        }
    }

    /// The words of all, as a sentence lists them: with a comma between two, and `last` before the last one.
    pub fn words(last: &str) -> String {
        let words = Self::ALL.map(Self::word);
        match words.split_last() {
            Some((end, others)) => format!("{} {last} {end}", others.join(", ")),
            None => String::new(),
        }
    }
}

/// A word that names no fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown fault {0:?}, known are {known}", known = Fault::words("and"))]
pub struct UnknownFault(String);

impl FromStr for Fault {
    type Err = UnknownFault;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.into_iter().find(|fault| fault.word() == word);
        known.ok_or_else(|| UnknownFault(word.to_owned()))
    }
}

impl TryFrom<String> for Fault {
    type Error = UnknownFault;

    fn try_from(word: String) -> Result<Self, Self::Error> {
        word.parse()
    }
}

impl From<Fault> for &'static str {
    fn from(fault: Fault) -> Self {
        fault.word()
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl JsonSchema for Fault {
    fn schema_name() -> Cow<'static, str> {
        "Fault".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "enum": Self::ALL.map(Self::word) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_round_trip_and_others_are_refused() {
        for fault in Fault::ALL {
            assert_eq!(fault.word().parse(), Ok(fault));
            assert_eq!(fault.to_string(), fault.word());
        }
        let error = "broken".parse::<Fault>().unwrap_err().to_string();
        assert!(error.contains("\"broken\""));
        for fault in Fault::ALL {
            assert!(
                error.contains(fault.word()),
                "{fault} is not named: {error}"
            );
        }
    }
}
