// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The functions that one host runs, and what their drivers set off.

mod commands;
mod enable;

pub use commands::{Executed, FetchedCommand, PreparedCommand};

use nupa_engine::Engine;

use crate::{
    function::Function,
    host::{Functions, Host, Note},
    registers::Effect,
};

/// What a write to a trapped doorbell page means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kick {
    /// The queue of this page and slot has work.
    Plain(u32, u16),
    /// As `Plain`; the producer index is given, and the descriptor before it may lie in the push slot.
    Push(u32, u16, u32),
}

/// Functions and their engine, in one thread or under one lock.
///
/// The engine runs inside of [`Model::write_control`], [`Model::execute_command`] and [`Model::kick`]; what is left over (timers, long queues) is
/// done by [`Model::run`]. Nodes whose function does not run here are ignored.
pub struct Model<F> {
    /// The functions.
    pub functions: F,
    /// The engine's scratch space.
    pub engine: Engine,
    /// The host polls doorbells.
    polling: bool,
}

impl<F: Functions> Model<F> {
    /// Puts functions to work.
    pub const fn new(functions: F) -> Self {
        Self {
            functions,
            engine: Engine::new(),
            polling: false,
        }
    }

    /// The function of a node, if it runs here.
    pub fn function(&self, id: u16) -> Option<&Function<F::Storage, F::Platform>> {
        self.functions.function(id)
    }

    /// As [`Model::function`], to change it.
    pub fn function_mut(&mut self, id: u16) -> Option<&mut Function<F::Storage, F::Platform>> {
        self.functions.function_mut(id)
    }

    /// Writes a control register, and does what that sets off. A bad access is ignored; `false` reports it.
    ///
    /// May allocate and sleep if the engine's containers do: admin commands are executed here.
    pub fn write_control(&mut self, id: u16, offset: u64, data: &[u8]) -> bool {
        let good = self.begin_write(id, offset, data);
        self.run_admin(id);
        good
    }

    /// As [`Model::write_control`], but for the admin commands that it may set off: those are to be
    /// [fetched](Model::fetch_command), one after the other. May allocate and sleep.
    pub fn begin_write(&mut self, id: u16, offset: u64, data: &[u8]) -> bool {
        let Some(function) = self.function_mut(id) else {
            return true;
        };
        match function.registers.write(offset, data) {
            Effect::Refused => return false,
            Effect::None => {}
            Effect::Enable => self.enable(id),
            Effect::Reset => self.reset(id),
            Effect::AdminDoorbell(producer) => self.post_admin(id, producer),
        }
        true
    }

    /// Resets a function: function-level reset, reset of the host, or its driver's wish.
    pub fn reset(&mut self, id: u16) {
        self.engine.reset(&mut self.functions, id);
        self.engine
            .set_polled(&mut self.functions, id, self.polling);
        if let Some(function) = self.function_mut(id) {
            function.clear();
            let epoch = function.node.epoch();
            function.host.note(id, Note::Reset { epoch });
        }
    }

    /// Plugs or unplugs the cable between a node and the switch.
    pub fn set_link(&mut self, id: u16, up: bool) {
        self.engine.set_link(&mut self.functions, id, up);
    }

    /// Serves a kick.
    pub fn kick(&mut self, id: u16, kick: Kick) {
        let Some(function) = self.function(id).filter(|f| !f.has_stopped()) else {
            return;
        };
        let malformed = function.malformed();
        let (page, slot) = match kick {
            Kick::Plain(page, slot) => {
                self.engine.kick(&mut self.functions, id, page, slot);
                (page, slot)
            }
            Kick::Push(page, slot, index) => {
                self.engine
                    .push_kick(&mut self.functions, id, page, slot, index);
                (page, slot)
            }
        };
        let function = self.function_mut(id);
        if let Some(function) = function.filter(|f| f.malformed() != malformed) {
            function.complain(format_args!(
                "malformed descriptor in the queue of doorbell page {page} slot {slot}"
            ));
        }
    }

    /// Does what is due: timers, and queues whose share was used up. Returns the time, on the hosts' clock, of the next
    /// call that is needed; a time that has passed means that there is more to do now.
    ///
    /// To be called after each batch of accesses, and when the time has come.
    pub fn run(&mut self) -> Option<u64> {
        self.run_at(None)
    }

    /// As [`Model::run`], for who has looked at the clock in this turn, `now_us`.
    pub fn run_at(&mut self, now_us: Option<u64>) -> Option<u64> {
        self.stop_faulty();
        self.engine.run_at(&mut self.functions, now_us)
    }

    /// Says whether the host polls doorbells. While it does, drivers need not kick; when it stops, they are asked to
    /// again. `true` if a doorbell may have been rung just before: then poll once more, and no more than once, as a queue
    /// that waits for something else looks like that too.
    pub fn set_polling(&mut self, on: bool) -> bool {
        self.polling = on;
        let mut rung = false;
        for id in self.functions.homes() {
            rung |= self.engine.set_polled(&mut self.functions, id, on);
        }
        rung
    }

    /// Looks at the doorbells of all nodes once and does the work found; `true` if there was any.
    pub fn poll_doorbells(&mut self) -> bool {
        let mut found = false;
        for id in self.functions.homes() {
            found |= self.engine.poll(&mut self.functions, id);
        }
        found
    }

    /// Stops functions in which the engine found a fault.
    fn stop_faulty(&mut self) {
        for id in self.functions.homes() {
            let Some(function) = self.function(id) else {
                continue;
            };
            if function.has_stopped() && function.admin.is_some() {
                self.fail(id, function.node.fault());
            }
        }
    }
}
