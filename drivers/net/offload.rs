// SPDX-License-Identifier: GPL-2.0
//! Offload words of received frames, checked against the frames.
//!
//! A peer may send any words. What passes here is what `virtio_net_hdr_to_skb()` (include/linux/virtio_net.h) lets pass from
//! a virtual machine; beyond its rules, a super-frame's headers have to be those of the segmentation that its words ask for.

use nupa_proto::frame::{
    FrameMeta, GsoType, FRAME_CSUM_VALID, FRAME_GSO_ECN, FRAME_L4_HASH, FRAME_NEEDS_CSUM,
    FRAME_VLAN, MAX_FRAME,
};

/// The flags that there are.
const FLAGS: u8 = FRAME_NEEDS_CSUM | FRAME_CSUM_VALID | FRAME_GSO_ECN | FRAME_VLAN | FRAME_L4_HASH;
/// Least offset of a transport header: behind Ethernet and IPv4.
const MIN_TRANSPORT: usize = 14 + 20;
/// Bytes of the checksum of any transport.
pub(crate) const CHECKSUM_SIZE: u16 = 2;
/// Means something else to the stack (`GSO_BY_FRAGS`).
const GSO_BY_FRAGS: u16 = 0xffff;
/// What the stack raises smaller segments of TCP to (`TCP_MIN_GSO_SIZE`).
const TCP_MIN_GSO_SIZE: u16 = 8;
/// Segments of a UDP super-frame at most.
const UDP_MAX_SEGMENTS: u32 = 128;

const ETHERTYPE_OFFSET: usize = 12;
const ETH_P_IP: u16 = 0x0800;
const ETH_P_IPV6: u16 = 0x86dd;
const ETH_P_8021Q: u16 = 0x8100;
const ETH_P_8021AD: u16 = 0x88a8;
/// VLAN tags that a frame may have in front of its ethertype.
const MAX_TAGS: usize = 2;

const IPPROTO_TCP: u8 = 6;
const IPPROTO_UDP: u8 = 17;
/// IPv6 extension headers that may stand before the transport header: hop-by-hop options, routing, destination options.
const EXTENSIONS: [u8; 3] = [0, 43, 60];
/// Extension headers that are looked at.
const MAX_EXTENSIONS: usize = 8;

/// The words do not fit the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused;

/// How a super-frame is to be segmented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segments {
    pub(crate) kind: GsoType,
    /// Payload bytes of each.
    pub(crate) size: u16,
    /// CWR is set in the first only.
    pub(crate) ecn: bool,
}

/// What is left to do for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offload {
    /// Where the checksum starts and, counted from there, goes; both in the linear part.
    pub(crate) checksum: Option<(u16, u16)>,
    /// `None` as well for what claims to be a super-frame and is no longer than one segment.
    pub(crate) segments: Option<Segments>,
}

/// Checks the words of a frame of `len` bytes that begins with `head`, its linear part.
#[inline]
pub(crate) fn check(meta: &FrameMeta, head: &[u8], len: u32) -> Result<Offload, Refused> {
    let kind = GsoType::try_from(meta.gso_type).map_err(|_| Refused)?;
    if meta.flags & !FLAGS != 0 {
        return Err(Refused);
    }
    let checksum = match meta.flags & FRAME_NEEDS_CSUM {
        0 => None,
        _ => Some(checksum(meta, head)?),
    };
    let segments = match kind {
        GsoType::None if meta.flags & FRAME_GSO_ECN != 0 => return Err(Refused),
        GsoType::None => None,
        _ => segments(meta, kind, checksum.ok_or(Refused)?, head, len)?,
    };
    let tcp = segments.is_some_and(|segments| segments.kind != GsoType::UdpL4);
    if len > MAX_FRAME && !tcp {
        // No IP header can say such a length.
        return Err(Refused);
    }
    Ok(Offload { checksum, segments })
}

/// A checksum lies behind a network header and within the linear part.
#[inline]
fn checksum(meta: &FrameMeta, head: &[u8]) -> Result<(u16, u16), Refused> {
    let (start, offset) = (meta.csum_start.get(), meta.csum_offset.get());
    let at = usize::from(start).saturating_add(usize::from(offset));
    if usize::from(start) < MIN_TRANSPORT || at.saturating_add(CHECKSUM_SIZE.into()) > head.len() {
        return Err(Refused);
    }
    Ok((start, offset))
}

/// A super-frame has the transport that its kind is about, whose checksum is left to do, and all headers in the linear part.
fn segments(
    meta: &FrameMeta,
    kind: GsoType,
    (start, offset): (u16, u16),
    head: &[u8],
    len: u32,
) -> Result<Option<Segments>, Refused> {
    let (versions, protocol, field): (&[Version], _, _) = match kind {
        GsoType::TcpV4 => (&[Version::V4], IPPROTO_TCP, 16),
        GsoType::TcpV6 => (&[Version::V6], IPPROTO_TCP, 16),
        _ => (&[Version::V4, Version::V6], IPPROTO_UDP, 6),
    };
    let found = transport(head).ok_or(Refused)?;
    let meant = versions.contains(&found.version) && found.protocol == protocol;
    if !meant || found.offset != usize::from(start) || offset != field {
        return Err(Refused);
    }
    let end = match protocol {
        IPPROTO_TCP => tcp_end(head, found.offset),
        _ => Some(found.offset.saturating_add(8)),
    };
    let end = end.filter(|end| *end <= head.len()).ok_or(Refused)?;
    let payload = len.saturating_sub(u32::try_from(end).map_err(|_| Refused)?);
    let ecn = meta.flags & FRAME_GSO_ECN != 0;
    let size = match meta.gso_size.get() {
        0 | GSO_BY_FRAGS => return Err(Refused),
        size if protocol == IPPROTO_TCP => size.max(TCP_MIN_GSO_SIZE),
        size if ecn || payload > u32::from(size).saturating_mul(UDP_MAX_SEGMENTS) => {
            return Err(Refused)
        }
        size => size,
    };
    Ok((payload > u32::from(size)).then_some(Segments { kind, size, ecn }))
}

/// End of a TCP header.
fn tcp_end(head: &[u8], at: usize) -> Option<usize> {
    let words = head.get(at.saturating_add(12))? >> 4;
    (words >= 5).then(|| at.saturating_add(usize::from(words).saturating_mul(4)))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    V4,
    V6,
}

/// What an IP packet carries.
struct Transport {
    version: Version,
    protocol: u8,
    offset: usize,
}

/// Finds the transport header of a frame, if it has an IP packet that is no fragment.
fn transport(head: &[u8]) -> Option<Transport> {
    let mut at = ETHERTYPE_OFFSET;
    for _ in 0..MAX_TAGS {
        if matches!(be16(head, at)?, ETH_P_8021Q | ETH_P_8021AD) {
            at = at.saturating_add(4);
        }
    }
    let network = at.saturating_add(2);
    match be16(head, at)? {
        ETH_P_IP => ipv4(head, network),
        ETH_P_IPV6 => ipv6(head, network),
        _ => None,
    }
}

fn ipv4(head: &[u8], at: usize) -> Option<Transport> {
    /// Offset, and that more follow.
    const FRAGMENT: u16 = 0x3fff;
    let first = *head.get(at)?;
    let words = first & 15;
    if first >> 4 != 4 || words < 5 || be16(head, at.saturating_add(6))? & FRAGMENT != 0 {
        return None;
    }
    Some(Transport {
        version: Version::V4,
        protocol: *head.get(at.saturating_add(9))?,
        offset: at.saturating_add(usize::from(words).saturating_mul(4)),
    })
}

fn ipv6(head: &[u8], at: usize) -> Option<Transport> {
    if head.get(at)? >> 4 != 6 {
        return None;
    }
    let mut protocol = *head.get(at.saturating_add(6))?;
    let mut offset = at.saturating_add(40);
    for _ in 0..MAX_EXTENSIONS {
        if !EXTENSIONS.contains(&protocol) {
            break;
        }
        protocol = *head.get(offset)?;
        let units = usize::from(*head.get(offset.saturating_add(1))?).saturating_add(1);
        offset = offset.saturating_add(units.saturating_mul(8));
    }
    Some(Transport {
        version: Version::V6,
        protocol,
        offset,
    })
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..)?.first_chunk::<2>()?;
    Some(u16::from_be_bytes(*bytes))
}
