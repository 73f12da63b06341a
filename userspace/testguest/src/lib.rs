// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A fabric with guests that are plain memory: what a driver does, without a VM. For tests.

#![allow(
    missing_docs,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test may fail loudly"
)]

pub mod guest;
pub mod queues;
pub mod rings;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use nupa_controller::{Clock, DoorbellPlace, Fabric, FabricConfig};

/// A clock that moves when told.
#[derive(Default)]
pub struct TestClock(Cell<u64>);

impl TestClock {
    pub fn advance(&self, us: u64) {
        self.0.set(self.0.get() + us);
    }
}

impl Clock for TestClock {
    fn now_us(&self) -> u64 {
        self.0.get()
    }
}

/// Doorbell page pairs of each controller.
pub const DOORBELL_PAGES: u32 = 2;

/// A fabric and its clock.
#[derive(Clone)]
pub struct World {
    pub fabric: Rc<RefCell<Fabric>>,
    pub clock: Rc<TestClock>,
}

impl World {
    /// A fabric whose guests keep doorbells in their own memory.
    pub fn new(max_nodes: u16) -> Self {
        Self::with_doorbells(max_nodes, DoorbellPlace::Guest)
    }

    pub fn with_doorbells(max_nodes: u16, doorbells: DoorbellPlace) -> Self {
        let clock = Rc::new(TestClock::default());
        let config = FabricConfig {
            max_nodes,
            doorbell_pages: DOORBELL_PAGES,
            doorbells,
            ..FabricConfig::default()
        };
        let shared: Rc<dyn Clock> = clock.clone();
        let fabric = Fabric::new(&config, &shared).unwrap();
        Self {
            fabric: Rc::new(RefCell::new(fabric)),
            clock,
        }
    }

    /// Lets time pass, and the fabric do what is due at each step.
    pub fn pass(&self, us: u64) {
        let end = self.clock.now_us() + us;
        for _ in 0..10_000 {
            let next = self.fabric.borrow_mut().run();
            let now = self.clock.now_us();
            match next {
                Some(at) if at <= end => self.clock.advance(at.saturating_sub(now)),
                _ if now >= end => return,
                _ => self.clock.advance(end - now),
            }
        }
        panic!("the fabric never comes to rest");
    }

    /// A counter of a node, by name.
    pub fn counter(&self, node: u16, name: &str) -> u64 {
        let stats = self.fabric.borrow().stats();
        let json = serde_json::to_value(&stats[usize::from(node)]).unwrap();
        json[name].as_u64().unwrap()
    }
}

impl guest::Bars for World {
    fn read(&self, node: u16, bar: u8, offset: u64, data: &mut [u8]) {
        self.fabric.borrow_mut().bar_read(node, bar, offset, data);
    }

    fn write(&self, node: u16, bar: u8, offset: u64, data: &[u8]) {
        self.fabric.borrow_mut().bar_write(node, bar, offset, data);
        self.settle();
    }

    fn settle(&self) {
        self.pass(0);
    }

    fn disconnect(&self, node: u16) {
        self.fabric.borrow_mut().disconnect(node);
    }
}
