// SPDX-License-Identifier: GPL-2.0 OR MIT

//! How libibverbs finds this provider and its functions.

use std::ptr;

use nupa_proto::ident::{PCI_DEVICE_ID, PCI_IVSHMEM_ID, PCI_VENDOR_ID};
use nupa_proto::uabi::{ProviderInfo, ABI_VERSION};

use super::object::{Object, Pending};
use super::{
    abi, address, clock, context, cq, device_memory, domain, post, post_recv, qp, region, srq, sys,
    window,
};

/// The functions of a context. What is not here answers `EOPNOTSUPP` (`verbs_dummy_ops`).
pub(super) static OPS: sys::verbs_context_ops = sys::verbs_context_ops {
    alloc_dm: Some(device_memory::alloc_dm),
    alloc_mw: Some(window::alloc_mw),
    alloc_parent_domain: Some(domain::alloc_parent_domain),
    alloc_pd: Some(domain::alloc_pd),
    alloc_td: Some(domain::alloc_td),
    attach_mcast: Some(sys::ibv_cmd_attach_mcast),
    create_ah: Some(address::create_ah),
    create_cq: Some(cq::create_cq),
    create_cq_ex: Some(cq::create_cq_ex),
    create_qp: Some(qp::create_qp),
    create_qp_ex: Some(qp::create_qp_ex),
    create_srq: Some(srq::create_srq),
    create_srq_ex: Some(srq::create_srq_ex),
    dealloc_mw: Some(window::dealloc_mw),
    dealloc_pd: Some(domain::dealloc_pd),
    dealloc_td: Some(domain::dealloc_td),
    dereg_mr: Some(region::dereg_mr),
    destroy_ah: Some(address::destroy_ah),
    destroy_cq: Some(cq::destroy_cq),
    destroy_qp: Some(qp::destroy_qp),
    destroy_srq: Some(srq::destroy_srq),
    detach_mcast: Some(sys::ibv_cmd_detach_mcast),
    free_context: Some(context::free_context),
    free_dm: Some(device_memory::free_dm),
    modify_qp: Some(qp::modify_qp),
    modify_srq: Some(srq::modify_srq),
    poll_cq: Some(cq::poll_cq),
    post_recv: Some(post_recv::post_recv),
    post_send: Some(post::post_send),
    post_srq_recv: Some(post_recv::post_srq_recv),
    query_device_ex: Some(context::query_device_ex),
    query_port: Some(context::query_port),
    query_qp: Some(qp::query_qp),
    query_rt_values: Some(clock::query_rt_values),
    query_srq: Some(srq::query_srq),
    reg_dm_mr: Some(region::reg_dm_mr),
    reg_dmabuf_mr: Some(region::reg_dmabuf_mr),
    reg_mr: Some(region::reg_mr),
    req_notify_cq: Some(cq::req_notify_cq),
    resize_cq: Some(cq::resize_cq),
    rereg_mr: Some(region::rereg_mr),
    ..NO_OPS
};

/// A table without functions.
pub(super) const NO_OPS: sys::verbs_context_ops = {
    // SAFETY: the structure consists of function pointers; null stands for none.
    unsafe { std::mem::zeroed() }
};

/// The devices that this provider is for: what `MATCHES` says, with this version of the user interface.
static DEVICE_OPS: Static<sys::verbs_device_ops> = Static(sys::verbs_device_ops {
    name: c"nupa".as_ptr(),
    match_min_abi_version: ABI_VERSION,
    match_max_abi_version: ABI_VERSION,
    match_table: MATCHES.0.as_ptr(),
    static_providers: std::ptr::null_mut(),
    match_device: None,
    alloc_context: Some(context::alloc_context),
    import_context: None,
    alloc_device: Some(alloc_device),
    uninit_device: Some(uninit_device),
});

/// By what the device is on, a controller or shared memory, where nobody else has an RDMA device: udev renames RDMA devices,
/// and a driver id of our own would have to be in the kernel's headers.
static MATCHES: Static<[sys::verbs_match_ent; 4]> = Static([
    pci(PCI_DEVICE_ID),
    pci(PCI_IVSHMEM_ID),
    sys::verbs_match_ent {
        u: sys::verbs_match_ent__bindgen_ty_1 {
            modalias: c"dax:t*".as_ptr(),
        },
        kind: kind(sys::VERBS_MATCH_MODALIAS),
        ..END
    },
    END,
]);

/// Ends the table.
const END: sys::verbs_match_ent = sys::verbs_match_ent {
    driver_data: std::ptr::null_mut(),
    u: sys::verbs_match_ent__bindgen_ty_1 { driver_id: 0 },
    vendor: 0,
    device: 0,
    kind: kind(sys::VERBS_MATCH_SENTINEL),
};

/// A PCI function of the vendor that all of ours have.
const fn pci(device: u16) -> sys::verbs_match_ent {
    sys::verbs_match_ent {
        vendor: PCI_VENDOR_ID,
        device,
        kind: kind(sys::VERBS_MATCH_PCI),
        ..END
    }
}

#[expect(clippy::cast_possible_truncation, reason = "kinds are small")]
const fn kind(kind: u32) -> u8 {
    kind as u8
}

/// A table for C to read.
struct Static<T>(T);

// SAFETY: nobody writes to it, and its pointers are to other static memory.
unsafe impl<T> Sync for Static<T> {}

/// `verbs_device_ops::alloc_device`
unsafe extern "C" fn alloc_device(_sysfs: *mut sys::verbs_sysfs_dev) -> *mut sys::verbs_device {
    Pending::<sys::verbs_device, ()>::new().finish(())
}

/// `verbs_device_ops::uninit_device`
unsafe extern "C" fn uninit_device(device: *mut sys::verbs_device) {
    // SAFETY: the device is one of `alloc_device`, and libibverbs is done with it.
    unsafe { Object::<sys::verbs_device, ()>::free(device) }
}

/// Whether a device is one of this provider's.
///
/// # Safety
///
/// It is one of libibverbs's.
pub(super) unsafe fn is_own(device: *mut sys::ibv_device) -> bool {
    // SAFETY: libibverbs has a `verbs_device` for each, which begins with this structure.
    let ops = unsafe { (*device.cast::<sys::verbs_device>()).ops };
    ptr::eq(ops, &raw const DEVICE_OPS.0)
}

/// Registers the provider when the library is loaded, as the macro `PROVIDER_DRIVER` does.
extern "C" fn register() {
    // SAFETY: the table is static.
    unsafe { abi::register_driver(&raw const DEVICE_OPS.0) }
}

/// What this library is, for those who read the file and do not load it (`nupactl version`).
#[no_mangle]
pub(super) static NUPA_PROVIDER: ProviderInfo = ProviderInfo::THIS;

#[used]
#[link_section = ".init_array"]
static REGISTER: extern "C" fn() = register;
