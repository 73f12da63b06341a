// SPDX-License-Identifier: GPL-2.0
//! Error codes that the `kernel` crate does not name.

use crate::bindings;
use kernel::prelude::*;

/// The device does not do this (`EOPNOTSUPP`).
pub fn unsupported() -> Error {
    Error::from_errno(-(bindings::EOPNOTSUPP as i32))
}

/// There is no way to the destination (`EHOSTUNREACH`).
pub fn unreachable_host() -> Error {
    Error::from_errno(-(bindings::EHOSTUNREACH as i32))
}
