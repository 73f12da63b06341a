// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What is wrong in a pool. For programs that an administrator calls: they read everything, and write nothing.
//!
//! A pool may be in use meanwhile. Then what is about two words that are not written at once may be reported although nothing is
//! wrong; a second look, a while later, does not find it again.

mod directory;
mod links;
mod pairs;
mod problem;
mod slots;

pub use self::problem::{Fault, Must, Problem};

use crate::{attach::read_state, geometry::Geometry, Poisoned, Window};
use core::{mem::offset_of, ops::Range};
use nupa_proto::pool::{
    crc32,
    inbox::{InboxSuperblock, INBOX_MIN_LOG_BULK, VERSION_INBOXES},
    PoolState, Superblock, AREA_NODES, MAGIC, MAX_LOG_BULK, MAX_LOG_ENTRIES, MAX_NODES,
    MIN_LOG_BULK, MIN_LOG_ENTRIES, POOL_NON_COHERENT, STATE_OFFSET, VERSION,
};
use zerocopy::{FromZeros, IntoBytes};

/// Bytes of a word.
const WORD: u64 = size_of::<u64>() as u64;

/// Reports everything in a pool that its specification does not allow: superblock and state word, node slots, the words of all
/// rings and what waits in them, and directories of nodes. What a superblock is too damaged to tell the place of is left out;
/// then it is reported itself.
pub fn check(window: &impl Window, mut report: impl FnMut(Problem)) {
    let Some(block) = superblock(window, &mut report) else {
        return;
    };
    let Some(geometry) = geometry(&block, window.len(), &mut report) else {
        return;
    };
    let mut checker = Checker {
        window,
        geometry,
        report,
    };
    for node in 0..geometry.max_nodes() {
        if let Some(claim) = checker.slot(node) {
            checker.directory(node, claim);
        }
    }
    if geometry.inboxes().is_some() {
        return checker.pairs();
    }
    for source in 0..geometry.max_nodes() {
        for target in (0..geometry.max_nodes()).filter(|target| *target != source) {
            checker.link(source, target);
        }
    }
}

/// A field of the superblock that has a value that it must not have.
macro_rules! field {
    ($name:ident, $found:expr, $must:expr) => {
        Problem {
            offset: offset_of!(Superblock, $name) as u64,
            area: None,
            fault: Fault::Field {
                name: stringify!($name),
                found: u64::from($found),
                must: $must,
            },
        }
    };
}

/// Reads superblock and state word, and checks them but for what they say of places. None if no pool of this version is there.
fn superblock(window: &impl Window, report: &mut impl FnMut(Problem)) -> Option<Superblock> {
    let mut block = Superblock::new_zeroed();
    window.refresh(0, size_of::<Superblock>() as u64);
    if let Err(Poisoned { offset }) = window.read(0, block.as_mut_bytes()) {
        report(Problem::of_superblock(offset, Fault::Poisoned));
        return None;
    }
    let found = block.check.get();
    let sum = |mut block: Superblock| {
        block.check.set(0);
        crc32(block.as_bytes())
    };
    let magic = block.magic.get();
    if magic != MAGIC {
        block.magic.set(MAGIC);
        let is_pool = sum(block) == found;
        let must = match is_pool {
            true => Must::Read("\"NUPAPOOL\"; all else here is a pool's"),
            false => Must::Read("\"NUPAPOOL\": the memory holds no pool"),
        };
        report(field!(magic, magic, must));
        if !is_pool {
            return None;
        }
    }
    if ![VERSION, VERSION_INBOXES].contains(&block.version.get()) {
        // What else is there is another layout.
        let must = Must::Read("0x20000 or 0x30000");
        report(field!(version, block.version.get(), must));
        return None;
    }
    if sum(block) != found {
        report(field!(check, found, Must::Be(u64::from(sum(block)))));
    }
    state(window, report);
    if block.flags.get() & !POOL_NON_COHERENT != 0 {
        report(field!(flags, block.flags.get(), Must::Lie(0, 1)));
    }
    let (reserved, at): (&[u8], _) = match block.version.get() {
        VERSION => (&block.reserved, offset_of!(Superblock, reserved)),
        _ => (
            &Geometry::with_inboxes(&block).reserved,
            offset_of!(InboxSuperblock, reserved),
        ),
    };
    if let Some(byte) = reserved.iter().find(|byte| **byte != 0) {
        let fault = Fault::Field {
            name: "reserved",
            found: u64::from(*byte),
            must: Must::Be(0),
        };
        report(Problem::of_superblock(at as u64, fault));
    }
    Some(block)
}

fn state(window: &impl Window, report: &mut impl FnMut(Problem)) {
    let valid = u64::from(PoolState::Valid.to_wire());
    let fault = match read_state(window) {
        Ok(state) if state & 0xff == valid => return,
        Ok(state) => Fault::Field {
            name: "state",
            found: state,
            must: Must::Read("2 in its lowest 8 bits: the pool was not formatted to the end"),
        },
        Err(_) => Fault::Poisoned,
    };
    report(Problem::of_superblock(STATE_OFFSET, fault));
}

/// What lies where, by the numbers that say so. None if they cannot be.
fn geometry(block: &Superblock, len: u64, report: &mut impl FnMut(Problem)) -> Option<Geometry> {
    let size = block.size.get();
    let (nodes, entries, bulk) = (block.max_nodes.get(), block.log_entries, block.log_bulk);
    let with_inboxes = block.version.get() == VERSION_INBOXES;
    let (most_nodes, least_bulk) = match with_inboxes {
        true => (MAX_NODES, INBOX_MIN_LOG_BULK),
        false => (AREA_NODES, MIN_LOG_BULK),
    };
    let lies = |first: u8, last: u8| Must::Lie(first.into(), last.into());
    let must_nodes = Must::Lie(2, most_nodes.into());
    let must_entries = lies(MIN_LOG_ENTRIES, MAX_LOG_ENTRIES);
    let must_bulk = lies(least_bulk, MAX_LOG_BULK);
    let mut numbers = [
        Some((field!(size, size, Must::Be(len)), size == len)),
        Some((
            field!(max_nodes, nodes, must_nodes),
            (2..=most_nodes).contains(&nodes),
        )),
        Some((
            field!(log_entries, entries, must_entries),
            (MIN_LOG_ENTRIES..=MAX_LOG_ENTRIES).contains(&entries),
        )),
        Some((
            field!(log_bulk, bulk, must_bulk),
            (least_bulk..=MAX_LOG_BULK).contains(&bulk),
        )),
        None,
    ];
    if let (true, [.., last]) = (with_inboxes, &mut numbers) {
        let inboxes = Geometry::with_inboxes(block).inboxes.get();
        let must = Must::Lie(1, u64::from(nodes).saturating_sub(1));
        let fault = Fault::Field {
            name: "inboxes",
            found: inboxes.into(),
            must,
        };
        let at = offset_of!(InboxSuperblock, inboxes) as u64;
        let problem = Problem::of_superblock(at, fault);
        *last = Some((problem, (1..nodes).contains(&inboxes)));
    }
    let mut sound = true;
    for (problem, holds) in numbers.into_iter().flatten() {
        if !holds {
            report(problem);
            sound = false;
        }
    }
    if !sound {
        return None;
    }
    let Some(geometry) = Geometry::of_numbers(block) else {
        let must = Must::Read("enough for rings of that many nodes, entries and bytes");
        report(field!(size, size, must));
        return None;
    };
    places(block, &geometry, report);
    Some(geometry)
}

/// Offsets that the superblock tells people and tools.
fn places(block: &Superblock, geometry: &Geometry, report: &mut impl FnMut(Problem)) {
    let mut expected = *block;
    geometry.describe(&mut expected);
    macro_rules! compare {
        ($layout:ident, $found:expr, $expected:expr, $($name:ident),*) => {
            $(if $found.$name != $expected.$name {
                let must = Must::Be($expected.$name.get());
                report(Problem {
                    offset: offset_of!($layout, $name) as u64,
                    area: None,
                    fault: Fault::Field { name: stringify!($name), found: $found.$name.get(), must },
                });
            })*
        };
    }
    if geometry.inboxes().is_none() {
        compare!(
            Superblock,
            block,
            expected,
            slots,
            rings,
            ring_stride,
            device_memory,
            device_memory_stride
        );
        return;
    }
    let (found, expected) = (
        Geometry::with_inboxes(block),
        Geometry::with_inboxes(&expected),
    );
    compare!(
        InboxSuperblock,
        found,
        expected,
        slots,
        pairs,
        pair_stride,
        regions,
        region_stride
    );
}

/// Looks at what lies behind the superblock.
struct Checker<'a, W, R> {
    window: &'a W,
    geometry: Geometry,
    report: R,
}

impl<W: Window, R: FnMut(Problem)> Checker<'_, W, R> {
    fn problem(&mut self, offset: u64, fault: Fault) {
        let area = Some(self.geometry.area(offset));
        (self.report)(Problem {
            offset,
            area,
            fault,
        });
    }

    /// A field with a value that it must not have.
    fn field(&mut self, offset: u64, name: &'static str, found: u64, must: Must) {
        self.problem(offset, Fault::Field { name, found, must });
    }

    /// Loads a word of a range that was refreshed; none if it cannot be read, which is reported.
    fn load(&mut self, offset: u64) -> Option<u64> {
        match self.window.load(offset) {
            Ok(word) => Some(word),
            Err(Poisoned { offset }) => {
                self.problem(offset, Fault::Poisoned);
                None
            }
        }
    }

    /// Reports the first word of a range that is not zero.
    fn zeroes(&mut self, range: Range<u64>) {
        for offset in range.step_by(WORD as usize) {
            match self.load(offset) {
                Some(0) => {}
                Some(found) => return self.field(offset, "reserved", found, Must::Be(0)),
                None => return,
            }
        }
    }
}
