// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Bytes and file descriptors over a UNIX stream socket, never blocking.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::cmsg_space;
use rustix::io::Errno;
use rustix::net::{
    recv, recvmsg, sendmsg, shutdown, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags,
    ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown,
};

use crate::proto::MAX_MSG_FDS;

/// What [`receive`] found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// So many bytes.
    Bytes(usize),
    /// Nothing for now.
    Nothing,
    /// The peer closed its end.
    End,
}

/// Receives what is there into `buf` and appends descriptors to `fds`.
///
/// The kernel ends a read at bytes that came with descriptors: those belong to the message
/// that the last byte received is part of.
pub(crate) fn receive(
    socket: &OwnedFd,
    buf: &mut [u8],
    fds: &mut Vec<OwnedFd>,
) -> Result<Received, Errno> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_MSG_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let message = match recvmsg(socket, &mut [IoSliceMut::new(buf)], &mut control, flags) {
        Ok(message) => message,
        Err(Errno::AGAIN | Errno::INTR) => return Ok(Received::Nothing),
        Err(error) => return Err(error),
    };
    for item in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = item {
            fds.extend(rights);
        }
    }
    if message.flags.contains(ReturnFlags::CTRUNC) || fds.len() > MAX_MSG_FDS {
        return Err(Errno::TOOMANYREFS);
    }
    match message.bytes {
        0 => Ok(Received::End),
        n => Ok(Received::Bytes(n)),
    }
}

/// Sends as much of a message as a UNIX stream socket takes without blocking, which may be nothing, and `file`
/// with the first byte of it. Returns how many bytes were sent.
pub fn send(socket: impl AsFd, bytes: &[u8], file: Option<BorrowedFd<'_>>) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = file.map(|fd| [fd]);
    if let Some(files) = &files {
        if !control.push(SendAncillaryMessage::ScmRights(files)) {
            return Err(Errno::NOBUFS);
        }
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    match sendmsg(socket.as_fd(), &[IoSlice::new(bytes)], &mut control, flags) {
        Ok(sent) => Ok(sent),
        Err(Errno::AGAIN | Errno::INTR) => Ok(0),
        Err(error) => Err(error),
    }
}

/// Most reads of a socket that is being ended; its buffer holds far less.
pub(crate) const MAX_READS: usize = 1024;

/// Shuts both directions down and throws away what was not received, with its descriptors.
/// Nothing more can arrive then.
pub(crate) fn end(socket: &OwnedFd, buf: &mut [u8]) {
    if shutdown(socket, Shutdown::Both).is_err() {
        return;
    }
    for _ in 0..MAX_READS {
        match recv(socket, &mut *buf, RecvFlags::DONTWAIT) {
            Ok((n, _)) if n > 0 => {}
            _ => return,
        }
    }
}
