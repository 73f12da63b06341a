// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Protection domains, parent domains and thread domains.

use core::ffi::c_int;

use rustix::io::Errno;

use super::errno::{check, code, pointer};
use super::object::{Object, Pending, Plain};
use super::sys;

/// What a `struct ibv_pd` is.
enum Domain {
    /// A protection domain of the kernel's.
    Own,
    /// A parent domain, which stands for the protection domain that it was made with.
    Parent,
}

type PdObject = Object<sys::ibv_pd, Domain>;
type TdObject = Object<sys::ibv_td, ()>;

/// `verbs_context_ops::alloc_pd`
pub(super) unsafe extern "C" fn alloc_pd(context: *mut sys::ibv_context) -> *mut sys::ibv_pd {
    let pending = Pending::new();
    let mut request = sys::ibv_alloc_pd::zeroed();
    let mut response = sys::ib_uverbs_alloc_pd_resp::zeroed();
    // SAFETY: the context is the caller's; our structures live across the call, and the sizes are theirs.
    let made = check(unsafe {
        sys::ibv_cmd_alloc_pd(
            context,
            pending.base(),
            &raw mut request,
            size_of::<sys::ibv_alloc_pd>(),
            &raw mut response,
            size_of::<sys::ib_uverbs_alloc_pd_resp>(),
        )
    });
    pointer(made.map(|()| pending.finish(Domain::Own)))
}

/// `verbs_context_ops::dealloc_pd`
pub(super) unsafe extern "C" fn dealloc_pd(pd: *mut sys::ibv_pd) -> c_int {
    // SAFETY: `pd` is one of `alloc_pd` or `alloc_parent_domain`, and the program gives it up.
    unsafe {
        if let Domain::Own = PdObject::of(pd) {
            if let Err(error) = check(sys::ibv_cmd_dealloc_pd(pd)) {
                return error.raw_os_error();
            }
        }
        PdObject::free(pd);
    }
    0
}

/// `verbs_context_ops::alloc_parent_domain`. Thread domains are accepted; queues are locked all the same, and the
/// default allocators are always used.
pub(super) unsafe extern "C" fn alloc_parent_domain(
    context: *mut sys::ibv_context,
    attr: *mut sys::ibv_parent_domain_init_attr,
) -> *mut sys::ibv_pd {
    const MASK: u32 =
        sys::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | sys::IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
    // SAFETY: the program passes its attributes, and in them a protection domain of its own or null.
    let (attr, pd) = unsafe { (&*attr, (*attr).pd.as_ref()) };
    if attr.comp_mask & !MASK != 0 {
        return pointer(Err(Errno::OPNOTSUPP));
    }
    let Some(pd) = pd else {
        return pointer(Err(Errno::INVAL));
    };
    let pending = Pending::<sys::ibv_pd, Domain>::new();
    let parent = sys::ibv_pd {
        context,
        handle: pd.handle,
    };
    // SAFETY: the object is new and ours.
    unsafe { pending.base().write(parent) };
    pending.finish(Domain::Parent)
}

/// `verbs_context_ops::alloc_td`
pub(super) unsafe extern "C" fn alloc_td(
    context: *mut sys::ibv_context,
    attr: *mut sys::ibv_td_init_attr,
) -> *mut sys::ibv_td {
    // SAFETY: the program passes its attributes.
    if unsafe { (*attr).comp_mask } != 0 {
        return pointer(Err(Errno::OPNOTSUPP));
    }
    let pending = Pending::<sys::ibv_td, ()>::new();
    // SAFETY: the object is new and ours.
    unsafe { pending.base().write(sys::ibv_td { context }) };
    pending.finish(())
}

/// `verbs_context_ops::dealloc_td`
pub(super) unsafe extern "C" fn dealloc_td(td: *mut sys::ibv_td) -> c_int {
    // SAFETY: `td` is one of `alloc_td`, and the program gives it up.
    unsafe { TdObject::free(td) };
    code(Ok(()))
}
