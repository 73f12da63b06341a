// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Hosts that share a memory pool: its rings and its membership in place of the rig's own.

use crate::{fabric::Engines, link::RigLink, memory::POOL, shared::Shared, Mode, Nodes};
use nupa_engine::{NodeTable, PoolLink};
use nupa_pool::{FormatOptions, JoinOptions, Membership, Poisoned, Pool, Time, Violation, Window};
use nupa_proto::pool::{
    message::{ENTRY_SIZE, READ_PIECE},
    CAP_POOL_LINES, CLASSES, HEARTBEAT_US, LINK_RINGS, MIN_LOG_BULK, SHORT_LOG_BULK,
};
use std::{cell::Cell, ops::Range, rc::Rc};

/// Bytes of a pool for so many nodes: just enough, so that its rings are full often.
pub(crate) fn size(nodes: u16) -> usize {
    let nodes = usize::from(nodes.max(2));
    let entries = CLASSES * 256 * ENTRY_SIZE as usize;
    let payload = (3 << MIN_LOG_BULK) + (2 << SHORT_LOG_BULK);
    let link = LINK_RINGS as usize + entries + payload;
    (nodes * (nodes - 1) * link).next_multiple_of(1 << 20) + (1 << 20)
}

/// The pool, as one host has mapped it.
#[derive(Clone)]
pub struct Map {
    shared: Rc<Shared>,
    host: usize,
}

impl Window for Map {
    fn len(&self) -> u64 {
        self.shared.size() as u64
    }

    fn is_coherent(&self) -> bool {
        self.shared.is_coherent()
    }

    fn load(&self, offset: u64) -> Result<u64, Poisoned> {
        assert_eq!(offset % 8, 0, "words are aligned");
        let mut word = [0; 8];
        self.read(offset, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }

    fn store(&self, offset: u64, value: u64) {
        assert_eq!(offset % 8, 0, "words are aligned");
        self.shared.write(self.host, offset, &value.to_le_bytes());
    }

    fn compare_exchange(&self, offset: u64, current: u64, new: u64) -> Result<bool, Poisoned> {
        self.shared.check(offset, 8)?;
        let host = self.host;
        Ok(self.shared.compare_exchange(host, offset, current, new))
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Poisoned> {
        self.shared.check(offset, buf.len())?;
        self.shared.read(self.host, offset, buf);
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        self.shared.write(self.host, offset, bytes);
    }

    fn publish(&self, offset: u64, len: u64) {
        self.shared.publish(self.host, offset, len);
    }

    fn refresh(&self, offset: u64, len: u64) {
        self.shared.refresh(self.host, offset, len);
    }

    fn fence(&self) {}
}

/// The membership's clock: it goes on where somebody waits.
#[derive(Default)]
struct PoolClock(Cell<u64>);

impl Time for PoolClock {
    fn now_us(&self) -> u64 {
        self.0.get()
    }

    fn sleep_us(&self, us: u64) {
        self.0.set(self.0.get() + us);
    }
}

/// A node's place in the pool.
struct Member {
    map: Map,
    membership: Membership,
    up: bool,
}

/// All nodes' places in the pool.
pub struct Members {
    time: PoolClock,
    all: Vec<Member>,
    /// Host that writes what it likes, ...
    hostile: Option<u16>,
    /// ... also where others write.
    lawless: bool,
    /// What was found of that.
    pub violations: Vec<Violation>,
}

impl Members {
    pub fn new(shared: &Rc<Shared>, count: u16, mode: Mode) -> Self {
        let time = PoolClock::default();
        let join = |id: u16| {
            let map = Map {
                shared: Rc::clone(shared),
                host: usize::from(id),
            };
            let options = FormatOptions::new(count.max(2), 7);
            let pool = Pool::attach_or_format(&map, &time, &options, |_| true);
            let pool = pool.expect("formatted");
            let options = JoinOptions {
                prefer: Some(id),
                capabilities: if mode.is_in_lines() {
                    CAP_POOL_LINES
                } else {
                    0
                },
                ..JoinOptions::new(u64::from(id) + 1)
            };
            let joined = pool.join(&map, &time, &options);
            Member {
                membership: joined.expect("there is a slot"),
                map,
                up: false,
            }
        };
        Self {
            all: (0..count).map(join).collect(),
            time,
            hostile: None,
            lawless: false,
            violations: Vec::new(),
        }
    }

    /// A link of a node to another, which is not open.
    pub fn link(&self, node: u16) -> RigLink {
        let map = self.all[usize::from(node)].map.clone();
        let own = POOL + self.device_memory(node).start;
        RigLink::Pool {
            link: PoolLink::new(map, POOL, own, READ_PIECE),
            committed: false,
        }
    }

    /// Where in the pool the device memory that a node offers lies.
    pub fn device_memory(&self, node: u16) -> Range<u64> {
        let membership = &self.all[usize::from(node)].membership;
        membership.pool().device_memory(node)
    }

    /// From now on this host may write what it likes to its part of the pool.
    pub fn set_hostile(&mut self, host: u16) {
        self.hostile = Some(host);
    }

    /// From now on it may write to all of it: nobody can tell any more who has broken a rule.
    pub fn set_lawless(&mut self) {
        self.lawless = true;
    }

    /// A node's place, and its view of the pool.
    pub fn of(&mut self, node: u16) -> (&mut Membership, &Map) {
        let member = &mut self.all[usize::from(node)];
        (&mut member.membership, &member.map)
    }

    /// Lets the pool know which nodes are up, and the engines what it tells of others.
    pub fn tell(&mut self, engines: &mut Engines, nodes: &mut Nodes) {
        for id in nodes.ids() {
            self.isolate(id, engines, nodes);
        }
        let mut changed = false;
        for id in nodes.ids() {
            changed |= self.follow(id, engines, nodes);
        }
        for _ in (0..4).filter(|_| changed) {
            self.tick_all(engines, nodes);
        }
    }

    /// Passes on whether a node is up, and its epoch. Returns whether that is news.
    fn follow(&mut self, id: u16, engines: &mut Engines, nodes: &mut Nodes) -> bool {
        let there = nodes.node(id).filter(|(node, _)| node.is_up());
        let epoch = there.map(|(node, _)| node.epoch());
        let Member {
            map,
            membership,
            up,
        } = &mut self.all[usize::from(id)];
        let mut changed = false;
        if *up && epoch != Some(membership.epoch()) {
            assert!(membership.renew(map) || self.hostile.is_some());
            (*up, changed) = (false, true);
            for other in nodes.ids().filter(|other| *other != id) {
                close(id, other, engines, nodes);
            }
        }
        if epoch.is_some() && !*up && epoch == Some(membership.epoch()) {
            membership.enable(map);
            (*up, changed) = (true, true);
        }
        assert!(epoch.is_none() || *up || self.hostile.is_some());
        changed
    }

    /// Lets time pass until the next heartbeat, and all nodes look around.
    pub fn tick_all(&mut self, engines: &mut Engines, nodes: &mut Nodes) {
        self.time.sleep_us(HEARTBEAT_US);
        for id in nodes.ids() {
            self.tick(id, engines, nodes);
        }
    }

    fn tick(&mut self, id: u16, engines: &mut Engines, nodes: &mut Nodes) {
        let Member {
            map, membership, ..
        } = &mut self.all[usize::from(id)];
        let events = membership.tick(map, self.time.now_us());
        assert!(!events.evicted || self.hostile.is_some(), "evicted");
        for node in events.down.iter() {
            close(id, node, engines, nodes);
        }
        for node in events.up.iter() {
            close(id, node, engines, nodes);
            let Some(open) = membership.open(map, node) else {
                continue;
            };
            let epoch = open.epoch;
            engines.at(nodes, id, |engine, host| {
                let peer = host.peer_mut(node).expect("there is a link");
                peer.link_mut().set(Some(open));
                engine.peer_up(host, node, epoch);
            });
        }
    }

    /// Has no more to do with peers that an engine or its links refuse.
    fn isolate(&mut self, id: u16, engines: &mut Engines, nodes: &mut Nodes) {
        for other in nodes.ids().filter(|other| *other != id) {
            let refused = engines.at(nodes, id, |_, host| {
                let peer = host.peer_mut(other);
                peer.map(|peer| peer.link_mut().refused())
            });
            let Some((refused, violation)) = refused else {
                continue;
            };
            if !refused {
                assert_eq!(violation, None, "{other} goes on");
                continue;
            }
            let hostile = [Some(id), Some(other)].contains(&self.hostile);
            let known = hostile || self.lawless;
            assert!(known, "{id} refuses {other}: {violation:?}");
            self.violations.extend(violation);
            let (membership, map) = self.of(id);
            membership.isolate(map, other);
            close(id, other, engines, nodes);
        }
    }
}

/// Closes a node's link to another.
fn close(id: u16, other: u16, engines: &mut Engines, nodes: &mut Nodes) {
    engines.at(nodes, id, |engine, host| {
        engine.peer_down(host, other);
        let peer = host.peer_mut(other).expect("there is a link");
        peer.link_mut().set(None);
    });
}
