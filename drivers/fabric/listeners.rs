// SPDX-License-Identifier: GPL-2.0
//! Who is told what happens to the port.

use crate::port::{Listener, PortEvent};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{Arc, Mutex},
};

/// The listeners of a port. Their callbacks run under its lock, one at a time.
#[pin_data]
pub(crate) struct Listeners {
    #[pin]
    inner: Mutex<Inner>,
}

struct Inner {
    next_id: u64,
    entries: KVec<(u64, Arc<dyn Listener>)>,
}

impl Listeners {
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self { inner <- new_mutex!(Inner { next_id: 0, entries: KVec::new() }) })
    }

    /// Adds a listener; returns what [`Listeners::remove`] takes.
    pub(crate) fn add(&self, listener: Arc<dyn Listener>) -> Result<u64> {
        let mut inner = self.inner.lock();
        let id = inner.next_id;
        inner.entries.push((id, listener), GFP_KERNEL)?;
        inner.next_id = id.wrapping_add(1);
        Ok(id)
    }

    /// Takes a listener out; when this returns it is not running and never will again.
    pub(crate) fn remove(&self, id: u64) {
        self.inner.lock().entries.retain(|(entry, _)| *entry != id);
    }

    /// Tells all listeners. Sleeps.
    pub(crate) fn tell(&self, event: PortEvent) {
        for (_, listener) in self.inner.lock().entries.iter() {
            listener.event(event);
        }
    }
}
