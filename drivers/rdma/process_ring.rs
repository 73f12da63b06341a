// SPDX-License-Identifier: GPL-2.0
//! Process rings: device memory that a queue pair receives from, or sends to, without its controller (`Documentation/process-rings.md`).

use kernel::{
    new_mutex,
    prelude::*,
    sync::{Arc, Mutex},
};
use nupa_fabric::{ExportedMemory, KnownRing};

/// A part of something that depends on two, a ring's memory and a queue pair, each of which has one. It ends when the first of them drops its part.
pub(crate) struct RingPart<T: Unpin>(Arc<Shared<T>>);

#[pin_data]
struct Shared<T: Unpin> {
    /// Taken behind the locks of the memory and of the queue pair's state. The controller's commands are given with it held, so it is held for as long as
    /// those may take.
    #[pin]
    held: Mutex<Option<T>>,
}

impl<T: Unpin> Shared<T> {
    fn new(held: T) -> impl PinInit<Self> {
        pin_init!(Self {
            held <- new_mutex!(Some(held)),
        })
    }
}

impl<T: Unpin> RingPart<T> {
    /// Both parts. What is held is dropped with the second one if this fails.
    pub(crate) fn both(held: T) -> Result<(Self, Self)> {
        let shared = Arc::pin_init(Shared::new(held), GFP_KERNEL_ACCOUNT)?;
        Ok((Self(shared.clone()), Self(shared)))
    }

    /// Whether it has not ended.
    pub(crate) fn is_there(&self) -> bool {
        self.0.held.lock().is_some()
    }
}

impl<T: Unpin> Drop for RingPart<T> {
    fn drop(&mut self) {
        // With the lock held: who drops the other part meanwhile goes on when it has ended. Sleeps.
        *self.0.held.lock() = None;
    }
}

/// What a ring that a queue pair receives from consists of, for its memory or for the pair. Fields are dropped in order.
pub(crate) struct OwnRing {
    /// While the controller knows it: as long as both exist, and the pair was not reset.
    pub(crate) known: RingPart<KnownRing>,
    /// While the peer may find it. It is closed when this ends.
    pub(crate) export: RingPart<ExportedMemory>,
}

impl OwnRing {
    /// Both of a ring that was exported for a pair, whose controller knows it.
    pub(crate) fn both(known: KnownRing, export: ExportedMemory) -> Result<(Self, Self)> {
        let known = RingPart::both(known)?;
        let export = RingPart::both(export)?;
        let ring = |known, export| Self { known, export };
        Ok((ring(known.0, export.0), ring(known.1, export.1)))
    }
}
