// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Faults that a controller can be told to show, so that drivers can be tested against broken hardware.

use std::fmt;
use std::str::FromStr;

use nupa_proto::admin::{AdminOpcode, Completion};
use nupa_proto::regs;
use nupa_proto::status::AdminStatus;

use crate::random;

/// How a controller misbehaves until told otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
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

/// A status that no specification defines.
const BAD_STATUS: u16 = 0xdead;

impl Fault {
    /// Values of `REG_MAGIC` and `REG_VERSION`.
    pub(crate) fn identity(self) -> (u32, u32) {
        match self {
            Self::Magic => (!regs::MAGIC, regs::VERSION),
            Self::Version => (regs::MAGIC, regs::VERSION.wrapping_add(1 << 16)),
            _ => (regs::MAGIC, regs::VERSION),
        }
    }

    /// Spoils an admin completion, if the fault is of that kind.
    pub(crate) fn spoil(self, opcode: u16, completion: &mut Completion) {
        match self {
            Self::Filter if opcode == AdminOpcode::SetRxFilter.to_wire() => {
                completion.status.set(AdminStatus::NoResources.to_wire());
            }
            Self::BadStatus => completion.status.set(BAD_STATUS),
            Self::Garbage => {
                let mut word = [0; 2];
                random::fill(&mut word);
                completion.command_id.set(u16::from_le_bytes(word));
                random::fill(&mut word);
                completion.status.set(u16::from_le_bytes(word));
                random::fill(&mut completion.body);
            }
            _ => {}
        }
    }
}

/// Words that name the faults, in the order of the enumeration.
const NAMES: [(&str, Fault); 10] = [
    ("none", Fault::None),
    ("version", Fault::Version),
    ("magic", Fault::Magic),
    ("mute", Fault::Mute),
    ("hang", Fault::Hang),
    ("garbage", Fault::Garbage),
    ("cqe", Fault::Cqe),
    ("badstatus", Fault::BadStatus),
    ("filter", Fault::Filter),
    ("allones", Fault::AllOnes),
];

/// A word that names no fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown fault {0:?}, known are none, version, magic, mute, hang, garbage, cqe, badstatus, filter and allones")]
pub struct UnknownFault(String);

impl FromStr for Fault {
    type Err = UnknownFault;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        let known = NAMES.iter().find(|(name, _)| *name == word);
        known
            .map(|&(_, fault)| fault)
            .ok_or_else(|| UnknownFault(word.to_owned()))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = NAMES.iter().find(|(_, fault)| fault == self);
        f.write_str(name.map_or("none", |&(name, _)| name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_round_trip_and_others_are_refused() {
        for (name, fault) in NAMES {
            assert_eq!(name.parse(), Ok(fault));
            assert_eq!(fault.to_string(), name);
        }
        let error = "broken".parse::<Fault>().unwrap_err();
        assert!(error.to_string().contains("\"broken\""));
    }
}
