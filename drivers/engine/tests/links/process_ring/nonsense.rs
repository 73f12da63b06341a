// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Anything in a ring: no panic, no endless work, and nothing is written outside.

use super::*;

/// Numbers that look like random ones.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

/// A ring with anything in it, but mostly with stamps, between two pages that nothing is to be written to.
fn scrawl(draw: &mut Draw, host: &Host, mr: &Mr, ring: &mut Ring) {
    for _ in 0..draw.below(9) {
        let (start, len) = (ring.line, draw.below(2040) as usize);
        match draw.below(12) {
            0 => ring.put(host, ENTRY_WRITE, &draw.bytes(len)),
            1 => {
                let wrong = Mr {
                    key: mr.key ^ 1,
                    ..*mr
                };
                ring.write(host, &wrong, 0, &draw.bytes(len % 1000));
            }
            _ => ring.write(host, mr, draw.below(1 << 20), &draw.bytes(len)),
        }
        if draw.below(10) == 0 {
            // Any byte of what is checked.
            let at = ring.place(start, draw.below(40) as usize);
            host.write(at, &draw.bytes(1));
        }
        if draw.below(24) == 0 {
            let len = [0, 15, 16, MAX_PAYLOAD, MAX_PAYLOAD + 1, u32::MAX][draw.below(6) as usize];
            host.write(ring.place(start, 8), &len.to_le_bytes());
        }
        if draw.below(40) == 0 {
            ring.set_taken(host, draw.next() as u32);
        }
    }
}

#[test]
fn nonsense_harms_nobody_else() {
    let mut draw = Draw(0x9e37_79b9_7f4a_7c15);
    let mut ends = [0; 3];
    for round in 0..150u32 {
        let (mut world, mut a, mut b) = super::super::parts::pair();
        let before = b.host.alloc(4096);
        let start = [0, 250, u32::MAX, 77][round as usize % 4];
        let mut ring = Ring::new(&mut b.host, start);
        let behind = b.host.alloc(4096);
        assert_eq!(
            (ring.at - before, behind - ring.at),
            (4096, RING_SIZE as u64)
        );
        for page in [before, behind] {
            b.host.write(page, &[0xa5; 4096]);
        }
        assert_eq!(give(&mut world, &a.host, a.qp.qpn, 0), Ok(()));
        assert_eq!(give(&mut world, &b.host, b.qp.qpn, ring.at), Ok(()));
        scrawl(&mut draw, &b.host, &b.mr, &mut ring);
        let lines = b
            .host
            .read(ring.at + CONTROL_SIZE as u64, RING_SIZE - CONTROL_SIZE);
        for _ in 0..draw.below(4) {
            world.advance(10_000);
        }
        let until = match draw.below(3) {
            0 => draw.next() as u32,
            1 => ring.taken(&b.host).wrapping_add(draw.below(300) as u32),
            _ => ring.line,
        };
        ask(&mut a, 1, until.max(1));
        world.pump();
        let done = a.done();
        assert_eq!(done.len(), 1, "{round}");
        let status = done[0].1;
        let known = [OK, REFUSED, WcStatus::RemoteAccess as u8];
        let at = known.iter().position(|known| *known == status);
        ends[at.expect("one of these")] += 1;
        assert_eq!(state(&world, &b) == FAILED, status != OK, "{round}");
        assert_eq!(ring.taker(&b.host), 0);
        for page in [before, behind] {
            assert!(b.host.read(page, 4096) == [0xa5; 4096], "{round}");
        }
        assert!(b.host.read(ring.at + CONTROL_SIZE as u64, lines.len()) == lines);
    }
    assert!(ends.iter().all(|count| *count > 3), "{ends:?}");
}

/// The bytes change with each look.
#[test]
fn what_changes_all_the_time_harms_nobody_else() {
    for seed in 1..40 {
        let (mut world, mut a, b, mut ring) = pair();
        let mut draw = Draw(seed * 0x1234_5679);
        for number in 0..20 {
            ring.write(&b.host, &b.mr, 4096 * number, &[number as u8; 200]);
        }
        let (start, end) = (ring.at, ring.at + RING_SIZE as u64);
        let moves = move |addr: u64, bytes: &mut [u8]| {
            if (start..end).contains(&addr) && draw.below(6) == 0 {
                let at = draw.below(bytes.len() as u64) as usize;
                bytes[at] = draw.next() as u8;
            }
        };
        let ram = b.host.machine.ram();
        ram.move_bytes(Some(Box::new(moves)));
        ask(&mut a, 1, ring.line);
        for _ in 0..60 {
            world.advance(10_000);
        }
        ram.move_bytes(None);
        assert_eq!(a.done().len(), 1, "{seed}");
    }
}

#[test]
fn every_field_is_looked_at() {
    let good = (0, None);
    let cases: [(u64, Option<(usize, u8)>); 8] = [
        good,
        // The stamp, its first byte and its last.
        (1, Some((0, 0xee))),
        (1, Some((7, 0xee))),
        // Shorter than where it goes, and longer than may be.
        (1, Some((8, 15))),
        (1, Some((9, 0x80))),
        // Flags, what is reserved, and what is reserved behind the key.
        (1, Some((20, ENTRY_WRITE | ENTRY_IMM))),
        (1, Some((22, 1))),
        (1, Some((38, 1))),
    ];
    for (refused, change) in cases {
        let (mut world, mut a, b, mut ring) = pair();
        ring.write(&b.host, &b.mr, 0, b"one");
        if let Some((offset, value)) = change {
            b.host.write(ring.place(0, offset), &[value]);
        }
        ask(&mut a, 1, ring.line);
        world.pump();
        let status = if refused == 1 { REFUSED } else { OK };
        assert_eq!(a.done(), [(1, status)], "{change:?}");
        assert_eq!(ring.taken(&b.host), u32::from(refused == 0), "{change:?}");
    }
    // An entry that goes on behind where the request is.
    let (mut world, mut a, b, mut ring) = pair();
    ring.write(&b.host, &b.mr, 0, &[1; 200]);
    ask(&mut a, 1, ring.line - 1);
    world.pump();
    assert_eq!((a.done(), ring.taken(&b.host)), (vec![(1, REFUSED)], 0));
}
