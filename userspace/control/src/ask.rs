// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Asking an emulator.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::{Answer, Command};

/// How long an emulator may take that has all its nodes busy.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Longest answer that is read: that for 64 nodes is a twentieth of it.
const MAX_ANSWER: u64 = 1 << 20;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Nobody listens there.
    #[error("no emulator listens there")]
    NoEmulator,
    /// The socket is another user's.
    #[error("the emulator is another user's")]
    NoRights,
    /// It is there and does not answer, or ends while it does.
    #[error("the emulator does not answer: {0}")]
    Io(io::Error),
    /// It answers something else.
    #[error("this is no answer of an emulator: {0}")]
    NotUnderstood(#[from] serde_json::Error),
    /// It says why it does not do it.
    #[error("{0}")]
    Refused(String),
}

impl From<io::Error> for AskError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Self::NoEmulator,
            io::ErrorKind::PermissionDenied => Self::NoRights,
            _ => Self::Io(error),
        }
    }
}

/// Tells an emulator a command, and returns its answer, which is one of success.
///
/// # Errors
/// Another program that listens on the socket may answer anything; what is no answer is an error.
pub fn ask(socket: &Path, command: Command) -> Result<Answer, AskError> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    stream.write_all(format!("{command}\n").as_bytes())?;
    let mut text = Vec::new();
    stream.take(MAX_ANSWER).read_to_end(&mut text)?;
    let answer: Answer = serde_json::from_slice(&text)?;
    if answer.ok {
        return Ok(answer);
    }
    let why = answer.error.unwrap_or_else(|| "it does not say why".into());
    Err(AskError::Refused(why))
}
