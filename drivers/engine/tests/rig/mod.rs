// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A fabric of nodes in one process, over plain vectors: what tests use in place of controllers and guests.

#![allow(
    dead_code,
    unused_imports,
    reason = "each test binary uses a part of the rig"
)]

mod host;
mod machine;

pub use host::{sge, Cq, Eq, Host, Mr, Qp, Srq};
pub use machine::{Kick, Machine, VecStorage, BASE};

use nupa_engine::{Engine, Fabric, Node, NodeConfig};
use std::{cell::Cell, collections::VecDeque, rc::Rc};

/// All nodes' hardware and controllers.
pub struct Nodes {
    all: Vec<Option<(Node<VecStorage>, Machine)>>,
}

impl Fabric for Nodes {
    type Storage = VecStorage;
    type Platform = Machine;

    fn max_nodes(&self) -> u16 {
        self.all.len() as u16
    }

    fn node(&self, id: u16) -> Option<(&Node<VecStorage>, &Machine)> {
        let (node, machine) = self.all.get(usize::from(id))?.as_ref()?;
        Some((node, machine))
    }

    fn node_mut(&mut self, id: u16) -> Option<(&mut Node<VecStorage>, &Machine)> {
        let (node, machine) = self.all.get_mut(usize::from(id))?.as_mut()?;
        Some((node, machine))
    }
}

/// The fabric, its engine and its clock.
pub struct World {
    pub nodes: Nodes,
    pub engine: Engine,
    pub now: Rc<Cell<u64>>,
    kicks: Rc<std::cell::RefCell<VecDeque<Kick>>>,
    /// What [`Engine::run`] returned last.
    pub next: Option<u64>,
}

impl World {
    /// `count` nodes, all enabled.
    pub fn new(count: u16) -> Self {
        let (now, kicks) = (Rc::<Cell<u64>>::default(), Rc::default());
        let node = |id| {
            let config = NodeConfig {
                id,
                ..NodeConfig::default()
            };
            Some((
                Node::new(config),
                Machine::new(id, Rc::clone(&now), Rc::clone(&kicks)),
            ))
        };
        let nodes = Nodes {
            all: (0..count).map(node).collect(),
        };
        let mut world = Self {
            nodes,
            engine: Engine::new(),
            now: Rc::clone(&now),
            kicks,
            next: None,
        };
        for id in 0..count {
            world.engine.enable(&mut world.nodes, id);
        }
        world
    }

    /// The driver of a node, without objects.
    pub fn host(&mut self, id: u16) -> Host {
        Host::new(id, self.machine(id).clone())
    }

    pub fn node(&self, id: u16) -> &Node<VecStorage> {
        self.nodes.node(id).expect("node exists").0
    }

    pub fn machine(&self, id: u16) -> &Machine {
        self.nodes.node(id).expect("node exists").1
    }

    /// Serves all kicks that are pending, then what is due.
    pub fn pump(&mut self) {
        loop {
            let kick = self.kicks.borrow_mut().pop_front();
            let Some(Kick {
                node,
                page,
                slot,
                pushed,
            }) = kick
            else {
                break;
            };
            match pushed {
                None => self.engine.kick(&mut self.nodes, node, page, slot),
                Some(index) => self
                    .engine
                    .push_kick(&mut self.nodes, node, page, slot, index),
            }
        }
        for _ in 0..100 {
            self.next = self.engine.run(&mut self.nodes);
            if self.next != Some(0) {
                return;
            }
        }
        panic!("the engine does not come to rest");
    }

    /// Lets time pass.
    pub fn advance(&mut self, us: u64) {
        self.now.set(self.now.get() + us);
        self.pump();
    }
}
