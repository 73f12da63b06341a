// SPDX-License-Identifier: GPL-2.0 OR MIT

//! uverbs commands with a driver's part at their end.

use core::ffi::c_int;

use rustix::io::Errno;

use super::errno::check;
use super::object::Plain;

/// A command or an answer of the core, and the driver's part behind it. Driver structures are made of bytes for the
/// compiler (alignment 1), so nothing lies in between.
#[repr(C)]
struct WithTail<C, D> {
    core: C,
    own: D,
}

impl<C: Plain, D> WithTail<C, D> {
    /// Bytes of both, as rdma-core is told.
    const SIZE: usize = size_of::<C>() + size_of::<D>();

    /// A zeroed structure of the core's with the driver's part.
    fn new(own: D) -> Self {
        const { assert!(align_of::<D>() == 1) };
        Self {
            core: C::zeroed(),
            own,
        }
    }
}

/// Runs a command whose core part is a `C`, with `tail` behind it; returns what the driver put behind the core's answer,
/// an `R`. `call` is given both with their sizes and returns an error number. They are its own until it returns.
pub(super) fn exchange<C: Plain, T, R: Plain, A: Default>(
    tail: T,
    call: impl FnOnce(*mut C, usize, *mut R, usize) -> c_int,
) -> Result<A, Errno> {
    let mut request = WithTail::<C, T>::new(tail);
    let mut response = WithTail::<R, A>::new(A::default());
    check(call(
        &raw mut request.core,
        WithTail::<C, T>::SIZE,
        &raw mut response.core,
        WithTail::<R, A>::SIZE,
    ))?;
    Ok(response.own)
}
