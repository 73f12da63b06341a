// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A socket path where a VMM finds its device.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use crate::connection::Connection;

/// Why a path cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum ListenerError {
    /// Something that is not a socket has this name; it is left alone.
    #[error("{0} exists and is not a socket")]
    NotASocket(PathBuf),
    /// Another process answers there.
    #[error("{0} is in use by another process")]
    InUse(PathBuf),
    /// Anything else.
    #[error("cannot listen on {path}: {source}")]
    Io {
        /// The path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// A listening socket, removed from the file system when dropped.
#[derive(Debug)]
pub struct Listener {
    socket: UnixListener,
    path: PathBuf,
}

impl Listener {
    /// Listens on `path`. A socket left behind by a process that is gone is replaced.
    pub fn bind(path: &Path) -> Result<Self, ListenerError> {
        let failed = |source| ListenerError::Io {
            path: path.to_owned(),
            source,
        };
        match path.symlink_metadata() {
            Ok(meta) if !meta.file_type().is_socket() => {
                return Err(ListenerError::NotASocket(path.to_owned()));
            }
            Ok(_) if UnixStream::connect(path).is_ok() => {
                return Err(ListenerError::InUse(path.to_owned()));
            }
            Ok(_) => std::fs::remove_file(path).map_err(failed)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
        let socket = UnixListener::bind(path).map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        Ok(Self {
            socket,
            path: path.to_owned(),
        })
    }

    /// Accepts a waiting VMM, if there is one.
    pub fn accept(&self) -> io::Result<Option<Connection>> {
        let stream = self.accept_stream()?;
        Ok(stream.map(|stream| Connection::new(stream.into())))
    }

    /// Accepts a waiting client that speaks another protocol, if there is one.
    pub fn accept_stream(&self) -> io::Result<Option<UnixStream>> {
        match self.socket.accept() {
            Ok((stream, _)) => Ok(Some(stream)),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock
                | io::ErrorKind::Interrupted
                | io::ErrorKind::ConnectionAborted => Ok(None),
                _ => Err(error),
            },
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
