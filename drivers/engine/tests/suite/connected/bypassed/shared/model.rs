// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Whatever happens in whatever order, each entry is taken once: by the owner, or by what one completion is about. And what there are entries for
//! arrives.

use super::*;
use proptest::{collection::vec, prelude::*};

/// Queue pairs; the last one has no process rings.
const PAIRS: usize = 3;
/// More than the time after which those who wait for entries are given a turn.
const TURN_US: u64 = 600;

#[derive(Clone, Debug)]
enum Step {
    /// The owner posts as many entries as it may, up to this number.
    Post(u32),
    /// A message goes past the engines.
    Pass(usize),
    /// The owner takes an entry for the next message of a ring, and says so, or not yet.
    Take(usize, bool),
    Send(usize),
    SendLong(usize),
    WriteImm(usize),
    /// Both ends are reset and connected again.
    Reset(usize),
    /// The server's end fails.
    Fail(usize),
    /// Turns of the engines; 0: all that there is to do.
    Turns(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let pair = 0..PAIRS;
    prop_oneof![
        3 => (1..DEPTH).prop_map(Step::Post),
        3 => pair.clone().prop_map(Step::Pass),
        3 => (pair.clone(), any::<bool>()).prop_map(|(pair, says)| Step::Take(pair, says)),
        3 => pair.clone().prop_map(Step::Send),
        1 => pair.clone().prop_map(Step::SendLong),
        1 => pair.clone().prop_map(Step::WriteImm),
        1 => pair.clone().prop_map(Step::Reset),
        1 => pair.prop_map(Step::Fail),
        3 => (0..8usize).prop_map(Step::Turns),
    ]
}

/// What the owner knows of a queue pair.
#[derive(Clone, Copy, Debug, Default)]
struct Ring {
    /// Messages that went past the engines, ...
    passed: u32,
    /// ... and those that have entries.
    seated: u32,
    /// Sent through the engine and not received: those before each have entries when it is.
    under_way: [Option<u32>; 4],
    /// It receives no more.
    failed: bool,
}

impl Ring {
    /// Entries that the next message through the engine takes, if there is one.
    fn needs(&self) -> Option<u32> {
        let before = self.under_way[0].filter(|_| !self.failed)?;
        Some(before.saturating_sub(self.seated) + 1)
    }
}

struct Model {
    scene: Scene,
    rings: [Ring; PAIRS],
    /// Entries that somebody has taken, so that their places are free.
    taken: Vec<u32>,
}

impl Model {
    fn claim(&mut self, entries: std::ops::Range<u32>) {
        for entry in entries {
            assert!(entry < self.scene.next(), "{entry} is still there");
            assert!(!self.taken.contains(&entry), "{entry} was taken");
            self.taken.push(entry);
        }
    }

    /// Sees what has completed.
    fn collect(&mut self) {
        for (pair, entries, status) in self.scene.filled() {
            self.claim(entries);
            let ring = &mut self.rings[pair];
            if status == OK {
                ring.under_way.rotate_left(1);
                let before = ring.under_way[3].take().expect("it was sent");
                ring.seated = ring.seated.max(before);
            }
        }
        self.scene.statuses();
    }

    fn submit(&mut self, pair: usize, operation: Operation, long: bool) {
        let ring = &mut self.rings[pair];
        let Some(place) = ring.under_way.iter_mut().find(|place| place.is_none()) else {
            return;
        };
        let sge = [self.scene.source.sge(0, LONG)];
        let data = match long {
            true => Data::Sges(&sge),
            false => Data::Inline(b"short"),
        };
        if self.scene.submit(pair, ring.passed, operation, data) {
            *place = Some(ring.passed);
        }
    }

    fn reset(&mut self, pair: usize) {
        let scene = &mut self.scene;
        scene.set_server(pair, QpStateCode::Reset);
        let client = &scene.pairs[pair].client;
        let reset = scene
            .client
            .set_state(&mut scene.world, client.qpn, QpStateCode::Reset);
        assert_eq!(reset, Ok(()));
        // Before its completions are of other requests.
        self.collect();
        self.scene.pairs[pair].client.send.reset();
        self.rings[pair] = Ring::default();
        self.scene.connect(pair);
        self.scene.wait_for_ever();
        if pair + 1 != PAIRS {
            self.scene.allow(pair);
        }
    }

    /// Posts entries, up to so many, if there is room.
    fn post(&mut self, count: u32) {
        let used = self.scene.posted - self.taken.len() as u32;
        self.scene.post(count.min(DEPTH - used));
    }

    /// The owner takes an entry for the next message of a ring, if there are both, and none through the engine comes before it.
    fn take(&mut self, pair: usize) {
        let ring = &mut self.rings[pair];
        if ring.seated != ring.under_way[0].unwrap_or(ring.passed) {
            if let Some(entry) = self.scene.take() {
                ring.seated += 1;
                self.claim(entry..entry + 1);
            }
        }
    }

    /// The owner says what it has taken; whoever waits has a turn then, though nothing is posted.
    fn come_to_rest(&mut self) {
        for pair in 0..PAIRS {
            self.scene.say(pair, self.rings[pair].seated);
        }
        for _ in 0..2 * PAIRS {
            self.scene.world.advance(TURN_US);
            self.collect();
        }
    }

    /// Whether a message waits for which there are enough entries.
    fn holds_up(&self) -> bool {
        let left = self.scene.posted - self.scene.next();
        let mut rings = self.rings.iter();
        rings.any(|ring| ring.needs().is_some_and(|needs| needs <= left))
    }

    fn waits(&self) -> bool {
        self.rings.iter().any(|ring| ring.needs().is_some())
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Post(count) => self.post(count),
            Step::Pass(pair) if pair + 1 != PAIRS => self.rings[pair].passed += 1,
            Step::Pass(_) => {}
            Step::Take(pair, says) => {
                self.take(pair);
                if says {
                    self.scene.say(pair, self.rings[pair].seated);
                }
            }
            Step::Send(pair) => self.submit(pair, Operation::Send { imm: None }, false),
            Step::SendLong(pair) => self.submit(pair, Operation::Send { imm: Some(4) }, true),
            Step::WriteImm(pair) => {
                let write = Operation::Write {
                    addr: self.scene.mr.iova,
                    rkey: self.scene.mr.key,
                    imm: Some(5),
                };
                self.submit(pair, write, true);
            }
            Step::Reset(pair) => self.reset(pair),
            Step::Fail(pair) => {
                self.scene.set_server(pair, QpStateCode::Err);
                self.rings[pair].failed = true;
            }
            Step::Turns(0) => self.scene.world.pump(),
            Step::Turns(count) => self.scene.world.turns(count),
        }
        self.collect();
    }
}

impl Model {
    fn after(steps: &[Step], seed: u32) -> Self {
        let mut scene = Scene::new(PAIRS, PAIRS - 1);
        scene.wait_for_ever();
        scene.world.shuffle(seed);
        let mut model = Self {
            scene,
            rings: [Ring::default(); PAIRS],
            taken: Vec::new(),
        };
        steps.iter().for_each(|step| model.step(step));
        model
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn each_entry_is_taken_once(steps in vec(step(), 1..120), seed in any::<u32>()) {
        let mut model = Model::after(&steps, seed);
        // What the engine keeps comes back at last, and everything works.
        for pair in 0..PAIRS {
            model.reset(pair);
        }
        model.scene.world.pump();
        model.collect();
        prop_assert_eq!(model.taken.len() as u32, model.scene.next());
        model.step(&Step::Post(DEPTH));
        for pair in 0..PAIRS {
            model.step(&Step::Send(pair));
        }
        model.step(&Step::Turns(0));
        prop_assert!(model.rings.iter().all(|ring| ring.under_way.iter().all(Option::is_none)));
        prop_assert_eq!(model.taken.len() as u32, model.scene.next());
    }

    #[test]
    fn what_there_are_entries_for_arrives(steps in vec(step(), 1..80), seed in any::<u32>()) {
        let mut model = Model::after(&steps, seed);
        model.come_to_rest();
        prop_assert!(!model.holds_up(), "{:?}", model.rings);
        // The owner goes on, with few entries at a time, and takes some before it says so.
        for round in 0..200 {
            if round < PAIRS {
                model.step(&Step::Pass(round));
                model.step(&Step::Send(round));
            } else if !model.waits() {
                break;
            }
            model.post(1);
            model.step(&Step::Turns(0));
            (0..PAIRS).for_each(|pair| model.take(pair));
            model.post(1);
            model.step(&Step::Turns(0));
            model.come_to_rest();
            prop_assert!(!model.holds_up(), "{:?}", model.rings);
        }
        prop_assert!(!model.waits(), "{:?}", model.rings);
    }
}
