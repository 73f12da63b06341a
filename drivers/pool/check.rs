// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What is wrong in a pool. For programs that an administrator calls: they read everything, and write nothing.
//!
//! A pool may be in use meanwhile. Then what is about two words that are not written at once may be reported although nothing is
//! wrong; a second look, a while later, does not find it again.

mod directory;
mod links;
mod problem;
mod slots;

pub use self::problem::{Fault, Must, Problem};

use crate::{attach::read_state, geometry::Geometry, Poisoned, Window};
use core::{mem::offset_of, ops::Range};
use nupa_proto::pool::{
    crc32, PoolState, Superblock, AREA_NODES, MAGIC, MAX_LOG_BULK, MAX_LOG_ENTRIES, MIN_LOG_BULK,
    MIN_LOG_ENTRIES, POOL_NON_COHERENT, STATE_OFFSET, VERSION,
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
    if block.version.get() != VERSION {
        // What else is there is another layout.
        report(field!(
            version,
            block.version.get(),
            Must::Be(u64::from(VERSION))
        ));
        return None;
    }
    if sum(block) != found {
        report(field!(check, found, Must::Be(u64::from(sum(block)))));
    }
    state(window, report);
    if block.flags.get() & !POOL_NON_COHERENT != 0 {
        report(field!(flags, block.flags.get(), Must::Lie(0, 1)));
    }
    if let Some(byte) = block.reserved.iter().find(|byte| **byte != 0) {
        report(field!(reserved, *byte, Must::Be(0)));
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

/// What lies where, by the four numbers that say so. None if they cannot be.
fn geometry(block: &Superblock, len: u64, report: &mut impl FnMut(Problem)) -> Option<Geometry> {
    let size = block.size.get();
    let numbers = [
        (field!(size, size, Must::Be(len)), size == len),
        (
            field!(
                max_nodes,
                block.max_nodes.get(),
                Must::Lie(2, u64::from(AREA_NODES))
            ),
            (2..=AREA_NODES).contains(&block.max_nodes.get()),
        ),
        (
            field!(
                log_entries,
                block.log_entries,
                Must::Lie(u64::from(MIN_LOG_ENTRIES), u64::from(MAX_LOG_ENTRIES))
            ),
            (MIN_LOG_ENTRIES..=MAX_LOG_ENTRIES).contains(&block.log_entries),
        ),
        (
            field!(
                log_bulk,
                block.log_bulk,
                Must::Lie(u64::from(MIN_LOG_BULK), u64::from(MAX_LOG_BULK))
            ),
            (MIN_LOG_BULK..=MAX_LOG_BULK).contains(&block.log_bulk),
        ),
    ];
    let mut sound = true;
    for (problem, holds) in numbers {
        if !holds {
            report(problem);
            sound = false;
        }
    }
    if !sound {
        return None;
    }
    let (nodes, entries, bulk) = (block.max_nodes.get(), block.log_entries, block.log_bulk);
    let Some(geometry) = Geometry::new(size, nodes, entries, bulk) else {
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
        ($($name:ident),*) => {
            $(if block.$name != expected.$name {
                report(field!($name, block.$name.get(), Must::Be(expected.$name.get())));
            })*
        };
    }
    compare!(
        slots,
        rings,
        ring_stride,
        device_memory,
        device_memory_stride
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
