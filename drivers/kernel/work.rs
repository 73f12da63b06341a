// SPDX-License-Identifier: GPL-2.0
//! End of life of work items, and a queue for them.
//!
//! C header: `include/linux/workqueue.h`. The `kernel` crate can queue work, but neither cancel it nor wait for it.

use kernel::{
    bindings,
    sync::Arc,
    workqueue::{HasDelayedWork, HasWork, Queue, Work, WorkItem},
};

/// The queue of work that is bound to no processor (`system_dfl_wq`). The `kernel` crate knows it by its old name only, and the kernel warns of that.
pub fn unbound() -> &'static Queue {
    // SAFETY: The queue is there from the kernel's start on, for ever.
    unsafe { Queue::from_raw(bindings::system_dfl_wq) }
}

/// Disables a work item for good: takes it off its queue, waits until it is not running, and makes later attempts to
/// queue it fail. Sleeps; must not be called from the item itself.
pub fn disable_sync<T, const ID: u64>(item: &Arc<T>)
where
    T: HasWork<T, ID> + WorkItem<ID, Pointer = Arc<T>>,
{
    let this = Arc::as_ptr(item).cast_mut();
    // SAFETY: `this` points to a live `T`, and `raw_get_work` returns its initialised work item.
    let work = unsafe { Work::raw_get(T::raw_get_work(this)) };
    // SAFETY: `work` is initialised and stays so while `item` is borrowed.
    if unsafe { bindings::disable_work_sync(work) } {
        // SAFETY: It was pending and now never runs, so the reference that queueing it took is ours to drop.
        drop(unsafe { Arc::from_raw(this.cast_const()) });
    }
}

/// As [`disable_sync`], for a delayed work item.
pub fn disable_delayed_sync<T, const ID: u64>(item: &Arc<T>)
where
    T: HasDelayedWork<T, ID> + WorkItem<ID, Pointer = Arc<T>>,
{
    let this = Arc::as_ptr(item).cast_mut();
    // SAFETY: `this` points to a live `T`, and `raw_get_work` returns its initialised work item.
    let work = unsafe { Work::raw_get(T::raw_get_work(this)) };
    // SAFETY: By the contract of `HasDelayedWork` the work item is the `work` field of a `delayed_work`.
    let delayed = unsafe { kernel::container_of!(work, bindings::delayed_work, work) };
    // SAFETY: As in `disable_sync`.
    if unsafe { bindings::disable_delayed_work_sync(delayed) } {
        // SAFETY: As in `disable_sync`.
        drop(unsafe { Arc::from_raw(this.cast_const()) });
    }
}
