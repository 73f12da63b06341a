// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What a queue pair needs to have rings.

use std::sync::atomic::Ordering;
use std::sync::Arc;

use nupa_proto::cqe::Cqe;

use super::{BypassState, Receiver, SharedSource};
use crate::ffi::{fence, Lock, Slot};
use crate::queue::regions::Lookup;
use crate::queue::RecvQueue;

/// What a queue pair needs to have rings.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Where they come from.
    pub(crate) source: SharedSource,
    /// The memory that its requests may name, and that receive entries may.
    pub(crate) lookup: Lookup,
    pub(crate) recv_lookup: Lookup,
    /// Whether its receive queue is a shared one.
    pub(crate) shared: bool,
    /// Doorbell slot of its receive queue, or with a shared one that of its send queue.
    pub(crate) slot: Slot,
    /// Doorbell slot of its send queue.
    pub(crate) send_slot: Slot,
    /// Requests that its send queue has room for.
    pub(crate) requests: u32,
    /// What the queue pair may do.
    pub(crate) bypass_state: Arc<BypassState>,
    /// Also if programs may wait for events of its completion queues.
    pub(crate) with_events: bool,
    /// WRITEs may go into a ring, too.
    pub(crate) writes: bool,
    /// Not all messages that could are to go into a ring.
    pub(crate) mixed: bool,
}

/// Makes the ring that a queue pair receives with.
#[derive(Debug)]
pub(crate) struct Maker {
    pub(super) connection: Connection,
    pub(super) queue: Arc<Lock<RecvQueue>>,
}

impl Maker {
    /// For a queue pair with this receive queue.
    pub(crate) fn new(connection: Connection, queue: Arc<Lock<RecvQueue>>) -> Self {
        Self { connection, queue }
    }

    /// Makes a ring for messages from number `next` on, which follow the one with the completion `last`, if there may be one. `armed`: the program
    /// waits for an event.
    #[cold]
    pub(in crate::queue) fn make(&self, last: &Cqe, next: u32, armed: bool) -> Option<Receiver> {
        let Self { connection, queue } = self;
        if connection.bypass_state.is_stopped() {
            return None;
        }
        let ring = Arc::new(connection.source.make()?);
        ring.prepare(random()?);
        if !ring.publish() {
            return None;
        }
        let queue = Arc::clone(queue);
        let mut receiver = Receiver::open(last, next, ring, connection, queue)?;
        receiver.set_armed(armed);
        if armed {
            // Before the program looks for completions once more.
            fence(Ordering::SeqCst);
        }
        Some(receiver)
    }
}

/// What nobody can guess; not 0.
pub(super) fn random() -> Option<u64> {
    let mut bytes = [0; size_of::<u64>()];
    let flags = rustix::rand::GetRandomFlags::NONBLOCK;
    let read = rustix::rand::getrandom(&mut bytes, flags).ok()?;
    (read == bytes.len()).then_some(u64::from_le_bytes(bytes) | (1 << 63))
}
