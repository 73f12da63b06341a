// SPDX-License-Identifier: GPL-2.0
//! What a driver implements for users in the kernel.

use crate::{
    Access, AhAttributes, Completions, CounterName, Cq, CqInit, CqNotifier, Device, Driver, Mr, Pd,
    Qp, QpHandle, QpInit, QpNotifier, RecvWrs, SendWrs, Srq, SrqInit, SrqNotifier, Traffic,
};
use kernel::{prelude::*, sync::Arc};

/// Operations of an RDMA device that users in the kernel need beside those of [`Driver`].
///
/// Posting, polling and arming work in any context, hard interrupts included; the rest runs in process context and
/// may sleep, unless it says otherwise. The core passes only objects that were made by the functions here, never
/// those of a process.
pub trait KernelVerbs: Driver {
    /// Local key that stands for all memory, whose addresses are DMA addresses then.
    const LOCAL_DMA_LKEY: u32;
    /// Names of the port's counters. The last ones are those that sets of counters have.
    const COUNTERS: &'static [CounterName];
    /// Counters of a set, at most as many as there are names.
    const SET_COUNTERS: usize;
    /// So many values.
    type SetValues: AsRef<[u64]>;

    /// Makes a protection domain.
    fn alloc_pd(dev: &Device<Self>) -> Result<Self::Pd>;

    /// Makes a completion queue.
    fn create_cq(dev: &Device<Self>, init: &CqInit, notifier: &Arc<CqNotifier>)
        -> Result<Self::Cq>;

    /// Takes completions until there are none or there is no room. Any context.
    fn poll_cq(cq: &Cq<Self>, completions: &mut Completions<'_>) -> Result;

    /// Asks for one call of the completion handler at the next completion (`solicited_only`: of a solicited message
    /// or an error). Returns whether there are completions already. Any context.
    fn req_notify_cq(cq: &Cq<Self>, solicited_only: bool) -> bool;

    /// Makes a shared receive queue.
    fn create_srq(
        dev: &Device<Self>,
        init: &mut SrqInit<'_, Self>,
        notifier: &Arc<SrqNotifier>,
    ) -> Result<Self::Srq>;

    /// Posts receive requests; the one that was taken last has failed if this does. Any context.
    fn post_srq_recv(srq: &Srq<Self>, requests: &mut RecvWrs<'_>) -> Result;

    /// Makes a queue pair that completions name by `handle`.
    fn create_qp(
        dev: &Device<Self>,
        init: &mut QpInit<'_, Self>,
        notifier: &Arc<QpNotifier>,
        handle: QpHandle,
    ) -> Result<Self::Qp>;

    /// Posts send requests; the one that was taken last has failed if this does. Any context.
    fn post_send(qp: &Qp<Self>, requests: &mut SendWrs<'_, Self>) -> Result;

    /// Posts receive requests; the one that was taken last has failed if this does. Any context.
    fn post_recv(qp: &Qp<Self>, requests: &mut RecvWrs<'_>) -> Result;

    /// Makes an address handle. Does not sleep.
    fn create_ah(dev: &Device<Self>, address: &AhAttributes) -> Result<Self::Ah>;

    /// Makes a region of all memory, whose addresses are DMA addresses.
    fn dma_mr(dev: &Device<Self>, access: Access) -> Result<Self::Mr>;

    /// Makes a region for fast registration of at most `max_pages` pages.
    fn alloc_mr(dev: &Device<Self>, pd: &Pd<Self>, max_pages: u32) -> Result<Self::Mr>;

    /// Forgets the pages of a region for fast registration; the next ones have `size` bytes, whatever the user made of that.
    /// `EINVAL` if the device has no such pages. Any context.
    fn start_pages(mr: &Mr<Self>, size: u32) -> Result;

    /// Adds a page of that size to those of a region for fast registration. `ENOMEM` if it has no room. Any context.
    fn add_page(mr: &Mr<Self>, addr: u64) -> Result;

    /// Reads the port's counters, in the order of [`KernelVerbs::COUNTERS`].
    fn counters(dev: &Device<Self>, values: &mut [u64]) -> Result;

    /// What the port has moved.
    fn traffic(dev: &Device<Self>) -> Result<Traffic>;

    /// Counts what a queue pair, of processes or of the kernel, does from now on in a set of counters: one that was returned before and not
    /// freed since, or a new one. Returns its number, which is not 0. `EINVAL` if the pair is counted already.
    fn bind_counters(dev: &Device<Self>, set: Option<u32>, qp: &Qp<Self>) -> Result<u32>;

    /// Ends that. The set keeps what it has counted of the pair.
    fn unbind_counters(dev: &Device<Self>, qp: &Qp<Self>);

    /// Reads a set, in the order of the last [`KernelVerbs::SET_COUNTERS`] of [`KernelVerbs::COUNTERS`]. The core adds all sets that there
    /// are and were to the port's counters of these names.
    fn read_set(dev: &Device<Self>, set: u32) -> Result<Self::SetValues>;

    /// Frees a set that no pair is counted in any more.
    fn free_set(dev: &Device<Self>, set: u32);
}
