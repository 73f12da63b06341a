// SPDX-License-Identifier: GPL-2.0
//! What a driver of an RDMA device implements.

use crate::{
    bindings, Access, AhAttributes, Context, CqInit, CqNotifier, Details, Device, DeviceAttributes,
    Dm, GidAttributes, Mr, Pd, Pins, PortAttributes, Qp, QpAttributes, QpInit, QpMask, QpNotifier,
    Srq, SrqAttributes, SrqInit, SrqNotifier, Udata, Umem,
};
use core::ops::Range;
use kernel::{prelude::*, sync::Arc};

/// Memory of user space to be registered.
#[derive(Clone, Copy, Debug)]
pub struct UserRegion {
    /// Address that descriptors use for the first byte.
    pub iova: u64,
    /// Bytes.
    pub len: u64,
    /// Rights.
    pub access: Access,
}

/// Keys of a memory region.
#[derive(Clone, Copy, Debug, Default)]
pub struct Keys {
    /// Local key.
    pub local: u32,
    /// Remote key.
    pub remote: u32,
}

/// Changes to a memory region: what is `None` remains as it is.
pub struct Rereg<'a, D: Driver> {
    /// New memory: where it is, its address for descriptors, its bytes.
    pub memory: Option<(&'a Umem, u64, u64)>,
    /// New protection domain.
    pub pd: Option<&'a Pd<D>>,
    /// New rights.
    pub access: Option<Access>,
}

/// What a memory region or window tells the core.
pub trait MemoryKeys {
    /// Its keys.
    fn keys(&self) -> Keys;
}

/// What a completion queue tells the core.
pub trait CompletionQueue {
    /// Entries that it has room for.
    fn entries(&self) -> u32;
}

/// What a queue pair tells the core.
pub trait QueuePair {
    /// Its number.
    fn number(&self) -> u32;
}

/// Names device memory that is shared, as only its driver understands.
pub type DmHandle = [u8; bindings::nk_rdma_const_NK_RDMA_DM_HANDLE_SIZE as usize];

/// Operations of an RDMA device (`struct ib_device_ops`) with one RoCE v2 port.
///
/// All run in process context and may sleep, unless they say otherwise; the core sees to it that what they are passed
/// stays. Data of an object is dropped when the core destroys it, also in process context. `dev` and objects are of
/// the same device.
pub trait Driver: Sized + Send + Sync + 'static {
    /// Data of a user context.
    type Context: Send + Sync;
    /// What is kept for as long as a process maps what it was offered.
    type Mapping: Send + Sync;
    /// Data of a protection domain.
    type Pd: Send + Sync;
    /// Data of a completion queue.
    type Cq: CompletionQueue + Send + Sync;
    /// Data of a shared receive queue.
    type Srq: Send + Sync;
    /// Data of a queue pair.
    type Qp: QueuePair + Send + Sync;
    /// Data of an address handle.
    type Ah: Send + Sync;
    /// Data of a memory region.
    type Mr: MemoryKeys + Send + Sync;
    /// Data of a memory window.
    type Mw: MemoryKeys + Send + Sync;
    /// Data of an allocation of device memory.
    type Dm: Send + Sync;

    /// Version of the interface between driver and provider.
    const UVERBS_ABI: u32;

    /// Attributes of the device.
    fn query_device(dev: &Device<Self>) -> DeviceAttributes;

    /// Attributes of the port.
    fn query_port(dev: &Device<Self>) -> PortAttributes;

    /// Firmware version: major, minor, patch.
    fn firmware(dev: &Device<Self>) -> [u16; 3];

    /// An entry of the GID table is now this.
    fn add_gid(dev: &Device<Self>, gid: &GidAttributes) -> Result;

    /// An entry of the GID table is no more.
    fn del_gid(dev: &Device<Self>, gid: &GidAttributes);

    /// A process opens the device.
    fn alloc_context(dev: &Device<Self>, udata: &mut Udata<'_, Self>) -> Result<Self::Context>;

    /// Makes a protection domain for a process.
    fn alloc_user_pd(dev: &Device<Self>) -> Result<Self::Pd>;

    /// Registers memory that the calling process has mapped at `addr` and that cannot be pinned (`VM_PFNMAP`), if it is the device's own.
    /// `None` if it is not: then it is pinned for [`Driver::reg_user_mr`]. `EFAULT`, as of `ib_umem_get()`, if the process may not access all
    /// of it as the region is to be. Takes the process's `mmap_lock`.
    fn reg_pfnmap_mr(
        dev: &Device<Self>,
        pd: &Pd<Self>,
        addr: u64,
        region: &UserRegion,
    ) -> Result<Option<Self::Mr>>;

    /// Registers `region.len` bytes at `offset` of a DMA buffer of the calling process, if its memory is the device's own. `None` if it is not:
    /// then it is pinned for [`Driver::reg_user_mr`]. `EACCES` if the buffer's file does not allow what the region is to allow.
    fn reg_own_dmabuf_mr(
        dev: &Device<Self>,
        pd: &Pd<Self>,
        fd: i32,
        offset: u64,
        region: &UserRegion,
    ) -> Result<Option<Self::Mr>>;

    /// Registers pinned memory of a process.
    fn reg_user_mr(
        dev: &Device<Self>,
        pd: &Pd<Self>,
        umem: &Umem,
        region: &UserRegion,
    ) -> Result<Self::Mr>;

    /// Takes a memory region away from the hardware, before it is dropped. If this fails the region stays as it is:
    /// windows may be bound to it.
    fn dereg_mr(mr: &Mr<Self>) -> Result;

    /// Changes a memory region as a whole: on success the hardware has let go of what it was before. Returns its keys.
    fn rereg_user_mr(mr: &Mr<Self>, changes: &Rereg<'_, Self>) -> Result<Keys>;

    /// Makes a memory window of type 2.
    fn alloc_mw(dev: &Device<Self>, pd: &Pd<Self>) -> Result<Self::Mw>;

    /// Allocates `len` bytes of device memory, aligned to a power of two (`alignment` is its logarithm), and offers
    /// it to the process ([`Context::offer`]). Returns the offset for `mmap()` too.
    fn alloc_dm(
        dev: &Device<Self>,
        context: &Context<Self>,
        len: u64,
        alignment: u32,
    ) -> Result<(Self::Dm, u64)>;

    /// As [`Driver::alloc_dm`], with what was exported under `handle`, on whichever node, and has `len` bytes.
    fn import_dm(
        dev: &Device<Self>,
        context: &Context<Self>,
        len: u64,
        handle: &DmHandle,
    ) -> Result<(Self::Dm, u64)>;

    /// As [`Driver::import_dm`], with what the peer of a connected queue pair has made for it to send to.
    fn find_ring(
        dev: &Device<Self>,
        context: &Context<Self>,
        len: u64,
        qp: &Qp<Self>,
    ) -> Result<(Self::Dm, u64)>;

    /// Lets the process map the peer's memory that a key names for requests of a connected queue pair, for as long as the peer allows it. Where that begins for
    /// those requests, and its bytes, are returned as well.
    fn find_region(
        dev: &Device<Self>,
        context: &Context<Self>,
        qp: &Qp<Self>,
        key: u32,
    ) -> Result<(Self::Dm, u64, Range<u64>)>;

    /// Lets the peer of a connected queue pair find device memory as what it sends to, until one of both is destroyed or the pair does not
    /// receive any more.
    fn export_ring(dm: &Dm<Self>, qp: &Qp<Self>) -> Result;

    /// Lets processes of all nodes import device memory for as long as it exists; returns what they do that with.
    fn export_dm(dm: &Dm<Self>) -> Result<DmHandle>;

    /// Registers a part of device memory whose first byte descriptors know as 0; it lies inside.
    fn reg_dm_mr(
        dev: &Device<Self>,
        pd: &Pd<Self>,
        dm: &Dm<Self>,
        offset: u64,
        len: u64,
        access: Access,
    ) -> Result<Self::Mr>;

    /// Makes a completion queue in memory of a process.
    fn create_user_cq(
        dev: &Device<Self>,
        init: &CqInit,
        notifier: &Arc<CqNotifier>,
        pins: &Pins,
        udata: &mut Udata<'_, Self>,
    ) -> Result<Self::Cq>;

    /// Delays events of a completion queue until `count` entries have come in or `micros` microseconds after the first.
    fn modify_cq(cq: &crate::Cq<Self>, count: u16, micros: u16) -> Result;

    /// Has the hardware go on in other memory of the process, with room for `entries`; on success it has let go of what
    /// it used before. One call at a time for a queue. Returns for how many entries there is room.
    fn resize_user_cq(
        dev: &Device<Self>,
        cq: &crate::Cq<Self>,
        entries: u32,
        pins: &Pins,
        udata: &mut Udata<'_, Self>,
    ) -> Result<u32>;

    /// Makes a shared receive queue in memory of a process.
    fn create_user_srq(
        dev: &Device<Self>,
        init: &mut SrqInit<'_, Self>,
        notifier: &Arc<SrqNotifier>,
        pins: &Pins,
        udata: &mut Udata<'_, Self>,
    ) -> Result<Self::Srq>;

    /// Sets the limit of a shared receive queue.
    fn modify_srq(srq: &Srq<Self>, limit: u32) -> Result;

    /// Sizes and limit of a shared receive queue.
    fn query_srq(srq: &Srq<Self>) -> Result<SrqAttributes>;

    /// Makes a queue pair in memory of a process.
    fn create_user_qp(
        dev: &Device<Self>,
        init: &mut QpInit<'_, Self>,
        notifier: &Arc<QpNotifier>,
        pins: &Pins,
        udata: &mut Udata<'_, Self>,
    ) -> Result<Self::Qp>;

    /// A process has posted to the named queues of its pair, and asks for a kick because it cannot give one itself.
    /// `EINVAL` if the pair has no receive queue of its own, and that is named.
    fn kick_qp(qp: &Qp<Self>, send: bool, recv: bool) -> Result;

    /// A process has left a message for a queue pair's peer, which waits for an event.
    fn kick_peer(qp: &Qp<Self>);

    /// A process has a receive entry now for a message that others left for a queue pair, and waits for its event.
    fn kick_event(qp: &Qp<Self>);

    /// As [`Driver::kick_qp`], of a shared receive queue.
    fn kick_srq(srq: &Srq<Self>);

    /// A process that waits for a completion has the device work in its time, if it has no processor of its own. May sleep.
    fn work(dev: &Device<Self>);

    /// The clock that timestamps of completions are taken from. May sleep.
    fn query_clock(dev: &Device<Self>) -> Result<u64>;

    /// Changes those attributes of a queue pair that `mask` names.
    fn modify_qp(
        dev: &Device<Self>,
        qp: &Qp<Self>,
        attributes: &QpAttributes,
        mask: QpMask,
    ) -> Result;

    /// Attaches a UD queue pair to a multicast group, whose GID the core has checked to be one. Fails if it is attached: a process that
    /// attaches it again with the same LID does not come here, one with another LID does, and is detached for each success.
    fn attach_mcast(dev: &Device<Self>, qp: &Qp<Self>, group: &[u8; 16]) -> Result;

    /// Detaches a queue pair from a multicast group. Fails if it is not attached and then only: the core would never destroy the pair.
    fn detach_mcast(qp: &Qp<Self>, group: &[u8; 16]) -> Result;

    /// Attributes of a queue pair, its sizes, and whether all its send requests are signaled.
    fn query_qp(qp: &Qp<Self>) -> Result<(QpAttributes, crate::QpCapabilities, bool)>;

    /// Makes an address handle for a process.
    fn create_user_ah(
        dev: &Device<Self>,
        address: &AhAttributes,
        udata: &mut Udata<'_, Self>,
    ) -> Result<Self::Ah>;

    /// Details of a queue pair for those who list resources.
    fn describe_qp(qp: &Qp<Self>, details: &mut Details) -> Result;

    /// Details of a completion queue for those who list resources.
    fn describe_cq(cq: &crate::Cq<Self>, details: &mut Details) -> Result;

    /// Details of a memory region for those who list resources.
    fn describe_mr(mr: &Mr<Self>, details: &mut Details) -> Result;

    /// The address in a handle. Any context.
    fn query_ah(ah: &crate::Ah<Self>) -> AhAttributes;
}
