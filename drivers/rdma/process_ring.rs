// SPDX-License-Identifier: GPL-2.0
//! Process rings: device memory that a queue pair receives from without its controller (`Documentation/process-rings.md`).

use kernel::{
    new_mutex,
    prelude::*,
    sync::{Arc, Mutex},
};
use nupa_fabric::{Charge, ExportedMemory};

/// An export, and what it counts for. Fields are dropped in order.
struct Export {
    _memory: ExportedMemory,
    _charge: Charge,
}

/// A ring that a peer may find, until it is closed.
#[pin_data]
struct Ring {
    #[pin]
    export: Mutex<Option<Export>>,
}

/// What each of those has that a ring depends on, its memory and its queue pair: the ring is closed when the first of them drops this.
pub(crate) struct RingPart(Arc<Ring>);

impl RingPart {
    /// Both parts of a ring that was exported for a queue pair.
    pub(crate) fn both(memory: ExportedMemory, charge: Charge) -> Result<(Self, Self)> {
        let export = Export {
            _memory: memory,
            _charge: charge,
        };
        let ring = try_pin_init!(Ring {
            export <- new_mutex!(Some(export)),
        });
        let ring = Arc::pin_init(ring, GFP_KERNEL_ACCOUNT)?;
        Ok((Self(ring.clone()), Self(ring)))
    }

    /// Whether the ring is not closed.
    pub(crate) fn is_open(&self) -> bool {
        self.0.export.lock().is_some()
    }
}

impl Drop for RingPart {
    fn drop(&mut self) {
        // With the lock held: whoever drops the other part meanwhile goes on when the ring is closed.
        *self.0.export.lock() = None;
    }
}
