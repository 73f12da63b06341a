// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Real-time priority.
//!
//! The switch works in short bursts, and a guest waits for each of them. Where other programs
//! keep all cores busy, an ordinary thread that wakes up waits for their time slices to end:
//! milliseconds. There, TCP round trips per second double with the lowest real-time priority,
//! and a nice value of -20 makes them worse. On a machine that has only two guests to run on
//! its two cores it is the other way round: each frame then takes a core from a guest that is
//! in the middle of something, which costs a quarter of the throughput of one TCP stream and
//! half of the small datagrams per second. So it is for the user to ask for.
//!
//! The thread cannot take a core for itself: it sleeps unless there is work or
//! [`Pacing`](crate::pacing::Pacing) found a core to spare, and the kernel leaves a part of
//! each second to others (sched_rt_runtime_us, see sched(7)).

use thread_priority::{
    set_thread_priority_and_policy, thread_native_id, RealtimeThreadSchedulePolicy, ThreadPriority,
    ThreadSchedulePolicy,
};

/// Takes the lowest real-time priority for this thread, if we may.
pub(crate) fn raise() {
    let policy = ThreadSchedulePolicy::Realtime(RealtimeThreadSchedulePolicy::RoundRobin);
    let raised = set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, policy);
    if let Err(error) = raised {
        tracing::info!(%error, "no real-time priority: latency suffers when guests fill all cores");
    }
}
