// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the emulator can be told.

use std::fmt;
use std::str::FromStr;

use crate::Fault;

/// Longest line of a command.
pub const MAX_LINE: usize = 256;

/// A command, decoded. Its text is the line that is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Tell state and counters of all nodes.
    Stats,
    /// Plug or unplug a node's cable.
    Link {
        /// Whose.
        node: u16,
        /// Plug it.
        up: bool,
    },
    /// Make a node's controller misbehave.
    Fault {
        /// Whose.
        node: u16,
        /// How.
        fault: Fault,
    },
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stats => f.write_str("stats"),
            Self::Link { node, up: true } => write!(f, "link {node} up"),
            Self::Link { node, up: false } => write!(f, "link {node} down"),
            Self::Fault { node, fault } => write!(f, "fault {node} {fault}"),
        }
    }
}

impl FromStr for Command {
    /// What is wrong, for the user.
    type Err = String;

    fn from_str(line: &str) -> Result<Self, Self::Err> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |word: &str| {
            word.parse()
                .map_err(|_| format!("{word:?} is not a node number"))
        };
        match words.as_slice() {
            ["stats"] => Ok(Self::Stats),
            ["link", node, "up"] => Ok(Self::Link {
                node: number(node)?,
                up: true,
            }),
            ["link", node, "down"] => Ok(Self::Link {
                node: number(node)?,
                up: false,
            }),
            ["fault", node, word] => {
                let fault = word.parse().map_err(|error| format!("{error}"))?;
                Ok(Self::Fault {
                    node: number(node)?,
                    fault,
                })
            }
            _ => Err("expected: stats | link N up|down | fault N WORD".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_words() {
        assert_eq!("stats".parse(), Ok(Command::Stats));
        assert_eq!(
            " link 2  down\r".parse(),
            Ok(Command::Link { node: 2, up: false })
        );
    }

    #[test]
    fn what_is_sent_is_what_is_read() {
        let link = |up| Command::Link { node: 64, up };
        let faults = Fault::ALL.map(|fault| Command::Fault { node: 1, fault });
        for command in [Command::Stats, link(true), link(false)]
            .into_iter()
            .chain(faults)
        {
            let line = command.to_string();
            assert!(line.len() < MAX_LINE);
            assert_eq!(line.parse(), Ok(command));
        }
    }

    #[test]
    fn everything_else_is_explained() {
        for bad in [
            "",
            "stats 1",
            "link 1",
            "link one up",
            "link 1 sideways",
            "fault 1 broken",
            "fault 70000 mute",
            "\u{0}\u{fffd}",
        ] {
            let error = bad.parse::<Command>().unwrap_err();
            assert!(!error.is_empty(), "{bad:?}");
        }
    }
}
