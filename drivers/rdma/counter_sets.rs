// SPDX-License-Identifier: GPL-2.0
//! Counters that queue pairs are bound to, by hand or by the core's automatic mode (`rdma statistic qp`).
//!
//! The controller counts for each pair by itself, so a set of counters is a sum: of what its pairs have counted since they were bound, and
//! of what pairs had that are not bound any more. Reading one takes a command for each of its pairs.

use crate::qp::Qp;
use kernel::{
    new_mutex,
    prelude::*,
    rbtree::RBTree,
    sync::{Arc, Mutex},
    time::{Delta, Instant, Monotonic},
};
use nupa_fabric::QpWatch;

/// Names of the counters, in order. Those of the port are the sums of all sets.
pub(crate) const NAMES: [&str; COUNT] = [
    "qp_requests",
    "qp_served",
    "qp_sent_bytes",
    "qp_received_bytes",
];
/// Counters of a set.
pub(crate) const COUNT: usize = 4;

/// How long the values of a set are shown again after they were read: sysfs and netlink ask for a set once for each counter.
const FRESH: Delta = Delta::from_millis(20);
/// And for this many times as long as reading them took: any process may ask, and commands of others wait meanwhile.
const SHARE: i64 = 64;

/// Values of the counters, wrapping around.
pub(crate) type Values = [u64; COUNT];

/// All sets of a device. The lock is held while pairs are asked for what they have counted.
#[pin_data]
pub(crate) struct CounterSets {
    #[pin]
    inner: Mutex<Inner>,
}

struct Inner {
    /// By number, from 1 on.
    sets: RBTree<u32, Set>,
    /// Pairs that are bound, by number.
    pairs: RBTree<u32, Bound>,
    /// Number of the set that was made last.
    last: u32,
}

/// One set of counters.
#[derive(Default)]
struct Set {
    /// What pairs counted that were bound to it.
    past: Values,
    read: Option<Read>,
}

/// What was read of a set.
#[derive(Clone, Copy)]
struct Read {
    at: Instant<Monotonic>,
    /// Nanoseconds that it took.
    took: i64,
    sum: Values,
}

impl Read {
    fn is_fresh(&self) -> bool {
        let good = self.took.saturating_mul(SHARE).max(FRESH.as_nanos());
        self.at.elapsed().as_nanos() < good
    }
}

/// A queue pair that is bound.
struct Bound {
    set: u32,
    pair: QpWatch,
    /// What it had counted when it was bound.
    from: Values,
}

/// What a pair has counted since it was made. Sleeps.
fn counted(pair: &QpWatch) -> Result<Values> {
    let traffic = pair.query()?.traffic;
    let values = [
        traffic.requests,
        traffic.served,
        traffic.sent_bytes,
        traffic.received_bytes,
    ];
    Ok(values.map(|value| value.get()))
}

fn add(to: &mut Values, values: &Values) {
    for (sum, value) in to.iter_mut().zip(values) {
        *sum = sum.wrapping_add(*value);
    }
}

impl Bound {
    /// What it has counted since it was bound. Sleeps.
    fn grown(&self) -> Result<Values> {
        let mut grown = counted(&self.pair)?;
        for (value, from) in grown.iter_mut().zip(self.from) {
            *value = value.wrapping_sub(from);
        }
        Ok(grown)
    }
}

impl Inner {
    /// Makes a set; returns its number.
    fn make(&mut self) -> Result<u32> {
        let mut number = self.last;
        // There are fewer sets than numbers: each has a pair, or had one lately.
        loop {
            number = number.wrapping_add(1).max(1);
            if self.sets.get(&number).is_none() {
                break;
            }
        }
        self.sets
            .try_create_and_insert(number, Set::default(), GFP_KERNEL)?;
        self.last = number;
        Ok(number)
    }

    /// Sum of a set. Sleeps.
    fn sum(&self, number: u32) -> Result<Values> {
        let mut sum = self.sets.get(&number).ok_or(EINVAL)?.past;
        for bound in self.pairs.values().filter(|bound| bound.set == number) {
            add(&mut sum, &bound.grown()?);
        }
        Ok(sum)
    }
}

impl CounterSets {
    /// None so far. May sleep.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let inner = Inner {
            sets: RBTree::new(),
            pairs: RBTree::new(),
            last: 0,
        };
        Arc::pin_init(pin_init!(Self { inner <- new_mutex!(inner) }), GFP_KERNEL)
    }

    /// Binds a pair to a set, a new one if none is given; returns its number. `EINVAL` if there is no such set, or the pair is bound.
    /// Sleeps.
    pub(crate) fn bind(&self, set: Option<u32>, pair: &Qp) -> Result<u32> {
        let pair = pair.object.watch();
        let from = counted(&pair)?;
        let number = pair.number();
        let mut inner = self.inner.lock();
        if inner.pairs.get(&number).is_some() {
            return Err(EINVAL);
        }
        let (made, set) = match set {
            Some(set) => (false, set),
            None => (true, inner.make()?),
        };
        inner.sets.get_mut(&set).ok_or(EINVAL)?.read = None;
        let bound = Bound { set, pair, from };
        let added = inner.pairs.try_create_and_insert(number, bound, GFP_KERNEL);
        if added.is_err() && made {
            inner.sets.remove(&set);
        }
        added.map(|_| set)
    }

    /// Ends that a pair is bound; the set keeps what it has counted. To be called before the pair is destroyed. Sleeps.
    pub(crate) fn unbind(&self, pair: &Qp) {
        let mut inner = self.inner.lock();
        let Some(bound) = inner.pairs.remove(&pair.object.number()) else {
            return;
        };
        // A controller that was lost does not tell what it had counted.
        let grown = bound.grown().unwrap_or_default();
        if let Some(set) = inner.sets.get_mut(&bound.set) {
            add(&mut set.past, &grown);
            set.read = None;
        }
    }

    /// Reads a set. Sleeps.
    pub(crate) fn read(&self, number: u32) -> Result<Values> {
        let mut inner = self.inner.lock();
        let read = inner.sets.get(&number).ok_or(EINVAL)?.read;
        if let Some(fresh) = read.filter(Read::is_fresh) {
            return Ok(fresh.sum);
        }
        let begun = Instant::<Monotonic>::now();
        let sum = inner.sum(number)?;
        let took = begun.elapsed().as_nanos();
        if let Some(set) = inner.sets.get_mut(&number) {
            let at = Instant::now();
            set.read = Some(Read { at, took, sum });
        }
        Ok(sum)
    }

    /// Forgets a set that no pair is bound to.
    pub(crate) fn free(&self, number: u32) {
        self.inner.lock().sets.remove(&number);
    }
}
