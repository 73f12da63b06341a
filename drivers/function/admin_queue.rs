// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The admin queue: a ring of commands, a ring of completions.

use nupa_engine::hal::{AccessError, Memory};
use nupa_proto::admin::{
    Command, Completion, COMMAND_SIZE, COMPLETION_SIZE, COMPLETION_VALID_OFFSET,
};
use nupa_proto::cqe;
use nupa_proto::regs;
use zerocopy::{FromBytes, IntoBytes};

/// Both rings, taken over when the function was enabled.
#[derive(Debug)]
pub(crate) struct AdminQueue {
    commands: u64,
    completions: u64,
    log_entries: u32,
    /// Commands taken so far, free-running.
    taken: u32,
    /// Index behind the last command that the driver has posted.
    producer: u32,
    /// Completions written so far, free-running.
    completed: u32,
}

/// Address and size registers do not describe usable rings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BadRing;

/// Alignment of the rings.
const ALIGNMENT: u64 = 4096;

impl AdminQueue {
    /// Takes over rings of `1 << log_entries` entries.
    pub(crate) fn new(
        memory: &impl Memory,
        commands: u64,
        completions: u64,
        log_entries: u32,
    ) -> Result<Self, BadRing> {
        let aligned = (commands | completions) % ALIGNMENT == 0;
        if !aligned || log_entries > regs::ADMIN_MAX_LOG_ENTRIES {
            return Err(BadRing);
        }
        let queue = Self {
            commands,
            completions,
            log_entries,
            taken: 0,
            producer: 0,
            completed: 0,
        };
        queue.probe(memory).map_err(|AccessError| BadRing)?;
        Ok(queue)
    }

    /// Finds out now, not at the first command, whether both rings can be reached from end to end.
    fn probe(&self, memory: &impl Memory) -> Result<(), AccessError> {
        let last = self.entries().wrapping_sub(1);
        let mut byte = [0; COMMAND_SIZE];
        for index in [0, last] {
            memory.read(self.slot(self.commands, COMMAND_SIZE, index)?, &mut byte)?;
            let completion = self.slot(self.completions, COMPLETION_SIZE, index)?;
            memory.read(completion, &mut byte)?;
            memory.write(completion, &byte)?;
        }
        Ok(())
    }

    /// Entries of each ring.
    fn entries(&self) -> u32 {
        1 << self.log_entries
    }

    /// Address of the entry that a free-running index falls on.
    fn slot(&self, ring: u64, size: usize, index: u32) -> Result<u64, AccessError> {
        let slot = u64::from(index & self.entries().wrapping_sub(1));
        let offset = u64::try_from(size).ok().and_then(|s| s.checked_mul(slot));
        offset.and_then(|o| ring.checked_add(o)).ok_or(AccessError)
    }

    /// The driver has posted commands up to an index. False if the ring cannot hold as many.
    pub(crate) fn post(&mut self, producer: u32) -> bool {
        let fits = producer.wrapping_sub(self.taken) <= self.entries();
        if fits {
            self.producer = producer;
        }
        fits
    }

    /// Whether a command waits.
    pub(crate) fn is_pending(&self) -> bool {
        self.taken != self.producer
    }

    /// Commands that were taken.
    pub(crate) fn taken(&self) -> u32 {
        self.taken
    }

    /// Takes the next command.
    pub(crate) fn take(&mut self, memory: &impl Memory) -> Result<Command, AccessError> {
        let mut bytes = [0; COMMAND_SIZE];
        memory.read(
            self.slot(self.commands, COMMAND_SIZE, self.taken)?,
            &mut bytes,
        )?;
        self.taken = self.taken.wrapping_add(1);
        Command::read_from_bytes(&bytes).map_err(|_| AccessError)
    }

    /// Hands a completion over; its `valid` word is filled in here.
    pub(crate) fn complete(
        &mut self,
        memory: &impl Memory,
        mut completion: Completion,
    ) -> Result<(), AccessError> {
        let at = self.slot(self.completions, COMPLETION_SIZE, self.completed)?;
        let valid = cqe::phase(self.completed, self.log_entries);
        // The old phase stays until the release store: everything else must be there first.
        completion.valid.set(valid ^ cqe::CQE_PHASE);
        memory.write(at, completion.as_bytes())?;
        let word = u64::try_from(COMPLETION_VALID_OFFSET).map_err(|_| AccessError)?;
        memory.store_release(at.checked_add(word).ok_or(AccessError)?, valid)?;
        self.completed = self.completed.wrapping_add(1);
        Ok(())
    }
}
