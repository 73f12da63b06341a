// SPDX-License-Identifier: GPL-2.0
//! The C callbacks behind [`Operations`].

use super::{Info, Message, Operations};
use crate::bindings;
use core::marker::PhantomData;
use kernel::{error::from_result, prelude::*, str::as_char_ptr_in_const_context};

/// The tables of C callbacks of `T`.
///
/// # Safety
///
/// They are for the core alone, which passes an instance or a reporter that [`super::Registration::new`] made, and requests and
/// messages that are ours for the time of the call. It holds the instance's lock meanwhile.
pub(super) struct VTable<T>(PhantomData<T>);

#[expect(
    clippy::missing_safety_doc,
    reason = "the contract of all callbacks is that of the tables"
)]
impl<T: Operations> VTable<T> {
    unsafe fn of_reporter<'a>(reporter: *mut bindings::devlink_health_reporter) -> &'a T {
        // SAFETY: See the type. The reporter was given a pointer to data that lives longer.
        unsafe { &*bindings::devlink_health_reporter_priv(reporter).cast::<T>() }
    }

    unsafe fn of_report<'a>(
        reporter: *mut bindings::devlink_health_reporter,
        report: *mut c_void,
    ) -> (&'a T, Option<&'a T::Report>) {
        // SAFETY: See the type. A report is what `Registration::report` has passed and still borrows; user space has none.
        unsafe {
            (
                Self::of_reporter(reporter),
                report.cast::<T::Report>().as_ref(),
            )
        }
    }

    unsafe extern "C" fn info_get(
        devlink: *mut bindings::devlink,
        request: *mut bindings::devlink_info_req,
        _extack: *mut bindings::netlink_ext_ack,
    ) -> c_int {
        // SAFETY: See the type. A pointer to data that lives longer was written there.
        let data = unsafe { &**bindings::devlink_priv(devlink).cast::<*const T>() };
        from_result(|| data.info(&Info(request, PhantomData)).map(|()| 0))
    }

    unsafe extern "C" fn diagnose(
        reporter: *mut bindings::devlink_health_reporter,
        message: *mut bindings::devlink_fmsg,
        _extack: *mut bindings::netlink_ext_ack,
    ) -> c_int {
        // SAFETY: See the type.
        let data = unsafe { Self::of_reporter(reporter) };
        from_result(|| data.diagnose(&Message(message, PhantomData)).map(|()| 0))
    }

    unsafe extern "C" fn dump(
        reporter: *mut bindings::devlink_health_reporter,
        message: *mut bindings::devlink_fmsg,
        report: *mut c_void,
        _extack: *mut bindings::netlink_ext_ack,
    ) -> c_int {
        // SAFETY: See the type.
        let (data, report) = unsafe { Self::of_report(reporter, report) };
        from_result(|| {
            data.dump(&Message(message, PhantomData), report)
                .map(|()| 0)
        })
    }

    unsafe extern "C" fn recover(
        reporter: *mut bindings::devlink_health_reporter,
        report: *mut c_void,
        _extack: *mut bindings::netlink_ext_ack,
    ) -> c_int {
        // SAFETY: See the type.
        let (data, report) = unsafe { Self::of_report(reporter, report) };
        from_result(|| data.recover(report).map(|()| 0))
    }

    pub(super) const OPS: &'static bindings::devlink_ops = &bindings::devlink_ops {
        info_get: Some(Self::info_get),
        ..pin_init::zeroed()
    };

    pub(super) const REPORTER: &'static bindings::devlink_health_reporter_ops =
        &bindings::devlink_health_reporter_ops {
            name: as_char_ptr_in_const_context(T::REPORTER).cast_mut(),
            recover: Some(Self::recover),
            dump: Some(Self::dump),
            diagnose: Some(Self::diagnose),
            ..pin_init::zeroed()
        };
}
