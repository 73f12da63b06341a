// SPDX-License-Identifier: GPL-2.0
//! What the user may do on whose behalf a call runs, and what is counted as whose.
//!
//! C headers: `include/linux/capability.h`, `include/linux/cred.h`, `include/linux/user_namespace.h`.

use crate::bindings;
use kernel::prelude::*;

/// Whether the calling process may exceed what others are limited to (`CAP_SYS_RESOURCE`). Process context.
pub fn may_exceed_limits() -> bool {
    // SAFETY: No requirements: it looks at the credentials of the current task, and there always is one.
    unsafe { bindings::nk_capable_of_resources() }
}

/// The user that what the calling process takes counts for, by its id outside of user namespaces. Ids inside of a namespace
/// cost nothing, so all of them count for who made it, unless that was root. Process context.
pub fn charged_user() -> u32 {
    // SAFETY: As above.
    unsafe { bindings::nk_charged_user() }
}

/// The user has as much as it may have (`EDQUOT`), as it is said of keys (add_key(2)).
pub fn user_limit() -> Error {
    Error::from_errno(-(bindings::EDQUOT as i32))
}
