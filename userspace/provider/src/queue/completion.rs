// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Completion queues.

mod member;

use std::sync::atomic::Ordering;
use std::sync::Arc;

use nupa_engine::rings::CompletionRing;
use nupa_proto::cqe::Cqe;

pub(super) use self::member::try_with_send_queue;
pub(crate) use self::member::{Member, SharedReceives};
use super::bypass::{BypassState, Bypasses, Maker, Sent, Step, BEFORE_RING};
use super::members::Members;
use super::wall::{Moment, WallClock};
use crate::ffi::{Pages, Slot};

/// Completion code bit of everything that used a receive entry.
const RECEIVE: u8 = 0x80;

/// Consumer of a completion queue.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    ring: CompletionRing<Pages, Slot>,
    slot: Slot,
    members: Members<Member>,
    current: Cqe,
    wall: WallClock,
    bypasses: Bypasses,
    /// Whether completions have something that only the engine can give.
    needs_engine: bool,
    /// Whether programs may wait for events.
    has_events: bool,
    /// Whether queue pairs may send or receive past the engine, or could once.
    has_makers: bool,
}

impl CompletionQueue {
    /// An empty queue over `1 << log_entries` zeroed entries.
    pub(crate) fn new(memory: Pages, slot: Slot, log_entries: u8) -> Self {
        Self {
            ring: CompletionRing::new(memory, slot.clone(), log_entries),
            slot,
            members: Members::default(),
            current: Cqe::default(),
            wall: WallClock::default(),
            bypasses: Bypasses::default(),
            needs_engine: false,
            has_events: true,
            has_makers: false,
        }
    }

    /// What the engine was told by the last [`CompletionQueue::arm`].
    #[cfg(test)]
    pub(crate) fn arm_word(&self) -> u32 {
        use nupa_engine::{hal::SlotWord, rings::Doorbell};
        self.slot.load(SlotWord::Arm)
    }

    /// Nobody can wait for events.
    pub(crate) fn set_silent(&mut self) {
        self.has_events = false;
    }

    /// Whether programs may wait for events.
    pub(crate) fn has_events(&self) -> bool {
        self.has_events
    }

    /// Completions have timestamps, which only the engine can give.
    pub(crate) fn set_timestamps(&mut self) {
        self.needs_engine = true;
    }

    /// Whether completions of another queue pair may come past the engine.
    pub(crate) fn may_bypass(&self) -> bool {
        !self.needs_engine && self.bypasses.has_room()
    }

    /// Completions of messages that a queue pair sends past the engine come from there.
    pub(crate) fn add_sent(&mut self, qpn: u32, sent: Arc<Sent>, bypass_state: &Arc<BypassState>) {
        self.bypasses.add_sent(qpn, sent, bypass_state);
    }

    /// A queue pair may send and receive past the engine.
    pub(crate) fn set_bypass_state(&mut self, qpn: u32, bypass_state: &Arc<BypassState>) {
        self.has_makers = true;
        if let Some(member) = self.members.get_mut(qpn) {
            member.bypass_state = Some(Arc::clone(bypass_state));
        }
    }

    /// The rings that it receives with are made so.
    pub(crate) fn set_maker(&mut self, qpn: u32, maker: Maker) {
        if let Some(member) = self.members.get_mut(qpn) {
            member.maker = Some(Arc::new(maker));
        }
    }

    /// Whether the engine need not be asked to work although there was nothing to take: messages have come past it just now.
    #[inline(always)]
    pub(crate) fn found_nothing(&mut self) -> bool {
        !self.bypasses.is_empty() && self.bypasses.found_nothing()
    }

    /// Shows the next completion and takes it; false if there is none. [`CompletionQueue::publish`] has to follow the
    /// last one.
    ///
    /// Those of queue pairs that are no more are skipped.
    #[inline(always)]
    pub(crate) fn take(&mut self, mut see: impl FnMut(&Cqe)) -> bool {
        match self.take_usual(&mut see) {
            Some(taken) => taken || self.take_any(see),
            None => false,
        }
    }

    /// As [`CompletionQueue::take`], if there is nothing special about the completion or the queue; then true. `None`: there is no completion.
    #[inline(always)]
    pub(crate) fn take_usual(&mut self, see: impl FnOnce(&Cqe)) -> Option<bool> {
        if !self.bypasses.is_idle() {
            return Some(false);
        }
        let members = &self.members;
        self.ring.poll_if(|cqe| {
            if is_rare(cqe) {
                return false;
            }
            let Some(member) = members.get(cqe.qpn.get()) else {
                return false;
            };
            let done = match cqe.opcode & RECEIVE {
                0 => &member.send,
                _ if member.shared.is_some() => return false,
                _ => &member.recv,
            };
            see(cqe);
            // Without rings they come in order.
            done.set(cqe.queue_index.get());
            true
        })
    }

    /// As [`CompletionQueue::take`], of whichever completion, and where queue pairs have process rings.
    #[inline(never)]
    fn take_any(&mut self, mut see: impl FnMut(&Cqe)) -> bool {
        if self.bypasses.any_slow() {
            self.drain_slow();
        }
        let engine_first = self.bypasses.is_engines_turn();
        if engine_first && self.take_of_engine(&mut see) {
            return true;
        }
        self.take_bypassed(&mut see) || !engine_first && self.take_of_engine(&mut see)
    }

    /// As [`CompletionQueue::take_any`], of the completions that the engine has no part in.
    #[inline]
    fn take_bypassed(&mut self, see: &mut impl FnMut(&Cqe)) -> bool {
        let mut completion = Cqe::default();
        let taken = self.bypasses.take(&mut completion);
        if taken {
            self.show(&completion, see);
        }
        taken
    }

    /// Has the engine take WRITEs that have been in a ring for long.
    #[cold]
    fn drain_slow(&mut self) {
        while let Some(qpn) = self.bypasses.take_slow() {
            if let Some(member) = self.members.get(qpn) {
                member.drain();
            }
        }
    }

    /// As [`CompletionQueue::take_any`], of the completions that the engine has written, but for those that come before them.
    fn take_of_engine(&mut self, see: &mut impl FnMut(&Cqe)) -> bool {
        loop {
            let bypasses = &mut self.bypasses;
            let step = self
                .ring
                .look_with(|cqe| bypasses.compare(cqe, cqe.opcode & RECEIVE != 0));
            let shown = match step {
                None => return false,
                Some(Step::First(cqe)) => {
                    self.show(&cqe, see);
                    return true;
                }
                Some(Step::Show) => Shown::Yes,
                Some(Step::Drop) => Shown::No,
                Some(Step::Count) => Shown::Counted,
            };
            if self.take_next(shown, see) == Some(true) {
                return true;
            }
            if shown == Shown::Counted {
                // What it was posted for is shown now. Nobody else may say that there is something.
                if self.take_bypassed(see) {
                    return true;
                }
            }
        }
    }

    /// Takes the next completion of the engine's, and shows it unless it is of a queue pair that is no more, or not to be `shown`. Returns whether it
    /// was; `None` if there is none.
    fn take_next(&mut self, shown: Shown, see: &mut impl FnMut(&Cqe)) -> Option<bool> {
        let Self {
            ring,
            members,
            bypasses,
            ..
        } = self;
        let taken = ring.poll_with(|cqe| {
            bypasses.note(cqe);
            let member = members.get(cqe.qpn.get());
            let member = member.filter(|_| shown != Shown::No);
            if let Some(member) = member {
                if cqe.status != 0 {
                    member.fail();
                }
                member.account(cqe);
            }
            let member = member.filter(|_| shown == Shown::Yes);
            if member.is_some() {
                see(cqe);
            }
            let received = member.and_then(|member| member.received(cqe));
            let is_for_ring = received == Some(BEFORE_RING) && cqe.status == 0;
            (member.is_some(), is_for_ring.then_some(*cqe))
        });
        let (known, last) = taken?;
        if let Some(last) = last {
            self.make_ring(&last);
        }
        Some(known)
    }

    /// Shows a completion that the engine has no part in.
    #[inline]
    fn show(&self, cqe: &Cqe, see: &mut impl FnMut(&Cqe)) {
        see(cqe);
        let is_receive = cqe.opcode & RECEIVE != 0;
        let member = self.members.get(cqe.qpn.get()).filter(|_| is_receive);
        if let Some(member) = member.filter(|member| member.shared.is_none()) {
            member.account(cqe);
        }
    }

    /// Makes a ring for a queue pair that has received so much now, if it may have one.
    #[cold]
    fn make_ring(&mut self, last: &Cqe) {
        if !self.may_bypass() {
            return;
        }
        let armed = self.bypasses.is_armed();
        let member = self.members.get(last.qpn.get());
        let maker = member.and_then(|member| member.maker.as_ref());
        if let Some(receiver) = maker.and_then(|maker| maker.make(last, BEFORE_RING, armed)) {
            self.bypasses.add_receiver(receiver);
        }
    }

    /// Whether the device is gone: then [`CompletionQueue::take_lost`] is to be asked where there is nothing to take.
    #[inline(always)]
    pub(crate) fn is_lost(&self) -> bool {
        !self.slot.is_live()
    }

    /// As [`CompletionQueue::take`] after the device went: when all that it wrote is taken, what is left of the requests
    /// is shown as flushed, those of each queue in order. Entries of shared receive queues are no queue pair's and stay.
    #[cold]
    pub(crate) fn take_lost(&mut self, mut see: impl FnMut(&Cqe)) -> bool {
        // It may have written between the last look and its end.
        if self.take(&mut see) {
            return true;
        }
        if let Some(cqe) = self.bypasses.take_lost() {
            see(&cqe);
            return true;
        }
        let mut members = self.members.iter();
        let flushed = members.find_map(|(qpn, member)| member.flush(qpn));
        // Requests of which the program does not know may have been given up.
        let flushed = flushed.or_else(|| self.bypasses.take_lost());
        flushed.inspect(see).is_some()
    }

    /// Makes the next completion the current one, of whichever kind.
    #[inline]
    pub(crate) fn advance(&mut self) -> bool {
        let mut current = self.current;
        let last = current.timestamp();
        // What the device did not complete has no timestamp, and a queue's timestamps never go back.
        let taken = self.take(|cqe| current = *cqe)
            || self.is_lost()
                && self.take_lost(|cqe| current = cqe.stamped(cqe.timestamp().max(last)));
        self.current = current;
        taken
    }

    /// The completion that [`CompletionQueue::advance`] took.
    #[inline]
    pub(crate) fn current(&self) -> &Cqe {
        &self.current
    }

    /// The time of day of that completion, in nanoseconds since 1970, if the queue has timestamps, which are of a clock of
    /// so many kHz. `look` looks at both clocks.
    pub(crate) fn wall_ns(&mut self, khz: u32, look: impl FnOnce() -> Option<Moment>) -> u64 {
        self.wall.at(self.current.timestamp(), khz, look)
    }

    /// Goes on in a new ring, which the controller has moved to, with what was not taken.
    pub(crate) fn resize(&mut self, memory: Pages, log_entries: u8) {
        self.ring.resize(memory, log_entries);
    }

    /// Tells the controller what was taken, so that it never takes the queue for fuller than the program does.
    #[inline(always)]
    pub(crate) fn publish(&mut self) {
        self.ring.publish();
    }

    /// Asks for an event when the next completion comes in.
    pub(crate) fn arm(&mut self, solicited_only: bool) {
        if !self.has_events {
            return;
        }
        self.bypasses.arm();
        // Nobody but the engine makes an event for those.
        for (qpn, sent) in self.bypasses.writers() {
            if let Some(member) = self.members.get(qpn) {
                member.drain_for_event(sent);
            }
        }
        // What is there already makes no event, and programs know: they poll once more after arming.
        self.ring.arm(solicited_only);
        // A message that has come past the engine already may be a solicited one, which waits for one that is not.
        let any = solicited_only && self.bypasses.has_message();
        if any {
            self.ring.arm(false);
        }
        let waiting = || match self.has_makers {
            true => self.ring.waiting(),
            false => 0,
        };
        self.bypasses.set_armed(solicited_only && !any, waiting);
    }

    /// Accepts completions of a queue pair from now on.
    pub(crate) fn join(&mut self, qpn: u32, member: Member) {
        self.members.insert(qpn, member);
    }

    /// Forgets a queue pair that was destroyed, and its completions: its number may be given to another.
    pub(crate) fn leave(&mut self, qpn: u32) {
        self.forget(qpn);
        self.members.remove(qpn);
    }

    /// Forgets the completions of a queue pair that went to the reset state. The shared entries that they used are free
    /// all the same.
    pub(crate) fn forget(&mut self, qpn: u32) {
        self.bypasses.remove(qpn);
        let member = self.members.get(qpn);
        self.ring.disown(qpn, |cqe| {
            if let Some(member) = member {
                member.account(cqe);
            }
        });
        if let Some(shared) = member.and_then(|member| member.shared.as_ref()) {
            shared.received.store(0, Ordering::Relaxed);
        }
    }
}

/// Whether a completion of the engine's is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    Yes,
    No,
    /// No, but it says how far the queue is.
    Counted,
}

/// Whether there is more to be done for a completion than for most.
#[inline(always)]
fn is_rare(cqe: &Cqe) -> bool {
    cqe.queue_index.get() == BEFORE_RING || cqe.status != 0
}
