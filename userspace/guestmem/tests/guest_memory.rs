// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Guest memory over real memfds.

#![allow(
    missing_docs,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a test may fail loudly"
)]

use std::os::fd::{AsFd, OwnedFd};

use guestmem::{
    AccessError, GuestMemory, MapError, MapRequest, MmapRegion, Reach, Rights, Stats, UnmapError,
};
use proptest::prelude::*;
use rustix::fs::{fcntl_add_seals, ftruncate, memfd_create, MemfdFlags, SealFlags};

const PAGE: u64 = 4096;

fn memfd(pages: u64) -> OwnedFd {
    let fd = memfd_create("guest", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, pages * PAGE).unwrap();
    fd
}

fn request(iova: u64, pages: u64, file: Option<&OwnedFd>, offset: u64) -> MapRequest<'_> {
    MapRequest {
        iova,
        len: pages * PAGE,
        file: file.map(AsFd::as_fd),
        offset,
        rights: Rights::ReadWrite,
    }
}

/// A guest with 4 pages at 0x10000 (in two regions) and 4 more at 1 << 40.
fn guest() -> GuestMemory {
    let fd = memfd(8);
    let mut memory = GuestMemory::new();
    memory.map(&request(0x10000, 1, Some(&fd), 0)).unwrap();
    memory
        .map(&request(0x11000, 3, Some(&fd), 5 * PAGE))
        .unwrap();
    memory.map(&request(1 << 40, 4, Some(&fd), PAGE)).unwrap();
    memory
}

#[test]
fn bytes_come_back() {
    let memory = guest();
    memory.write(0x10010, b"hello").unwrap();
    let mut buf = [0; 5];
    memory.read(0x10010, &mut buf).unwrap();
    assert_eq!(&buf, b"hello");
}

#[test]
fn ranges_straddle_adjacent_regions() {
    let memory = guest();
    let data: Vec<u8> = (0..8192_u32).map(|i| (i % 251) as u8).collect();
    memory.write(0x10000 + 100, &data).unwrap();
    let mut back = vec![0; data.len()];
    memory.read(0x10000 + 100, &mut back).unwrap();
    assert_eq!(data, back);

    let other = guest();
    GuestMemory::copy(&memory, 0x10064, &other, 0x10ff0, data.len()).unwrap();
    other.read(0x10ff0, &mut back).unwrap();
    assert_eq!(data, back);
}

#[test]
fn refused_accesses_change_nothing() {
    let memory = guest();
    let end = 0x10000 + 4 * PAGE;
    assert_eq!(
        memory.write(end - 2, b"abcd"),
        Err(AccessError::Unmapped(end))
    );
    let mut tail = [1; 2];
    memory.read(end - 2, &mut tail).unwrap();
    assert_eq!(tail, [0, 0]);
    assert_eq!(
        memory.read(0xffff, &mut tail),
        Err(AccessError::Unmapped(0xffff))
    );
    assert_eq!(
        memory.read(u64::MAX, &mut tail),
        Err(AccessError::Unmapped(u64::MAX))
    );
    assert_eq!(memory.read(u64::MAX, &mut []), Ok(()));
}

#[test]
fn overlapping_loopback_copy_is_a_move() {
    let memory = guest();
    memory.write(0x11000, b"0123456789").unwrap();
    GuestMemory::copy(&memory, 0x11000, &memory, 0x11002, 10).unwrap();
    let mut buf = [0; 12];
    memory.read(0x11000, &mut buf).unwrap();
    assert_eq!(&buf, b"010123456789");
}

#[test]
fn nontemporal_copies_are_copies() {
    let (memory, other) = (guest(), guest());
    let data: Vec<u8> = (0..4096_u32).map(|i| (i % 251) as u8 + 1).collect();
    memory.write(0x11000, &data).unwrap();
    for from in 0..9 {
        for to in 0..9 {
            for len in [0, 1, 7, 8, 9, 15, 16, 17, 31, 64, 255, 4000] {
                let at = 0x12000 + to;
                other.write(at - 16, &[0; 4096]).unwrap();
                GuestMemory::copy_nontemporal(&memory, 0x11000 + from, &other, at, len).unwrap();
                let mut found = vec![9; len + 32];
                other.read(at - 16, &mut found).unwrap();
                let from = from as usize;
                assert_eq!(found[16..][..len], data[from..][..len], "{from} {to} {len}");
                assert_eq!(found[..16], [0; 16]);
                assert_eq!(found[16 + len..], [0; 16]);
            }
        }
    }
    // Over the border of two regions, and onto itself.
    GuestMemory::copy_nontemporal(&memory, 0x11000, &other, 0x10ff0, 100).unwrap();
    let mut found = [0; 100];
    other.read(0x10ff0, &mut found).unwrap();
    assert_eq!(found, data[..100]);
    GuestMemory::copy_nontemporal(&memory, 0x11000, &memory, 0x11003, 1000).unwrap();
    let mut found = [0; 1000];
    memory.read(0x11003, &mut found).unwrap();
    assert_eq!(found, data[..1000]);
    let outside = GuestMemory::copy_nontemporal(&memory, 0x11000, &other, 0x20000, 8);
    assert_eq!(outside, Err(AccessError::Unmapped(0x20000)));
}

#[test]
fn the_table_refuses_what_makes_no_sense() {
    let fd = memfd(4);
    let mut memory = guest();
    let mut map = |iova, len, offset| {
        memory.map(&MapRequest {
            iova,
            len,
            file: Some(fd.as_fd()),
            offset,
            rights: Rights::ReadWrite,
        })
    };
    assert_eq!(map(0x10000, PAGE, 0), Err(MapError::Overlap));
    assert_eq!(map(0xf000, 2 * PAGE, 0), Err(MapError::Overlap));
    assert_eq!(map(0x13000, 8 * PAGE, 0), Err(MapError::Overlap));
    assert_eq!(map(0x20000, 0, 0), Err(MapError::InvalidRange));
    assert_eq!(map(u64::MAX - 1, 2 * PAGE, 0), Err(MapError::InvalidRange));
    assert_eq!(map(0x20000, u64::MAX, 0), Err(MapError::InvalidRange));
    assert_eq!(map(0x20000, 10, 0), Err(MapError::InvalidRange));
    assert_eq!(map(0x20000, PAGE, 7), Err(MapError::InvalidRange));
    assert_eq!(map(0x20000, 5 * PAGE, 0), Err(MapError::FileTooShort));
    assert_eq!(
        map(0x20000, PAGE, 0u64.wrapping_sub(PAGE)),
        Err(MapError::FileTooShort)
    );
    assert_eq!(map(0u64.wrapping_sub(PAGE), PAGE, 0), Ok(Reach::Mapped));
}

#[test]
fn unmapped_memory_is_gone() {
    let mut memory = guest();
    assert_eq!(
        memory.unmap(0x10000, 2 * PAGE),
        Err(UnmapError::NoSuchRegion)
    );
    memory.read(0x10000, &mut [0]).unwrap();
    memory.unmap(0x10000, PAGE).unwrap();
    assert_eq!(
        memory.read(0x10000, &mut [0]),
        Err(AccessError::Unmapped(0x10000))
    );
    memory.read(0x11000, &mut [0]).unwrap();
    memory.clear();
    assert_eq!(
        memory.read(0x11000, &mut [0]),
        Err(AccessError::Unmapped(0x11000))
    );
    assert_eq!(memory.stats(), Stats::default());
}

#[test]
fn memory_out_of_reach_is_known_but_refused() {
    let mut memory = guest();
    let rom = 0xc000_0000;
    assert_eq!(memory.map(&request(rom, 2, None, 0)), Ok(Reach::NoFile));
    assert_eq!(
        memory.read(rom + 1, &mut [0]),
        Err(AccessError::Unreachable(rom + 1))
    );
    let mapped = 8 * PAGE;
    assert_eq!(
        memory.stats(),
        Stats {
            mapped,
            unreachable: 2 * PAGE,
            regions: 4
        }
    );
    memory.unmap(rom, 2 * PAGE).unwrap();
}

#[test]
fn files_that_may_shrink_stay_out_of_reach() {
    let fd = memfd(2);
    fcntl_add_seals(&fd, SealFlags::SEAL).unwrap();
    let mut memory = GuestMemory::new();
    assert_eq!(
        memory.map(&request(0, 2, Some(&fd), 0)),
        Ok(Reach::Unsealable)
    );
    assert_eq!(memory.write(0, &[1]), Err(AccessError::Unreachable(0)));

    let fd = memfd(2);
    memory.map(&request(0x10000, 2, Some(&fd), 0)).unwrap();
    assert!(ftruncate(&fd, 0).is_err(), "the seal holds");
}

#[test]
fn read_only_memory_is_not_written() {
    let fd = memfd(1);
    let mut memory = GuestMemory::new();
    memory
        .map(&MapRequest {
            rights: Rights::Read,
            ..request(0, 1, Some(&fd), 0)
        })
        .unwrap();
    memory.read(0, &mut [0]).unwrap();
    assert_eq!(memory.write(8, &[1]), Err(AccessError::Denied(8)));
    assert_eq!(memory.store_u32(8, 1), Err(AccessError::Denied(8)));
    assert_eq!(memory.fetch_add_u64(8, 1), Err(AccessError::Denied(8)));
    let swapped = memory.compare_exchange_u32(8, 0, 1);
    assert_eq!(swapped, Err(AccessError::Denied(8)));
    assert_eq!(memory.check(0, 4096, Rights::Read), Ok(()));
    assert_eq!(
        memory.check(0, 4096, Rights::ReadWrite),
        Err(AccessError::Denied(0))
    );
}

#[test]
fn atomics_work_on_aligned_words_only() {
    let memory = guest();
    memory.store_u64(0x10008, 40).unwrap();
    assert_eq!(memory.fetch_add_u64(0x10008, 2), Ok(40));
    assert_eq!(memory.compare_exchange_u64(0x10008, 42, 7), Ok(42));
    assert_eq!(memory.compare_exchange_u64(0x10008, 42, 8), Ok(7));
    assert_eq!(memory.load_u64(0x10008), Ok(7));
    memory.store_u32(0x10ffc, 5).unwrap();
    assert_eq!(memory.load_u32(0x10ffc), Ok(5));
    assert_eq!(memory.compare_exchange_u32(0x10ffc, 4, 9), Ok(5));
    assert_eq!(memory.compare_exchange_u32(0x10ffc, 5, 9), Ok(5));
    assert_eq!(memory.load_u32(0x10ffc), Ok(9));
    assert_eq!(
        memory.compare_exchange_u32(0x10ffe, 5, 9),
        Err(AccessError::Misaligned(0x10ffe))
    );
    assert_eq!(
        memory.load_u64(0x10ffc),
        Err(AccessError::Misaligned(0x10ffc))
    );
    assert_eq!(
        memory.load_u32(0x20000),
        Err(AccessError::Unmapped(0x20000))
    );
}

#[test]
fn own_regions_are_shared_with_whoever_maps_the_file() {
    let region = MmapRegion::new("doorbells", 8192).unwrap();
    let mut peer = GuestMemory::new();
    let reach = peer.map(&MapRequest {
        iova: 0,
        len: 8192,
        file: Some(region.file()),
        offset: 0,
        rights: Rights::ReadWrite,
    });
    assert_eq!(reach, Ok(Reach::Mapped));
    peer.store_u32(4096, 77).unwrap();
    assert_eq!(region.load_u32(4096), Ok(77));
    region.store_u64(8, 99).unwrap();
    assert_eq!(peer.load_u64(8), Ok(99));
    assert_eq!(region.load_u32(8192), Err(AccessError::Unmapped(8192)));
    assert_eq!(
        region.load_u32(usize::MAX - 3),
        Err(AccessError::Unmapped(u64::MAX - 3))
    );
    assert_eq!(region.load_u64(4), Err(AccessError::Misaligned(4)));
    assert_eq!(
        region.write(8190, &[0; 4]),
        Err(AccessError::Unmapped(8190))
    );
    assert!(MmapRegion::new("odd", 100).is_err());
}

proptest! {
    /// Against a flat byte array: what is written is what is read, and ranges that leave
    /// the mapped area fail whole.
    #[test]
    fn behaves_like_a_byte_array(ops in prop::collection::vec(
        (0_u64..0x6000, prop::collection::vec(any::<u8>(), 0..0x1800)), 1..24))
    {
        // Mapped: pages 1..5, the second half of the file first.
        let fd = memfd(4);
        let mut memory = GuestMemory::new();
        memory.map(&request(0x1000, 2, Some(&fd), 0x2000)).unwrap();
        memory.map(&request(0x3000, 2, Some(&fd), 0)).unwrap();
        let mut model = vec![0_u8; 0x8000];
        for (at, data) in ops {
            let end = at + data.len() as u64;
            let inside = data.is_empty() || (at >= 0x1000 && end <= 0x5000);
            prop_assert_eq!(memory.write(at, &data).is_ok(), inside);
            if inside {
                model[at as usize..end as usize].copy_from_slice(&data);
            }
            let mut seen = vec![0; 0x4000];
            memory.read(0x1000, &mut seen).unwrap();
            prop_assert_eq!(&seen[..], &model[0x1000..0x5000]);
        }
    }
}

#[test]
fn only_devices_are_mapped_as_devices() {
    let zero = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/zero")
        .unwrap();
    let region = MmapRegion::of_device(zero.into(), PAGE as usize).unwrap();
    region.store_u64(8, 7).unwrap();
    assert_eq!(region.load_u64(8), Ok(7));
    assert_eq!(
        region.load_u64(PAGE as usize),
        Err(AccessError::Unmapped(PAGE))
    );
    let zero = std::fs::File::open("/dev/zero").unwrap();
    let region = MmapRegion::of_device_to_read(zero.into(), PAGE as usize).unwrap();
    assert_eq!(region.load_u64(8), Ok(0));
    assert!(region.store_u64(8, 7).is_err() && region.write(0, b"7").is_err());
    assert!(region.compare_exchange_u64(8, 0, 7).is_err());
    let refused = MmapRegion::of_device(memfd(1), PAGE as usize);
    assert_eq!(refused.err(), Some(MapError::NotADevice));
}
