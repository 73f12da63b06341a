// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The control socket: one command line per connection, one line of JSON as the answer.

use std::io::{self, Read, Write};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use anyhow::{bail, Context};
use nupa_controller::{Fabric, Fault};
use serde_json::{json, Value};

use crate::poller::{Poller, Source};

/// Longest command line.
const MAX_LINE: usize = 256;
/// Clients served at a time.
const MAX_CLIENTS: usize = 16;

/// A command, decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Command {
    /// Tell state and counters of all nodes.
    Stats,
    /// Plug or unplug a node's cable.
    Link { node: u16, up: bool },
    /// Make a node's controller misbehave.
    Fault { node: u16, fault: Fault },
}

impl Command {
    /// Decodes a line; the error is for the user.
    fn parse(line: &str) -> Result<Self, String> {
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

    /// Executes the command.
    fn run(self, fabric: &mut Fabric) -> Result<Value, String> {
        let done = match self {
            Self::Stats => return Ok(json!({ "ok": true, "nodes": stats(fabric) })),
            // Node 0 exists for the fabric but has no socket.
            Self::Link { node: 0, .. } | Self::Fault { node: 0, .. } => {
                return Err("nodes are numbered from 1".to_owned());
            }
            Self::Link { node, up } => fabric.set_link(node, up),
            Self::Fault { node, fault } => fabric.set_fault(node, fault),
        };
        done.map_err(|error| error.to_string())?;
        Ok(json!({ "ok": true }))
    }
}

/// State and counters of all nodes that have a socket.
pub(crate) fn stats(fabric: &Fabric) -> Value {
    let nodes = fabric.stats();
    json!(nodes
        .iter()
        .filter(|stats| stats.node != 0)
        .collect::<Vec<_>>())
}

/// The control socket and its clients.
#[derive(Debug)]
pub(crate) struct Control {
    listener: UnixListener,
    path: PathBuf,
    clients: [Option<Client>; MAX_CLIENTS],
}

#[derive(Debug)]
struct Client {
    stream: UnixStream,
    line: Vec<u8>,
}

impl Control {
    /// Listens on `control.sock` in `dir`. To be called when the node sockets are ours, so
    /// that a socket of this name can only be a leftover.
    pub(crate) fn open(dir: &Path, poller: &Poller) -> anyhow::Result<Self> {
        let path = dir.join("control.sock");
        match path.symlink_metadata() {
            Ok(meta) if !meta.file_type().is_socket() => {
                bail!("{} exists and is not a socket", path.display());
            }
            Ok(_) => std::fs::remove_file(&path)?,
            Err(_) => {}
        }
        let listen = || {
            let listener = UnixListener::bind(&path)?;
            listener.set_nonblocking(true)?;
            poller.add_listener(&listener, Source::Control)?;
            io::Result::Ok(listener)
        };
        let listener = listen().with_context(|| format!("cannot listen on {}", path.display()))?;
        Ok(Self {
            listener,
            path,
            clients: Default::default(),
        })
    }

    /// Takes in all clients that wait.
    pub(crate) fn accept(&mut self, poller: &Poller) {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => self.take(stream, poller),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => return tracing::warn!(%error, "control socket"),
            }
        }
    }

    /// Takes a client in; without a free place for it, it is turned away.
    fn take(&mut self, stream: UnixStream, poller: &Poller) {
        let free = self.clients.iter().position(Option::is_none);
        let Some((index, slot)) = free.and_then(|i| Some((i, self.clients.get_mut(i)?))) else {
            return tracing::warn!("too many clients of the control socket");
        };
        let source = Source::Client(u16::try_from(index).unwrap_or(u16::MAX));
        let added = stream
            .set_nonblocking(true)
            .and_then(|()| Ok(poller.add(&stream, source)?));
        match added {
            Ok(()) => {
                *slot = Some(Client {
                    stream,
                    line: Vec::new(),
                })
            }
            Err(error) => tracing::warn!(%error, "cannot serve a client of the control socket"),
        }
    }

    /// Serves a client that sent something.
    pub(crate) fn serve(&mut self, index: u16, fabric: &mut Fabric) {
        let Some(slot) = self.clients.get_mut(usize::from(index)) else {
            return;
        };
        let Some(client) = slot else { return };
        match client.read_line() {
            Ok(None) => {}
            Ok(Some(line)) => {
                let answer = Command::parse(&line).and_then(|command| command.run(fabric));
                let answer = answer.unwrap_or_else(|error| json!({ "ok": false, "error": error }));
                if let Err(error) = client.answer(&answer) {
                    tracing::debug!(%error, "a client did not take its answer");
                }
                *slot = None;
            }
            Err(error) => {
                tracing::debug!(%error, "a client of the control socket is gone");
                *slot = None;
            }
        }
    }
}

impl Client {
    /// Reads up to the end of a line, or of the connection.
    fn read_line(&mut self) -> io::Result<Option<String>> {
        let mut buf = [0; MAX_LINE];
        let n = match self.stream.read(&mut buf) {
            Ok(n) => n,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        };
        self.line
            .extend_from_slice(buf.get(..n).unwrap_or_default());
        let end = self.line.iter().position(|byte| *byte == b'\n');
        match end {
            None if n > 0 && self.line.len() <= MAX_LINE => Ok(None),
            None if self.line.is_empty() => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => {
                let line = self
                    .line
                    .get(..end.unwrap_or(self.line.len()))
                    .unwrap_or_default();
                Ok(Some(String::from_utf8_lossy(line).into_owned()))
            }
        }
    }

    /// Writes the answer: tens of kilobytes at most, which a fresh socket has room for.
    fn answer(&mut self, answer: &Value) -> io::Result<()> {
        self.stream.write_all(format!("{answer}\n").as_bytes())?;
        // What is left unread when the socket is closed would make the client lose the
        // answer. One that sends more than this can look for it itself.
        let mut rest = [0; 16 * MAX_LINE];
        match self.stream.read(&mut rest) {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_words() {
        assert_eq!(Command::parse("stats"), Ok(Command::Stats));
        assert_eq!(
            Command::parse(" link 2  down\r"),
            Ok(Command::Link { node: 2, up: false })
        );
        let expected = Command::Fault {
            node: 1,
            fault: Fault::Mute,
        };
        assert_eq!(Command::parse("fault 1 mute"), Ok(expected));
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
            let error = Command::parse(bad).unwrap_err();
            assert!(!error.is_empty(), "{bad:?}");
        }
    }
}
