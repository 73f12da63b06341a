// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Rules of entries.

use crate::{Good, Rig, Step, LONGEST};
use nupa_proto::{pool::message::*, wqe::Opcode};

/// A step that writes an entry, with these bytes of it overwritten.
fn entry(
    class: u8,
    kind: u8,
    [payload, offset, len]: [u32; 3],
    opcode: u8,
    edits: &[(usize, u8)],
) -> Step {
    let good = Good {
        kind,
        payload,
        offset,
        len,
        opcode,
    };
    Step::Entry {
        class,
        ahead: 0,
        good,
        edits: edits.to_vec(),
    }
}

/// Each rule by itself: an entry that is right but for one thing.
#[test]
fn each_rule_is_kept() {
    let good =
        |class, kind, payload, len, opcode| entry(class, kind, [payload, 0, len], opcode, &[]);
    let part = |payload, offset, len, opcode| entry(0, 1, [payload, offset, len], opcode, &[]);
    let edit = |at, value| entry(0, 1, [8, 0, 8], 3, &[(at, value)]);
    let send = Opcode::Send.to_wire();
    let write_imm = Opcode::WriteImm.to_wire();
    let datagram = |edits: &[(usize, u8)]| entry(3, 1, [8, 0, 8], send, edits);
    let no_buffer = Reply::NoBuffer.to_wire();
    let timer = |code| entry(1, 2, [0, 0, 0], no_buffer, &[(35, code)]);
    let (read, flush) = (Opcode::Read.to_wire(), Opcode::Flush.to_wire());
    let cases = [
        // Parts of a message.
        (part(65536, 65536, 140_000, 3), true),
        (part(65536, 100_000, 140_000, 3), false),
        (part(0, 65536, 140_000, 3), false),
        (part(0, 0, 140_000, read), true),
        (part(0, 65536, 140_000, read), true),
        (part(0, 65537, 140_000, read), false),
        (part(0, 196_608, 140_000, read), false),
        (part(1, 0, 140_000, read), false),
        // What is short, and what is not.
        (good(3, 1, 256, 256, 3), true),
        (good(3, 1, 257, 257, 3), false),
        (good(3, 1, 0, 256, read), true),
        (good(3, 1, 0, 257, read), false),
        (good(3, 1, 0, 8, flush), false),
        (good(0, 1, 0, 8, flush), true),
        (entry(3, 1, [4096, 0, 4096], send, &[(33, 2)]), true),
        (entry(3, 1, [4097, 0, 4097], send, &[(33, 2)]), false),
        (entry(3, 1, [8, 8, 16], send, &[(33, 2)]), false),
        (entry(0, 1, [8, 0, 8], send, &[(33, 2)]), false),
        (good(4, 2, 256, 256, 0), true),
        (good(4, 2, 257, 257, 0), false),
        (good(4, 4, 0, 0, 0), false),
        (timer(31), true),
        (timer(32), false),
        (datagram(&[(33, 2)]), true),
        (datagram(&[(33, 2 | 16), (34, 0xff), (35, 0xf)]), true),
        (datagram(&[(33, 2 | 16), (35, 0x10)]), false),
        (datagram(&[(33, 16)]), false),
        (datagram(&[(33, 2 | 8)]), false),
        (good(0, 1, 8, 8, 3), true),
        (good(0, 1, 0, 0, 5), true),
        (good(0, 1, 65536, 100_000, 3), true),
        (good(0, 5, 8, 8, 3), false),
        (good(0, 2, 8, 8, 3), false),
        (good(0, 0, 8, 8, 3), false),
        (good(0, 4, 8, 8, 3), false),
        (good(0, 1, 9, 8, 3), false),
        (good(0, 1, 0, 8, 3), false),
        (good(0, 1, MAX_FRAGMENT + 1, 100_000, 3), false),
        (good(0, 1, 8, 1 << 31, 3), false),
        (good(0, 1, 8, 8, 5), false),
        (good(0, 1, 0, 0, 8), false),
        (good(0, 1, 0, 0, 18), false),
        (good(1, 2, 8, 8, 0), true),
        (good(1, 4, 0, 0, 0), true),
        (good(1, 4, 1, 1, 0), false),
        (good(1, 1, 8, 8, 0), false),
        (good(2, 3, 60, 60, 0), true),
        (good(2, 3, 13, 13, 0), false),
        (good(2, 3, LONGEST, LONGEST, 0), true),
        (good(2, 3, LONGEST + 1, LONGEST + 1, 0), false),
        (entry(2, 3, [60, 1, 0], 0, &[]), false),
        (edit(12, 1), false),
        (edit(16, 7), false),
        (edit(18, 7), false),
        (edit(33, 8), true),
        (edit(33, 32), false),
        (edit(33, 2), false),
        (edit(33, 1), true),
        // What went past the engines says what takes a receive entry, and a WRITE, and no datagram; and not that nothing did.
        (entry(0, 1, [8, 0, 8], send, &[(33, 32), (72, 1)]), true),
        (entry(0, 1, [8, 0, 8], send, &[(33, 32), (75, 1)]), true),
        (
            entry(0, 1, [8, 0, 8], write_imm, &[(33, 32), (72, 1)]),
            true,
        ),
        (entry(0, 1, [8, 0, 8], send, &[(33, 32), (76, 1)]), false),
        (entry(0, 1, [8, 0, 8], 3, &[(33, 32), (72, 1)]), true),
        (entry(0, 1, [0, 0, 0], 3, &[(33, 32), (75, 1)]), true),
        (entry(0, 1, [0, 0, 8], read, &[(33, 32), (72, 1)]), false),
        (datagram(&[(33, 2 | 32), (72, 1)]), false),
        (entry(1, 4, [0, 0, 0], 0, &[(40, 1)]), true),
        (entry(1, 4, [0, 0, 0], 0, &[(40, 2)]), false),
    ];
    for (step, sound) in cases {
        let mut rig = Rig::new(false);
        rig.act(&step);
        let Step::Entry { class, .. } = step else {
            continue;
        };
        rig.act(&Step::Link {
            class,
            word: 0,
            tags: None,
            index: 1,
        });
        rig.bear();
        assert_eq!(rig.violations, u32::from(!sound), "{step:?}");
    }
}

/// The same of entries of lines.
#[test]
fn each_rule_of_lines_is_kept() {
    // Bytes of the first line, and of the second.
    const KIND: usize = 8;
    const LINES: usize = 9;
    const FLAGS: usize = 11;
    const TIMER: usize = 8 + 28;
    const VLAN: usize = 64 + 8 + 48;
    let part = |payload, offset, len, opcode| entry(0, 1, [payload, offset, len], opcode, &[]);
    let edit = |edits: &[_]| entry(0, 1, [8, 0, 8], 3, edits);
    let short = |len, opcode, edits: &[_]| entry(3, 1, [0, 0, len], opcode, edits);
    let other = |class, kind, payload| entry(class, kind, [payload, 0, 0], 0, &[]);
    let response = |edits: &[_]| entry(1, 2, [0, 0, 0], Reply::NoBuffer.to_wire(), edits);
    let (send, read) = (Opcode::Send.to_wire(), Opcode::Read.to_wire());
    let (flush, add) = (Opcode::Flush.to_wire(), Opcode::FetchAdd.to_wire());
    let datagram = |flags: u8, more: &[(usize, u8)]| {
        let edits = [&[(FLAGS, 2 | flags), (LINES, 2)][..], more].concat();
        short(8, send, &edits)
    };
    let cases = [
        (part(65536, 65536, 140_000, 3), true),
        (part(65536, 100_000, 140_000, 3), false),
        (part(0, 65536, 140_000, 3), false),
        (part(0, 65536, 140_000, read), true),
        (part(0, 65537, 140_000, read), false),
        (part(1, 0, 140_000, read), false),
        (part(9, 0, 8, 3), false),
        (part(MAX_FRAGMENT + 1, 0, 100_000, 3), false),
        (part(8, 0, 1 << 31, 3), false),
        (part(0, 0, 0, 18), false),
        (short(256, 3, &[]), true),
        (short(257, 3, &[]), false),
        (short(16, send, &[]), true),
        (short(256, read, &[]), true),
        (short(257, read, &[]), false),
        // How many lines there are.
        (edit(&[]), true),
        (edit(&[(LINES, 0)]), false),
        (edit(&[(LINES, 2)]), false),
        (edit(&[(LINES, 3)]), false),
        (short(8, add, &[]), false),
        (short(8, add, &[(LINES, 2)]), true),
        (short(8, add, &[(LINES, 2), (64, 0xee)]), false),
        (short(8, add, &[(LINES, 2), (64 + 6, 0xee)]), false),
        (short(8, flush, &[(LINES, 2)]), false),
        (entry(0, 1, [0, 0, 8], flush, &[(LINES, 2)]), true),
        (response(&[]), true),
        (response(&[(LINES, 2)]), true),
        (other(2, 3, 60), true),
        (entry(2, 3, [60, 0, 0], 0, &[(LINES, 2)]), false),
        (entry(1, 4, [0, 0, 0], 0, &[(LINES, 2)]), false),
        // What they say.
        (edit(&[(FLAGS, 8)]), true),
        (edit(&[(FLAGS, 32)]), false),
        (edit(&[(FLAGS, 2)]), false),
        (edit(&[(KIND, 2)]), false),
        (edit(&[(KIND, 0)]), false),
        (datagram(0, &[]), true),
        (datagram(0, &[(LINES, 1)]), false),
        (datagram(16, &[(VLAN, 0xff), (VLAN + 1, 0xf)]), true),
        (datagram(16, &[(VLAN + 1, 0x10)]), false),
        (datagram(8, &[]), false),
        (response(&[(TIMER, 31)]), true),
        (response(&[(TIMER, 32)]), false),
        (other(4, 2, 256), true),
        (other(4, 2, 257), false),
        (other(4, 4, 0), false),
        (other(1, 4, 0), true),
        (other(1, 1, 8), false),
        (other(2, 3, 13), false),
        (other(2, 3, LONGEST), true),
        (other(2, 3, LONGEST + 1), false),
        // One that is not there: of another index, or of another epoch.
        (edit(&[(0, 7), (KIND, 9)]), true),
        (edit(&[(4, 7), (KIND, 9)]), true),
        (edit(&[(6, 7), (KIND, 9)]), true),
    ];
    for (step, sound) in cases {
        let mut rig = Rig::new(true);
        rig.act(&step);
        rig.bear();
        assert_eq!(rig.violations, u32::from(!sound), "{step:?}");
    }
}
