// SPDX-License-Identifier: GPL-2.0 OR MIT

//! From bytes of a fuzzer to what a hostile guest does: any bytes mean something, and a small change of them a small
//! change of that.

use arbitrary::{Result, Unstructured};
use nupa_control::Fault;
use nupa_proto::admin::AdminOpcode;

use crate::actions::{Action, FAULTS};
use crate::verbs::KINDS;

/// Most actions of one input: more say little that is new and cost time.
const MOST: usize = 60;

/// Takes actions from bytes until there are no more.
pub fn actions(bytes: &[u8], next: fn(&mut Unstructured<'_>) -> Result<Action>) -> Vec<Action> {
    let mut input = Unstructured::new(bytes);
    let mut actions = Vec::new();
    while !input.is_empty() && actions.len() < MOST {
        let Ok(action) = next(&mut input) else {
            break;
        };
        actions.push(action);
    }
    actions
}

/// What happens on queues.
pub fn work(input: &mut Unstructured<'_>) -> Result<Action> {
    Ok(match input.int_in_range(0u8..=11)? {
        0 | 1 => Action::Descriptor {
            queue: input.int_in_range(0..=3)?,
            control: [
                input.int_in_range(0..=20)?,
                input.arbitrary()?,
                input.int_in_range(0..=7)?,
                input.arbitrary()?,
            ],
            rest: bytes(input, 384)?,
        },
        2..=4 => Action::Request {
            kind: input.int_in_range(0..=KINDS - 1)?,
            seed: input.arbitrary()?,
            len: input.int_in_range(0..=5000)?,
            changes: changes(input)?,
        },
        5 => Action::Post {
            queue: input.int_in_range(0..=2)?,
            to: input.int_in_range(0..=3)?,
            changes: changes(input)?,
        },
        6 => Action::Receive {
            queue: input.int_in_range(0..=4)?,
            changes: changes(input)?,
        },
        7 => Action::Doorbell {
            offset: input.int_in_range(0..=0xfff)?,
            value: input.arbitrary()?,
        },
        8 => Action::Kick {
            offset: input.int_in_range(0x1000..=0x10ff)?,
            data: bytes(input, 5)?,
        },
        9 => Action::Poke {
            offset: input.int_in_range(0..=64 * 4096)?,
            bytes: bytes(input, 64)?,
        },
        10 => Action::Revive,
        _ => Action::Wait {
            us: input.int_in_range(0..=30_000)?,
        },
    })
}

/// What happens in registers and on the admin queue, with some work between.
pub fn administration(input: &mut Unstructured<'_>) -> Result<Action> {
    Ok(match input.int_in_range(0u8..=15)? {
        0..=5 => Action::Command {
            opcode: *input.choose(AdminOpcode::ALL)?,
            changes: changes(input)?,
        },
        6 | 7 => Action::Nonsense {
            opcode: input.int_in_range(0..=42)?,
            body: bytes(input, 56)?,
        },
        8 => Action::Register {
            offset: input.int_in_range(0..=0x6f)?,
            data: bytes(input, 9)?,
        },
        9 => Action::Read {
            bar: input.int_in_range(0..=5)?,
            offset: input.int_in_range(0..=0x5000)?,
            len: input.int_in_range(0..=15)?,
        },
        10 => Action::Map {
            page: input.int_in_range(0..=79)?,
            pages: input.int_in_range(1..=7)?,
            unmap: input.arbitrary()?,
        },
        11 => upheaval(input)?,
        _ => work(input)?,
    })
}

/// What breaks everything at once.
fn upheaval(input: &mut Unstructured<'_>) -> Result<Action> {
    Ok(match input.int_in_range(0u8..=4)? {
        0 => Action::Reset,
        1 => Action::BusMaster {
            on: input.arbitrary()?,
        },
        2 => Action::Tamper {
            link: input.arbitrary()?,
            fault: Fault::None,
        },
        3 => Action::Tamper {
            link: true,
            fault: *input.choose(&FAULTS)?,
        },
        _ => Action::Enable,
    })
}

/// Words that replace those of something good.
fn changes(input: &mut Unstructured<'_>) -> Result<Vec<(usize, u32)>> {
    (0..input.int_in_range(0u8..=3)?)
        .map(|_| Ok((input.int_in_range(0..=15)?, input.arbitrary()?)))
        .collect()
}

fn bytes(input: &mut Unstructured<'_>, most: usize) -> Result<Vec<u8>> {
    let len = input.int_in_range(0..=most)?.min(input.len());
    Ok(input.bytes(len)?.to_vec())
}
