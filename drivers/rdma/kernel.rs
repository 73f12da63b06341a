// SPDX-License-Identifier: GPL-2.0
//! Verbs for users in the kernel: connection management, storage, file systems.
//!
//! Their rings are coherent memory that the port makes. Locks are taken in this order, all of them with interrupts
//! off: that of a completion queue, that of a send, receive or shared receive queue.

mod completion;
mod cq;
mod events;
mod lost;
mod pairs;
mod qp;
mod region;
mod request;
mod srq;

pub(crate) use self::{
    cq::KernelCq, events::LateEvents, pairs::KernelQps, qp::KernelQp, region::FastRegion,
    srq::KernelSrq,
};

use crate::{
    address::{self, Ah},
    counter_sets,
    counters::{read_counters, read_traffic, COUNTERS},
    cq::Cq,
    device::Rdma,
    limits::Domain,
    qp::Qp,
    region::Region,
    srq::Srq,
};
use kernel::{prelude::*, sync::Arc};
use nk_rdma::{
    error::unsupported, Access, AhAttributes, Completions, CounterName, CqInit, CqNotifier, Device,
    KernelVerbs, QpHandle, QpInit, QpNotifier, RecvWrs, SendWrs, SrqInit, SrqNotifier, Traffic,
};

use nupa_proto::ident::DMA_LKEY;

impl KernelVerbs for Rdma {
    const LOCAL_DMA_LKEY: u32 = DMA_LKEY;
    const COUNTERS: &'static [CounterName] = &COUNTERS;
    const SET_COUNTERS: usize = counter_sets::COUNT;
    type SetValues = counter_sets::Values;

    fn alloc_pd(dev: &Device<Self>) -> Result<Domain> {
        Domain::new(dev.port(), dev.limits().domains.charge_kernel())
    }

    fn create_cq(dev: &Device<Self>, init: &CqInit, notifier: &Arc<CqNotifier>) -> Result<Cq> {
        Cq::for_kernel(dev, init, notifier)
    }

    fn poll_cq(cq: &nk_rdma::Cq<Self>, completions: &mut Completions<'_>) -> Result {
        cq.kernel()?.poll(completions);
        Ok(())
    }

    fn req_notify_cq(cq: &nk_rdma::Cq<Self>, solicited_only: bool) -> bool {
        cq.kernel().is_ok_and(|cq| cq.arm(solicited_only))
    }

    fn create_srq(
        dev: &Device<Self>,
        init: &mut SrqInit<'_, Self>,
        notifier: &Arc<SrqNotifier>,
    ) -> Result<Srq> {
        Srq::for_kernel(dev, init, notifier)
    }

    fn post_srq_recv(srq: &nk_rdma::Srq<Self>, requests: &mut RecvWrs<'_>) -> Result {
        srq.kernel()?.post(requests)
    }

    fn create_qp(
        dev: &Device<Self>,
        init: &mut QpInit<'_, Self>,
        notifier: &Arc<QpNotifier>,
        handle: QpHandle,
    ) -> Result<Qp> {
        Qp::for_kernel(dev, init, notifier, handle)
    }

    fn post_send(qp: &nk_rdma::Qp<Self>, requests: &mut SendWrs<'_, Self>) -> Result {
        qp.kernel()?.post_send(requests)
    }

    fn post_recv(qp: &nk_rdma::Qp<Self>, requests: &mut RecvWrs<'_>) -> Result {
        qp.kernel()?.post_recv(requests)
    }

    fn create_ah(dev: &Device<Self>, address: &AhAttributes) -> Result<Ah> {
        address::check(dev, address)?;
        Ok(Ah {
            attributes: *address,
        })
    }

    fn dma_mr(dev: &Device<Self>, access: Access) -> Result<Region> {
        if access.without(Access::LOCAL_WRITE).is_empty() {
            Ok(Region::all_memory(dev))
        } else {
            // A remote key for all memory is one too many.
            Err(unsupported())
        }
    }

    fn alloc_mr(dev: &Device<Self>, pd: &nk_rdma::Pd<Self>, max_pages: u32) -> Result<Region> {
        Region::for_fast_registration(dev, pd, max_pages)
    }

    fn start_pages(mr: &nk_rdma::Mr<Self>, size: u32) -> Result {
        mr.fast().ok_or(EINVAL)?.start(size)
    }

    fn add_page(mr: &nk_rdma::Mr<Self>, addr: u64) -> Result {
        mr.fast().ok_or(EINVAL)?.add(addr)
    }

    fn counters(dev: &Device<Self>, values: &mut [u64]) -> Result {
        read_counters(dev.port(), values)
    }

    fn traffic(dev: &Device<Self>) -> Result<Traffic> {
        read_traffic(dev.port())
    }

    fn bind_counters(dev: &Device<Self>, set: Option<u32>, qp: &nk_rdma::Qp<Self>) -> Result<u32> {
        dev.counter_sets().bind(set, qp)
    }

    fn unbind_counters(dev: &Device<Self>, qp: &nk_rdma::Qp<Self>) {
        dev.counter_sets().unbind(qp);
    }

    fn read_set(dev: &Device<Self>, set: u32) -> Result<counter_sets::Values> {
        dev.counter_sets().read(set)
    }

    fn free_set(dev: &Device<Self>, set: u32) {
        dev.counter_sets().free(set);
    }
}
