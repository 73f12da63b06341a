// SPDX-License-Identifier: GPL-2.0
//! Process rings: device memory that a queue pair receives from without its controller (`Documentation/process-rings.md`).

use kernel::{
    new_mutex,
    prelude::*,
    sync::{Arc, Mutex},
};
use nupa_fabric::{Charge, ExportedMemory, KnownRing};

/// An export, and what it counts for. Fields are dropped in order.
struct Export {
    /// While the controller may use it.
    known: Option<KnownRing>,
    _memory: ExportedMemory,
    _charge: Charge,
}

/// A ring that a peer may find, until it is closed.
#[pin_data]
struct Ring {
    /// Taken behind the locks of the memory and of the queue pair's state. The controller's commands are given with it held, so it is held for as long as
    /// those may take.
    #[pin]
    export: Mutex<Option<Export>>,
}

/// What each of those has that a ring depends on, its memory and its queue pair: the ring is closed when the first of them drops this.
pub(crate) struct RingPart(Arc<Ring>);

impl RingPart {
    /// Both parts of a ring that was exported for a queue pair, whose controller knows it.
    pub(crate) fn both(
        known: KnownRing,
        memory: ExportedMemory,
        charge: Charge,
    ) -> Result<(Self, Self)> {
        let export = Export {
            known: Some(known),
            _memory: memory,
            _charge: charge,
        };
        let ring = try_pin_init!(Ring {
            export <- new_mutex!(Some(export)),
        });
        let ring = Arc::pin_init(ring, GFP_KERNEL_ACCOUNT)?;
        Ok((Self(ring.clone()), Self(ring)))
    }

    /// Has the controller forget the ring, before the queue pair goes: another one may get its number. The ring is not closed by that. Sleeps.
    pub(crate) fn forget(&self) {
        if let Some(export) = &mut *self.0.export.lock() {
            export.known = None;
        }
    }

    /// Whether the ring is not closed.
    pub(crate) fn is_open(&self) -> bool {
        self.0.export.lock().is_some()
    }
}

impl Drop for RingPart {
    fn drop(&mut self) {
        // With the lock held: who drops the other part meanwhile goes on when the ring is closed, and the controller has forgotten it. Sleeps.
        *self.0.export.lock() = None;
    }
}
