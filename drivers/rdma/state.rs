// SPDX-License-Identifier: GPL-2.0
//! How queue pairs change: the state diagram and attributes of the InfiniBand specification, as the controller knows
//! them.

use crate::{
    access::rights,
    address::node_of,
    device::Rdma,
    multicast::Membership,
    peer_region::{MappedRegion, PairsRegion},
    process_ring::{OwnRing, RingPart},
    qp::Qp,
};
use core::ops::Range;
use kernel::prelude::*;
use nk_rdma::{error::unsupported, Device, QpAttributes, QpCapabilities, QpMask, QpState, QpType};
use nupa_fabric::{Charge, ExportedMemory, KnownRing};
use nupa_proto::admin::{
    ModifyQp, MAX_RNR_TIMER, QP_MASK_ACCESS, QP_MASK_QKEY, QP_MASK_RD_ATOMIC, QP_MASK_REMOTE,
    QP_MASK_RNR_RETRY, QP_MASK_SQ_PSN, QP_MASK_STATE, RNR_RETRY_FOREVER,
};
use nupa_proto::{ident::mac_node, pool::sharing::RingOwner};

/// What is known of a queue pair besides what the controller knows.
#[derive(Default)]
pub(crate) struct State {
    /// As last set. The state may have changed since, by errors.
    attributes: QpAttributes,
    /// Multicast groups that it is in.
    pub(crate) groups: KVec<Membership>,
    rings: Rings,
}

/// The process rings of a pair, as far as it has any. Behind the locks of their memory.
#[derive(Default)]
struct Rings {
    /// The one that it receives from: known until the pair is reset or goes, because the controller counts until then what its process takes; ...
    known: Option<RingPart<KnownRing>>,
    /// ... and closed when the pair does not receive any more.
    export: Option<RingPart<ExportedMemory>>,
    /// The one that it sends to.
    peer: Option<RingPart<KnownRing>>,
    /// Regions of its peer's that its process has mapped for it.
    regions: KVec<PairsRegion>,
}

impl State {
    /// Closes the ring that the pair receives from, if there is one, and takes away what its process has mapped of its peer's. Sleeps.
    pub(crate) fn close_ring(&mut self) {
        self.rings.export = None;
        self.rings.regions.clear();
    }

    /// Has the controller forget the pair's rings, and closes its own: before the pair goes, and when it was reset. Sleeps.
    pub(crate) fn forget_rings(&mut self) {
        self.rings = Rings::default();
    }

    /// Closes the pair's own ring, or has all its rings forgotten, if the change that `next` and `mask` say is one to a state in which it does not receive. After the change:
    /// what a peer sends from now on, it sends to a pair that refuses it.
    fn end_rings_if(&mut self, next: &QpAttributes, mask: QpMask) {
        match next.state {
            QpState::Reset if mask.has(QpMask::STATE) => self.forget_rings(),
            QpState::Err if mask.has(QpMask::STATE) => self.close_ring(),
            _ => {}
        }
    }
}

/// Bits of a packet sequence number.
const PSN_MASK: u32 = 0xff_ffff;

/// Refuses attributes that no queue pair of this device can have.
fn check(dev: &Device<Rdma>, attributes: &QpAttributes, mask: QpMask) -> Result {
    if mask.has(QpMask::ALT_PATH) || mask.has(QpMask::CAP) {
        return Err(unsupported());
    }
    let max_rd_atomic = dev.port().info().limits.max_rd_atomic.get();
    let wrong = [
        mask.has(QpMask::PORT) && attributes.port != 1,
        mask.has(QpMask::PKEY_INDEX) && attributes.pkey_index != 0,
        // `enum ib_mtu`: 256 to 4096 bytes.
        mask.has(QpMask::PATH_MTU) && !(1..=5).contains(&attributes.path_mtu),
        mask.has(QpMask::MAX_RD_ATOMIC) && u16::from(attributes.max_rd_atomic) > max_rd_atomic,
        mask.has(QpMask::MAX_DEST_RD_ATOMIC)
            && u16::from(attributes.max_dest_rd_atomic) > max_rd_atomic,
        mask.has(QpMask::MIN_RNR_TIMER) && attributes.min_rnr_timer > MAX_RNR_TIMER,
        mask.has(QpMask::RNR_RETRY) && attributes.rnr_retry > RNR_RETRY_FOREVER,
        mask.has(QpMask::RETRY_CNT) && attributes.retry_count > 7,
        mask.has(QpMask::AV) && attributes.address.is_none(),
    ];
    if wrong.contains(&true) {
        return Err(EINVAL);
    }
    Ok(())
}

impl Qp {
    /// Changes those attributes that `mask` names.
    pub(crate) fn modify(
        &self,
        dev: &Device<Rdma>,
        attributes: &QpAttributes,
        mask: QpMask,
    ) -> Result {
        check(dev, attributes, mask)?;
        let mut state = self.state.lock();
        if mask.has(QpMask::STATE) && attributes.state == QpState::Err {
            if let Some(kernel) = self.kernel.as_ref().filter(|_| self.object.is_lost()) {
                state.attributes.state = QpState::Err;
                kernel.lose();
                return Ok(());
            }
        }
        let mut next = state.attributes;
        next.take(attributes, mask);
        let current = self.current_state(state.attributes.state)?;
        if mask.has(QpMask::CUR_STATE) && attributes.cur_state != current {
            return Err(EINVAL);
        }
        next.state = match mask.has(QpMask::STATE) {
            true => attributes.state,
            false => current,
        };
        if !QpAttributes::transition_ok(current, next.state, self.qp_type, mask) {
            return Err(EINVAL);
        }
        let command = self.command(dev, &next, mask)?;
        // The event may come before the command is done.
        self.handler.set_sqd_notify(next.sqd_notify);
        if command.mask.get() != 0 {
            let done = self.object.modify(&command);
            if done.is_ok() || self.object.is_lost() {
                state.end_rings_if(&next, mask);
            }
            done.inspect_err(|_| self.handler.set_sqd_notify(state.attributes.sqd_notify))?;
        }
        if next.state == QpState::Reset && mask.has(QpMask::STATE) {
            if let Some(kernel) = &self.kernel {
                kernel.reset();
            }
        }
        state.attributes = match next.state {
            QpState::Reset => QpAttributes::default(),
            _ => next,
        };
        Ok(())
    }

    /// The state that the controller has the pair in, which was `last` when somebody set it.
    fn current_state(&self, last: QpState) -> Result<QpState> {
        match last {
            // The pair leaves these when it is told to only.
            QpState::Reset | QpState::Init | QpState::Err => Ok(last),
            _ => QpState::try_from(u32::from(self.object.query()?.state)),
        }
    }

    /// The command that makes the pair what `next` says, as far as `mask` goes.
    fn command(&self, dev: &Device<Rdma>, next: &QpAttributes, mask: QpMask) -> Result<ModifyQp> {
        let mut command = ModifyQp::default();
        let mut changed = 0;
        if mask.has(QpMask::STATE) {
            changed |= QP_MASK_STATE;
            command.state = next.state as u8;
        }
        match self.qp_type {
            QpType::Rc => changed |= connection(dev, next, mask, &mut command)?,
            QpType::Ud | QpType::Gsi => {
                if mask.has(QpMask::QKEY) {
                    changed |= QP_MASK_QKEY;
                    command.qkey = next.qkey.into();
                }
            }
        }
        command.mask = changed.into();
        Ok(command)
    }

    /// The node that a connected pair was told to talk to. Sleeps.
    pub(crate) fn remote_node(&self) -> Option<u16> {
        self.connected_to(&self.state.lock().attributes)
    }

    /// Has `import` import the process ring that this pair sends to: from the node of its peer, which exports it in this way. It returns the ring's DMA address as
    /// well, and the controller knows the ring until the part that is returned is dropped, before the memory is. `EINVAL` if the pair is not
    /// connected, or does not send. Sleeps.
    pub(crate) fn use_ring<T>(
        &self,
        dev: &Device<Rdma>,
        import: impl FnOnce(u16, &RingOwner) -> Result<(u64, T)>,
    ) -> Result<(RingPart<KnownRing>, T)> {
        // Until the controller knows: no pair has rings from before it was reset.
        let mut state = self.state.lock();
        let attributes = &state.attributes;
        let now = self.current_state(attributes.state)?;
        let sends = matches!(now, QpState::Rts | QpState::Sqd);
        let own = dev.port().info().node;
        // There is nobody on this node to tell that an event is waited for.
        let node = self
            .connected_to(attributes)
            .filter(|node| sends && *node != own);
        let ring = RingOwner {
            qpn: attributes.dest_qpn.into(),
            peer_qpn: self.object.number().into(),
            psn: (attributes.sq_psn & PSN_MASK).into(),
            peer: own.into(),
            is_ring: 1.into(),
        };
        let (address, imported) = import(node.ok_or(EINVAL)?, &ring)?;
        // The controller knows one at a time.
        state.rings.peer = None;
        let (of_memory, of_pair) = RingPart::both(self.object.send_to(address)?)?;
        state.rings.peer = Some(of_pair);
        Ok((of_memory, imported))
    }

    /// Lets the pair's process map the region that a key of its peer names, and says where that is for requests of the pair. The process has it until it is
    /// dropped, or the pair is reset or goes. `EINVAL` if the pair is not connected to another node, else as
    /// [`Port::map_granted`](nupa_fabric::Port::map_granted). Sleeps.
    pub(crate) fn map_region(
        &self,
        dev: &Device<Rdma>,
        key: u32,
        charge: Charge,
    ) -> Result<(MappedRegion, Range<u64>)> {
        // No pair has regions from before it was reset.
        let mut state = self.state.lock();
        let own = dev.port().info().node;
        let node = self.connected_to(&state.attributes);
        node.filter(|node| *node != own).ok_or(EINVAL)?;
        let regions = &mut state.rings.regions;
        // So there are no more than grants that can be mapped.
        regions.retain(|region| !region.is_over());
        regions.reserve(1, GFP_KERNEL_ACCOUNT)?;
        let memory = dev.port().map_granted(self.object.number(), key)?;
        let place = memory.place();
        let mark = self.object.mapping_mark();
        let region = MappedRegion::new(memory, mark, charge)?;
        regions.push(region.of_pair(), GFP_KERNEL_ACCOUNT)?;
        Ok((region, place))
    }

    /// Has `export` export the process ring that this pair receives from. What is the memory's of it is returned. `address`: the ring's DMA address; the controller
    /// knows the ring before `export` is called. `EINVAL` if the pair is not connected, does not receive, or has a ring. Sleeps.
    pub(crate) fn publish_ring(
        &self,
        address: u64,
        export: impl FnOnce(&RingOwner) -> Result<ExportedMemory>,
    ) -> Result<OwnRing> {
        let mut state = self.state.lock();
        let attributes = &state.attributes;
        let receives = self.receives(attributes)?;
        let has_ring = state.rings.export.as_ref().is_some_and(RingPart::is_there);
        let node = self.connected_to(attributes).filter(|_| receives);
        let node = node.filter(|_| self.object.has_recv_queue() && !has_ring);
        let owner = RingOwner {
            qpn: self.object.number().into(),
            peer_qpn: attributes.dest_qpn.into(),
            psn: (attributes.rq_psn & PSN_MASK).into(),
            peer: node.ok_or(EINVAL)?.into(),
            is_ring: 1.into(),
        };
        self.handler.expect_ring()?;
        // Before the peer can find it, and put something into it.
        let known = self.object.receive_from(address)?;
        let (of_memory, of_pair) = OwnRing::both(known, export(&owner)?)?;
        // What the controller did before that was said is not told.
        if !self.receives(&state.attributes)? {
            return Err(EINVAL);
        }
        let OwnRing { known, export } = of_pair;
        (state.rings.known, state.rings.export) = (Some(known), Some(export));
        Ok(of_memory)
    }

    /// Whether the pair, which was last set to these attributes, receives.
    fn receives(&self, attributes: &QpAttributes) -> Result<bool> {
        let now = self.current_state(attributes.state)?;
        Ok(matches!(now, QpState::Rtr | QpState::Rts | QpState::Sqd))
    }

    /// The node that a pair was told to talk to by its attributes.
    fn connected_to(&self, attributes: &QpAttributes) -> Option<u16> {
        let address = attributes.address.filter(|_| self.qp_type == QpType::Rc)?;
        mac_node(&address.dmac)
    }

    /// Attributes as they are now, sizes, and whether all send requests are signaled.
    pub(crate) fn query(&self) -> Result<(QpAttributes, QpCapabilities, bool)> {
        let state = self.state.lock();
        let mut attributes = state.attributes;
        attributes.state = self.current_state(attributes.state)?;
        attributes.cur_state = attributes.state;
        Ok((attributes, self.capabilities, self.signal_all))
    }
}

/// Fills in what a connected pair has; returns which fields those are.
fn connection(
    dev: &Device<Rdma>,
    next: &QpAttributes,
    mask: QpMask,
    command: &mut ModifyQp,
) -> Result<u32> {
    let mut changed = 0;
    if let Some(address) = next.address.filter(|_| mask.has(QpMask::AV)) {
        let node = node_of(&address.dmac)?;
        changed |= QP_MASK_REMOTE;
        command.remote_node = node.into();
        command.remote_qpn = next.dest_qpn.into();
        command.remote_epoch = dev.port().peer_epoch(node)?.into();
        // Comes with the address (INIT to RTR), see `ib_modify_qp_is_ok()`.
        command.rq_psn = (next.rq_psn & PSN_MASK).into();
    }
    if mask.has(QpMask::SQ_PSN) {
        changed |= QP_MASK_SQ_PSN;
        command.sq_psn = (next.sq_psn & PSN_MASK).into();
    }
    if mask.has(QpMask::ACCESS_FLAGS) {
        changed |= QP_MASK_ACCESS;
        command.access = rights(next.access).into();
    }
    if mask.has(QpMask::MIN_RNR_TIMER) || mask.has(QpMask::RNR_RETRY) {
        // They come with different transitions. Until both are set, nothing is sent.
        changed |= QP_MASK_RNR_RETRY;
        command.rnr_retry = next.rnr_retry;
        command.min_rnr_timer = next.min_rnr_timer;
    }
    if mask.has(QpMask::MAX_RD_ATOMIC) || mask.has(QpMask::MAX_DEST_RD_ATOMIC) {
        changed |= QP_MASK_RD_ATOMIC;
        command.max_rd_atomic = next.max_rd_atomic;
        command.max_dest_rd_atomic = next.max_dest_rd_atomic;
    }
    Ok(changed)
}
