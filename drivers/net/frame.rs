// SPDX-License-Identifier: GPL-2.0
//! Translation between packets of the stack and frames of the fabric.

use crate::offload::{check, Refused, Segments};
use kernel::prelude::*;
use nk::net::{Gso, GsoKind, RxSkb, SkBuff};
use nupa_proto::{
    frame::{
        FrameMeta, GsoType, FRAME_CSUM_VALID, FRAME_GSO_ECN, FRAME_L4_HASH, FRAME_NEEDS_CSUM,
        FRAME_VLAN, MIN_FRAME,
    },
    ident::{mac_node, NODE_FLOOD},
};

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
    let destination = skb.linear().first_chunk::<6>()?;
    Some(match mac_node(destination) {
        Some(node) if node < max_nodes => node,
        _ => NODE_FLOOD,
    })
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
    let mut meta = FrameMeta::default();
    let mut flags = 0;
    if let Some((start, offset)) = skb.partial_checksum() {
        flags |= FRAME_NEEDS_CSUM;
        meta.csum_start = start.into();
        meta.csum_offset = offset.into();
        meta.header_len = header_len(skb, start, offset).into();
    }
    if let Some(gso) = skb.gso()? {
        let kind = match gso.kind {
            GsoKind::TcpV4 => GsoType::TcpV4,
            GsoKind::TcpV6 => GsoType::TcpV6,
            GsoKind::UdpL4 => GsoType::UdpL4,
        };
        meta.gso_type = kind.to_wire();
        meta.gso_size = gso.size.into();
        if gso.ecn {
            flags |= FRAME_GSO_ECN;
        }
    }
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

/// Bytes of all headers, given where the transport checksum starts and goes.
#[inline]
fn header_len(skb: &SkBuff, start: u16, offset: u16) -> u16 {
    let transport = if offset == TCP_CHECKSUM {
        let at = usize::from(start).saturating_add(TCP_DATA_OFFSET);
        u16::from(skb.linear().get(at).copied().unwrap_or(0) >> 4).saturating_mul(4)
    } else {
        UDP_HEADER
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
