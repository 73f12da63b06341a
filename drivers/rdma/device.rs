// SPDX-License-Identifier: GPL-2.0
//! The RDMA device.

use crate::{
    address::Ah,
    context::{Mapping, UserContext},
    counter_sets::CounterSets,
    cq::Cq,
    device_memory::Piece,
    kernel::KernelQps,
    limits::{Domain, Limits},
    qp::{Qp, MAX_SGE},
    region::{MemoryWindow, Region},
    ring::PAGE_SIZES,
    srq::Srq,
};
use core::ops::Range;
use kernel::{prelude::*, sync::Arc};
use nk_rdma::{
    Access, AhAttributes, Context, CqInit, CqNotifier, Details, Device, DeviceAttributes,
    DeviceCaps, DmHandle, Driver, GidAttributes, Keys, Pins, PortAttributes, PortSpeed,
    QpAttributes, QpCapabilities, QpInit, QpMask, QpNotifier, Rereg, SrqAttributes, SrqInit,
    SrqNotifier, Udata, Umem, UserRegion,
};
use nupa_fabric::{DeviceMemory, Port};
use nupa_proto::{
    admin::{DeviceLimits, MAX_ATTACHMENTS, MAX_GROUP_MEMBERS},
    doorbell::SLOTS,
    ident::{PCI_DEVICE_ID, PCI_REVISION, PCI_VENDOR_ID},
    regs::{CAP_FLUSH, CAP_MEM_MGT, CAP_MULTICAST, CAP_MW},
    uabi,
    wqe::{MAX_BLOCKS, MAX_MESSAGE},
};

/// The device's data.
pub(crate) struct Rdma {
    port: Port,
    kernel_qps: Arc<KernelQps>,
    limits: Limits,
    counter_sets: Arc<CounterSets>,
}

impl Rdma {
    /// Data of a device on `port`. Sleeps.
    pub(crate) fn new(port: Port) -> Result<Self> {
        let limits = Limits::new(&port)?;
        Ok(Self {
            port,
            kernel_qps: KernelQps::new()?,
            limits,
            counter_sets: CounterSets::new()?,
        })
    }

    /// The controller's own memory, if it has any.
    pub(crate) fn device_memory(&self) -> Option<&Arc<DeviceMemory>> {
        self.port.device_memory()
    }

    /// What is counted for users.
    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Counters that queue pairs are bound to.
    pub(crate) fn counter_sets(&self) -> &CounterSets {
        &self.counter_sets
    }

    /// Queue pairs that the kernel posts to.
    pub(crate) fn kernel_qps(&self) -> &Arc<KernelQps> {
        &self.kernel_qps
    }

    /// The port below.
    pub(crate) fn port(&self) -> &Port {
        &self.port
    }
}

/// What the controller can do, for those who ask the RDMA core.
fn device_caps(caps: u64, persistent: bool) -> DeviceCaps {
    const ALWAYS: DeviceCaps = DeviceCaps::CURR_QP_STATE_MOD
        .with(DeviceCaps::PORT_ACTIVE_EVENT)
        .with(DeviceCaps::SYS_IMAGE_GUID)
        .with(DeviceCaps::RC_RNR_NAK_GEN);
    const OPTIONAL: [(u64, DeviceCaps); 3] = [
        (CAP_MEM_MGT, DeviceCaps::MEM_MGT_EXTENSIONS),
        (
            CAP_MW,
            DeviceCaps::MEM_WINDOW.with(DeviceCaps::MEM_WINDOW_TYPE_2B),
        ),
        (
            CAP_FLUSH,
            DeviceCaps::FLUSH_GLOBAL.with(DeviceCaps::ATOMIC_WRITE),
        ),
    ];
    let caps_of_controller = OPTIONAL
        .iter()
        .filter(|(cap, _)| caps & cap != 0)
        .fold(ALWAYS, |all, (_, flags)| all.with(*flags));
    match persistent && caps & CAP_FLUSH != 0 {
        true => caps_of_controller.with(DeviceCaps::FLUSH_PERSISTENT),
        false => caps_of_controller,
    }
}

/// Requests of the most blocks each that a send queue has room for, or that a receive queue has: what a program may
/// ask for without knowing which of its requests are long.
pub(crate) fn max_qp_wr(limits: &DeviceLimits) -> u32 {
    let blocks = 1u32 << limits.max_log_sq.min(30);
    let entries = 1u32 << limits.max_log_rq.min(30);
    (blocks / MAX_BLOCKS as u32).min(entries)
}

impl Driver for Rdma {
    type Context = UserContext;
    type Mapping = Mapping;
    type Pd = Domain;
    type Cq = Cq;
    type Srq = Srq;
    type Qp = Qp;
    type Ah = Ah;
    type Mr = Region;
    type Mw = MemoryWindow;
    type Dm = Arc<Piece>;

    const UVERBS_ABI: u32 = uabi::ABI_VERSION;

    fn query_device(dev: &Device<Self>) -> DeviceAttributes {
        let info = dev.port.info();
        let limits = &info.limits;
        let [major, minor, patch] = info.firmware;
        let log2 = |log: u8| 1u32 << log.min(30);
        let slots = info.doorbell_pages.saturating_mul(SLOTS.into());
        DeviceAttributes {
            firmware: u64::from(major) << 32 | u64::from(minor) << 16 | u64::from(patch),
            sys_image_guid: info.guid,
            vendor: PCI_VENDOR_ID.into(),
            part: PCI_DEVICE_ID.into(),
            revision: PCI_REVISION.into(),
            caps: device_caps(info.caps, dev.port.has_persistent_memory()),
            page_sizes: PAGE_SIZES,
            max_mr_size: limits.max_mr_size.get(),
            // One doorbell slot for each of its two queues.
            max_qp: limits.max_qp.get().min(slots / 2),
            max_qp_wr: max_qp_wr(limits),
            max_send_sge: MAX_SGE,
            max_recv_sge: MAX_SGE,
            max_cq: limits.max_cq.get().min(slots),
            max_cqe: log2(limits.max_log_cq),
            max_mr: limits.max_mr.get(),
            max_mw: limits.max_mr.get(),
            max_pd: limits.max_pd.get(),
            max_ah: i32::MAX as u32,
            max_srq: limits.max_srq.get().min(slots),
            max_srq_wr: log2(limits.max_log_srq),
            max_srq_sge: MAX_SGE,
            max_mcast: match info.caps & CAP_MULTICAST {
                0 => (0, 0),
                _ => (MAX_GROUP_MEMBERS, MAX_ATTACHMENTS),
            },
            max_rd_atomic: limits.max_rd_atomic.get().into(),
            max_fast_reg_pages: limits.max_fast_reg_pages.get(),
            max_dm_size: dev.device_memory().map_or(0, |memory| memory.size()),
            cq_moderation: (u16::MAX, u16::MAX),
            clock_khz: info.clock_khz,
        }
    }

    fn query_port(dev: &Device<Self>) -> PortAttributes {
        let info = dev.port.info();
        PortAttributes {
            active: dev.netdev_active(),
            deferred: dev.port.is_draining(),
            gids: info.limits.max_gids.get().into(),
            max_message: MAX_MESSAGE,
            speed: PortSpeed::from_mbps(info.link_speed_mbps),
        }
    }

    fn firmware(dev: &Device<Self>) -> [u16; 3] {
        dev.port.info().firmware
    }

    fn add_gid(dev: &Device<Self>, gid: &GidAttributes) -> Result {
        dev.port.set_gid(gid.index.into(), gid.gid, gid.vlan_id)
    }

    fn del_gid(dev: &Device<Self>, gid: &GidAttributes) {
        // A controller that was lost has none.
        let _ = dev.port.clear_gid(gid.index.into());
    }

    fn alloc_context(dev: &Device<Self>, udata: &mut Udata<'_, Self>) -> Result<UserContext> {
        UserContext::new(dev, udata)
    }

    fn alloc_user_pd(dev: &Device<Self>) -> Result<Domain> {
        Domain::new(&dev.port, dev.limits.domains.charge_user()?)
    }

    fn reg_pfnmap_mr(
        dev: &Device<Self>,
        pd: &nk_rdma::Pd<Self>,
        addr: u64,
        region: &UserRegion,
    ) -> Result<Option<Region>> {
        let mapped = dev.port.mapped_memory(addr, region.len);
        mapped
            .map(|memory| Region::of_mapped(dev, pd, memory, region, EFAULT))
            .transpose()
    }

    fn reg_own_dmabuf_mr(
        dev: &Device<Self>,
        pd: &nk_rdma::Pd<Self>,
        fd: i32,
        offset: u64,
        region: &UserRegion,
    ) -> Result<Option<Region>> {
        let exported = dev.port.dmabuf_memory(fd, offset, region.len);
        exported
            .map(|memory| Region::of_mapped(dev, pd, memory, region, EACCES))
            .transpose()
    }

    fn reg_user_mr(
        dev: &Device<Self>,
        pd: &nk_rdma::Pd<Self>,
        umem: &Umem,
        region: &UserRegion,
    ) -> Result<Region> {
        Region::new(dev, pd, umem, region)
    }

    fn dereg_mr(mr: &nk_rdma::Mr<Self>) -> Result {
        mr.destroy()
    }

    fn rereg_user_mr(mr: &nk_rdma::Mr<Self>, changes: &Rereg<'_, Self>) -> Result<Keys> {
        mr.change(changes)
    }

    fn alloc_mw(dev: &Device<Self>, pd: &nk_rdma::Pd<Self>) -> Result<MemoryWindow> {
        MemoryWindow::new(dev, pd)
    }

    fn alloc_dm(
        dev: &Device<Self>,
        context: &Context<Self>,
        len: u64,
        alignment: u32,
    ) -> Result<(Arc<Piece>, u64)> {
        Piece::for_user(dev, context, len, alignment)
    }

    fn import_dm(
        dev: &Device<Self>,
        context: &Context<Self>,
        len: u64,
        handle: &DmHandle,
    ) -> Result<(Arc<Piece>, u64)> {
        Piece::import(dev, context, len, handle)
    }

    fn find_ring(
        dev: &Device<Self>,
        context: &Context<Self>,
        len: u64,
        qp: &nk_rdma::Qp<Self>,
    ) -> Result<(Arc<Piece>, u64)> {
        Piece::find_ring(dev, context, len, qp)
    }

    fn find_region(
        dev: &Device<Self>,
        context: &Context<Self>,
        qp: &nk_rdma::Qp<Self>,
        key: u32,
    ) -> Result<(Arc<Piece>, u64, Range<u64>)> {
        Piece::find_region(dev, context, qp, key)
    }

    fn export_dm(dm: &nk_rdma::Dm<Self>) -> Result<DmHandle> {
        dm.export()
    }

    fn export_ring(dm: &nk_rdma::Dm<Self>, qp: &nk_rdma::Qp<Self>) -> Result {
        dm.export_ring(qp)
    }

    fn reg_dm_mr(
        dev: &Device<Self>,
        pd: &nk_rdma::Pd<Self>,
        dm: &nk_rdma::Dm<Self>,
        offset: u64,
        len: u64,
        access: Access,
    ) -> Result<Region> {
        dm.register(dev, pd, offset, len, access)
    }

    fn create_user_cq(
        dev: &Device<Self>,
        init: &CqInit,
        notifier: &Arc<CqNotifier>,
        pins: &Pins,
        udata: &mut Udata<'_, Self>,
    ) -> Result<Cq> {
        Cq::for_user(dev, init, notifier, pins, udata)
    }

    fn modify_cq(cq: &nk_rdma::Cq<Self>, count: u16, micros: u16) -> Result {
        cq.control().set_moderation(micros, count)
    }

    fn resize_user_cq(
        dev: &Device<Self>,
        cq: &nk_rdma::Cq<Self>,
        entries: u32,
        pins: &Pins,
        udata: &mut Udata<'_, Self>,
    ) -> Result<u32> {
        cq.resize(dev, entries, pins, udata)
    }

    fn create_user_srq(
        dev: &Device<Self>,
        init: &mut SrqInit<'_, Self>,
        notifier: &Arc<SrqNotifier>,
        pins: &Pins,
        udata: &mut Udata<'_, Self>,
    ) -> Result<Srq> {
        Srq::for_user(dev, init, notifier, pins, udata)
    }

    fn modify_srq(srq: &nk_rdma::Srq<Self>, limit: u32) -> Result {
        srq.set_limit(limit)
    }

    fn query_srq(srq: &nk_rdma::Srq<Self>) -> Result<SrqAttributes> {
        srq.query()
    }

    fn create_user_qp(
        dev: &Device<Self>,
        init: &mut QpInit<'_, Self>,
        notifier: &Arc<QpNotifier>,
        pins: &Pins,
        udata: &mut Udata<'_, Self>,
    ) -> Result<Qp> {
        Qp::for_user(dev, init, notifier, pins, udata)
    }

    fn kick_qp(qp: &nk_rdma::Qp<Self>, send: bool, recv: bool) -> Result {
        if recv && !qp.object.kick_recv() {
            return Err(EINVAL);
        }
        if send {
            qp.object.kick_send();
        }
        Ok(())
    }

    fn kick_peer(qp: &nk_rdma::Qp<Self>) {
        qp.object.kick_peer();
    }

    fn kick_event(qp: &nk_rdma::Qp<Self>) {
        qp.object.kick_event();
    }

    fn kick_srq(srq: &nk_rdma::Srq<Self>) {
        srq.object().kick();
    }

    fn work(dev: &Device<Self>) {
        dev.port().service();
    }

    fn query_clock(dev: &Device<Self>) -> Result<u64> {
        dev.port().clock()
    }

    fn modify_qp(
        dev: &Device<Self>,
        qp: &nk_rdma::Qp<Self>,
        attributes: &QpAttributes,
        mask: QpMask,
    ) -> Result {
        qp.modify(dev, attributes, mask)
    }

    fn attach_mcast(dev: &Device<Self>, qp: &nk_rdma::Qp<Self>, group: &[u8; 16]) -> Result {
        qp.attach(dev, group)
    }

    fn detach_mcast(qp: &nk_rdma::Qp<Self>, group: &[u8; 16]) -> Result {
        qp.detach(group)
    }

    fn query_qp(qp: &nk_rdma::Qp<Self>) -> Result<(QpAttributes, QpCapabilities, bool)> {
        qp.query()
    }

    fn create_user_ah(
        dev: &Device<Self>,
        address: &AhAttributes,
        udata: &mut Udata<'_, Self>,
    ) -> Result<Ah> {
        Ah::for_user(dev, address, udata)
    }

    fn describe_qp(qp: &nk_rdma::Qp<Self>, details: &mut Details) -> Result {
        qp.describe(details)
    }

    fn describe_cq(cq: &nk_rdma::Cq<Self>, details: &mut Details) -> Result {
        cq.describe(details)
    }

    fn describe_mr(mr: &nk_rdma::Mr<Self>, details: &mut Details) -> Result {
        mr.describe(details)
    }

    fn query_ah(ah: &nk_rdma::Ah<Self>) -> AhAttributes {
        ah.attributes
    }
}
