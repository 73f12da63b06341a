// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The VMM's end of the protocol, for programs that are a device's host without a VM.

use std::io::{self, Read};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use zerocopy::{FromZeros, IntoBytes};

use crate::proto::{
    Command, DmaMapBody, DmaUnmapBody, Header, RegionAccess, DMA_READ, DMA_UNMAP_ALL, DMA_WRITE,
    FLAG_ERROR, FLAG_TYPE_COMMAND, FLAG_TYPE_MASK, FLAG_TYPE_REPLY, HEADER_SIZE, MAX_DATA_XFER,
};
use crate::transport::send;

/// A device that does not answer for so long is given up.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A connection to a device, which waits for the reply to each request. Errors that the device answers with are those of the system with
/// the same number.
#[derive(Debug)]
pub struct Client {
    socket: UnixStream,
    id: u16,
    /// A request had no whole reply, so what comes next is nobody's.
    is_broken: bool,
}

impl Client {
    /// Connects to the device's socket, and agrees on the version.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let socket = UnixStream::connect(path)?;
        socket.set_read_timeout(Some(TIMEOUT))?;
        let mut client = Self {
            socket,
            id: 0,
            is_broken: false,
        };
        let reply = client.call(Command::Version, &[0; 4], None)?;
        match reply.first_chunk() {
            Some(&major) if u16::from_le_bytes(major) == 0 => Ok(client),
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Lets the device read and write `size` bytes of a file, from its start, at a DMA address.
    pub fn map(&mut self, file: BorrowedFd<'_>, iova: u64, size: u64) -> io::Result<()> {
        let mut body = DmaMapBody::new_zeroed();
        body.argsz.set(length(size_of::<DmaMapBody>())?);
        body.flags.set(DMA_READ | DMA_WRITE);
        body.iova.set(iova);
        body.size.set(size);
        self.call(Command::DmaMap, body.as_bytes(), Some(file))?;
        Ok(())
    }

    /// Takes all memory away from the device.
    pub fn unmap_all(&mut self) -> io::Result<()> {
        let mut body = DmaUnmapBody::new_zeroed();
        body.argsz.set(length(size_of::<DmaUnmapBody>())?);
        body.flags.set(DMA_UNMAP_ALL);
        self.call(Command::DmaUnmap, body.as_bytes(), None)?;
        Ok(())
    }

    /// Reads from a region.
    pub fn read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> io::Result<()> {
        let access = access(region, offset, data.len())?;
        let reply = self.call(Command::RegionRead, access.as_bytes(), None)?;
        let found = reply.get(size_of::<RegionAccess>()..).unwrap_or_default();
        if found.len() != data.len() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        data.copy_from_slice(found);
        Ok(())
    }

    /// Writes to a region.
    pub fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> io::Result<()> {
        let access = access(region, offset, data.len())?;
        let body = [access.as_bytes(), data].concat();
        self.call(Command::RegionWrite, &body, None)?;
        Ok(())
    }

    /// Resets the device.
    pub fn reset(&mut self) -> io::Result<()> {
        self.call(Command::DeviceReset, &[], None)?;
        Ok(())
    }

    /// Sends a request and returns the body of the reply.
    fn call(
        &mut self,
        command: Command,
        body: &[u8],
        file: Option<BorrowedFd<'_>>,
    ) -> io::Result<Vec<u8>> {
        if self.is_broken {
            return Err(io::ErrorKind::NotConnected.into());
        }
        self.id = self.id.wrapping_add(1);
        let header = Header {
            id: self.id.into(),
            command: (command as u16).into(),
            size: length(HEADER_SIZE.saturating_add(body.len()))?.into(),
            flags: FLAG_TYPE_COMMAND.into(),
            error: 0.into(),
        };
        let message = [header.as_bytes(), body].concat();
        // What is left of a reply that was not read whole must not be taken for the next one.
        self.is_broken = true;
        // There is room for one message, since none is under way.
        if send(&self.socket, &message, file)? != message.len() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.receive(command)
    }

    fn receive(&mut self, command: Command) -> io::Result<Vec<u8>> {
        let mut header = Header::new_zeroed();
        self.socket.read_exact(header.as_mut_bytes())?;
        let len = usize::try_from(header.size.get()).ok();
        let len = len.and_then(|len| len.checked_sub(HEADER_SIZE));
        let most = MAX_DATA_XFER.saturating_add(HEADER_SIZE);
        let is_reply = header.flags.get() & FLAG_TYPE_MASK == FLAG_TYPE_REPLY
            && header.id.get() == self.id
            && header.command.get() == command as u16;
        let len = len.filter(|len| *len <= most && is_reply);
        let mut body = vec![0; len.ok_or(io::ErrorKind::InvalidData)?];
        self.socket.read_exact(&mut body)?;
        self.is_broken = false;
        match header.flags.get() & FLAG_ERROR {
            0 => Ok(body),
            _ => {
                let number = i32::try_from(header.error.get()).unwrap_or(0);
                Err(io::Error::from_raw_os_error(number.max(1)))
            }
        }
    }
}

/// The header of a region access.
fn access(region: u32, offset: u64, len: usize) -> io::Result<RegionAccess> {
    Ok(RegionAccess {
        offset: offset.into(),
        region: region.into(),
        count: length(len)?.into(),
    })
}

fn length(len: usize) -> io::Result<u32> {
    u32::try_from(len).map_err(|_| io::ErrorKind::InvalidInput.into())
}
