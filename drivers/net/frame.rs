// SPDX-License-Identifier: GPL-2.0
//! Translation between packets of the stack and frames of the fabric.

use crate::offload::{check, Refused, Segments, CHECKSUM_SIZE};
use kernel::prelude::*;
use nk::net::{xdp::XdpFrame, Features, Gso, GsoKind, RxSkb, SkBuff};
use nupa_proto::{
    frame::{
        FrameMeta, GsoType, FRAME_CSUM_VALID, FRAME_GSO_ECN, FRAME_L4_HASH, FRAME_NEEDS_CSUM,
        FRAME_VLAN, MAX_FRAME, MIN_FRAME,
    },
    ident::{mac_node, NODE_FLOOD},
};

/// What a sender's stack may leave unsegmented.
pub(crate) const SEGMENTATION: Features = Features::TSO
    .with(Features::TSO6)
    .with(Features::TSO_ECN)
    .with(Features::TSO_MANGLEID)
    .with(Features::GSO_UDP_L4);

/// Longest headers that a received packet has in its linear part.
pub(crate) const MAX_HEADERS: u32 = 256;
/// Headers that are assumed where the sender does not say: Ethernet, IPv6 and TCP with time stamps fit.
const USUAL_HEADERS: u32 = 128;

/// Offset of the checksum in a TCP header, which tells TCP from UDP.
const TCP_CHECKSUM: u16 = 16;
/// Offset of the data offset in a TCP header.
const TCP_DATA_OFFSET: usize = 12;
/// Bytes of a UDP header.
const UDP_HEADER: u16 = 8;

/// Where a packet goes: the node that owns its destination address, or all of them.
#[inline]
pub(crate) fn target(skb: &SkBuff, max_nodes: u16) -> Option<u16> {
    skb.linear()
        .first_chunk::<6>()
        .map(|destination| node(destination, max_nodes))
}

#[inline]
fn node(destination: &[u8; 6], max_nodes: u16) -> u16 {
    match mac_node(destination) {
        Some(node) if node < max_nodes => node,
        _ => NODE_FLOOD,
    }
}

/// Where a frame of XDP goes, and what the fabric is told of it: nobody has looked at its checksum. `None` if the fabric cannot carry it.
pub(crate) fn encode_xdp(
    frame: &XdpFrame,
    (hash, l4): (u32, bool),
    max_nodes: u16,
) -> Option<(u16, FrameMeta)> {
    if !(MIN_FRAME..=MAX_FRAME).contains(&frame.len()) {
        return None;
    }
    let header = frame.head::<{ MIN_FRAME as usize }>()?;
    let mut meta = FrameMeta {
        hash: hash.into(),
        ..FrameMeta::default()
    };
    if l4 {
        meta.flags |= FRAME_L4_HASH;
    }
    Some((node(header.first_chunk()?, max_nodes), meta))
}

/// The checksum that a packet leaves to be done.
#[inline]
fn checksum(skb: &SkBuff) -> FrameMeta {
    let mut meta = FrameMeta::default();
    if let Some((start, offset)) = skb.partial_checksum() {
        meta.flags = FRAME_NEEDS_CSUM;
        meta.csum_start = start.into();
        meta.csum_offset = offset.into();
        meta.header_len = header_len(skb, start, offset).into();
    }
    meta
}

/// Checksum and segmentation that a packet leaves to be done. `EINVAL` for segmentation that the fabric does not know.
#[inline]
fn offloads(skb: &SkBuff) -> Result<FrameMeta> {
    let mut meta = checksum(skb);
    if let Some(gso) = skb.gso()? {
        let kind = match gso.kind {
            GsoKind::TcpV4 => GsoType::TcpV4,
            GsoKind::TcpV6 => GsoType::TcpV6,
            GsoKind::UdpL4 => GsoType::UdpL4,
        };
        meta.gso_type = kind.to_wire();
        meta.gso_size = gso.size.into();
        if gso.ecn {
            meta.flags |= FRAME_GSO_ECN;
        }
    }
    Ok(meta)
}

/// Of `features`, those that may be used for a packet. What its receiver would refuse is left to the stack; that judges by what it
/// looks at, which is the first bytes alone.
#[inline]
pub(crate) fn features(skb: &SkBuff, features: Features) -> Features {
    let passes = |meta: &FrameMeta, len: u32| {
        let seen = linear_len(meta, skb.linear_len()) as usize;
        let head = skb.linear().get(..seen).unwrap_or_default();
        check(meta, head, len).is_ok()
    };
    if offloads(skb).is_ok_and(|meta| passes(&meta, skb.len())) {
        return features;
    }
    // The headers of its segments are as long.
    let left = features.without(SEGMENTATION);
    match passes(&checksum(skb), skb.linear_len()) {
        true => left,
        false => left.without(Features::HW_CSUM),
    }
}

/// What the fabric is told of a packet to send. `EINVAL` if it cannot carry it, which takes up to `max_frame` bytes. `hash` asks
/// for a flow hash even if it has to be computed.
#[inline]
pub(crate) fn encode(skb: &mut SkBuff, max_frame: u32, hash: bool) -> Result<FrameMeta> {
    if !(MIN_FRAME..=max_frame).contains(&skb.len()) || skb.linear_len() < MIN_FRAME {
        return Err(EINVAL);
    }
    #[cfg(nupa_hostile)]
    if let Some(words) = crate::forged::words(skb.linear()) {
        return Ok(words);
    }
    let mut meta = offloads(skb)?;
    let mut flags = meta.flags;
    if let Some(tag) = skb.vlan_tag() {
        flags |= FRAME_VLAN;
        meta.vlan_tci = tag.into();
    }
    let (hash, l4) = if hash { skb.hash() } else { skb.known_hash() };
    meta.hash = hash.into();
    if l4 {
        flags |= FRAME_L4_HASH;
    }
    meta.flags = flags;
    Ok(meta)
}

/// Bytes of all headers, and of the checksum in any case, given where that starts and goes.
#[inline]
fn header_len(skb: &SkBuff, start: u16, offset: u16) -> u16 {
    let transport = if offset == TCP_CHECKSUM {
        let at = usize::from(start).saturating_add(TCP_DATA_OFFSET);
        u16::from(skb.linear().get(at).copied().unwrap_or(0) >> 4).saturating_mul(4)
    } else {
        UDP_HEADER.max(offset.saturating_add(CHECKSUM_SIZE))
    };
    start.saturating_add(transport)
}

/// Bytes of a received frame of `len` bytes that go to the linear part, given what its sender says of its headers.
#[inline]
pub(crate) fn linear_len(meta: &FrameMeta, len: u32) -> u32 {
    match u32::from(meta.header_len.get()) {
        said @ MIN_FRAME..=MAX_HEADERS => said,
        _ => USUAL_HEADERS,
    }
    .min(len)
}

/// What may be taken over from a frame, as the interface's features say.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    /// Checksums that the sender vouches for.
    pub(crate) checksum: bool,
    /// Flow hashes.
    pub(crate) hash: bool,
}

/// Takes over offload state of a received frame, which is complete but for that. `EINVAL` if it does not fit the frame.
#[inline]
pub(crate) fn decode(meta: &FrameMeta, packet: &mut RxSkb, wanted: Wanted) -> Result {
    let offload = check(meta, packet.linear(), packet.len()).map_err(|Refused| EINVAL)?;
    if let Some((start, offset)) = offload.checksum {
        packet.set_partial_checksum(start, offset)?;
    } else if meta.flags & FRAME_CSUM_VALID != 0 && wanted.checksum {
        packet.set_checksum_valid();
    }
    if let Some(gso) = offload.segments.and_then(gso) {
        packet.set_gso(gso);
    }
    if meta.flags & FRAME_VLAN != 0 {
        packet.set_vlan_tag(meta.vlan_tci.get());
    }
    if wanted.hash && meta.hash.get() != 0 {
        packet.set_hash(meta.hash.get(), meta.flags & FRAME_L4_HASH != 0);
    }
    Ok(())
}

fn gso(segments: Segments) -> Option<Gso> {
    let kind = match segments.kind {
        GsoType::None => return None,
        GsoType::TcpV4 => GsoKind::TcpV4,
        GsoType::TcpV6 => GsoKind::TcpV6,
        GsoType::UdpL4 => GsoKind::UdpL4,
    };
    Some(Gso {
        kind,
        size: segments.size,
        ecn: segments.ecn,
    })
}
