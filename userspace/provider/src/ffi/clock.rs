// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The device's clock, which timestamps of completions are taken from.
//!
//! The kernel reads it: it is the controller's, a register of which no process has, or that of the engine in the kernel.

use core::ffi::c_int;
use std::time::{Duration, Instant, SystemTime};

use nupa_proto::uabi::{METHOD_QUERY_CLOCK, QUERY_CLOCK};
use rustix::io::Errno;

use super::context::Context;
use super::errno::code;
use super::ioctl::{self, object_id, Attributes};
use super::sys;
use crate::queue::Moment;

/// The object that the method is of.
const DEVICE: u16 = object_id(sys::UVERBS_OBJECT_DEVICE);

/// Reads the clock. `EOPNOTSUPP` if the device has none, or the kernel's driver is older than that.
///
/// # Safety
///
/// `context` is one of this provider's, and open.
unsafe fn read(context: *mut sys::ibv_context) -> Result<u64, Errno> {
    // SAFETY: the caller's word.
    if unsafe { Context::of(context) }.info.clock_khz.get() == 0 {
        return Err(Errno::OPNOTSUPP);
    }
    let mut clock = 0u64;
    let attributes = Attributes::new([ioctl::value(QUERY_CLOCK, &raw mut clock)]);
    // SAFETY: as above; the variable lives across the call.
    unsafe { attributes.execute(context, DEVICE, METHOD_QUERY_CLOCK)? };
    // SAFETY: the kernel has written it behind the compiler's back.
    Ok(unsafe { (&raw const clock).read_volatile() })
}

/// Readings of which the quickest counts: the clock was read in the middle of it, as far as anybody knows.
const READINGS: usize = 4;

/// Reads the clock and the time of day at once; `None` if the device is gone.
///
/// # Safety
///
/// As for [`read`].
pub(super) unsafe fn moment(context: *mut sys::ibv_context) -> Option<Moment> {
    let mut best: Option<(Duration, Moment)> = None;
    for _ in 0..READINGS {
        // The time of day may be set meanwhile, so it does not say how long that took.
        let (start, before) = (Instant::now(), SystemTime::now());
        // SAFETY: the caller's word.
        let clock = unsafe { read(context) }.ok()?;
        let taken = start.elapsed();
        let time = before.checked_add(taken.checked_div(2)?)?;
        let since_1970 = time.duration_since(SystemTime::UNIX_EPOCH).ok()?;
        let wall_ns = u64::try_from(since_1970.as_nanos()).ok()?;
        if best.is_none_or(|(least, _)| taken < least) {
            best = Some((taken, Moment { clock, wall_ns }));
        }
    }
    best.map(|(_, moment)| moment)
}

/// `verbs_context_ops::query_rt_values`
pub(super) unsafe extern "C" fn query_rt_values(
    context: *mut sys::ibv_context,
    values: *mut sys::ibv_values_ex,
) -> c_int {
    // SAFETY: the program passes its structure.
    let values = unsafe { &mut *values };
    let wanted = values.comp_mask & sys::IBV_VALUES_MASK_RAW_CLOCK;
    values.comp_mask = 0;
    if wanted == 0 {
        return 0;
    }
    // SAFETY: `context` is one of this provider's.
    code(unsafe { read(context) }.map(|clock| {
        // As with mlx5: the whole clock is where nanoseconds would be.
        values.raw_clock.tv_sec = 0;
        values.raw_clock.tv_nsec = i64::from_ne_bytes(clock.to_ne_bytes());
        values.comp_mask = wanted;
    }))
}
