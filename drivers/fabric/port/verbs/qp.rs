// SPDX-License-Identifier: GPL-2.0
//! Connected and datagram queue pairs.

use super::{
    posting::{Made, RecvPoster, SendPoster},
    Pd, QueueRing, Srq,
};
use crate::{
    controller::Controller,
    doorbell::{DoorbellSlot, Slot},
    drain::UserQp,
    handlers::Kind,
    memory::QueueMemory,
    port::{object::Object, CqControl, EventHandler},
    slots::Wanted,
};
use kernel::{
    prelude::*,
    sync::Arc,
    time::{delay::fsleep, Delta},
};
use nupa_proto::{
    admin::{
        AdminOpcode, ById, CreateQp as Parameters, GroupMember, ModifyQp, QpState, QpType,
        QP_FLAG_SRQ, QP_MASK_PEER_RING, QP_MASK_PROCESS_RINGS, QP_MASK_RING,
    },
    doorbell::SLOT_NONE,
    uabi::{SLOT_FORCED, SLOT_MAPPINGS},
};

/// What a new queue pair is to be; where its queues are comes with it.
#[derive(Clone, Copy)]
pub struct QpParameters<'a> {
    /// RC or UD.
    pub qp_type: QpType,
    /// `QP_FLAG_*` of [`nupa_proto::admin`], but for `QP_FLAG_SRQ`, which follows from `srq`.
    pub flags: u8,
    /// Protection domain.
    pub pd: &'a Arc<Pd>,
    /// Completion queue of the send side.
    pub send_cq: &'a CqControl,
    /// Completion queue of the receive side; may be the same one.
    pub recv_cq: &'a CqControl,
    /// Where receive entries come from instead of a ring of its own.
    pub srq: Option<&'a Srq>,
}

/// Rings and doorbell slots of a queue pair.
pub struct QpQueues<S = DoorbellSlot> {
    /// The send ring; its entries are blocks.
    pub send: QueueRing,
    /// The receive ring; ignored with a shared receive queue.
    pub recv: QueueRing,
    /// Doorbell slot of the send queue.
    pub slot: S,
    /// Doorbell slot of the receive queue, on the same page; none with a shared receive queue.
    pub recv_slot: Option<S>,
}

/// Sizes of the rings of a queue pair that the kernel itself uses.
#[derive(Clone, Copy, Debug)]
pub struct QpSizes {
    /// log2 of the blocks of the send ring.
    pub log_send_blocks: u8,
    /// log2 of the entries of the receive ring.
    pub log_recv_entries: u8,
    /// log2 of the bytes of an entry of the receive ring.
    pub log_recv_stride: u8,
}

/// A queue pair. Fields are dropped in order, after the pair has been taken from those who are told of it.
pub struct Qp {
    object: Object,
    _cqs: [CqControl; 2],
    srq: Option<Srq>,
    _pd: Arc<Pd>,
    /// Slots of the send queue and of the receive queue.
    slots: (Arc<DoorbellSlot>, Option<Arc<DoorbellSlot>>),
    /// Rings that are the port's.
    _memory: [Option<QueueMemory>; 2],
    /// Of a pair of a process.
    _user: Option<UserQp>,
}

/// Has the controller take from the process ring that a queue pair receives from what its process leaves there, and count what its process moves through
/// that or through the one that the pair sends to, until this is dropped, which sleeps. It is to be dropped before the ring's memory is, and before the pair.
pub struct KnownRing {
    controller: Arc<Controller>,
    generation: u32,
    qpn: u32,
    /// `QP_MASK_RING` or `QP_MASK_PEER_RING`.
    which: u32,
}

impl Drop for KnownRing {
    fn drop(&mut self) {
        let command = ModifyQp {
            qpn: self.qpn.into(),
            mask: self.which.into(),
            ..ModifyQp::default()
        };
        // This fails if the controller was reset, went away or does not answer any more. The first two ended all of its pairs, and one that does not answer is reset.
        let _ = self.controller.modify_pair(self.generation, &command);
    }
}

/// What a process sees when something that a queue pair of its has mapped is taken away.
pub struct MappingMark(Arc<DoorbellSlot>);

/// How long a process may go on with a copy before what it copies to or from is taken away all the same: far longer than a copy takes, and far shorter than
/// the memory's owner waits.
const COPY_LOOKS: u32 = 100;
const COPY_PAUSE: Delta = Delta::from_micros(100);

impl MappingMark {
    /// Something is about to be taken away: the process begins no copy any more when this returns, and has ended those that it had begun; or it is told that what
    /// they stored may be lost. Sleeps, for some 10 ms at most.
    pub fn end_copies(&self) {
        self.0.change_mark(SLOT_MAPPINGS);
        for _ in 0..COPY_LOOKS {
            if !self.0.copies() {
                return;
            }
            fsleep(COPY_PAUSE);
        }
        self.0.change_mark(SLOT_FORCED);
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        self.object.remove_handler(Kind::Qp);
    }
}

impl QpParameters<'_> {
    /// `EIO` if an object that the pair needs is from before a reset, `EINVAL` if the slots do not fit.
    fn encode(&self, queues: &QpQueues<Arc<DoorbellSlot>>) -> Result<Parameters> {
        let generation = self.pd.generation();
        let cqs = [self.send_cq, self.recv_cq];
        if cqs.iter().any(|cq| cq.generation() != generation)
            || self.srq.is_some_and(|srq| srq.generation() != generation)
        {
            return Err(EIO);
        }
        let recv_slot = match &queues.recv_slot {
            None => SLOT_NONE,
            Some(slot) if slot.is_beside(&queues.slot) => slot.number(),
            Some(_) => return Err(EINVAL),
        };
        let with_srq = if self.srq.is_some() { QP_FLAG_SRQ } else { 0 };
        let recv = match self.srq {
            Some(_) => QueueRing::default(),
            None => queues.recv,
        };
        Ok(Parameters {
            sq: queues.send.list,
            rq: recv.list,
            qp_type: self.qp_type.to_wire(),
            flags: self.flags & !QP_FLAG_SRQ | with_srq,
            log_sq: queues.send.log_entries,
            log_rq: recv.log_entries,
            log_rq_stride: recv.log_stride,
            reserved: [0; 3],
            pd: self.pd.number().into(),
            send_cqn: self.send_cq.number().into(),
            recv_cqn: self.recv_cq.number().into(),
            doorbell_page: queues.slot.page_number().into(),
            sq_slot: queues.slot.number().into(),
            rq_slot: recv_slot.into(),
            srqn: self.srq.map_or(0, Srq::number).into(),
        })
    }
}

impl Qp {
    pub(super) fn for_user(
        controller: &Arc<Controller>,
        parameters: QpParameters<'_>,
        queues: QpQueues,
        handler: Arc<dyn EventHandler>,
    ) -> Result<Self> {
        let user = UserQp::new(controller)?;
        let recv_slot = queues
            .recv_slot
            .map(|slot| Arc::new(slot, GFP_KERNEL_ACCOUNT));
        let queues = QpQueues {
            send: queues.send,
            recv: queues.recv,
            slot: Arc::new(queues.slot, GFP_KERNEL_ACCOUNT)?,
            recv_slot: recv_slot.transpose()?,
        };
        let mut qp = Self::new(controller, parameters, queues, handler)?;
        qp._user = Some(user);
        Ok(qp)
    }

    /// A pair whose rings are the port's, and those rings.
    pub(super) fn for_kernel(
        controller: &Arc<Controller>,
        parameters: QpParameters<'_>,
        sizes: &QpSizes,
        handler: Arc<dyn EventHandler>,
    ) -> Result<(Self, SendPoster, Option<RecvPoster>)> {
        let device = controller.bound();
        let with_recv = parameters.srq.is_none();
        let send = Made::blocks(device, sizes.log_send_blocks)?;
        let recv = match with_recv {
            true => Some(Made::new(
                device,
                sizes.log_recv_entries,
                sizes.log_recv_stride,
            )?),
            false => None,
        };
        let wanted = if with_recv {
            Wanted::Pair
        } else {
            Wanted::Send
        };
        let (slot, recv_slot) = Slot::take(controller.doorbells(), wanted)?;
        let queues = QpQueues {
            send: send.ring,
            recv: recv.as_ref().map(|recv| recv.ring).unwrap_or_default(),
            slot: slot.hold(),
            recv_slot: recv_slot.as_ref().map(Slot::hold),
        };
        let memory = [
            Some(send.memory.clone()),
            recv.as_ref().map(|recv| recv.memory.clone()),
        ];
        let mut qp = Self::new(controller, parameters, queues, handler)?;
        qp._memory = memory;
        let recv = recv.zip(recv_slot).map(|(recv, slot)| recv.into_recv(slot));
        Ok((qp, send.into_send(slot), recv))
    }

    fn new(
        controller: &Arc<Controller>,
        parameters: QpParameters<'_>,
        queues: QpQueues<Arc<DoorbellSlot>>,
        handler: Arc<dyn EventHandler>,
    ) -> Result<Self> {
        let command = parameters.encode(&queues)?;
        let object = Object::create_pair(controller, parameters.pd.generation(), &command)?;
        let qp = Self {
            object,
            _cqs: [parameters.send_cq.clone(), parameters.recv_cq.clone()],
            srq: parameters.srq.cloned(),
            _pd: parameters.pd.clone(),
            slots: (queues.slot, queues.recv_slot),
            _memory: [None, None],
            _user: None,
        };
        qp.object.add_handler(Kind::Qp, handler)?;
        Ok(qp)
    }

    /// Number of the pair. Any context.
    pub fn number(&self) -> u32 {
        self.object.number
    }

    /// Kicks the send queue for its owner, who has rung it and cannot kick. May sleep.
    pub fn kick_send(&self) {
        self.slots.0.kick();
    }

    /// Kicks the receive queue; false if the pair has none of its own. May sleep.
    pub fn kick_recv(&self) -> bool {
        self.slots.1.as_ref().map(|slot| slot.kick()).is_some()
    }

    /// What its process sees when a mapping is taken away.
    pub fn mapping_mark(&self) -> MappingMark {
        MappingMark(self.slots.0.clone())
    }

    /// Whether the pair receives at all: from a queue of its own, or a shared one.
    pub fn has_recv_queue(&self) -> bool {
        self.slots.1.is_some() || self.srq.is_some()
    }

    /// Tells the pair's peer that there is a message in its process ring, for which it waits. Sleeps.
    pub fn kick_peer(&self) {
        let doorbells = self.object.controller.doorbells();
        doorbells.function().kick_peer(self.number());
    }

    /// A message in the pair's own process ring has waited for a receive entry, and there is one: makes the event of its receive completion queue,
    /// if that is armed. Sleeps.
    pub fn kick_event(&self) {
        let doorbells = self.object.controller.doorbells();
        doorbells.function().kick_event(self.number());
    }

    /// Whether the controller was reset or went away since the pair was made, so that it completes nothing more.
    pub fn is_lost(&self) -> bool {
        let generation = self.object.controller.running();
        generation != Ok(self.object.generation)
    }

    /// Tells the controller that the pair has process rings, and that it receives from the one at this address of the controller's. `EINVAL` if there can be none.
    /// Sleeps.
    pub fn receive_from(&self, address: u64) -> Result<KnownRing> {
        self.know_ring(QP_MASK_RING, address)
    }

    /// The same of the one that it sends to.
    pub fn send_to(&self, address: u64) -> Result<KnownRing> {
        self.know_ring(QP_MASK_PEER_RING, address)
    }

    fn know_ring(&self, which: u32, address: u64) -> Result<KnownRing> {
        self.modify(&ModifyQp {
            mask: (QP_MASK_PROCESS_RINGS | which).into(),
            ring: address.into(),
            ..ModifyQp::default()
        })?;
        Ok(KnownRing {
            controller: self.object.controller.clone(),
            generation: self.object.generation,
            qpn: self.number(),
            which,
        })
    }

    /// Changes state and attributes; the field `qpn` is filled in here. Nothing has changed if this fails.
    pub fn modify(&self, attributes: &ModifyQp) -> Result {
        self.object.modify_pair(attributes)
    }

    /// Reads state and indices.
    pub fn query(&self) -> Result<QpState> {
        query(
            &self.object.controller,
            self.object.generation,
            self.number(),
        )
    }

    /// Attaches it to a multicast group; to do so again changes nothing. `ENOSPC` if the group or the controller has no room for it,
    /// `EINVAL` if it is not one of datagrams, or the GID not that of a group.
    pub fn attach(&self, group: &[u8; 16]) -> Result {
        let member = self.as_member(group);
        self.object.order(AdminOpcode::AttachMulticast, &member)
    }

    /// Detaches it from a multicast group. An error if it is not attached, and if the controller was lost, which has no groups then.
    pub fn detach(&self, group: &[u8; 16]) -> Result {
        let member = self.as_member(group);
        self.object.order(AdminOpcode::DetachMulticast, &member)
    }

    fn as_member(&self, group: &[u8; 16]) -> GroupMember {
        GroupMember {
            gid: *group,
            qpn: self.number().into(),
            ..GroupMember::default()
        }
    }

    /// What others than its owner look at it with.
    pub fn watch(&self) -> QpWatch {
        QpWatch {
            controller: self.object.controller.clone(),
            generation: self.object.generation,
            number: self.number(),
        }
    }
}

/// A look at a queue pair, which it does not keep: once the pair is destroyed, another one may have its number.
pub struct QpWatch {
    controller: Arc<Controller>,
    generation: u32,
    number: u32,
}

impl QpWatch {
    /// Number of the pair.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Reads state and indices.
    pub fn query(&self) -> Result<QpState> {
        query(&self.controller, self.generation, self.number)
    }
}

fn query(controller: &Arc<Controller>, generation: u32, number: u32) -> Result<QpState> {
    let command = ById {
        id: number.into(),
        reserved: 0.into(),
    };
    controller.command(generation, AdminOpcode::QueryQp, &command)
}
