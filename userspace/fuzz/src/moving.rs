// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Words that move while they are read: rings, page lists, tables and doorbells of a hostile node are others with each look.

mod scene;

use arbitrary::{Result, Unstructured};
use nupa_testing::Mode;

use scene::{Scene, Step};

/// Most steps of one input.
const MOST: usize = 40;
/// Most moves of words; what is behind them is used again.
const MOVES: usize = 12;
const MODES: [Mode; 4] = [Mode::Local, Mode::Linked, Mode::Pooled, Mode::Lines];

/// A change to what a read finds.
#[derive(Debug, Clone, Copy)]
pub struct Move {
    /// So many reads find what is there before this one.
    after: u8,
    /// Which of its 32-bit words, modulo how many it has.
    word: u8,
    /// What becomes of it.
    change: Change,
}

#[derive(Debug, Clone, Copy)]
enum Change {
    Flip(u32),
    Add(u32),
    Is(u32),
}

/// Lets words move as the bytes say. Panics if others are hurt, or the engine is busy with it for longer than a turn.
pub fn moving(bytes: &[u8]) {
    // Too short: nothing happens.
    let _ = steps(&mut Unstructured::new(bytes));
}

fn steps(input: &mut Unstructured<'_>) -> Result<()> {
    let mut scene = Scene::new(*input.choose(&MODES)?, input.arbitrary()?);
    let moves = (0..input.int_in_range(0..=MOVES)?).map(|_| next_move(input));
    let moves = moves.collect::<Result<Vec<_>>>()?;
    let doorbells = if input.ratio(1, 3)? {
        input.arbitrary()?
    } else {
        0
    };
    scene.let_move(moves, doorbells);
    for _ in 0..MOST {
        if input.is_empty() {
            break;
        }
        let Ok(step) = step(input) else { break };
        scene.perform(&step);
    }
    scene.end();
    Ok(())
}

fn next_move(input: &mut Unstructured<'_>) -> Result<Move> {
    let value = match input.int_in_range(0u8..=3)? {
        0 => 1 << input.int_in_range(0..=31u32)?,
        1 => input.int_in_range(0..=300)?,
        2 => 4096 * input.int_in_range(0..=64u32)?,
        _ => input.arbitrary()?,
    };
    Ok(Move {
        after: input.int_in_range(0..=20)?,
        word: input.int_in_range(0..=15)?,
        change: match input.int_in_range(0u8..=2)? {
            0 => Change::Flip(value),
            1 => Change::Add(value),
            _ => Change::Is(value),
        },
    })
}

fn step(input: &mut Unstructured<'_>) -> Result<Step> {
    Ok(match input.int_in_range(0u8..=15)? {
        0..=5 => Step::Post {
            queue: input.int_in_range(0..=2)?,
            kind: input.int_in_range(0..=11)?,
            len: match input.ratio(3, 4)? {
                true => input.int_in_range(0..=500)?,
                false => input.int_in_range(0..=200_000)?,
            },
        },
        6 | 7 => Step::Receive {
            queue: input.int_in_range(0..=2)?,
            len: input.int_in_range(0..=5000)?,
        },
        8 => Step::Answer {
            len: input.int_in_range(0..=5000)?,
        },
        9 | 10 => Step::Command {
            kind: input.int_in_range(0..=5)?,
        },
        11..=13 => Step::Turns(input.int_in_range(1..=20)?),
        14 => Step::Wait(input.int_in_range(1..=3000)?),
        _ => Step::Renew,
    })
}

/// Moves words of what is read, one move after the other, again and again.
pub struct Mover {
    moves: Vec<Move>,
    next: usize,
    reads: u8,
}

impl Mover {
    pub fn new(moves: Vec<Move>) -> Self {
        Self {
            moves,
            next: 0,
            reads: 0,
        }
    }

    pub fn look(&mut self, bytes: &mut [u8]) {
        let Some(step) = self.moves.get(self.next).copied() else {
            return;
        };
        if self.reads < step.after {
            self.reads += 1;
            return;
        }
        (self.next, self.reads) = ((self.next + 1) % self.moves.len(), 0);
        let words = bytes.len() / 4;
        if words > 0 {
            let at = usize::from(step.word) % words * 4;
            let old = u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
            let new = match step.change {
                Change::Flip(bits) => old ^ bits,
                Change::Add(more) => old.wrapping_add(more),
                Change::Is(value) => value,
            };
            bytes[at..at + 4].copy_from_slice(&new.to_le_bytes());
        }
    }
}
