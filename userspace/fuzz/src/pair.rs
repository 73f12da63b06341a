// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Two engines under random operations and faults, beside the model of the engine's own tests.

use arbitrary::{Result, Unstructured};
use nupa_testing::model::{Fault, Pair, Piece, Step, REGION};
use nupa_testing::{Mode, World};

/// Most steps of one input.
const MOST: usize = 60;
const MODES: [Mode; 6] = [
    Mode::Local,
    Mode::Linked,
    Mode::Pooled,
    Mode::Stale,
    Mode::Lines,
    Mode::StaleLines,
];
const FAULTS: [Fault; 4] = [Fault::QueuePair, Fault::Region, Fault::Link, Fault::Reset];

/// Does what the bytes say. Panics if bytes or completions are not those of the model.
pub fn pair(bytes: &[u8]) {
    // Too short: nothing happens.
    let _ = steps(&mut Unstructured::new(bytes));
}

fn steps(input: &mut Unstructured<'_>) -> Result<()> {
    let mode = *input.choose(&MODES)?;
    let device = input.arbitrary()?;
    let mut world = World::new(mode, 2);
    world.shuffle(input.arbitrary()?);
    let mut pair = Pair::new(world, device);
    for _ in 0..MOST {
        if input.is_empty() {
            break;
        }
        let Ok(step) = step(input) else { break };
        pair.perform(&step);
    }
    pair.settle();
    Ok(())
}

fn step(input: &mut Unstructured<'_>) -> Result<Step> {
    Ok(match input.int_in_range(0u8..=19)? {
        0..=2 => Step::Write {
            from: piece(input)?,
            to: input.int_in_range(0..=REGION - 1)?,
            inline: input.arbitrary()?,
            imm: input.arbitrary()?,
        },
        3 | 4 => Step::Read {
            from: input.int_in_range(0..=REGION - 1)?,
            to: piece(input)?,
        },
        5..=7 => Step::Send {
            from: piece(input)?,
            inline: input.arbitrary()?,
            imm: input.arbitrary()?,
        },
        8 => Step::FetchAdd {
            from: match input.ratio(9, 10)? {
                true => input.int_in_range(0..=REGION / 8 - 1)? * 8,
                false => input.int_in_range(0..=REGION + 7)?,
            },
            to: input.int_in_range(0..=REGION - 9)?,
            add: input.arbitrary()?,
        },
        9..=12 => Step::Receive(piece(input)?),
        13 | 14 => Step::Serve,
        15 | 16 => Step::Turns(input.int_in_range(1..=20)?),
        17 => Step::Hold {
            end: input.int_in_range(0..=1)?,
            turns: input.int_in_range(1..=20)?,
        },
        18 => Step::Wait(input.int_in_range(1..=3000)?),
        _ => Step::Fault {
            end: input.int_in_range(0..=1)?,
            fault: *input.choose(&FAULTS)?,
        },
    })
}

fn piece(input: &mut Unstructured<'_>) -> Result<Piece> {
    let at = input.int_in_range(0..=REGION - 1)?;
    let len = match input.ratio(1, 2)? {
        true => input.int_in_range(0..=300)?,
        false => input.int_in_range(0..=REGION)?,
    };
    Ok(Piece::new(at, len))
}
