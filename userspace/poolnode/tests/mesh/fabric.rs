// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The node of this process, as a driver sees it.

use std::cell::RefCell;
use std::rc::Rc;

use nupa_poolnode::PoolProcess;
use nupa_testguest::guest::Bars;

/// The node's function, in this process.
#[derive(Clone)]
pub(crate) struct Fabric(Rc<RefCell<PoolProcess>>);

impl Fabric {
    pub(crate) fn new(process: PoolProcess) -> Self {
        Self(Rc::new(RefCell::new(process)))
    }

    /// Does what is due. Whether that was something.
    pub(crate) fn poll(&self) -> bool {
        let turn = self.0.borrow_mut().poll();
        turn.busy || turn.arrived
    }

    pub(crate) fn epoch_of(&self, node: u16) -> Option<u32> {
        self.0.borrow().epoch_of(node)
    }
}

impl Bars for Fabric {
    fn read(&self, _: u16, bar: u8, offset: u64, data: &mut [u8]) {
        self.0.borrow_mut().bar_read(bar, offset, data);
    }

    fn write(&self, _: u16, bar: u8, offset: u64, data: &[u8]) {
        self.0.borrow_mut().bar_write(bar, offset, data);
    }

    fn settle(&self) {
        self.poll();
    }

    fn disconnect(&self, _: u16) {}
}
