// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The admin queue of a function: commands are fetched, prepared and executed.

use core::marker::PhantomData;
use nupa_engine::{
    hal::{AccessError, Clock, Memory, Platform, Storage},
    Limits, WRITERS_PAUSE_US,
};
use nupa_proto::{
    admin::{Command, Completion},
    regs,
    status::AdminStatus,
};

use crate::{
    admin::{self, Outcome, Prepared, Progress},
    body::EMPTY,
    host::{Functions, Host},
    model::Model,
};

impl<F: Functions> Model<F> {
    /// The driver has posted admin commands up to a producer index.
    pub(super) fn post_admin(&mut self, id: u16, producer: u32) {
        let Some(function) = self.function_mut(id) else {
            return;
        };
        let Some(queue) = &mut function.admin else {
            function.complain(format_args!("admin doorbell while not enabled"));
            return;
        };
        if !queue.post(producer) {
            self.fail(id, regs::FAULT_ADMIN_INDEX);
        }
    }

    /// Executes the admin commands that wait. May allocate and sleep.
    pub fn run_admin(&mut self, id: u16) {
        while let Some(fetched) = self.fetch_command(id) {
            let Some(function) = self.function(id) else {
                return;
            };
            let mut prepared = PreparedCommand::new(fetched);
            prepared.prepare(function.host.memory());
            loop {
                match self.execute_command(&mut prepared) {
                    Executed::Done | Executed::Forgotten => break,
                    Executed::InPart => {}
                    Executed::Waits => {
                        if let Some(function) = self.function(id) {
                            function.host.pause_us(WRITERS_PAUSE_US);
                        }
                    }
                }
            }
        }
    }

    /// Takes the next admin command that waits. The host is to [prepare](PreparedCommand::prepare) it, which may take long, with or
    /// without what keeps others from the function, and to [execute](Model::execute_command) it; then to ask again. One that is fetched
    /// before that makes this one be forgotten, without a completion.
    pub fn fetch_command(&mut self, id: u16) -> Option<FetchedCommand<F::Storage>> {
        let function = self.function_mut(id).filter(|f| !f.has_stopped())?;
        let mut limits = *function.node.limits();
        // One command is under way at a time, so as many are left when it is executed.
        limits.max_pages = function.node.pages_left();
        let epoch = function.node.epoch();
        let queue = function.admin.as_mut().filter(|queue| queue.is_pending())?;
        match queue.take(function.host.memory()) {
            Ok(command) => Some(FetchedCommand {
                id,
                epoch,
                number: queue.taken(),
                command,
                limits,
                storage: PhantomData,
            }),
            Err(AccessError) => {
                self.fail(id, regs::FAULT_ADMIN_RING);
                None
            }
        }
    }

    /// Executes the admin command that was fetched last, or a part of it; one that was fetched before a reset is forgotten.
    ///
    /// It stays where it is, because it is large and kernel stacks are small. To drop it when it is done may take long.
    pub fn execute_command(&mut self, prepared: &mut PreparedCommand<F::Storage>) -> Executed {
        let FetchedCommand {
            id, epoch, number, ..
        } = prepared.fetched;
        let function = self.function_mut(id).filter(|f| !f.has_stopped());
        let current = function.filter(|function| {
            let queue = function.admin.as_ref();
            let same = queue.is_some_and(|queue| queue.taken() == number);
            same && function.node.epoch() == epoch
        });
        let Some(function) = current else {
            // The driver takes the objects for gone then, and uses their memory again.
            if prepared.prepared.is_done() && !self.engine.writers_gone(&mut self.functions, id) {
                return Executed::Waits;
            }
            return Executed::Forgotten;
        };
        if function.host.executes() {
            let PreparedCommand {
                fetched,
                prepared: got,
            } = prepared;
            let command = &fetched.command;
            match admin::execute(&mut self.engine, &mut self.functions, id, command, got) {
                Progress::InPart => return Executed::InPart,
                Progress::Waits => return Executed::Waits,
                Progress::Done(outcome) => {
                    if self.complete_command(id, command, outcome).is_err() {
                        self.fail(id, regs::FAULT_ADMIN_RING);
                    }
                }
            }
        }
        self.tell_driver(id);
        Executed::Done
    }

    /// Raises the event of the admin queue once all commands are done.
    fn tell_driver(&mut self, id: u16) {
        let Some(function) = self.function_mut(id).filter(|f| !f.has_stopped()) else {
            return;
        };
        let done = function.admin.as_ref().is_some_and(|q| !q.is_pending());
        if done && function.host.executes() {
            function.node.admin_event(&function.host);
        }
    }

    /// Writes the completion of an admin command. An error means that a ring cannot be reached any more. By itself because of the
    /// space that it takes on the stack.
    #[inline(never)]
    fn complete_command(
        &mut self,
        id: u16,
        command: &Command,
        outcome: Outcome,
    ) -> Result<(), AccessError> {
        let function = self.function_mut(id).ok_or(AccessError)?;
        if let Err(status) = outcome {
            let opcode = command.opcode.get();
            function.complain(format_args!("admin command {opcode} refused: {status:?}"));
        }
        let mut completion = completion(command, outcome);
        function.host.spoil(command.opcode.get(), &mut completion);
        let queue = function.admin.as_mut().ok_or(AccessError)?;
        queue.complete(function.host.memory(), completion)
    }
}

/// An admin command that was taken out of its ring.
pub struct FetchedCommand<S: Storage> {
    id: u16,
    /// Epoch of the node.
    epoch: u32,
    /// It is so many-th that was taken since the function was enabled.
    number: u32,
    command: Command,
    limits: Limits,
    storage: PhantomData<fn() -> S>,
}

/// An admin command with all that it needs.
pub struct PreparedCommand<S: Storage> {
    fetched: FetchedCommand<S>,
    prepared: Prepared<S>,
}

impl<S: Storage> PreparedCommand<S> {
    /// The command, with nothing yet.
    pub fn new(fetched: FetchedCommand<S>) -> Self {
        Self {
            fetched,
            prepared: Prepared::default(),
        }
    }

    /// Gets what it needs: memory, and page lists, from the function's memory. May allocate and sleep.
    pub fn prepare(&mut self, memory: &impl Memory) {
        let FetchedCommand {
            limits, command, ..
        } = &self.fetched;
        admin::prepare(memory, limits, command, &mut self.prepared);
    }
}

/// How far an admin command was executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Executed {
    /// It is done.
    Done,
    /// A part of it is. The rest is to be executed once others had their turn.
    InPart,
    /// It is, but a peer still writes to memory that it has taken out of use. To be executed again [`WRITERS_PAUSE_US`] later; it
    /// completes when the peer has stopped or was refused.
    Waits,
    /// It was fetched before a reset, or the function has stopped.
    Forgotten,
}

/// The completion of a command.
fn completion(command: &Command, outcome: Outcome) -> Completion {
    let (status, body) = match outcome {
        Ok(body) => (AdminStatus::Success, body),
        Err(status) => (status, EMPTY),
    };
    Completion {
        command_id: command.command_id,
        status: status.to_wire().into(),
        valid: 0.into(),
        body,
    }
}
