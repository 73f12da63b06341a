// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The network header that a datagram's receiver finds before the payload: that of RoCE v2, where a UD completion has
//! either an IPv6 header or, in the last 20 bytes of the 40, an IPv4 header (InfiniBand volume 1, annex A17;
//! `union rdma_network_hdr` of include/rdma/ib_verbs.h).

use crate::state::gid::{Address, Gid, IPV4_MAPPED};
use nupa_proto::{cqe::NetworkHeader, ident::GRH_SIZE, wqe::GrhSegment};

/// Bytes of the header.
const SIZE: usize = GRH_SIZE as usize;
/// Bytes of an IPv4 header without options.
const IPV4_SIZE: usize = 20;
/// IP protocol number of UDP.
const IPPROTO_UDP: u8 = 17;
/// IPv4: do not fragment.
const DONT_FRAGMENT: u16 = 0x4000;
/// Headers of UDP, base transport and datagram transport, and the trailing CRC, which a packet would have.
const TRANSPORT_SIZE: u32 = 8 + 12 + 8 + 4;

/// A receiver's network header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grh {
    pub(crate) bytes: [u8; SIZE],
    /// Which one it is.
    pub(crate) header: NetworkHeader,
    /// VLAN that the datagram is sent in.
    pub(crate) vlan_id: Option<u16>,
}

impl Grh {
    /// The header of a datagram of `len` bytes.
    pub(crate) fn new(source: &Address, segment: &GrhSegment, len: u32) -> Self {
        let payload = len.next_multiple_of(4).saturating_add(TRANSPORT_SIZE);
        let Address { gid, vlan_id } = *source;
        match gid.strip_prefix(&IPV4_MAPPED) {
            Some(&[a, b, c, d]) => Self {
                bytes: ipv4([a, b, c, d], segment, payload),
                header: NetworkHeader::Ipv4,
                vlan_id,
            },
            _ => Self {
                bytes: ipv6(&gid, segment, payload),
                header: NetworkHeader::Ipv6,
                vlan_id,
            },
        }
    }

    /// The GID that it is for: a group's, if the datagram is for one. None if that is an IPv4 address in an IPv6 header, which nobody has.
    pub(crate) fn destination(&self) -> Option<Gid> {
        match self.header {
            NetworkHeader::Ipv4 => {
                let mut gid = [0; size_of::<Gid>()];
                let address = self.bytes.last_chunk::<4>()?;
                let mut bytes = IPV4_MAPPED.iter().chain(address).copied();
                gid.fill_with(|| bytes.next().unwrap_or(0));
                Some(gid)
            }
            NetworkHeader::Ipv6 => {
                let gid = self.bytes.last_chunk::<{ size_of::<Gid>() }>()?;
                (!gid.starts_with(&IPV4_MAPPED)).then_some(*gid)
            }
        }
    }
}

/// A length field; the longest datagram is far from its end.
fn length(bytes: u32) -> [u8; 2] {
    u16::try_from(bytes).unwrap_or(u16::MAX).to_be_bytes()
}

fn ipv6(source: &Gid, segment: &GrhSegment, payload: u32) -> [u8; SIZE] {
    let (class, flow) = (u32::from(segment.traffic_class), segment.flow_label.get());
    let first = (6 << 28) | (class << 20) | (flow & 0x000f_ffff);
    let [a, b, c, d] = first.to_be_bytes();
    let [hi, lo] = length(payload);
    let head = [a, b, c, d, hi, lo, IPPROTO_UDP, segment.hop_limit];
    concat([&head, source, &segment.dgid])
}

fn ipv4(source: [u8; 4], segment: &GrhSegment, payload: u32) -> [u8; SIZE] {
    let [hi, lo] = length(payload.saturating_add(IPV4_SIZE as u32));
    let [df, fragment] = DONT_FRAGMENT.to_be_bytes();
    let [.., a, b, c, d] = segment.dgid;
    let mut head = [0x45, segment.traffic_class, hi, lo, 0, 0, df, fragment]
        .into_iter()
        .chain([segment.hop_limit, IPPROTO_UDP, 0, 0])
        .chain(source)
        .chain([a, b, c, d]);
    let mut header = [0; IPV4_SIZE];
    header.fill_with(|| head.next().unwrap_or(0));
    let [check_hi, check_lo] = checksum(&header).to_be_bytes();
    if let Some(field) = header.get_mut(10..12) {
        field.copy_from_slice(&[check_hi, check_lo]);
    }
    concat([&[], &[0; SIZE - IPV4_SIZE], &header])
}

/// The Internet checksum (RFC 1071) of a header whose checksum field is zero.
fn checksum(header: &[u8; IPV4_SIZE]) -> u16 {
    let words = header.chunks_exact(2).map(|word| match word {
        [hi, lo] => u32::from(u16::from_be_bytes([*hi, *lo])),
        _ => 0,
    });
    let sum = words.fold(0u32, u32::wrapping_add);
    let folded = (sum & 0xffff).wrapping_add(sum >> 16);
    !(folded.wrapping_add(folded >> 16) as u16)
}

fn concat(parts: [&[u8]; 3]) -> [u8; SIZE] {
    let mut bytes = parts.into_iter().flatten().copied();
    let mut all = [0; SIZE];
    all.fill_with(|| bytes.next().unwrap_or(0));
    all
}

#[cfg(test)]
#[allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]
mod tests {
    use super::*;
    use zerocopy::little_endian::U32;

    fn segment(dgid: Gid) -> GrhSegment {
        GrhSegment {
            dgid,
            flow_label: U32::new(0x1_2345),
            hop_limit: 64,
            traffic_class: 0xb8,
            ..GrhSegment::default()
        }
    }

    fn address(gid: Gid) -> Address {
        Address { gid, vlan_id: None }
    }

    #[test]
    fn ipv6_header_is_that_of_rfc_8200() {
        let (source, to) = ([0x20; 16], [0xfe; 16]);
        let grh = Grh::new(&address(source), &segment(to), 5);
        assert_eq!(grh.header, NetworkHeader::Ipv6);
        assert_eq!(grh.bytes[..8], [0x6b, 0x81, 0x23, 0x45, 0, 40, 17, 64]);
        assert_eq!(
            (&grh.bytes[8..24], &grh.bytes[24..]),
            (&source[..], &to[..])
        );
    }

    #[test]
    fn ipv4_header_lies_at_the_end_and_sums_up() {
        let mapped = |last| {
            let mut gid = [0; 16];
            gid[..12].copy_from_slice(&IPV4_MAPPED);
            gid[12..].copy_from_slice(&[10, 78, 0, last]);
            gid
        };
        let grh = Grh::new(&address(mapped(1)), &segment(mapped(2)), 4);
        assert_eq!(grh.header, NetworkHeader::Ipv4);
        let (zeroes, header) = grh.bytes.split_at(20);
        assert_eq!(zeroes, [0; 20]);
        assert_eq!(header[..4], [0x45, 0xb8, 0, 56]);
        assert_eq!(header[12..], [10, 78, 0, 1, 10, 78, 0, 2]);
        let header: [u8; 20] = header.try_into().expect("20 bytes");
        // A sum over the whole header, checksum included, is all ones.
        assert_eq!(checksum(&header), 0);
    }
}
