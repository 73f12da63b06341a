// SPDX-License-Identifier: GPL-2.0
//! Offload words that a fuzzer makes up, and what has to hold of those that pass, said in other words than the check is written in.

#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "a test may fail loudly"
)]

use crate::offload::{check, Offload, Segments};
use nupa_proto::frame::{
    FrameMeta, GsoType, FRAME_GSO_ECN, FRAME_NEEDS_CSUM, MAX_FRAME, MAX_SUPER_FRAME,
};
use zerocopy::FromBytes;

/// Checks a frame: its offload words, two bytes of its length, and what is left is its linear part. Panics if words pass that the stack
/// must not see.
pub fn frames(bytes: &[u8]) {
    let Ok((meta, rest)) = FrameMeta::read_from_prefix(bytes) else {
        return;
    };
    let Some((more, head)) = rest.split_first_chunk::<2>() else {
        return;
    };
    // What does not lie in the linear part; together no more than a queue pair takes.
    let most = MAX_SUPER_FRAME.saturating_sub(head.len() as u32);
    let len = head.len() as u32 + u32::from(u16::from_le_bytes(*more)).min(most);
    let result = check(&meta, head, len);
    if meta.flags == 0 && meta.gso_type == 0 {
        assert_eq!(result.is_ok(), len <= MAX_FRAME, "a plain frame of {len}");
    }
    if let Ok(offload) = result {
        passed(&meta, head, len, offload);
    }
}

fn passed(meta: &FrameMeta, head: &[u8], len: u32, offload: Offload) {
    let asks = meta.flags & FRAME_NEEDS_CSUM != 0;
    assert_eq!(offload.checksum.is_some(), asks);
    if let Some((start, offset)) = offload.checksum {
        assert_eq!(
            (meta.csum_start.get(), meta.csum_offset.get()),
            (start, offset)
        );
        // The stack writes there.
        let at = usize::from(start) + usize::from(offset);
        assert!(start >= 34 && at + 2 <= head.len());
    }
    match offload.segments {
        Some(segments) => segmented(meta, head, len, segments),
        None => assert!(len <= MAX_FRAME, "{len} bytes are no frame"),
    }
}

/// The stack looks for the headers at `csum_start`, and at what is before them by itself.
fn segmented(meta: &FrameMeta, head: &[u8], len: u32, segments: Segments) {
    let start = usize::from(meta.csum_start.get());
    assert_eq!(GsoType::try_from(meta.gso_type), Ok(segments.kind));
    assert_eq!(segments.ecn, meta.flags & FRAME_GSO_ECN != 0);
    let (v4, protocol) = network(head, start).expect("an IP header that ends at the transport's");
    let (header, field) = match (segments.kind, protocol) {
        (GsoType::TcpV4, 6) if v4 => (usize::from(head[start + 12] >> 4) * 4, 16),
        (GsoType::TcpV6, 6) if !v4 => (usize::from(head[start + 12] >> 4) * 4, 16),
        (GsoType::UdpL4, 17) => (8, 6),
        other => panic!("{other:?} over IPv4: {v4}"),
    };
    assert!(start + header <= head.len());
    assert_eq!(usize::from(meta.csum_offset.get()), field);
    let payload = len as usize - start - header;
    let size = usize::from(segments.size);
    assert!(size > 0 && size < 0xffff && payload > size);
    match protocol {
        6 => assert!(header >= 20 && size >= 8),
        _ => assert!(!segments.ecn && payload <= size * 128),
    }
}

/// Whether it is IPv4, and the protocol, if an IP header is there whose packet's transport header may be at `start`.
fn network(head: &[u8], start: usize) -> Option<(bool, u8)> {
    let tagged = |kind: &[u8]| kind == [0x81, 0] || kind == [0x88, 0xa8];
    let tags = (0..2).take_while(|tag| tagged(&head[12 + 4 * tag..][..2]));
    let at = 14 + 4 * tags.count();
    let packet = &head[at..start];
    match head[at - 2..at] {
        [8, 0] if packet.len() == usize::from(packet[0] & 15) * 4 => Some((true, packet[9])),
        [0x86, 0xdd] if packet.len() == 40 => Some((false, packet[6])),
        // The last extension header says what follows, wherever it began.
        [0x86, 0xdd] if packet.len() % 8 == 0 => extension(packet).map(|next| (false, next)),
        _ => None,
    }
}

/// What follows the last extension header of an IPv6 packet that ends with it.
fn extension(packet: &[u8]) -> Option<u8> {
    let (mut at, mut next) = (40, packet[6]);
    while at < packet.len() {
        next = packet[at];
        at += 8 + 8 * usize::from(packet[at + 1]);
    }
    (at == packet.len()).then_some(next)
}
