// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What a hostile guest can think of.

use nupa_control::Fault;
use nupa_proto::admin::AdminOpcode;

/// One thing that a hostile guest does. Numbers are raw; whoever performs it brings them near to what exists.
#[derive(Debug, Clone)]
pub enum Action {
    /// Writes a register, at any width.
    Register { offset: u64, data: Vec<u8> },
    /// Reads a BAR.
    Read { bar: u8, offset: u64, len: usize },
    /// Sets rings up properly and enables the function.
    Enable,
    /// Issues a command: a good one with some words changed.
    Command {
        opcode: AdminOpcode,
        changes: Vec<(usize, u32)>,
    },
    /// Issues a command of nonsense.
    Nonsense { opcode: u16, body: Vec<u8> },
    /// Posts a good request (a frame to a node, or to all), in part overwritten.
    Post {
        queue: usize,
        to: u16,
        changes: Vec<(usize, u32)>,
    },
    /// Posts a good verbs request, in part overwritten.
    Request {
        kind: usize,
        seed: u32,
        len: u32,
        changes: Vec<(usize, u32)>,
    },
    /// Puts bytes into a send queue that are no more than shaped like a descriptor.
    Descriptor {
        queue: usize,
        control: [u8; 4],
        rest: Vec<u8>,
    },
    /// Sets a verbs queue pair that failed up again.
    Revive,
    /// Posts a receive entry, in part overwritten.
    Receive {
        queue: usize,
        changes: Vec<(usize, u32)>,
    },
    /// Overwrites memory.
    Poke { offset: usize, bytes: Vec<u8> },
    /// Stores to a doorbell slot or push slot.
    Doorbell { offset: u64, value: u32 },
    /// Writes a trapped page.
    Kick { offset: u64, data: Vec<u8> },
    /// Shows more memory, or takes some away.
    Map { page: u64, pages: u64, unmap: bool },
    /// Is reset from outside.
    Reset,
    /// Has its link or its controller tampered with.
    Tamper { link: bool, fault: Fault },
    /// Is allowed to access memory, or forbidden.
    BusMaster { on: bool },
    /// Waits.
    Wait { us: u64 },
    /// Is polled.
    Poll { on: bool },
}

/// Faults that come and go while a driver runs.
pub const FAULTS: [Fault; 5] = [
    Fault::Garbage,
    Fault::Cqe,
    Fault::Mute,
    Fault::AllOnes,
    Fault::BadStatus,
];
