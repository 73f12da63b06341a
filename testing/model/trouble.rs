// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Something goes wrong while requests are under way: nobody knows how far they came, but much is certain still.

use super::{End, Fault, Model, Pair, Piece, Step, REGION};
use crate::World;
use nupa_proto::{
    admin::{PageList, QpStateCode},
    status::WcStatus,
};
use std::{collections::VecDeque, mem::take, ops::Range};

/// How long a link is unplugged, and hosts have to notice what has become of others, in microseconds.
const LONG: u64 = 100_000;

impl Pair {
    /// Lets something go wrong at an end, compares what is certain, and connects both anew.
    pub(super) fn fail(&mut self, end: usize, fault: Fault) {
        let world = &mut self.world;
        let id = end as u16;
        let plugged = world.engine.device_memory(id).is_none();
        match fault {
            Fault::QueuePair => self.ends[end].give_up(world),
            Fault::Region => {
                let key = self.ends[end].mr.key;
                let gone = world.engine.destroy_mr(&mut world.nodes, id, key);
                gone.expect("there is a region");
            }
            Fault::Link if plugged => world.engine.set_link(&mut world.nodes, id, false),
            Fault::Link => {}
            Fault::Reset => world.engine.reset(&mut world.nodes, id),
        }
        world.pump();
        world.advance(LONG);
        let lost = (fault == Fault::Reset).then_some(end);
        // What waits for a receive or for the link would wait for ever.
        for (at, end) in self.ends.iter().enumerate() {
            if lost != Some(at) {
                end.give_up(world);
            }
        }
        world.advance(LONG);
        self.judge(lost);
        self.connect(end, fault);
    }

    /// What is certain when all is over and the end `lost` has forgotten all.
    fn judge(&mut self, lost: Option<usize>) {
        let [a, b] = &mut self.ends;
        let mut model = take(&mut self.model);
        let sent = (lost != Some(0)).then(|| a.outcome(0, model.sends.iter().map(|(id, _)| *id)));
        let sure = if model.failed { 0 } else { sent.unwrap_or(0) };
        let unsure = model.sends.split_off(sure.min(model.sends.len()));
        let receives: Vec<u64> = model.receives.iter().map(|(id, _)| *id).collect();
        let had = receives.len();
        model.serve(&mut a.bytes, &mut b.bytes);
        let success = |done: &(u64, u8)| done.1 == WcStatus::Success.to_wire();
        assert!(model.done[0].iter().all(success), "done: {:?}", model.done);
        assert_eq!(model.done[0].len(), sure, "requests that are done");
        let [own, theirs] = unknown(&unsure, &model);
        if lost != Some(1) {
            let received = b.outcome(1, receives.into_iter());
            let consumed = if model.failed {
                0
            } else {
                had - model.receives.len()
            };
            let most = consumed + unsure.iter().filter(|(_, step)| takes(step)).count();
            assert!(
                (consumed..=most).contains(&received),
                "{received} receives are done, and not {consumed} to {most}"
            );
            b.compare(&theirs);
        }
        if lost != Some(0) {
            a.compare(&own);
        }
    }

    /// Starts again: with all new at an end that was reset, else with what is left.
    fn connect(&mut self, failed: usize, fault: Fault) {
        let world = &mut self.world;
        let id = failed as u16;
        let plugged = world.engine.device_memory(id).is_none();
        match fault {
            Fault::QueuePair => {}
            Fault::Region => self.ends[failed].renew_region(world),
            Fault::Link if plugged => world.engine.set_link(&mut world.nodes, id, true),
            Fault::Link => {}
            Fault::Reset => {
                world.engine.enable(&mut world.nodes, id);
                world.pump();
                self.ends[failed] = End::new(world, id, self.ends[failed].device);
            }
        }
        world.pump();
        let peers = [0, 1].map(|at| {
            (
                at as u16,
                self.ends[at].qp.qpn,
                world.node(at as u16).epoch(),
            )
        });
        for (at, end) in self.ends.iter_mut().enumerate() {
            if fault != Fault::Reset || at != failed {
                end.reset(world);
            }
            end.fill(at as u8);
            end.connect(world, peers[1 - at]);
        }
    }
}

impl End {
    /// Its queue pair gives up what it has.
    fn give_up(&self, world: &mut World) {
        let state = QpStateCode::Err;
        let set = self.host.set_state(world, self.qp.qpn, state);
        set.expect("it can always give up");
    }

    fn reset(&mut self, world: &mut World) {
        let state = QpStateCode::Reset;
        let set = self.host.set_state(world, self.qp.qpn, state);
        set.expect("it can always be reset");
        self.qp.send.reset();
        self.qp.recv.reset();
    }

    fn renew_region(&mut self, world: &mut World) {
        let len = REGION as u64;
        if !self.device {
            self.mr = self.host.mr(world, len, true);
            return;
        }
        // There is little device memory, so it is the same again.
        let pages = PageList {
            addr: self.mr.addr.into(),
            ..PageList::default()
        };
        self.mr = self.host.register(world, pages, self.mr.addr, len);
    }

    /// How many requests of a side (0: sends, 1: receives) are done. All of them, `ids`, are over, each once and in order, and what
    /// follows the first that failed was not tried.
    fn outcome(&mut self, side: usize, ids: impl Iterator<Item = u64>) -> usize {
        let mut all = self.completions();
        assert!(all[1 - side].is_empty(), "{all:?}");
        let all = take(&mut all[side]);
        let over: Vec<u64> = all.iter().map(|(id, _)| *id).collect();
        assert_eq!(over, ids.collect::<Vec<_>>(), "side {side}: {all:?}");
        let success = WcStatus::Success.to_wire();
        let done = all
            .iter()
            .take_while(|(_, status)| *status == success)
            .count();
        let flushed = all.iter().skip(done + 1);
        for (id, status) in flushed {
            assert_eq!(
                *status,
                WcStatus::WrFlush.to_wire(),
                "{id} of side {side}: {all:?}"
            );
        }
        done
    }

    /// Compares its bytes with what they must be, but for those in `unknown`.
    fn compare(&self, unknown: &[Range<usize>]) {
        let (mut found, mut wanted) = (self.region(), self.bytes.clone());
        for range in unknown {
            found[range.clone()].fill(0);
            wanted[range.clone()].fill(0);
        }
        assert!(found == wanted, "bytes of end {}", self.host.id);
    }
}

/// Whether a request takes a receive.
fn takes(step: &Step) -> bool {
    matches!(step, Step::Send { .. } | Step::Write { imm: Some(_), .. })
}

/// Bytes of both ends that requests may have written to.
fn unknown(unsure: &VecDeque<(u64, Step)>, model: &Model) -> [Vec<Range<usize>>; 2] {
    let (mut own, mut theirs) = (Vec::new(), Vec::new());
    let cut = |at: usize, len: usize| Piece::new(at.min(REGION - 1), len).range();
    for (_, step) in unsure {
        match *step {
            Step::Write { from, to, .. } => theirs.push(cut(to, from.len)),
            Step::Read { to, .. } => own.push(to.range()),
            Step::FetchAdd { from, to, .. } => {
                own.push(cut(to, 8));
                theirs.push(cut(from, 8));
            }
            Step::Send { .. } => theirs.extend(model.receives.iter().map(|(_, to)| to.range())),
            _ => {}
        }
    }
    [own, theirs]
}
