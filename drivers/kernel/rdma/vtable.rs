// SPDX-License-Identifier: GPL-2.0
//! The C callbacks behind [`Driver`].
//!
//! # Safety
//!
//! They are for the RDMA core alone, which knows them from [`VTable::OPS`]. In each call it passes a device or objects that
//! were made for this table's `D` and stay for the time of the call, with structures that are ours for that time. One module
//! for each kind of object holds those that are about it.

#![expect(
    clippy::missing_safety_doc,
    reason = "the contract of all callbacks is that of the module"
)]

mod address;
mod context;
mod counter_set;
mod counters;
mod details;
mod device;
mod device_memory;
mod kernel;
mod memory;
mod methods;
mod qp;
mod queue;

use crate::{bindings, context::Context, object, KernelVerbs};
use core::marker::PhantomData;

/// The table of C callbacks of `D`.
pub(crate) struct VTable<D>(PhantomData<D>);

impl<D: KernelVerbs> VTable<D> {
    /// The table, one per driver, but for its owner and its flags.
    pub(crate) const OPS: bindings::ib_device_ops = bindings::ib_device_ops {
        uverbs_abi_ver: D::UVERBS_ABI,

        query_device: Some(Self::query_device),
        get_dev_fw_str: Some(Self::get_dev_fw_str),
        query_port: Some(Self::query_port),
        get_port_immutable: Some(Self::get_port_immutable),
        get_link_layer: Some(Self::get_link_layer),
        query_pkey: Some(Self::query_pkey),
        alloc_hw_port_stats: Some(Self::alloc_hw_port_stats),
        get_hw_stats: Some(Self::get_hw_stats),
        process_mad: Some(Self::process_mad),
        counter_init: Some(Self::counter_init),
        counter_alloc_stats: Some(Self::counter_alloc_stats),
        counter_bind_qp: Some(Self::counter_bind_qp),
        counter_unbind_qp: Some(Self::counter_unbind_qp),
        counter_update_stats: Some(Self::counter_update_stats),
        counter_dealloc: Some(Self::counter_dealloc),

        add_gid: Some(Self::add_gid),
        del_gid: Some(Self::del_gid),
        create_ah: Some(Self::create_ah),
        create_user_ah: Some(Self::create_user_ah),
        query_ah: Some(Self::query_ah),
        destroy_ah: Some(Self::destroy_ah),

        alloc_ucontext: Some(Self::alloc_ucontext),
        dealloc_ucontext: Some(Self::dealloc_ucontext),
        disassociate_ucontext: Some(Self::disassociate_ucontext),
        mmap: Some(Self::mmap),
        mmap_free: Some(Self::mmap_free),

        alloc_pd: Some(Self::alloc_pd),
        dealloc_pd: Some(Self::dealloc_pd),
        get_dma_mr: Some(Self::get_dma_mr),
        alloc_mr: Some(Self::alloc_mr),
        map_mr_sg: Some(Self::map_mr_sg),
        reg_user_mr: Some(Self::reg_user_mr),
        reg_user_mr_dmabuf: Some(Self::reg_user_mr_dmabuf),
        rereg_user_mr: Some(Self::rereg_user_mr),
        dereg_mr: Some(Self::dereg_mr),
        alloc_mw: Some(Self::alloc_mw),
        dealloc_mw: Some(Self::dealloc_mw),
        alloc_dm: Some(Self::alloc_dm),
        reg_dm_mr: Some(Self::reg_dm_mr),
        dealloc_dm: Some(Self::dealloc_dm),

        create_cq: Some(Self::create_cq),
        create_user_cq: Some(Self::create_user_cq),
        modify_cq: Some(Self::modify_cq),
        resize_user_cq: Some(Self::resize_user_cq),
        poll_cq: Some(Self::poll_cq),
        req_notify_cq: Some(Self::req_notify_cq),
        destroy_cq: Some(Self::destroy_cq),
        pre_destroy_cq: Some(Self::pre_destroy_cq),
        post_destroy_cq: Some(Self::post_destroy_cq),
        create_srq: Some(Self::create_srq),
        modify_srq: Some(Self::modify_srq),
        query_srq: Some(Self::query_srq),
        post_srq_recv: Some(Self::post_srq_recv),
        destroy_srq: Some(Self::destroy_srq),

        create_qp: Some(Self::create_qp),
        modify_qp: Some(Self::modify_qp),
        query_qp: Some(Self::query_qp),
        post_send: Some(Self::post_send),
        post_recv: Some(Self::post_recv),
        attach_mcast: Some(Self::attach_mcast),
        detach_mcast: Some(Self::detach_mcast),
        destroy_qp: Some(Self::destroy_qp),

        fill_res_qp_entry: Some(Self::fill_res_qp_entry),
        fill_res_cq_entry: Some(Self::fill_res_cq_entry),
        fill_res_mr_entry: Some(Self::fill_res_mr_entry),

        size_ib_ah: object::Ah::<D>::SIZE,
        size_ib_cq: object::Cq::<D>::SIZE,
        size_ib_mw: object::Mw::<D>::SIZE,
        size_ib_pd: object::Pd::<D>::SIZE,
        size_ib_qp: object::Qp::<D>::SIZE,
        size_ib_srq: object::Srq::<D>::SIZE,
        size_ib_ucontext: Context::<D>::SIZE,
        size_rdma_counter: size_of::<bindings::rdma_counter>(),

        ..pin_init::zeroed()
    };
}
