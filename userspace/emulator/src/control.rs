// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The control socket: one command line per connection, one line of JSON as the answer.

use std::io::{self, Read, Write};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use anyhow::{bail, Context};
use nupa_control::{Answer, Command, NodeStats, MAX_LINE, SOCKET};
use nupa_controller::Fabric;
use rustix::fs::Mode;
use rustix::process::umask;

use crate::poller::{Poller, Source};

/// Clients served at a time.
const MAX_CLIENTS: usize = 16;

/// Does what a client says.
fn obey(line: &str, fabric: &mut Fabric) -> Answer {
    line.parse()
        .and_then(|command| run(command, fabric))
        .unwrap_or_else(Answer::refused)
}

/// Executes a command; the error is for the user.
fn run(command: Command, fabric: &mut Fabric) -> Result<Answer, String> {
    let done = match command {
        Command::Stats => {
            return Ok(Answer {
                nodes: Some(stats(fabric)),
                ..Answer::done()
            })
        }
        // Node 0 exists for the fabric but has no socket.
        Command::Link { node: 0, .. } | Command::Fault { node: 0, .. } => {
            return Err("nodes are numbered from 1".to_owned());
        }
        Command::Link { node, up } => fabric.set_link(node, up),
        Command::Fault { node, fault } => fabric.set_fault(node, fault),
    };
    done.map_err(|error| error.to_string())?;
    Ok(Answer::done())
}

/// State and counters of all nodes that have a socket.
pub(crate) fn stats(fabric: &Fabric) -> Vec<NodeStats> {
    let mut nodes = fabric.stats();
    nodes.retain(|stats| stats.node != 0);
    nodes
}

/// The control socket and its clients.
#[derive(Debug)]
pub(crate) struct Control {
    listener: UnixListener,
    path: PathBuf,
    clients: [Option<Client>; MAX_CLIENTS],
}

/// One who has connected to it.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    line: Vec<u8>,
}

impl Control {
    /// Listens on `control.sock` in `dir`. To be called when the node sockets are ours, so
    /// that a socket of this name can only be a leftover.
    pub(crate) fn open(dir: &Path, poller: &Poller) -> anyhow::Result<Self> {
        let path = dir.join(SOCKET);
        match path.symlink_metadata() {
            Ok(meta) if !meta.file_type().is_socket() => {
                bail!("{} exists and is not a socket", path.display());
            }
            Ok(_) => std::fs::remove_file(&path)?,
            Err(_) => {}
        }
        let listen = || {
            // Its commands can break nodes, so only its owner may connect, whatever the umask is.
            let before = umask(Mode::RWXG | Mode::RWXO | Mode::XUSR);
            let listener = UnixListener::bind(&path);
            umask(before);
            let listener = listener?;
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
            Ok(()) => *slot = Some(Client::new(stream)),
            Err(error) => tracing::warn!(%error, "cannot serve a client of the control socket"),
        }
    }

    /// Serves a client that sent something.
    pub(crate) fn serve(&mut self, index: u16, fabric: &mut Fabric) {
        let Some(slot) = self.clients.get_mut(usize::from(index)) else {
            return;
        };
        if slot.as_mut().is_some_and(|client| client.serve(fabric)) {
            *slot = None;
        }
    }
}

impl Client {
    /// Serves a socket that does not block.
    pub fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            line: Vec::new(),
        }
    }

    /// Takes what it sent, and answers if that is a command. Returns whether it is done with.
    pub fn serve(&mut self, fabric: &mut Fabric) -> bool {
        match self.read_line() {
            Ok(None) => return false,
            Ok(Some(line)) => {
                if let Err(error) = self.answer(&obey(&line, fabric)) {
                    tracing::debug!(%error, "a client did not take its answer");
                }
            }
            Err(error) => tracing::debug!(%error, "a client of the control socket is gone"),
        }
        true
    }

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

    /// Writes the answer: a bit more than 100 KB at most, which a fresh socket has room for.
    fn answer(&mut self, answer: &Answer) -> io::Result<()> {
        let mut line = serde_json::to_vec(answer)?;
        line.push(b'\n');
        self.stream.write_all(&line)?;
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
    use nupa_control::{Fault, Objects};
    use nupa_controller::MAX_NODES;
    use nupa_proto::admin::PORT_COUNTER_NAMES;

    use super::*;

    /// A node of which all that is told takes as much room as it can.
    fn longest(node: u16) -> NodeStats {
        let objects = u32::MAX as usize;
        NodeStats {
            node,
            connected: false,
            enabled: false,
            link: false,
            epoch: u32::MAX,
            fault_code: u32::MAX,
            fault: Fault::BadStatus,
            dma_bytes_mapped: u64::MAX,
            dma_bytes_unreachable: u64::MAX,
            objects: Objects {
                qp: objects,
                cq: objects,
                eq: objects,
                srq: objects,
                mr: objects,
                pd: objects,
            },
            counters: PORT_COUNTER_NAMES
                .map(|name| (name.to_owned(), u64::MAX))
                .into(),
        }
    }

    #[test]
    fn the_longest_answer_fits_into_a_socket_that_nobody_reads() {
        let (stream, mut reader) = UnixStream::pair().unwrap();
        stream.set_nonblocking(true).unwrap();
        let nodes: Vec<_> = (1..MAX_NODES).map(longest).collect();
        let answer = Answer {
            nodes: Some(nodes),
            ..Answer::done()
        };
        let mut client = Client::new(stream);
        client.answer(&answer).unwrap();
        drop(client);
        let mut text = Vec::new();
        reader.read_to_end(&mut text).unwrap();
        // An eighth of what those who ask read at most.
        assert!(text.len() < 1 << 17, "{}", text.len());
        assert_eq!(serde_json::from_slice::<Answer>(&text).unwrap(), answer);
    }
}
