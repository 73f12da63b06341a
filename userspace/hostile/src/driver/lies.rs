// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What a hostile driver does, one thing at a time.

use std::time::Duration;

use nupa_proto::admin::{AdminOpcode, ModifyQp, QpStateCode, BODY_SIZE};
use nupa_proto::frame::MIN_FRAME;
use nupa_proto::ident::node_mac;
use nupa_proto::regs::{BAR_CONTROL, BAR_MSIX, CONTROL_SIZE, REG_CLOCK_KHZ};
use rustix::io::Errno;
use vfio_user::region_index;
use zerocopy::IntoBytes;

use crate::bytes::Bytes;
use crate::draw::Draw;
use crate::rings;
use crate::shared::Shared;
use crate::tally::Tally;

use super::function::Function;

/// How long is waited for a command. It may be nobody's to answer.
const TIMEOUT: Duration = Duration::from_millis(100);

/// Something to do: its name, how often of all, and what it is.
type Class = (
    &'static str,
    u32,
    fn(&Function, &mut Draw) -> Result<(), Errno>,
);

/// What breaks everything at once is rare, or nothing would get far.
const CLASSES: [Class; 12] = [
    ("ring words", 100, |function, draw| {
        rings::ring_words(function, draw)
    }),
    ("descriptors", 400, |function, draw| {
        rings::descriptors(function, draw)
    }),
    ("doorbells", 200, |function, draw| {
        rings::doorbells(function, draw)
    }),
    ("push slots", 100, |function, draw| {
        rings::push_slots(function, draw)
    }),
    ("trapped pages", 50, |function, draw| {
        rings::kicks(function, draw)
    }),
    ("frames", 100, frames),
    ("states", 20, states),
    ("commands", 20, commands),
    ("registers", 2, registers),
    ("interrupts", 10, interrupts),
    ("configuration", 1, configuration),
    ("memory taken away", 1, |function, _| function.take_away()),
];

/// Does one thing, and counts it.
pub(super) fn step(function: &Function, draw: &mut Draw, tally: &mut Tally) {
    let all = CLASSES
        .iter()
        .fold(0u32, |sum, class| sum.saturating_add(class.1));
    let mut left = draw.small(all);
    for (name, weight, act) in CLASSES {
        if left < weight {
            return tally.count(name, act(function, draw));
        }
        left = left.saturating_sub(weight);
    }
}

/// Puts frames for others to where descriptors may take them from.
fn frames(function: &Function, draw: &mut Draw) -> Result<(), Errno> {
    let to = draw.one_or(&[node_mac(0), node_mac(1), [0xff; 6]], [0xff; 6]);
    let from = node_mac(draw.small_short(4));
    let kind = draw.one_or(&[[8, 0], [8, 6], [0x86, 0xdd]], [8, 0]);
    let head = Bytes::new().raw(&to).raw(&from).raw(&kind);
    let rest = draw.below(200).saturating_add(MIN_FRAME as usize);
    let bytes = head.raw(&draw.bytes(rest)).done();
    let page = function.page(draw);
    function.area().write(page, &bytes);
    Ok(())
}

/// Changes a queue pair in any way.
fn states(function: &Function, draw: &mut Draw) -> Result<(), Errno> {
    let any = draw.small(64);
    let pair = draw.one(&function.objects().pairs);
    let (node, peer) = function.any_peer(draw, 6);
    let body = ModifyQp {
        qpn: pair.map_or(any, |pair| pair.number).into(),
        mask: draw.one_or(&[1, 1, 1, 3, 7, 0xff, any], 1).into(),
        state: draw.one_or(QpStateCode::ALL, QpStateCode::Err).to_wire(),
        remote_node: node.into(),
        remote_qpn: peer.into(),
        remote_epoch: draw.lie().into(),
        access: draw.small(256).into(),
        qkey: draw.lie().into(),
        rnr_timeout_us: draw.lie().into(),
        rnr_retry: draw.small_byte(9),
        min_rnr_timer: draw.small_byte(34),
        ..ModifyQp::default()
    };
    let opcode = AdminOpcode::ModifyQp.to_wire();
    let done = function.command_bytes(opcode, body.as_bytes(), TIMEOUT);
    done.map(drop)
}

/// A command of any kind, with words that may be numbers, addresses, or anything.
fn commands(function: &Function, draw: &mut Draw) -> Result<(), Errno> {
    let opcode = draw
        .one_or(AdminOpcode::ALL, AdminOpcode::QueryDevice)
        .to_wire();
    let opcode = match draw.once_in(16) {
        true => draw.small_short(64),
        false => opcode,
    };
    let mut body = Bytes::new();
    // What is not said is 0, as it is to be in most places.
    for _ in 0..draw.below(BODY_SIZE / 8) {
        let (lie, small) = (draw.lie(), draw.small(16));
        let number = draw.one_or(&[0, 0, 1, small, small, lie], 0);
        body = match draw.small(3) {
            0 => body.u64s([function.any_address(draw)]),
            _ => body.u32s([number, 0]),
        };
    }
    let done = function.command_bytes(opcode, &body.done(), TIMEOUT);
    done.map(drop)
}

/// Any register, in any way.
fn registers(function: &Function, draw: &mut Draw) -> Result<(), Errno> {
    let at = match draw.once_in(4) {
        true => draw.below(CONTROL_SIZE),
        false => draw.below(REG_CLOCK_KHZ.saturating_add(8)) & !3,
    };
    let len = draw.one_or(&[4, 4, 4, 8, 8, 1, 3, 16], 4);
    let mut data = draw.bytes(len);
    if draw.once_in(2) {
        return function.read(BAR_CONTROL.into(), at as u64, &mut data);
    }
    function.write(BAR_CONTROL.into(), at as u64, &data)
}

/// The table of interrupts.
fn interrupts(function: &Function, draw: &mut Draw) -> Result<(), Errno> {
    let at = draw.below(0x1000) as u64 & !3;
    let len = draw.one_or(&[4, 4, 8, 2], 4);
    let data = draw.bytes(len);
    function.write(BAR_MSIX.into(), at, &data)
}

/// The configuration space.
fn configuration(function: &Function, draw: &mut Draw) -> Result<(), Errno> {
    let at = draw.below(0x100) as u64;
    let len = draw.one_or(&[1, 2, 4], 2);
    let data = draw.bytes(len);
    function.write(region_index::CONFIG, at, &data)
}
