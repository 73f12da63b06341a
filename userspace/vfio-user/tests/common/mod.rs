// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The client's end of the protocol, and a device to talk to.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::event::EventfdFlags;
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::net::{
    recvmsg, sendmsg, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use vfio_user::{
    irq_index, region_index, Area, Connection, Device, DmaMap, EventFds, IrqRequest, Mmap, Region,
};

/// Command codes.
pub(crate) mod command {
    pub(crate) const VERSION: u16 = 1;
    pub(crate) const DMA_MAP: u16 = 2;
    pub(crate) const DMA_UNMAP: u16 = 3;
    pub(crate) const GET_INFO: u16 = 4;
    pub(crate) const GET_REGION_INFO: u16 = 5;
    pub(crate) const GET_IRQ_INFO: u16 = 7;
    pub(crate) const SET_IRQS: u16 = 8;
    pub(crate) const REGION_READ: u16 = 9;
    pub(crate) const REGION_WRITE: u16 = 10;
    pub(crate) const DEVICE_RESET: u16 = 13;
}

/// The sender wants no reply.
pub(crate) const FLAG_NO_REPLY: u32 = 1 << 4;

const AREAS: [Area; 2] = [
    Area {
        offset: 0,
        size: 0x1000,
    },
    Area {
        offset: 0x2000,
        size: 0x1000,
    },
];

/// A device with one register page and one region with mappable parts.
pub(crate) struct TestDevice {
    pub(crate) registers: Vec<u8>,
    pub(crate) writes: usize,
    pub(crate) resets: usize,
    pub(crate) maps: Vec<DmaMap>,
    pub(crate) irqs: EventFds,
    file: OwnedFd,
}

impl Default for TestDevice {
    fn default() -> Self {
        Self {
            registers: vec![0; 4096],
            writes: 0,
            resets: 0,
            maps: Vec::new(),
            irqs: EventFds::new(65),
            file: memfd(),
        }
    }
}

impl Device for TestDevice {
    fn region(&self, index: u32) -> Region<'_> {
        match index {
            region_index::BAR0 => Region {
                size: 4096,
                mmap: None,
            },
            2 => {
                let mmap = Mmap {
                    file: self.file.as_fd(),
                    areas: &AREAS,
                };
                Region {
                    size: 0x4000,
                    mmap: Some(mmap),
                }
            }
            _ => Region::default(),
        }
    }

    fn irq_count(&self, index: u32) -> u32 {
        if index == irq_index::MSIX {
            self.irqs.count()
        } else {
            0
        }
    }

    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno> {
        if region == region_index::BAR0 {
            let start = offset as usize;
            data.copy_from_slice(&self.registers[start..start + data.len()]);
        }
        Ok(())
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        self.writes += 1;
        if region == region_index::BAR0 {
            let start = offset as usize;
            self.registers[start..start + data.len()].copy_from_slice(data);
        }
        Ok(())
    }

    fn dma_map(&mut self, map: DmaMap) -> Result<(), Errno> {
        self.maps.push(map);
        Ok(())
    }

    fn dma_unmap(&mut self, iova: u64, size: u64) -> Result<(), Errno> {
        let found = self
            .maps
            .iter()
            .position(|m| (m.iova, m.size) == (iova, size));
        self.maps.remove(found.ok_or(Errno::NOENT)?);
        Ok(())
    }

    fn dma_unmap_all(&mut self) {
        self.maps.clear();
    }

    fn set_irqs(&mut self, request: IrqRequest) -> Result<(), Errno> {
        self.irqs.apply(request)
    }

    fn reset(&mut self) {
        self.resets += 1;
    }
}

/// A message that came back.
pub(crate) struct Reply {
    flags: u32,
    error: u32,
    pub(crate) body: Vec<u8>,
    pub(crate) fds: Vec<OwnedFd>,
}

impl Reply {
    /// The error that it reports.
    pub(crate) fn error(&self) -> Option<Errno> {
        (self.flags & (1 << 5) != 0).then(|| {
            assert_ne!(self.error, 0, "an error reply says which");
            Errno::from_raw_os_error(self.error as i32)
        })
    }
}

/// The VMM's end of a connection.
pub(crate) struct Client {
    socket: UnixStream,
    next_id: u16,
    expected: std::collections::VecDeque<u16>,
}

/// A connected pair.
pub(crate) fn connect() -> (Client, Connection) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_read_timeout(Some(std::time::Duration::from_secs(5)))
        .unwrap();
    let client = Client {
        socket: ours,
        next_id: 40_000,
        expected: Default::default(),
    };
    (client, Connection::new(theirs.into()))
}

/// A connected pair past version negotiation.
pub(crate) fn negotiated() -> (Client, Connection) {
    let (mut client, mut server) = connect();
    let reply = client.call(
        &mut server,
        &mut TestDevice::default(),
        command::VERSION,
        &[0; 4],
    );
    assert_eq!(reply.error(), None);
    (client, server)
}

impl Client {
    /// A message with the next id.
    pub(crate) fn compose(&mut self, command: u16, flags: u32, body: &[u8]) -> Vec<u8> {
        self.next_id = self.next_id.wrapping_add(1);
        if flags & FLAG_NO_REPLY == 0 {
            self.expected.push_back(self.next_id);
        }
        let size = (16 + body.len()) as u32;
        let mut message = Vec::new();
        message.extend_from_slice(&self.next_id.to_le_bytes());
        message.extend_from_slice(&command.to_le_bytes());
        message.extend_from_slice(&size.to_le_bytes());
        message.extend_from_slice(&flags.to_le_bytes());
        message.extend_from_slice(&[0; 4]);
        message.extend_from_slice(body);
        message
    }

    /// Sends a request.
    pub(crate) fn send(&mut self, command: u16, flags: u32, body: &[u8], files: &[&OwnedFd]) {
        let message = self.compose(command, flags, body);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let files: Vec<_> = files.iter().map(|fd| fd.as_fd()).collect();
        if !files.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
        }
        let iov = [IoSlice::new(&message)];
        let sent = sendmsg(&self.socket, &iov, &mut control, SendFlags::empty()).unwrap();
        assert_eq!(sent, message.len());
    }

    /// Sends bytes as they are.
    pub(crate) fn send_raw(&mut self, bytes: &[u8]) {
        let sent = rustix::net::send(&self.socket, bytes, SendFlags::empty()).unwrap();
        assert_eq!(sent, bytes.len());
    }

    /// Whether the server ended the connection in an orderly way.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(rustix::io::read(&self.socket, &mut [0; 16]), Ok(0))
    }

    /// Receives one reply and checks that it is the next one due.
    pub(crate) fn receive(&mut self) -> Reply {
        let mut fds = Vec::new();
        let header = self.receive_exactly(16, &mut fds);
        let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap());
        let id = u16::from_le_bytes([header[0], header[1]]);
        assert_eq!(Some(id), self.expected.pop_front(), "replies come in order");
        assert_eq!(word(8) & 0xf, 1, "it is a reply");
        let body = self.receive_exactly(word(4) as usize - 16, &mut fds);
        Reply {
            flags: word(8),
            error: word(12),
            body,
            fds,
        }
    }

    /// One request and its reply.
    pub(crate) fn call(
        &mut self,
        server: &mut Connection,
        device: &mut TestDevice,
        command: u16,
        body: &[u8],
    ) -> Reply {
        self.send(command, 0, body, &[]);
        server.readable(device).unwrap();
        self.receive()
    }

    fn receive_exactly(&mut self, len: usize, fds: &mut Vec<OwnedFd>) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let mut at = 0;
        while at < len {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut iov = [IoSliceMut::new(&mut bytes[at..])];
            let flags = RecvFlags::CMSG_CLOEXEC;
            let got = recvmsg(&self.socket, &mut iov, &mut control, flags).unwrap();
            assert_ne!(got.bytes, 0, "server closed the connection");
            at += got.bytes;
            for item in control.drain() {
                if let RecvAncillaryMessage::ScmRights(rights) = item {
                    fds.extend(rights);
                }
            }
        }
        bytes
    }
}

/// A small memfd.
pub(crate) fn memfd() -> OwnedFd {
    rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC).unwrap()
}

/// A blocking eventfd: the server has to make it non-blocking.
pub(crate) fn eventfd() -> OwnedFd {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC).unwrap()
}

/// How often an eventfd was signalled since the last look.
pub(crate) fn fired(fd: &OwnedFd) -> u64 {
    let mut count = [0; 8];
    match rustix::io::read(fd, &mut count) {
        Ok(_) => u64::from_ne_bytes(count),
        Err(_) => 0,
    }
}
