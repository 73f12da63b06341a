// SPDX-License-Identifier: GPL-2.0 OR MIT

//! One connected VMM.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{shutdown, Shutdown};
use zerocopy::{FromBytes, IntoBytes};

use crate::device::Device;
use crate::dispatch::{dispatch, FileOf};
use crate::proto::{
    Header, FLAG_ERROR, FLAG_NO_REPLY, FLAG_TYPE_COMMAND, FLAG_TYPE_MASK, FLAG_TYPE_REPLY,
    HEADER_SIZE, MAX_DATA_XFER,
};
use crate::transport::{end, receive, send, Received, MAX_READS};

/// Room for several of the largest messages that we accept.
const RX_CAPACITY: usize = 2 * MAX_DATA_XFER;
const _: () = assert!(RX_CAPACITY >= HEADER_SIZE + 16 + MAX_DATA_XFER);

/// Why a connection is over. The caller drops it and tears the device down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Disconnect {
    /// The VMM closed its end: it shut down, or it was killed.
    #[error("the VMM closed the connection")]
    Closed,
    /// The VMM sent what is no vfio-user message.
    #[error("protocol error: {0}")]
    Protocol(&'static str),
    /// The socket failed.
    #[error("socket error: {0}")]
    Io(Errno),
}

impl From<Errno> for Disconnect {
    fn from(error: Errno) -> Self {
        match error {
            // How a VMM that was killed looks, depending on what was under way.
            Errno::CONNRESET | Errno::PIPE => Self::Closed,
            other => Self::Io(other),
        }
    }
}

/// What the event loop is to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interest {
    /// Requests: call [`Connection::readable`].
    Readable,
    /// Room for replies; requests are left waiting: call [`Connection::writable`].
    Writable,
}

/// A connected VMM: a state machine over a non-blocking socket.
///
/// Made for a level-triggered event loop: each call does one `recvmsg`, serves what is
/// complete, and returns.
#[derive(Debug)]
pub struct Connection {
    socket: OwnedFd,
    /// Requests: `rx[head..filled]` is received and not yet served.
    rx: Box<[u8]>,
    head: usize,
    filled: usize,
    /// Descriptors that came with the last byte of `rx[..filled]`.
    fds: Vec<OwnedFd>,
    /// Bytes still to be skipped of a message that is too large.
    skip: usize,
    /// The reply being composed. Its allocation is kept.
    reply: Vec<u8>,
    /// Bytes of replies that the socket did not take yet.
    backlog: Vec<u8>,
    /// Whether versions were negotiated.
    ready: bool,
}

impl Connection {
    /// Serves `socket`, a connected UNIX stream socket.
    pub fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            rx: vec![0; RX_CAPACITY].into_boxed_slice(),
            head: 0,
            filled: 0,
            fds: Vec::new(),
            skip: 0,
            reply: Vec::with_capacity(RX_CAPACITY),
            backlog: Vec::new(),
            ready: false,
        }
    }

    /// What to wait for next.
    pub fn interest(&self) -> Interest {
        if self.backlog.is_empty() {
            Interest::Readable
        } else {
            Interest::Writable
        }
    }

    /// Receives and serves requests. Call it when the socket is readable.
    pub fn readable(&mut self, device: &mut impl Device) -> Result<(), Disconnect> {
        if !self.backlog.is_empty() {
            return Ok(());
        }
        if self.receive_more()? {
            self.serve(device)?;
        }
        Ok(())
    }

    /// Sends replies that were held up, then serves requests that waited for them. Call it
    /// when the socket is writable.
    pub fn writable(&mut self, device: &mut impl Device) -> Result<(), Disconnect> {
        let sent = send(&self.socket, &self.backlog, None)?;
        self.backlog.drain(..sent.min(self.backlog.len()));
        if self.backlog.is_empty() {
            self.serve(device)?;
        }
        Ok(())
    }

    /// Serves all complete requests, until a reply is held up.
    fn serve(&mut self, device: &mut impl Device) -> Result<(), Disconnect> {
        while self.backlog.is_empty() {
            let Some((header, size)) = self.next_request()? else {
                break;
            };
            if size > RX_CAPACITY {
                self.skip = size;
                self.fds.clear();
                self.refuse(&header, Errno::TOOBIG)?;
                continue;
            }
            if self.filled.saturating_sub(self.head) < size {
                break;
            }
            let start = self.head;
            self.head = start.saturating_add(size);
            self.request(&header, start.saturating_add(HEADER_SIZE), device)?;
        }
        Ok(())
    }

    /// The header of the next request, if it is there, and the request's size.
    fn next_request(&mut self) -> Result<Option<(Header, usize)>, Disconnect> {
        self.discard();
        let received = self.rx.get(self.head..self.filled).unwrap_or_default();
        let Ok((header, _)) = Header::read_from_prefix(received) else {
            return Ok(None);
        };
        let size = usize::try_from(header.size.get()).unwrap_or(usize::MAX);
        if size < HEADER_SIZE {
            return Err(Disconnect::Protocol("message is shorter than its header"));
        }
        if header.flags.get() & FLAG_TYPE_MASK != FLAG_TYPE_COMMAND {
            return Err(Disconnect::Protocol(
                "reply to a request that was never made",
            ));
        }
        Ok(Some((header, size)))
    }

    /// Refuses all requests that are not served yet.
    fn refuse_all(&mut self) -> Result<(), Disconnect> {
        for _ in 0..MAX_READS {
            while let Some((header, size)) = self.next_request()? {
                self.skip = size;
                self.refuse(&header, Errno::NODEV)?;
                if !self.backlog.is_empty() {
                    // No reply may overtake another, and nobody waits here for room.
                    return Ok(());
                }
            }
            self.fds.clear();
            if !self.receive_more()? {
                break;
            }
        }
        Ok(())
    }

    /// Receives what has come, if something has.
    fn receive_more(&mut self) -> Result<bool, Disconnect> {
        self.compact();
        let room = self.rx.get_mut(self.filled..).unwrap_or_default();
        match receive(&self.socket, room, &mut self.fds)? {
            Received::Nothing => Ok(false),
            Received::End => Err(Disconnect::Closed),
            Received::Bytes(n) => {
                self.filled = self.filled.saturating_add(n).min(self.rx.len());
                Ok(true)
            }
        }
    }

    /// Serves one request whose body is `rx[body..head]`.
    fn request(
        &mut self,
        header: &Header,
        body: usize,
        device: &mut impl Device,
    ) -> Result<(), Disconnect> {
        let fds = if self.head == self.filled {
            std::mem::take(&mut self.fds)
        } else {
            Vec::new()
        };
        self.reply.clear();
        self.reply.extend_from_slice(header.as_bytes());
        let body = self.rx.get(body..self.head).unwrap_or_default();
        let command = header.command.get();
        let result = dispatch(command, body, fds, &mut self.ready, &mut self.reply, device);
        if let Err(error) = result {
            tracing::debug!(command, %error, "request refused");
        }
        self.answer(header, result, device)
    }

    /// Sends the reply to a request.
    fn answer(
        &mut self,
        header: &Header,
        result: Result<FileOf, Errno>,
        device: &impl Device,
    ) -> Result<(), Disconnect> {
        let file = match result {
            Ok(FileOf::Nothing) => None,
            Ok(FileOf::Region(index)) => device.region(index).mmap.map(|mmap| mmap.file),
            Err(errno) => return self.refuse(header, errno),
        };
        self.finish(header, FLAG_TYPE_REPLY, 0, file)
    }

    /// Sends an error in place of a reply.
    fn refuse(&mut self, header: &Header, errno: Errno) -> Result<(), Disconnect> {
        self.reply.clear();
        self.reply.extend_from_slice(header.as_bytes());
        let error = u32::try_from(errno.raw_os_error()).unwrap_or(0);
        self.finish(header, FLAG_TYPE_REPLY | FLAG_ERROR, error, None)
    }

    /// Sends the reply that was composed, unless none is wanted.
    fn finish(
        &mut self,
        header: &Header,
        flags: u32,
        error: u32,
        file: Option<BorrowedFd<'_>>,
    ) -> Result<(), Disconnect> {
        if header.flags.get() & FLAG_NO_REPLY != 0 {
            return Ok(());
        }
        let reply = Header {
            flags: flags.into(),
            error: error.into(),
            size: u32::try_from(self.reply.len()).unwrap_or(0).into(),
            ..*header
        };
        if let Some(front) = self.reply.get_mut(..HEADER_SIZE) {
            front.copy_from_slice(reply.as_bytes());
        }
        let sent = send(&self.socket, &self.reply, file)?;
        match self.reply.get(sent..) {
            None | Some([]) => Ok(()),
            Some(_) if sent == 0 && file.is_some() => {
                Err(Disconnect::Protocol("the VMM does not take its replies"))
            }
            Some(rest) => {
                self.backlog.extend_from_slice(rest);
                Ok(())
            }
        }
    }

    /// Moves what is received and not served to the front.
    fn compact(&mut self) {
        if self.head > 0 {
            self.rx.copy_within(self.head..self.filled, 0);
            self.filled = self.filled.saturating_sub(self.head);
            self.head = 0;
        }
    }

    /// Skips received bytes of a message that is too large.
    fn discard(&mut self) {
        let n = self.skip.min(self.filled.saturating_sub(self.head));
        self.skip = self.skip.saturating_sub(n);
        self.head = self.head.saturating_add(n);
    }
}

impl Drop for Connection {
    /// Ends the connection in an orderly way. A socket that is closed with requests unread
    /// resets the connection, and QEMU 11.1 aborts on that; it takes an end of file well. But it
    /// waits for each reply until its timeout, past the end of file, so requests are refused first.
    fn drop(&mut self) {
        // From now on nothing more comes.
        if self.backlog.is_empty() && shutdown(&self.socket, Shutdown::Read).is_ok() {
            // A client that does not read replies, or sends nonsense, gets none.
            let _ = self.refuse_all();
        }
        end(&self.socket, &mut self.rx);
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
