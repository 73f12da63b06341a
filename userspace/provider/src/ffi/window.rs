// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Memory windows. They are bound by a request on a queue pair (type 2).

use core::ffi::c_int;

use nupa_engine::rings::PostError;
use nupa_proto::admin::{
    ACCESS_FLUSH_GLOBAL, ACCESS_FLUSH_PERSISTENT, ACCESS_REMOTE_ATOMIC, ACCESS_REMOTE_READ,
    ACCESS_REMOTE_WRITE, ACCESS_ZERO_BASED,
};
use nupa_proto::wqe::BindSegment;

use super::errno::{check, code, pointer};
use super::object::{Object, Pending, Plain};
use super::sys;

type MwObject = Object<sys::ibv_mw, ()>;

/// `verbs_context_ops::alloc_mw`
pub(super) unsafe extern "C" fn alloc_mw(
    pd: *mut sys::ibv_pd,
    kind: sys::ibv_mw_type,
) -> *mut sys::ibv_mw {
    let pending = Pending::new();
    let mut request = sys::ibv_alloc_mw::zeroed();
    let mut response = sys::ib_uverbs_alloc_mw_resp::zeroed();
    // SAFETY: `pd` is the caller's; our structures live across the call, and the sizes are theirs.
    let made = check(unsafe {
        sys::ibv_cmd_alloc_mw(
            pd,
            kind,
            pending.base(),
            &raw mut request,
            size_of::<sys::ibv_alloc_mw>(),
            &raw mut response,
            size_of::<sys::ib_uverbs_alloc_mw_resp>(),
        )
    });
    pointer(made.map(|()| pending.finish(())))
}

/// `verbs_context_ops::dealloc_mw`
pub(super) unsafe extern "C" fn dealloc_mw(mw: *mut sys::ibv_mw) -> c_int {
    // SAFETY: `mw` is one of this provider's, and the program gives it up.
    let result = check(unsafe { sys::ibv_cmd_dealloc_mw(mw) });
    if result.is_ok() {
        // SAFETY: as above; the kernel has forgotten it.
        unsafe { MwObject::free(mw) };
    }
    code(result)
}

/// What a window is to be bound to. Length 0 unbinds it.
///
/// # Safety
///
/// The region of `info` exists, or is null with length 0.
pub(super) unsafe fn bind_segment(info: &sys::ibv_mw_bind_info) -> Result<BindSegment, PostError> {
    // SAFETY: the caller's word.
    let mr_key = match unsafe { info.mr.as_ref() } {
        Some(mr) => mr.lkey,
        None if info.length == 0 => 0,
        None => return Err(PostError::Invalid),
    };
    Ok(BindSegment {
        addr: info.addr.into(),
        len: info.length.into(),
        mr_key: mr_key.into(),
        access: window_access(info.mw_access_flags)
            .ok_or(PostError::Invalid)?
            .into(),
    })
}

/// Rights of a window for the controller; none if a window cannot have them. Programs ask for local writes as well, as
/// they have to for regions; a window has no local key to use them with.
fn window_access(flags: u32) -> Option<u32> {
    const RIGHTS: [(u32, u32); 6] = [
        (sys::IBV_ACCESS_REMOTE_WRITE, ACCESS_REMOTE_WRITE),
        (sys::IBV_ACCESS_REMOTE_READ, ACCESS_REMOTE_READ),
        (sys::IBV_ACCESS_REMOTE_ATOMIC, ACCESS_REMOTE_ATOMIC),
        (sys::IBV_ACCESS_FLUSH_GLOBAL, ACCESS_FLUSH_GLOBAL),
        (sys::IBV_ACCESS_FLUSH_PERSISTENT, ACCESS_FLUSH_PERSISTENT),
        (sys::IBV_ACCESS_ZERO_BASED, ACCESS_ZERO_BASED),
    ];
    let known = RIGHTS
        .iter()
        .fold(sys::IBV_ACCESS_LOCAL_WRITE, |all, (flag, _)| all | flag);
    let rights = RIGHTS.iter().filter(|(flag, _)| flags & flag != 0);
    (flags & !known == 0).then(|| rights.fold(0, |all, (_, right)| all | right))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_translated_or_refused() {
        assert_eq!(window_access(0), Some(0));
        let flags = sys::IBV_ACCESS_REMOTE_READ | sys::IBV_ACCESS_ZERO_BASED;
        assert_eq!(
            window_access(flags),
            Some(ACCESS_REMOTE_READ | ACCESS_ZERO_BASED)
        );
        let flags = sys::IBV_ACCESS_REMOTE_WRITE | sys::IBV_ACCESS_LOCAL_WRITE;
        assert_eq!(window_access(flags), Some(ACCESS_REMOTE_WRITE));
        assert_eq!(window_access(sys::IBV_ACCESS_MW_BIND), None);
    }
}
