// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Memory that all processes of a run map beside the pool: it stands in for a connection manager, and survives the processes that are
//! killed. Each word has one writer, but for those that are added to.

use std::fmt;
use std::time::Duration;

use guestmem::MmapRegion;
use rustix::time::{clock_gettime, ClockId};

/// How far the run is. The numbers go up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Requests are posted, nodes are killed.
    Run = 0,
    /// What was posted is completed.
    Drain = 1,
    /// Nothing is under way any more: the results are compared.
    Check = 2,
    /// Everybody leaves the pool.
    Leave = 3,
}

/// Words of a node.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NodeWord {
    /// Its epoch; 0: it is not ready for connections.
    Epoch,
    /// The epoch of its process that was killed last, and when that was.
    KilledEpoch,
    KilledAt,
    /// The phase that it has done its part of.
    Reached,
    /// Address of what it exposes of its private memory, and the keys of that and of its device memory.
    PrivateAddress,
    PrivateKey,
    PoolKey,
    /// Requests that were done, and their bytes, by all of its processes.
    Requests,
    Bytes,
    /// WRITEs that it has carried out without the target's engine.
    DirectWrites,
    /// Requests that had to wait for a receive buffer.
    Waits,
    /// Connections that failed because the peer was killed.
    Failures,
    /// The longest time that a connection with requests under way saw none complete.
    Silence,
    /// The longest time from the end of a peer until the connection failed.
    Noticed,
}

/// Words of one direction of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WayWord {
    /// Requests that were posted, and that were seen to be done. Written by the sender.
    Posted,
    Done,
    /// WRITEs to the private memory, and to the device memory, that were compared. Written by the receiver.
    ComparedPrivate,
    ComparedPool,
}

/// Words of a node about another one.
#[derive(Clone, Copy)]
enum PairWord {
    Offer,
    Qpn,
    Receives,
}

const NODE_WORDS: usize = 16;
const PAIR_WORDS: usize = 4;
const WAY_WORDS: usize = 4;
/// Connections of a pair whose words lie beside each other: a process that was started anew does not write where the words of the one before
/// are still read.
const KEPT: usize = 8;
const PAIR_STRIDE: usize = PAIR_WORDS + KEPT * WAY_WORDS;

/// One direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    pub(crate) from: u16,
    pub(crate) to: u16,
    pub(crate) from_epoch: u32,
    pub(crate) to_epoch: u32,
}

impl Way {
    /// The other direction.
    pub(crate) fn back(self) -> Self {
        Self {
            from: self.to,
            to: self.from,
            from_epoch: self.to_epoch,
            to_epoch: self.from_epoch,
        }
    }

    /// Tells connections of a pair apart; not 0, since no epoch is.
    fn tag(self) -> u64 {
        (u64::from(self.from_epoch) << 32) | u64::from(self.to_epoch)
    }

    /// A number that other directions and connections do not have.
    pub(crate) fn number(self) -> u64 {
        mix(mix(self.tag()) ^ (u64::from(self.from) << 16) ^ u64::from(self.to))
    }

    /// The first packet sequence number of the sender.
    pub(crate) fn psn(self) -> u32 {
        self.number() as u32 & 0x00ff_ffff
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (from, to) = ((self.from, self.from_epoch), (self.to, self.to_epoch));
        write!(
            f,
            "from node {} (epoch {}) to node {} (epoch {})",
            from.0, from.1, to.0, to.1
        )
    }
}

/// Scatters numbers that lie next to each other (the finalizer of SplitMix64).
pub(crate) fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Time in microseconds, the same for all processes.
pub(crate) fn now_us() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let time = Duration::new(now.tv_sec as u64, now.tv_nsec as u32);
    u64::try_from(time.as_micros()).unwrap()
}

pub(crate) struct Board {
    memory: MmapRegion,
    nodes: usize,
}

impl Board {
    /// Bytes of it for so many nodes.
    pub(crate) fn len(nodes: u16) -> usize {
        let nodes = usize::from(nodes);
        let words = 1 + nodes * NODE_WORDS + nodes * nodes * PAIR_STRIDE;
        (words * 8).next_multiple_of(4096)
    }

    pub(crate) fn new(memory: MmapRegion, nodes: u16) -> Self {
        let nodes = nodes.into();
        Self { memory, nodes }
    }

    pub(crate) fn memory(&self) -> &MmapRegion {
        &self.memory
    }

    fn load(&self, word: usize) -> u64 {
        self.memory.load_u64(word * 8).unwrap()
    }

    fn store(&self, word: usize, value: u64) {
        self.memory.store_u64(word * 8, value).unwrap();
    }

    fn node_word(&self, node: u16, word: NodeWord) -> usize {
        1 + usize::from(node) * NODE_WORDS + word as usize
    }

    fn pair_word(&self, way: Way, word: PairWord) -> usize {
        let pair = usize::from(way.from) * self.nodes + usize::from(way.to);
        1 + self.nodes * NODE_WORDS + pair * PAIR_STRIDE + word as usize
    }

    fn way_word(&self, way: Way, word: WayWord) -> usize {
        let kept = way.from_epoch as usize % KEPT;
        self.pair_word(way, PairWord::Offer) + PAIR_WORDS + kept * WAY_WORDS + word as usize
    }

    pub(crate) fn phase(&self) -> Phase {
        match self.load(0) {
            0 => Phase::Run,
            1 => Phase::Drain,
            2 => Phase::Check,
            _ => Phase::Leave,
        }
    }

    pub(crate) fn set_phase(&self, phase: Phase) {
        self.store(0, phase as u64);
    }

    pub(crate) fn get(&self, node: u16, word: NodeWord) -> u64 {
        self.load(self.node_word(node, word))
    }

    pub(crate) fn put(&self, node: u16, word: NodeWord, value: u64) {
        self.store(self.node_word(node, word), value);
    }

    pub(crate) fn add(&self, node: u16, word: NodeWord, value: u64) {
        let word = self.node_word(node, word);
        self.memory.fetch_add_u64(word * 8, value).unwrap();
    }

    /// Keeps the largest value.
    pub(crate) fn raise(&self, node: u16, word: NodeWord, value: u64) {
        self.put(node, word, self.get(node, word).max(value));
    }

    pub(crate) fn progress(&self, way: Way, word: WayWord) -> u64 {
        self.load(self.way_word(way, word))
    }

    pub(crate) fn set_progress(&self, way: Way, word: WayWord, value: u64) {
        self.store(self.way_word(way, word), value);
    }

    /// The sender offers a queue pair for a direction, which begins anew.
    pub(crate) fn offer(&self, way: Way, qpn: u32) {
        // Until the last store there is no offer.
        self.withdraw(way);
        self.set_progress(way, WayWord::Posted, 0);
        self.set_progress(way, WayWord::Done, 0);
        // What this node writes of the direction back, as its receiver.
        self.set_progress(way.back(), WayWord::ComparedPrivate, 0);
        self.set_progress(way.back(), WayWord::ComparedPool, 0);
        self.store(self.pair_word(way, PairWord::Qpn), qpn.into());
        self.store(self.pair_word(way, PairWord::Offer), way.tag());
    }

    /// The queue pair that the sender has offered for a direction.
    pub(crate) fn offered(&self, way: Way) -> Option<u32> {
        let is_for = self.load(self.pair_word(way, PairWord::Offer)) == way.tag();
        is_for.then(|| self.load(self.pair_word(way, PairWord::Qpn)) as u32)
    }

    /// There is no connection any more that the sender of a direction has a part in.
    pub(crate) fn withdraw(&self, way: Way) {
        self.store(self.pair_word(way, PairWord::Offer), 0);
        self.store(self.pair_word(way, PairWord::Receives), 0);
    }

    /// The sender of a direction also receives from now on.
    pub(crate) fn set_receives(&self, way: Way) {
        self.store(self.pair_word(way, PairWord::Receives), way.tag());
    }

    pub(crate) fn receives(&self, way: Way) -> bool {
        self.load(self.pair_word(way, PairWord::Receives)) == way.tag()
    }

    /// From a node to all others, in whatever epochs.
    fn ways(&self, node: u16) -> impl Iterator<Item = Way> {
        let others = (0..u16::try_from(self.nodes).unwrap()).filter(move |other| *other != node);
        others.map(move |to| Way {
            from: node,
            to,
            from_epoch: 0,
            to_epoch: 0,
        })
    }

    /// A node was killed, and can withdraw nothing itself.
    pub(crate) fn withdraw_all(&self, node: u16) {
        self.ways(node).for_each(|way| self.withdraw(way));
    }

    /// Whether no other node has a connection with this one any more.
    pub(crate) fn is_missed(&self, node: u16) -> bool {
        let receives = |way: Way| self.load(self.pair_word(way.back(), PairWord::Receives));
        self.ways(node).all(|way| receives(way) == 0)
    }

    /// Whether each two nodes are connected.
    pub(crate) fn all_connected(&self) -> bool {
        let nodes = 0..u16::try_from(self.nodes).unwrap();
        let epoch = |node| self.get(node, NodeWord::Epoch) as u32;
        let mut ways = nodes.clone().flat_map(|from| {
            let others = nodes.clone().filter(move |to| *to != from);
            others.map(move |to| Way {
                from,
                to,
                from_epoch: epoch(from),
                to_epoch: epoch(to),
            })
        });
        ways.all(|way| way.from_epoch != 0 && way.to_epoch != 0 && self.receives(way))
    }
}
