// SPDX-License-Identifier: GPL-2.0
//! Offload words that a peer may send, good and bad.

use crate::offload::{check, Offload, Refused, Segments};
use nupa_proto::frame::{
    FrameMeta, GsoType, FRAME_CSUM_VALID, FRAME_GSO_ECN, FRAME_NEEDS_CSUM, MAX_FRAME,
    MAX_SUPER_FRAME, MIN_FRAME,
};
use proptest::prelude::*;

const TCP: u8 = 6;
const UDP: u8 = 17;

/// Headers of a TCP or UDP packet, with `tags` VLAN tags and `extensions` IPv6 extension headers.
fn head(v6: bool, protocol: u8, tags: usize, extensions: usize) -> Vec<u8> {
    let mut head = vec![2; 12];
    for _ in 0..tags {
        head.extend([0x81, 0, 0, 7]);
    }
    if v6 {
        head.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 0]);
        head.extend([if extensions == 0 { protocol } else { 60 }, 64]);
        head.extend([9; 32]);
        for left in (0..extensions).rev() {
            head.extend([if left == 0 { protocol } else { 60 }, 0, 1, 4, 0, 0, 0, 0]);
        }
    } else {
        head.extend([8, 0, 0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, protocol, 0, 0]);
        head.extend([10; 8]);
    }
    match protocol {
        TCP => head.extend([
            1, 2, 3, 4, 0, 0, 0, 1, 0, 0, 0, 2, 0x80, 0x10, 1, 0, 0, 0, 0, 0,
        ]),
        _ => head.extend([1, 2, 3, 4, 0, 0, 0, 0]),
    }
    // Options of TCP, or the first bytes of what UDP carries.
    head.extend([1; 12]);
    head
}

/// A super-frame's headers and the words that fit them.
fn super_frame(v6: bool, protocol: u8, tags: usize, extensions: usize) -> (Vec<u8>, FrameMeta) {
    let head = head(v6, protocol, tags, extensions);
    let transport = if protocol == TCP { 20 } else { 8 };
    let meta = FrameMeta {
        gso_type: match (protocol, v6) {
            (TCP, false) => GsoType::TcpV4.to_wire(),
            (TCP, true) => GsoType::TcpV6.to_wire(),
            _ => GsoType::UdpL4.to_wire(),
        },
        flags: FRAME_NEEDS_CSUM,
        gso_size: 1000.into(),
        csum_start: ((head.len() - 12 - transport) as u16).into(),
        csum_offset: if protocol == TCP { 16 } else { 6 }.into(),
        ..FrameMeta::default()
    };
    (head, meta)
}

fn all() -> impl Iterator<Item = (Vec<u8>, FrameMeta)> {
    let kinds = [(false, TCP), (true, TCP), (false, UDP), (true, UDP)];
    kinds.into_iter().flat_map(|(v6, protocol)| {
        let most = if v6 { 2 } else { 0 };
        (0..=2).flat_map(move |tags| {
            (0..=most).map(move |extensions| super_frame(v6, protocol, tags, extensions))
        })
    })
}

#[test]
fn super_frames_as_the_stack_makes_them_pass() {
    for (head, meta) in all() {
        let offload = check(&meta, &head, 60_000).unwrap();
        let kind = GsoType::try_from(meta.gso_type).unwrap();
        let segments = Segments {
            kind,
            size: 1000,
            ecn: false,
        };
        assert_eq!(offload.segments, Some(segments));
        let checksum = (meta.csum_start.get(), meta.csum_offset.get());
        assert_eq!(offload.checksum, Some(checksum));
        // One segment is no super-frame.
        let short = check(&meta, &head, head.len() as u32 + 900).unwrap();
        assert_eq!(short.segments, None);
    }
}

#[test]
fn each_segment_size_is_as_virtio_has_it() {
    for (head, meta) in all() {
        let tcp = meta.gso_type != GsoType::UdpL4.to_wire();
        for size in 0..=u16::MAX {
            let meta = FrameMeta {
                gso_size: size.into(),
                ..meta
            };
            let payload = 60_000 - (head.len() as u32 - if tcp { 0 } else { 12 });
            let good = size != 0 && size != u16::MAX && (tcp || payload <= u32::from(size) * 128);
            let found = check(&meta, &head, 60_000);
            assert_eq!(found.is_ok(), good, "{meta:?}");
            let Ok(offload) = found else { continue };
            let floor = if tcp { size.max(8) } else { size };
            let segmented = (payload > u32::from(floor)).then_some(floor);
            assert_eq!(offload.segments.map(|segments| segments.size), segmented);
        }
    }
}

#[test]
fn each_checksum_place_but_the_transport_s_is_refused_for_super_frames() {
    for (head, meta) in all() {
        for start in 0..400 {
            for offset in [0, 2, 4, 6, 7, 8, 15, 16, 17, 18, 200, 0xfffe, 0xffff] {
                let right = (start, offset) == (meta.csum_start.get(), meta.csum_offset.get());
                let meta = FrameMeta {
                    csum_start: start.into(),
                    csum_offset: offset.into(),
                    ..meta
                };
                assert_eq!(check(&meta, &head, 60_000).is_ok(), right, "{meta:?}");
            }
        }
    }
}

#[test]
fn checksums_alone_lie_behind_an_ip_header_and_within_the_linear_part() {
    let (head, _) = super_frame(false, UDP, 0, 0);
    for start in (0..300).chain([0x7fff, 0xfffe, 0xffff]) {
        for offset in (0..300).chain([0x7fff, 0xfffe, 0xffff]) {
            let meta = FrameMeta {
                flags: FRAME_NEEDS_CSUM,
                csum_start: start.into(),
                csum_offset: offset.into(),
                ..FrameMeta::default()
            };
            let good = start >= 34 && usize::from(start) + usize::from(offset) + 2 <= head.len();
            assert_eq!(check(&meta, &head, 9000).is_ok(), good, "{start} {offset}");
        }
    }
}

#[test]
fn kinds_that_are_not_the_headers_are_refused() {
    for (head, meta) in all() {
        for gso_type in 0..=u8::MAX {
            let meta = FrameMeta { gso_type, ..meta };
            let right = gso_type == super_frame_kind(&head) || gso_type == 0;
            assert_eq!(check(&meta, &head, 60_000).is_ok(), right, "{gso_type}");
        }
    }
}

/// The kind that `all` made a header for, found in another way: by the first match.
fn super_frame_kind(head: &[u8]) -> u8 {
    all().find(|(other, _)| other == head).unwrap().1.gso_type
}

#[test]
fn flags_that_do_not_fit_are_refused() {
    let none = FrameMeta::default();
    for (head, meta) in all() {
        let with = |meta: FrameMeta, flags| check(&FrameMeta { flags, ..meta }, &head, 60_000);
        assert_eq!(with(meta, 0), Err(Refused), "no checksum to do");
        assert_eq!(with(meta, FRAME_CSUM_VALID), Err(Refused));
        let udp = meta.gso_type == GsoType::UdpL4.to_wire();
        let ecn = with(meta, FRAME_NEEDS_CSUM | FRAME_GSO_ECN);
        assert_eq!(ecn.is_err(), udp);
        assert_eq!(with(none, FRAME_GSO_ECN), Err(Refused));
        for bit in [5, 6, 7] {
            assert_eq!(with(none, 1 << bit), Err(Refused));
            assert_eq!(with(meta, FRAME_NEEDS_CSUM | (1 << bit)), Err(Refused));
        }
    }
}

#[test]
fn headers_that_are_cut_or_wrong_are_refused() {
    for (head, meta) in all() {
        let headers = head.len() - if meta.csum_offset.get() == 16 { 0 } else { 12 };
        for len in MIN_FRAME as usize..head.len() {
            let good = len >= headers;
            assert_eq!(check(&meta, &head[..len], 60_000).is_ok(), good, "{len}");
        }
    }
    let changed = |v6, protocol, at: usize, byte| {
        let (mut head, meta) = super_frame(v6, protocol, 0, 0);
        head[at] = byte;
        check(&meta, &head, 60_000)
    };
    for (at, byte) in [
        (12, 0x88),
        (14, 0x65),
        (14, 0x44),
        (14, 0x46),
        (20, 0x20),
        (21, 1),
        (23, 1),
    ] {
        assert_eq!(changed(false, TCP, at, byte), Err(Refused), "{at} {byte}");
    }
    for (at, byte) in [(13, 0), (14, 0x45), (20, 44), (20, 0), (20, 50), (20, UDP)] {
        assert_eq!(changed(true, TCP, at, byte), Err(Refused), "{at} {byte}");
    }
    // Length of the TCP header: too short, and beyond what is there.
    for words in [0, 1, 4, 9, 15] {
        assert_eq!(changed(false, TCP, 46, words << 4), Err(Refused), "{words}");
    }
}

#[test]
fn only_tcp_is_longer_than_ip_can_say() {
    for (head, meta) in all() {
        let meta = FrameMeta {
            gso_size: 9000.into(),
            ..meta
        };
        let tcp = meta.gso_type != GsoType::UdpL4.to_wire();
        assert_eq!(check(&meta, &head, MAX_SUPER_FRAME).is_ok(), tcp);
        let plain = FrameMeta::default();
        assert!(check(&plain, &head, MAX_FRAME).is_ok());
        assert_eq!(check(&plain, &head, MAX_FRAME + 1), Err(Refused));
    }
}

fn words() -> impl Strategy<Value = FrameMeta> {
    let small = || prop_oneof![0..100u16, any::<u16>()];
    let kind = prop_oneof![Just(0u8), Just(1), Just(4), Just(5), any::<u8>()];
    let flags = prop_oneof![Just(FRAME_NEEDS_CSUM), any::<u8>()];
    (kind, flags, small(), small(), small()).prop_map(|(gso_type, flags, size, start, offset)| {
        FrameMeta {
            gso_type,
            flags,
            gso_size: size.into(),
            csum_start: start.into(),
            csum_offset: offset.into(),
            ..FrameMeta::default()
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever headers and words come: what passes can be left to the stack.
    #[test]
    fn what_passes_fits_the_frame(
        (shape, meta) in (0..24usize, words()),
        changes in prop::collection::vec((0..90usize, any::<u8>()), 0..3),
        cut in 0..40usize,
        len in MIN_FRAME..=MAX_SUPER_FRAME,
    ) {
        let (mut head, fitting) = all().nth(shape).unwrap();
        for (at, byte) in changes {
            if let Some(place) = head.get_mut(at) {
                *place = byte;
            }
        }
        head.truncate(head.len() - cut);
        let len = len.max(head.len() as u32);
        let nearly = FrameMeta { csum_start: fitting.csum_start, csum_offset: fitting.csum_offset, ..meta };
        for meta in [meta, nearly] {
            let Ok(Offload { checksum, segments }) = check(&meta, &head, len) else { continue };
            if let Some((start, offset)) = checksum {
                prop_assert!(start >= 34 && usize::from(start) + usize::from(offset) + 2 <= head.len());
            }
            if let Some(Segments { kind, size, ecn }) = segments {
                prop_assert!(checksum.is_some() && size != 0 && size != u16::MAX);
                prop_assert!(kind != GsoType::UdpL4 || !ecn && len <= head.len() as u32 + u32::from(size) * 128);
                prop_assert!(len > u32::from(size));
            }
            prop_assert!(len <= MAX_FRAME || segments.is_some_and(|segments| segments.kind != GsoType::UdpL4));
        }
    }
}
