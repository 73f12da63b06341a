// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Echo requests of ICMPv6 and their answers (RFC 4443, section 4).

use std::net::SocketAddrV6;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::io::Errno;
use rustix::net::sockopt::{set_socket_timeout, Timeout};
use rustix::net::{connect, ipproto, recv, send, socket};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType};

/// Types of messages.
const REQUEST: u8 = 128;
const REPLY: u8 = 129;
/// Bytes before the data: type, code, checksum, identifier, sequence number.
const HEADER: usize = 8;
/// Bytes of data, as many as `ping` sends.
const DATA: usize = 56;

/// A socket that asks one address for echoes.
pub(super) struct Echo {
    socket: OwnedFd,
    /// Tells our answers from those for others; the kernel puts its own into the messages of a socket without rights.
    identifier: Option<[u8; 2]>,
}

impl Echo {
    /// Opens a socket: one of those that the kernel has for everybody, or a raw one, which takes a capability.
    pub(super) fn open(address: &SocketAddrV6) -> anyhow::Result<Self> {
        let open = |kind| socket(AddressFamily::INET6, kind, Some(ipproto::ICMPV6));
        let [.., high, low] = std::process::id().to_be_bytes();
        let (socket, identifier) = match open(SocketType::DGRAM) {
            Ok(socket) => (socket, None),
            Err(_) => match open(SocketType::RAW) {
                Ok(socket) => (socket, Some([high, low])),
                Err(Errno::PERM | Errno::ACCESS) => anyhow::bail!(
                    "not permitted to send echo requests: run it as root (CAP_NET_RAW), or have `sysctl net.ipv4.ping_group_range` name your group"
                ),
                Err(error) => return Err(error).context("no socket for echo requests"),
            },
        };
        connect(&socket, address).with_context(|| {
            format!("cannot reach {address}; the interface has perhaps no IPv6 address")
        })?;
        Ok(Self { socket, identifier })
    }

    /// Asks for an echo, and returns how long that took. `None` if none came in time, or the address cannot be reached.
    pub(super) fn ask(&self, sequence: u16, timeout: Duration) -> anyhow::Result<Option<Duration>> {
        let request = message(self.identifier.unwrap_or_default(), sequence);
        let begin = Instant::now();
        match send(&self.socket, &request, SendFlags::empty()) {
            Ok(_) => {}
            Err(error) if is_silence(error) => return Ok(None),
            Err(error) => return Err(error).context("cannot send an echo request"),
        }
        loop {
            let left = timeout.saturating_sub(begin.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            set_socket_timeout(&self.socket, Timeout::Recv, Some(left))?;
            // One byte more than an answer has, so that a longer one is none.
            let mut answer = [0; HEADER + DATA + 1];
            match recv(&self.socket, &mut answer, RecvFlags::empty()) {
                Ok((len, _)) if self.is_answer(answer.get(..len), &request) => {
                    return Ok(Some(begin.elapsed()))
                }
                // A late answer to an earlier request, or for somebody else.
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) if is_silence(error) => return Ok(None),
                Err(error) => return Err(error).context("cannot receive an echo"),
            }
        }
    }

    /// Whether a message is the answer to a request: the same but for type and checksum, and the identifier if that is the kernel's.
    fn is_answer(&self, message: Option<&[u8]>, request: &[u8]) -> bool {
        let after = if self.identifier.is_some() { 4 } else { 6 };
        message.is_some_and(|message| {
            message.first() == Some(&REPLY) && message.get(after..) == request.get(after..)
        })
    }
}

/// Errors that say that nobody answers: the time is over, or the address was not found on the link.
fn is_silence(error: Errno) -> bool {
    [Errno::AGAIN, Errno::HOSTUNREACH, Errno::TIMEDOUT].contains(&error)
}

/// A request. The kernel computes the checksum.
fn message(identifier: [u8; 2], sequence: u16) -> Vec<u8> {
    let [high, low] = sequence.to_be_bytes();
    let [first, second] = identifier;
    let mut message = vec![REQUEST, 0, 0, 0, first, second, high, low];
    message.extend((0..=u8::MAX).take(DATA));
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_the_number_and_the_data_of_its_request() {
        let socket = || socket(AddressFamily::UNIX, SocketType::DGRAM, None).unwrap();
        let (mine, request) = ([0x12, 0x34], message([0x12, 0x34], 7));
        let raw = Echo {
            socket: socket(),
            identifier: Some(mine),
        };
        let everybodys = Echo {
            socket: socket(),
            identifier: None,
        };
        let reply = |identifier, sequence| {
            let mut reply = message(identifier, sequence);
            (reply[0], reply[2]) = (REPLY, 0xab);
            reply
        };
        let answers = |echo: &Echo, reply: &[u8]| echo.is_answer(Some(reply), &request);
        assert!(answers(&raw, &reply(mine, 7)) && answers(&everybodys, &reply([9, 9], 7)));
        assert!(!answers(&raw, &reply([9, 9], 7)), "another program's");
        assert!(!answers(&raw, &reply(mine, 6)), "a late one");
        assert!(!answers(&raw, &request), "no reply");
        assert!(!answers(&raw, &reply(mine, 7)[..20]) && !answers(&raw, b""));
        let mut changed = reply(mine, 7);
        changed[HEADER] ^= 1;
        assert!(!answers(&raw, &changed));
    }
}
