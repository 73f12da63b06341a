// SPDX-License-Identifier: GPL-2.0
//! What the user may do on whose behalf a call runs.
//!
//! C header: `include/linux/capability.h`.

use crate::bindings;

/// Whether the calling process may exceed what others are limited to (`CAP_SYS_RESOURCE`). Process context.
pub fn may_exceed_limits() -> bool {
    // SAFETY: No requirements: it looks at the credentials of the current task, and there always is one.
    unsafe { bindings::nk_capable_of_resources() }
}
