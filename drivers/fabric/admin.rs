// SPDX-License-Identifier: GPL-2.0
//! The admin queue.

use crate::fmt;
use crate::{
    command::{self, Garbage},
    hal::Function,
    memory::QueueMemory,
    registers::Registers,
};
use kernel::{
    bindings, new_mutex,
    prelude::*,
    sync::Mutex,
    time::{delay::fsleep, Delta, Instant, Monotonic},
};
use nk::bound::BoundDevice;
use nupa_engine::rings::QueueMemory as _;
use nupa_proto::{
    admin::{
        AdminOpcode, Command, Completion, BODY_SIZE, COMMAND_SIZE, COMPLETION_SIZE,
        COMPLETION_VALID_OFFSET,
    },
    cqe::{phase, CQE_PHASE},
    status::AdminStatus,
};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// log2 of the entries of both rings: one page each. One command is under way at a time.
const LOG_ENTRIES: u32 = 6;
/// How long a command may take.
pub(crate) const TIMEOUT: Delta = Delta::from_secs(5);
/// First pause between two looks for the completion, in microseconds; the emulated controller needs none.
const FIRST_PAUSE_US: i64 = 5;
/// Longest pause, in microseconds.
const LAST_PAUSE_US: i64 = 2000;

/// What went wrong with a command.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Failure {
    /// The controller refused it and is otherwise fine.
    Refused(AdminStatus),
    /// The function was reset since the object at hand was made, or is not started.
    Stale,
    /// The controller is not there any more, or the driver is unbound.
    Gone,
    /// The controller reported that it stopped.
    Stopped,
    /// No completion in time: the controller may still act on it.
    Timeout,
    /// The controller wrote nonsense.
    Garbage(Garbage),
    /// The driver asked for nonsense.
    Invalid,
}

impl Failure {
    /// Whether nothing the controller does can be relied on any more.
    pub(crate) fn is_fatal(self) -> bool {
        matches!(
            self,
            Self::Gone | Self::Stopped | Self::Timeout | Self::Garbage(_)
        )
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(status) => write!(f, "refused, {status:?}"),
            Self::Stale => f.write_str("the controller was reset meanwhile"),
            Self::Gone => f.write_str("the controller is gone"),
            Self::Stopped => f.write_str("the controller stopped"),
            Self::Timeout => write!(
                f,
                "no answer within {} ms, is the fabric switch alive and its DMA not blocked by an IOMMU?",
                TIMEOUT.as_millis()
            ),
            Self::Garbage(garbage) => write!(f, "the controller answered with garbage ({garbage:?}), check the fabric switch"),
            Self::Invalid => f.write_str("bug in the driver"),
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        let errno = match failure {
            Failure::Refused(status) => match status {
                AdminStatus::Unsupported => bindings::EOPNOTSUPP,
                AdminStatus::NoSuchObject => bindings::ENOENT,
                AdminStatus::Busy => bindings::EBUSY,
                AdminStatus::NoResources => bindings::ENOSPC,
                AdminStatus::BadAddress => bindings::EFAULT,
                AdminStatus::NodeDown => bindings::EHOSTDOWN,
                AdminStatus::Internal => bindings::EIO,
                AdminStatus::Success | AdminStatus::InvalidField | AdminStatus::InvalidState => {
                    bindings::EINVAL
                }
            },
            Failure::Stale | Failure::Stopped | Failure::Garbage(_) => bindings::EIO,
            Failure::Gone => bindings::ENODEV,
            Failure::Timeout => bindings::ETIMEDOUT,
            Failure::Invalid => bindings::EINVAL,
        };
        i32::try_from(errno).map_or(EIO, |errno| Error::from_errno(errno.wrapping_neg()))
    }
}

/// The admin queue of a function that is started and reset any number of times.
#[pin_data]
pub(crate) struct AdminQueue {
    #[pin]
    inner: Mutex<Inner>,
}

struct Inner {
    /// Goes up with each stop.
    generation: u32,
    ring: Option<Ring>,
    /// The present generation is not to be used any more.
    broken: bool,
}

/// Rings of one generation.
struct Ring {
    commands: QueueMemory,
    completions: QueueMemory,
    /// Commands so far.
    index: u32,
}

impl AdminQueue {
    /// A queue that is not started.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self { inner <- new_mutex!(Inner { generation: 0, ring: None, broken: false }) })
    }

    /// Which generation of the function's objects is the present one. Waits for a command under way.
    pub(crate) fn generation(&self) -> u32 {
        self.inner.lock().generation
    }

    /// Starts the function on new rings. Sleeps.
    pub(crate) fn start(
        &self,
        device: &BoundDevice,
        registers: &Registers,
        doorbells: Option<u64>,
    ) -> Result {
        let ring = Ring::new(device)?;
        let mut inner = self.inner.lock();
        registers.start(
            ring.commands.address(),
            ring.completions.address(),
            LOG_ENTRIES,
            doorbells,
        )?;
        inner.ring = Some(ring);
        inner.broken = false;
        Ok(())
    }

    /// Ends the generation: commands fail from now on. `quiesce` keeps the function from using memory. Callers of commands free
    /// what the function had of it once they learn that the generation is over, so that is told only afterwards. Sleeps.
    /// Waits for a command under way, at most its timeout.
    pub(crate) fn stop(&self, quiesce: impl FnOnce()) {
        let mut inner = self.inner.lock();
        quiesce();
        inner.generation = inner.generation.wrapping_add(1);
        inner.ring = None;
    }

    /// Gives the generation up: commands fail from now on, and the function reads and writes no memory any more.
    /// Returns false, and has done nothing, if that generation is over already. Waits for a command under way.
    pub(crate) fn abort(&self, generation: u32, function: &dyn Function) -> bool {
        let mut inner = self.inner.lock();
        if inner.generation != generation {
            return false;
        }
        inner.broken = true;
        function.revoke_dma();
        true
    }

    /// Whether the present generation was given up.
    pub(crate) fn is_broken(&self) -> bool {
        self.inner.lock().broken
    }

    /// Executes a command about objects of `generation` and waits for the result. Sleeps, at most [`TIMEOUT`].
    pub(crate) fn execute<B: IntoBytes + Immutable>(
        &self,
        registers: &Registers,
        generation: u32,
        opcode: AdminOpcode,
        body: &B,
    ) -> Result<[u8; BODY_SIZE], Failure> {
        let mut inner = self.inner.lock();
        if inner.generation != generation || inner.broken {
            return Err(Failure::Stale);
        }
        let ring = inner.ring.as_mut().ok_or(Failure::Stale)?;
        let result = ring.execute(registers, opcode, body);
        // Whoever comes next need not wait as long.
        inner.broken = result.is_err_and(Failure::is_fatal);
        result
    }
}

impl Ring {
    fn new(device: &BoundDevice) -> Result<Self> {
        Ok(Self {
            commands: QueueMemory::new(device, COMMAND_SIZE << LOG_ENTRIES)?,
            completions: QueueMemory::new(device, COMPLETION_SIZE << LOG_ENTRIES)?,
            index: 0,
        })
    }

    fn execute<B: IntoBytes + Immutable>(
        &mut self,
        registers: &Registers,
        opcode: AdminOpcode,
        body: &B,
    ) -> Result<[u8; BODY_SIZE], Failure> {
        let index = self.index;
        let position = (index & ((1 << LOG_ENTRIES) - 1)) as usize;
        // Ids differ from each other for longer than the rings are, so that a stale completion is not taken for this.
        let id = (index & u32::from(u16::MAX)) as u16;
        let command: Command = command::encode(opcode, id, body).ok_or(Failure::Invalid)?;
        self.commands
            .write(position * COMMAND_SIZE, command.as_bytes());
        self.index = index.wrapping_add(1);
        registers
            .ring_admin(self.index)
            .map_err(|_| Failure::Gone)?;

        let offset = position * COMPLETION_SIZE;
        self.wait(
            registers,
            offset + COMPLETION_VALID_OFFSET,
            phase(index, LOG_ENTRIES),
        )?;
        let mut bytes = [0; COMPLETION_SIZE];
        self.completions.read(offset, &mut bytes);
        let completion = Completion::read_from_bytes(&bytes).map_err(|_| Failure::Invalid)?;
        match command::decode(&completion, id) {
            Ok(answer) => answer.map_err(Failure::Refused),
            Err(garbage) => Err(Failure::Garbage(garbage)),
        }
    }

    /// Waits until the word at `offset` has the phase bit. Looks after the function meanwhile, so that one that was
    /// removed or stopped does not cost the whole timeout.
    fn wait(&self, registers: &Registers, offset: usize, phase: u32) -> Result<(), Failure> {
        let start = Instant::<Monotonic>::now();
        let mut pause_us = FIRST_PAUSE_US;
        loop {
            if self.completions.load_acquire(offset) & CQE_PHASE == phase {
                return Ok(());
            }
            if pause_us == LAST_PAUSE_US {
                let status = registers.status().map_err(|_| Failure::Gone)?;
                if status.fatal() || !status.ready() {
                    return Err(Failure::Stopped);
                }
            }
            if start.elapsed() > TIMEOUT {
                return Err(Failure::Timeout);
            }
            fsleep(Delta::from_micros(pause_us));
            pause_us = pause_us.saturating_mul(2).min(LAST_PAUSE_US);
        }
    }
}
