// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The heartbeat of the node. It has its own thread, so that a process that is busy with something else is not taken for dead.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use guestmem::MmapRegion;
use nupa_pool::Heartbeat;
use nupa_poolmem::PoolMemory;
use nupa_proto::pool::HEARTBEAT_US;

/// The heartbeat, for as long as this is there.
pub(crate) struct Beating {
    /// Tells the thread of another epoch's.
    next: Option<Sender<Heartbeat>>,
    thread: Option<JoinHandle<()>>,
}

impl Beating {
    /// Begins, in a mapping of the thread's own.
    pub(crate) fn new(pool: MmapRegion, heartbeat: Heartbeat) -> std::io::Result<Self> {
        let (next, others) = mpsc::channel();
        let thread = thread::Builder::new().name("heartbeat".to_owned());
        let thread = thread.spawn(move || {
            let (window, mut heartbeat) = (PoolMemory::new(&pool, true), heartbeat);
            loop {
                // Whether the slot is lost is found by the membership.
                let _ = heartbeat.beat(&window);
                match others.recv_timeout(Duration::from_micros(HEARTBEAT_US)) {
                    Ok(other) => heartbeat = other,
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        })?;
        Ok(Self {
            next: Some(next),
            thread: Some(thread),
        })
    }

    /// The node has another epoch.
    pub(crate) fn set(&self, heartbeat: Heartbeat) {
        if let Some(next) = &self.next {
            // The thread ends when this does.
            let _ = next.send(heartbeat);
        }
    }
}

impl Drop for Beating {
    fn drop(&mut self) {
        self.next = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
