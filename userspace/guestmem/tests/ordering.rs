// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What a program sees that polls memory while it is written: nothing torn, nothing too early.

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
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use guestmem::{GuestMemory, MapRequest, Rights};
use rustix::fs::{ftruncate, memfd_create, MemfdFlags};

const PAGE: u64 = 4096;
const ROUNDS: u64 = 200_000;

fn memory(file: &OwnedFd) -> GuestMemory {
    let mut memory = GuestMemory::new();
    let request = MapRequest {
        iova: 0,
        len: 4 * PAGE,
        file: Some(file.as_fd()),
        offset: 0,
        rights: Rights::ReadWrite,
    };
    memory.map(&request).unwrap();
    memory
}

/// Writes messages whose words all hold the number of the message, as WRITEs of `len` bytes that end at `end`, while
/// another thread polls for the last word. `flag`: in a WRITE of its own behind the data.
fn poll(len: u64, flag: bool) {
    let file = memfd_create("guest", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&file, 4 * PAGE).unwrap();
    let (writer, reader) = (memory(&file), memory(&file));
    let done = AtomicBool::new(false);
    let last = PAGE + len - 8;
    thread::scope(|scope| {
        let reading = scope.spawn(|| {
            // The memory is moved in, because it is no `Sync` type.
            let reader = reader;
            let mut seen = 0;
            while !done.load(Ordering::Relaxed) {
                let number = reader.load_u64(last).unwrap();
                if number == seen {
                    continue;
                }
                seen = number;
                assert_eq!(number >> 32, number & 0xffff_ffff, "the last word is torn");
                for at in (PAGE..last).step_by(8) {
                    let word = reader.load_u64(at).unwrap();
                    assert!(
                        word >= number,
                        "word {at} of message {number:#x} is still {word:#x}"
                    );
                }
            }
        });
        let mut message = vec![0; len as usize];
        for round in 1..=ROUNDS {
            if reading.is_finished() {
                break;
            }
            let number = ((round << 32) | round).to_le_bytes();
            message
                .chunks_mut(8)
                .for_each(|word| word.copy_from_slice(&number));
            if flag {
                let (data, word) = message.split_at(message.len() - 8);
                writer.write(PAGE, data).unwrap();
                writer.write(last, word).unwrap();
            } else {
                writer.write(0, &message).unwrap();
                GuestMemory::copy(&writer, 0, &writer, PAGE, message.len()).unwrap();
            }
        }
        done.store(true, Ordering::Relaxed);
        reading.join().unwrap();
    });
}

#[test]
fn the_last_word_of_a_message_comes_last() {
    for len in [8, 16, 24, 64, 72, 256, 1000, 4096] {
        poll(len, false);
    }
}

#[test]
fn messages_come_in_their_order() {
    for len in [16, 64, 1000] {
        poll(len, true);
    }
}

#[test]
fn overlapping_pieces_are_moved() {
    for (from, to, len) in [
        (0, 8, 16),
        (8, 0, 16),
        (0, 8, 8),
        (0, 4, 12),
        (16, 8, 64),
        (8, 16, 64),
        (3, 8, 16),
        (1, 0, 7),
    ] {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, 4 * PAGE).unwrap();
        let memory = memory(&file);
        let mut expected: Vec<u8> = (0..128).collect();
        memory.write(0, &expected).unwrap();
        GuestMemory::copy(&memory, from, &memory, to, len as usize).unwrap();
        expected.copy_within(from as usize..(from + len) as usize, to as usize);
        let mut found = vec![0; 128];
        memory.read(0, &mut found).unwrap();
        assert_eq!(found, expected, "{len} bytes from {from} to {to}");
    }
}

/// Places that are ahead of the source by a little modulo a page, and others; also where they overlap.
#[test]
fn long_copies_move_what_a_slice_moves() {
    let file = memfd_create("guest", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&file, 4 * PAGE).unwrap();
    let memory = memory(&file);
    let bytes: Vec<u8> = (0..4 * PAGE).map(|at| (at * 31 + at / 251) as u8).collect();
    for ahead in [0, 1, 7, 8, 16, 31, 32, 33, 4095] {
        for (from, len) in [(0, 2047), (0, 2048), (8, 2056), (3, 4000), (64, 4000)] {
            for page in [0, 2 * PAGE] {
                let to = from + page + ahead;
                memory.write(0, &bytes).unwrap();
                GuestMemory::copy(&memory, from, &memory, to, len as usize).unwrap();
                let mut expected = bytes.clone();
                expected.copy_within(from as usize..(from + len) as usize, to as usize);
                let mut found = vec![0; bytes.len()];
                memory.read(0, &mut found).unwrap();
                assert!(found == expected, "{len} bytes from {from} to {to}");
            }
        }
    }
}

/// The kernel's copy has the same rules.
#[test]
fn the_kernel_copies_in_the_same_order() {
    let source = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../drivers/kernel/tests/copy.c"
    );
    let program = concat!(env!("CARGO_TARGET_TMPDIR"), "/kernel-copy");
    let compiler = Command::new("cc")
        .args(["-O2", "-Wall", "-Werror", "-pthread", source, "-o", program])
        .output()
        .unwrap();
    assert!(
        compiler.status.success(),
        "{}",
        String::from_utf8_lossy(&compiler.stderr)
    );
    let run = Command::new(program).output().unwrap();
    assert!(
        run.status.success(),
        "{}",
        String::from_utf8_lossy(&run.stdout)
    );
}
