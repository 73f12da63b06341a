// SPDX-License-Identifier: GPL-2.0 OR MIT

//! From bytes of a fuzzer to what a hostile host does: any bytes mean something, and a small change of them a small change
//! of that.

use super::steps::{Forged, Says, Step, Word};
use arbitrary::{Result, Unstructured};

/// Most steps of one input: more say little that is new and cost time.
const MOST: usize = 60;

/// Takes steps from bytes until there are no more.
pub fn steps(bytes: &[u8]) -> Vec<Step> {
    let mut input = Unstructured::new(bytes);
    let mut steps = Vec::new();
    while !input.is_empty() && steps.len() < MOST {
        let Ok(step) = step(&mut input) else {
            break;
        };
        steps.push(step);
    }
    steps
}

fn step(input: &mut Unstructured<'_>) -> Result<Step> {
    Ok(match input.int_in_range(0u8..=31)? {
        0..=3 => Step::Link {
            class: class(input)?,
            word: input
                .choose(&[Word::Producer, Word::Consumer, Word::Bulk])
                .copied()?,
            tags: input.ratio(1, 6)?.then(|| input.arbitrary()).transpose()?,
            index: index(input)?,
        },
        4..=14 => Step::Forge(forged(input)?),
        15 | 16 => Step::Payload {
            class: class(input)?,
            at: input.int_in_range(0..=0x3_ffff)?,
            bytes: bytes(input)?,
        },
        17 => Step::Slot {
            at: input.int_in_range(0..=31)?,
            value: input.arbitrary()?,
        },
        18 => match input.ratio(1, 8)? {
            true => Step::Wild {
                at: input.arbitrary()?,
                bytes: bytes(input)?,
            },
            false => Step::Renew,
        },
        19 => Step::Behave {
            turns: input.int_in_range(1..=8)?,
        },
        20..=23 => Step::Post {
            kind: input.int_in_range(0..=8)?,
            len: length(input)?,
        },
        24 | 25 => Step::Receive {
            len: input.int_in_range(1..=10_000)?,
        },
        26..=29 => Step::Run {
            turns: input.int_in_range(1..=8)?,
        },
        30 => Step::Wait {
            us: input.int_in_range(1..=12_000_000)?,
        },
        _ => Step::LookAround,
    })
}

fn class(input: &mut Unstructured<'_>) -> Result<u8> {
    input.int_in_range(0..=4)
}

/// How far an index is from what it should be.
fn index(input: &mut Unstructured<'_>) -> Result<i32> {
    Ok(match input.int_in_range(0u8..=5)? {
        0..=3 => input.int_in_range(-3..=3)?,
        4 => input.int_in_range(-300..=300)?,
        _ => input.arbitrary()?,
    })
}

fn length(input: &mut Unstructured<'_>) -> Result<u32> {
    Ok(match input.int_in_range(0u8..=7)? {
        0 => 0,
        1..=4 => input.int_in_range(1..=300)?,
        5 | 6 => input.int_in_range(1..=140_000)?,
        _ => input.arbitrary()?,
    })
}

fn bytes(input: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let len = input.int_in_range(1..=64)?;
    Ok(input.bytes(len)?.to_vec())
}

fn forged(input: &mut Unstructured<'_>) -> Result<Forged> {
    let class = class(input)?;
    let says = says(input, class)?;
    // Right, mostly: what it says has a kind and a length.
    let kind = match (input.int_in_range(0u8..=15)?, &says) {
        (0, _) => input.arbitrary()?,
        (_, Says::Request { .. }) => 1,
        (_, Says::Response { .. }) => 2,
        (_, Says::Frame { .. }) => 3,
        (_, Says::Notify(_)) => 4,
    };
    let len = match says {
        Says::Request {
            opcode: 0..=4, len, ..
        } => len,
        Says::Response { .. } if input.ratio(1, 2)? => length(input)?,
        Says::Frame { .. } => input.int_in_range(14..=9000)?,
        _ => 0,
    };
    let offset = match input.int_in_range(0u8..=7)? {
        0 => length(input)?,
        1 => 65_536,
        _ => 0,
    };
    let payload = match input.int_in_range(0u8..=7)? {
        0 => length(input)?,
        _ => len.min(65_536),
    };
    let edits = match input.ratio(1, 6)? {
        true => vec![(input.int_in_range(0..=127)?, input.arbitrary()?)],
        false => Vec::new(),
    };
    Ok(Forged {
        class,
        ahead: if input.ratio(1, 12)? { 1 } else { 0 },
        kind,
        payload,
        offset,
        says,
        edits,
        show: input.ratio(9, 10)?,
    })
}

fn says(input: &mut Unstructured<'_>, class: u8) -> Result<Says> {
    let pairs = |input: &mut Unstructured<'_>| -> Result<[u8; 2]> {
        Ok([input.int_in_range(0..=6)?, input.int_in_range(0..=6)?])
    };
    Ok(match (class, input.int_in_range(0u8..=5)?) {
        (0 | 3, _) => Says::Request {
            opcode: input.int_in_range(0..=18)?,
            flags: input.int_in_range(0..=31)?,
            vlan_id: input.int_in_range(0..=4097)?,
            sequence: input.int_in_range(0..=5)?,
            pairs: pairs(input)?,
            epoch: input.int_in_range(0..=3)?,
            len: length(input)?,
            addr: match input.ratio(3, 4)? {
                true => 0x7000_0000_0000 + u64::from(input.int_in_range(0u32..=0x1_0008)?),
                false => input.arbitrary()?,
            },
            key: input.int_in_range(0..=3)?,
        },
        (1, 1) => Says::Notify(input.arbitrary()?),
        (1 | 4, _) => Says::Response {
            reply: input.int_in_range(0..=4)?,
            status: match input.ratio(2, 3)? {
                true => 0,
                false => input.int_in_range(0..=23)?,
            },
            sequence: input.int_in_range(0..=5)?,
            pairs: pairs(input)?,
        },
        _ => Says::Frame {
            flags: input.int_in_range(0..=2)?,
            meta: input.arbitrary()?,
        },
    })
}
