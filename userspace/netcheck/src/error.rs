// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What can go wrong, told apart by exit status.

use std::fmt;
use std::io;
use std::process::ExitCode;

/// Why a run failed.
#[derive(Debug)]
pub(crate) enum Error {
    /// The command line makes no sense.
    Usage(String),
    /// The network or the peer failed while doing what the text says.
    Network(&'static str, io::Error),
    /// The peer broke the protocol, or its own side failed and it said why.
    Peer(String),
    /// Bytes arrived that were not sent.
    Corrupt(String),
}

impl Error {
    /// Exit status that scripts tell the kinds apart by.
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Error::Usage(_) => 1,
            Error::Network(..) | Error::Peer(_) => 2,
            Error::Corrupt(_) => 3,
        })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Usage(text) => f.write_str(text),
            Error::Network(doing, error) => write!(f, "{doing}: {error}"),
            Error::Peer(text) => write!(f, "peer: {text}"),
            Error::Corrupt(text) => write!(f, "corrupt data: {text}"),
        }
    }
}

impl std::error::Error for Error {}

/// Says what was being done when an input or output operation failed.
pub(crate) trait During<T> {
    /// Turns an I/O error into [`Error::Network`].
    fn during(self, doing: &'static str) -> Result<T, Error>;
}

impl<T> During<T> for io::Result<T> {
    fn during(self, doing: &'static str) -> Result<T, Error> {
        self.map_err(|error| Error::Network(doing, error))
    }
}
