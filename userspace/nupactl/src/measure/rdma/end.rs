// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What one side says of its end of a connection.

use std::net::Ipv6Addr;

use verbs::{Peer, Remote};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::super::fault::Fault;

/// Numbers of queue pairs and packet sequence numbers are below this.
const LIMIT: u32 = 1 << 24;
/// Numbers of queue pairs are above this: those below are special.
const SPECIAL: u32 = 1;

/// An end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    pub(super) peer: Peer,
    /// The memory that the other side may write to.
    pub(super) memory: Option<Remote>,
}

/// The same on the wire. Without memory, its three numbers are 0.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct RawEnd {
    gid: [u8; 16],
    number: U32,
    psn: U32,
    key: U32,
    zero: [u8; 4],
    address: U64,
    bytes: U64,
}

const _: () = assert!(size_of::<RawEnd>() == 48);

impl End {
    /// As it is sent, with memory of so many bytes.
    pub(super) fn raw(&self, bytes: u64) -> RawEnd {
        let (key, address, bytes) = self
            .memory
            .map_or((0, 0, 0), |memory| (memory.key, memory.address, bytes));
        RawEnd {
            gid: self.peer.gid,
            number: self.peer.number.into(),
            psn: self.peer.psn.into(),
            key: key.into(),
            zero: [0; 4],
            address: address.into(),
            bytes: bytes.into(),
        }
    }

    /// Checks what a stranger has sent whose connection comes from `from`, and who has to offer so many bytes of memory, or none. Its queue pair is
    /// on the same node as the connection, so that nobody can have requests sent to a third node.
    pub(super) fn parse(raw: &RawEnd, from: Ipv6Addr, bytes: u64) -> Result<Self, Fault> {
        let (number, psn, address) = (raw.number.get(), raw.psn.get(), raw.address.get());
        let fits = raw.gid == from.octets()
            && number > SPECIAL
            && number < LIMIT
            && psn < LIMIT
            && raw.zero == [0; 4]
            && raw.bytes.get() == bytes
            && address.checked_add(bytes).is_some();
        if !fits {
            return Err(Fault::Strange);
        }
        Ok(Self {
            peer: Peer {
                gid: raw.gid,
                number,
                psn,
            },
            memory: (bytes > 0).then_some(Remote {
                address,
                key: raw.key.get(),
            }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from() -> Ipv6Addr {
        Ipv6Addr::new(0xfe80, 0, 0, 0, 1, 2, 3, 4)
    }

    fn end(memory: Option<Remote>) -> End {
        let peer = Peer {
            gid: from().octets(),
            number: 0x012345,
            psn: LIMIT - 1,
        };
        End { peer, memory }
    }

    const MEMORY: Remote = Remote {
        address: 1 << 40,
        key: 0xdead_beef,
    };

    #[test]
    fn an_end_arrives_as_it_was_sent() {
        let with = end(Some(MEMORY));
        assert_eq!(End::parse(&with.raw(4096), from(), 4096), Ok(with));
        let without = end(None);
        assert_eq!(End::parse(&without.raw(4096), from(), 0), Ok(without));
        // Memory that is not wanted, or is missing.
        assert_eq!(End::parse(&with.raw(4096), from(), 0), Err(Fault::Strange));
        let missing = End::parse(&without.raw(4096), from(), 4096);
        assert_eq!(missing, Err(Fault::Strange));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let wrong: [fn(&mut RawEnd); 9] = [
            |raw| raw.gid[15] ^= 1,
            |raw| raw.gid = [0; 16],
            |raw| raw.number = 0.into(),
            |raw| raw.number = SPECIAL.into(),
            |raw| raw.number = LIMIT.into(),
            |raw| raw.psn = LIMIT.into(),
            |raw| raw.zero[3] = 1,
            |raw| raw.bytes = 4097.into(),
            |raw| raw.address = (u64::MAX - 4094).into(),
        ];
        for (change, number) in wrong.iter().zip(0..) {
            let mut raw = end(Some(MEMORY)).raw(4096);
            change(&mut raw);
            let parsed = End::parse(&raw, from(), 4096);
            assert_eq!(parsed, Err(Fault::Strange), "{number}");
        }
    }
}
