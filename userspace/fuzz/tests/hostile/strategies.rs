// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What a hostile guest thinks of, at random.

use nupa_control::Fault;
use nupa_fuzz::{Action, FAULTS, KINDS};
use nupa_proto::admin::AdminOpcode;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

/// Numbers around which mistakes live.
fn word() -> impl Strategy<Value = u32> {
    prop_oneof![
        4 => 0u32..12,
        2 => (0u32..64).prop_map(|page| page * 4096),
        1 => (0u32..32).prop_map(|bit| 1 << bit),
        1 => (0u32..4).prop_map(|n| u32::MAX - n),
        1 => any::<u32>(),
    ]
}

fn changes() -> impl Strategy<Value = Vec<(usize, u32)>> {
    vec((0usize..16, word()), 0..3)
}

/// Any action. What breaks everything at once is rare, or nothing would get far.
pub(crate) fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        20 => work(),
        5 => commands(),
        5 => accesses(),
        1 => upheavals(),
        2 => (0u64..30_000).prop_map(|us| Action::Wait { us }),
    ]
}

/// Requests, most of them good.
fn work() -> impl Strategy<Value = Action> {
    let spoiled = || prop_oneof![4 => Just(Vec::new()), 1 => changes()];
    prop_oneof![
        2 => (0usize..3, 0u16..4, spoiled())
            .prop_map(|(queue, to, changes)| Action::Post { queue, to, changes }),
        3 => (0usize..KINDS, any::<u32>(), 0u32..300, spoiled())
            .prop_map(|(kind, seed, len, changes)| Action::Request { kind, seed, len, changes }),
        1 => (0usize..4, control(), bytes(384))
            .prop_map(|(queue, control, rest)| Action::Descriptor { queue, control, rest }),
        2 => Just(Action::Revive),
        2 => (0usize..5, spoiled()).prop_map(|(queue, changes)| Action::Receive { queue, changes }),
    ]
}

/// Opcode, flags, blocks and count of a descriptor, most of them possible.
fn control() -> impl Strategy<Value = [u8; 4]> {
    prop_oneof![
        6 => (0u8..18, 0u8..16, 1u8..7, 0u8..20).prop_map(|(op, flags, n, data)| [op, flags, n, data]),
        1 => any::<[u8; 4]>(),
    ]
}

fn commands() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => (select(AdminOpcode::ALL), changes())
            .prop_map(|(opcode, changes)| Action::Command { opcode, changes }),
        1 => (0u16..42, bytes(57)).prop_map(|(opcode, body)| Action::Nonsense { opcode, body }),
    ]
}

fn accesses() -> impl Strategy<Value = Action> {
    prop_oneof![
        1 => (0u64..0x70, bytes(9)).prop_map(|(offset, data)| Action::Register { offset, data }),
        1 => (0u8..6, any::<u64>(), 0usize..16).prop_map(|(bar, offset, len)| Action::Read {
            bar,
            offset: offset >> (offset % 64),
            len
        }),
        1 => (0usize..64 * 4096, bytes(200))
            .prop_map(|(offset, bytes)| Action::Poke { offset, bytes }),
        2 => (0u64..0x1000, word()).prop_map(|(offset, value)| Action::Doorbell { offset, value }),
        4 => (0x1000u64..0x1100, bytes(5)).prop_map(|(offset, data)| Action::Kick { offset, data }),
        2 => (0u64..0x4010, bytes(9)).prop_map(|(offset, data)| Action::Kick { offset, data }),
        1 => (0u64..80, 1u64..8, any::<bool>())
            .prop_map(|(page, pages, unmap)| Action::Map { page, pages, unmap }),
        1 => any::<bool>().prop_map(|on| Action::Poll { on }),
    ]
}

fn upheavals() -> impl Strategy<Value = Action> {
    let fault = select(&FAULTS[..]);
    prop_oneof![
        4 => Just(Action::Enable),
        1 => Just(Action::Reset),
        1 => any::<bool>().prop_map(|on| Action::BusMaster { on }),
        1 => any::<bool>().prop_map(|link| Action::Tamper { link, fault: Fault::None }),
        1 => fault.prop_map(|fault| Action::Tamper { link: true, fault }),
    ]
}

fn bytes(max: usize) -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..max)
}
