// SPDX-License-Identifier: GPL-2.0
//! Queue pairs for Ethernet frames.

use super::{object::Object, CqControl, EventHandler, ObjectEvent, Pd};
use crate::{
    controller::Controller,
    doorbell::{DoorbellSlot, Slot},
    handlers::Kind,
    memory::QueueMemory,
    slots::Wanted,
};
use kernel::{
    dma::DmaAddress,
    prelude::*,
    sync::{
        atomic::{Acquire, Atomic, Relaxed, Release},
        Arc,
    },
};
use nupa_engine::rings::{Data, Operation, PostError, RecvRing, SendRequest, SendRing};
use nupa_proto::{
    admin::{
        CreateQp, ModifyQp, QpStateCode, QpType, QP_FLAG_PRIVILEGED, QP_MASK_RNR, QP_MASK_STATE,
    },
    frame::FrameMeta,
    ident::DMA_LKEY,
    wqe::{blocks_for, Sge, BLOCK_SIZE, MIN_RECV_STRIDE, WQE_SIGNALED},
};

/// log2 of the bytes of a receive entry: one buffer each.
const LOG_RECV_STRIDE: u8 = MIN_RECV_STRIDE.trailing_zeros() as u8;

/// Parameters of a queue pair.
#[derive(Clone, Copy)]
pub struct QpConfig<'a> {
    /// Completion queue of the send side.
    pub send_cq: &'a CqControl,
    /// Completion queue of the receive side; may be the same one.
    pub recv_cq: &'a CqControl,
    /// log2 of the 64-byte blocks of the send ring; a frame takes [`SendQueue::blocks_for`] of them.
    pub log_send_blocks: u8,
    /// log2 of the receive buffers.
    pub log_recv_entries: u8,
    /// Longest wait of a frame for receive buffers at its target, in microseconds; then it completes with an error.
    pub rnr_timeout_us: u32,
}

/// A queue pair, in parts for the contexts that use them. It is destroyed when the last part is dropped, which sleeps.
pub struct QueuePair {
    /// Sends frames; belongs to the holder of the transmit lock.
    pub send: SendQueue,
    /// Frees what was sent; belongs to whoever polls the send completions.
    pub reclaim: SendReclaim,
    /// Provides receive buffers; belongs to whoever polls the receive completions.
    pub recv: RecvQueue,
    /// The rest.
    pub control: QpControl,
}

/// Producer of frames. Neither sleeps nor takes locks; any context.
pub struct SendQueue {
    ring: SendRing<QueueMemory, Slot>,
    progress: Arc<Progress>,
    _object: Arc<QpObject>,
}

/// Consumer of send completions. Neither sleeps nor takes locks; any context.
pub struct SendReclaim {
    progress: Arc<Progress>,
    /// Before this the controller is done.
    done: u32,
    _object: Arc<QpObject>,
}

/// Producer of receive buffers. Neither sleeps nor takes locks; any context.
pub struct RecvQueue {
    ring: RecvRing<QueueMemory, Slot>,
    _object: Arc<QpObject>,
}

/// A queue pair apart from its rings. Clones keep it alive.
#[derive(Clone)]
pub struct QpControl {
    object: Arc<QpObject>,
}

/// Send queue indices that producer and consumer tell each other.
struct Progress {
    /// Behind everything that was handed to the controller.
    rung: Atomic<u32>,
    /// Before this everything is free.
    done: Atomic<u32>,
}

/// The queue pair in the controller. Fields are dropped in order.
struct QpObject {
    object: Object,
    _pd: Pd,
    /// Held for the controller, until the pair is destroyed.
    _memory: [QueueMemory; 2],
    _slots: [Arc<DoorbellSlot>; 2],
    /// The pair goes before its completion queues.
    _cqs: [CqControl; 2],
}

impl Drop for QpObject {
    fn drop(&mut self) {
        let object = &self.object;
        object
            .controller
            .forget_rss(object.generation, object.number);
        object.remove_handler(Kind::Qp);
    }
}

/// A failure of the pair is one of the network interface: only a reset helps.
struct Vital;

impl EventHandler for Vital {
    fn event(&self, _: ObjectEvent) {}

    fn is_vital(&self) -> bool {
        true
    }
}

/// A piece of a frame or a buffer by its DMA address.
#[inline]
pub fn dma_sge(addr: DmaAddress, len: u32) -> Sge {
    Sge {
        addr: addr.into(),
        len: len.into(),
        lkey: DMA_LKEY.into(),
    }
}

pub(super) fn post_error(error: PostError) -> Error {
    match error {
        PostError::Full => ENOSPC,
        PostError::Invalid => EINVAL,
    }
}

impl QueuePair {
    pub(super) fn new(controller: &Arc<Controller>, config: &QpConfig<'_>) -> Result<Self> {
        let limits = controller.info().limits;
        if config.log_send_blocks > limits.max_log_sq || config.log_recv_entries > limits.max_log_rq
        {
            return Err(EINVAL);
        }
        let generation = controller.running()?;
        if config.send_cq.generation() != generation || config.recv_cq.generation() != generation {
            return Err(EIO);
        }
        let sq = QueueMemory::new(controller.bound(), BLOCK_SIZE << config.log_send_blocks)?;
        let rq = QueueMemory::new(
            controller.bound(),
            MIN_RECV_STRIDE << config.log_recv_entries,
        )?;
        let (sq_slot, rq_slot) = Slot::take(controller.doorbells(), Wanted::Pair)?;
        let rq_slot = rq_slot.ok_or(EINVAL)?;
        let pd = Pd::new(controller)?;
        let parameters = CreateQp {
            sq: sq.page_list(),
            rq: rq.page_list(),
            qp_type: QpType::Raw.to_wire(),
            flags: QP_FLAG_PRIVILEGED,
            log_sq: config.log_send_blocks,
            log_rq: config.log_recv_entries,
            log_rq_stride: LOG_RECV_STRIDE,
            pd: pd.number().into(),
            send_cqn: config.send_cq.number().into(),
            recv_cqn: config.recv_cq.number().into(),
            doorbell_page: sq_slot.page().into(),
            sq_slot: sq_slot.number().into(),
            rq_slot: rq_slot.number().into(),
            ..CreateQp::default()
        };
        let object = QpObject {
            object: Object::create_pair(controller, generation, &parameters)?,
            _pd: pd,
            _memory: [sq.clone(), rq.clone()],
            _slots: [sq_slot.hold(), rq_slot.hold()],
            _cqs: [config.send_cq.clone(), config.recv_cq.clone()],
        };
        let handler = Arc::new(Vital, GFP_KERNEL)?;
        object.object.add_handler(Kind::Qp, handler)?;
        object.make_ready(config.rnr_timeout_us)?;
        let object = Arc::new(object, GFP_KERNEL)?;
        let progress = Arc::new(
            Progress {
                rung: Atomic::new(0),
                done: Atomic::new(0),
            },
            GFP_KERNEL,
        )?;
        Ok(Self {
            send: SendQueue {
                ring: SendRing::new(sq, sq_slot, config.log_send_blocks),
                progress: progress.clone(),
                _object: object.clone(),
            },
            reclaim: SendReclaim {
                progress,
                done: 0,
                _object: object.clone(),
            },
            recv: RecvQueue {
                ring: RecvRing::new(rq, rq_slot, config.log_recv_entries, LOG_RECV_STRIDE),
                _object: object.clone(),
            },
            control: QpControl { object },
        })
    }
}

impl QpObject {
    /// Takes a new pair through the states of the InfiniBand specification until it sends and receives.
    fn make_ready(&self, rnr_timeout_us: u32) -> Result {
        self.modify(QpStateCode::Init, 0, 0)?;
        self.modify(QpStateCode::Rtr, 0, 0)?;
        self.modify(QpStateCode::Rts, QP_MASK_RNR, rnr_timeout_us)
    }

    fn modify(&self, state: QpStateCode, mask: u32, rnr_timeout_us: u32) -> Result {
        self.object.modify_pair(&ModifyQp {
            mask: (QP_MASK_STATE | mask).into(),
            state: state.to_wire(),
            rnr_timeout_us: rnr_timeout_us.into(),
            ..ModifyQp::default()
        })
    }
}

impl SendQueue {
    /// Blocks that a frame of so many pieces takes.
    #[inline]
    pub const fn blocks_for(pieces: usize) -> u32 {
        blocks_for(pieces.saturating_mul(size_of::<Sge>())) as u32
    }

    /// Blocks that are free.
    #[inline]
    pub fn free_blocks(&mut self) -> u32 {
        // The consumer has checked the index.
        let _ = self.ring.completed(self.progress.done.load(Acquire));
        self.ring.free_blocks()
    }

    /// Writes the descriptor of one frame for `node`, or [`nupa_proto::ident::NODE_FLOOD`]; its pieces are
    /// [`dma_sge`]s, [`nupa_proto::wqe::MAX_SEND_SGE`] at most. The controller sees it at the next
    /// [`SendQueue::ring`].
    ///
    /// Returns the queue index behind it: a completion with this or a later index says that it was sent. `signaled`
    /// asks for one. `ENOSPC` if there is no room, `EINVAL` if there are too many pieces; nothing is written then.
    #[inline]
    pub fn post_frame(
        &mut self,
        node: u16,
        meta: &FrameMeta,
        pieces: &[Sge],
        signaled: bool,
        wr_id: u64,
    ) -> Result<u32> {
        let request = SendRequest {
            wr_id,
            flags: if signaled { WQE_SIGNALED } else { 0 },
            operation: Operation::Frame { node, meta: *meta },
            data: Data::Sges(pieces),
        };
        match self.ring.post(&request) {
            Err(PostError::Full) if self.free_blocks() >= Self::blocks_for(pieces.len()) => {
                self.ring.post(&request).map_err(post_error)
            }
            result => result.map_err(post_error),
        }
    }

    /// Hands everything posted to the controller, and kicks it if it asks for that. Returns whether it did; the
    /// emulated controller then may have sent the frames already.
    #[inline]
    pub fn ring(&mut self) -> bool {
        // Before the controller can complete it.
        self.progress.rung.store(self.ring.index(), Release);
        self.ring.ring()
    }
}

impl SendReclaim {
    /// Frees everything before `queue_index` of a completion, and returns how many blocks. `EIO` if that index was
    /// not handed to the controller, which is broken then; nothing is freed.
    #[inline]
    pub fn completed(&mut self, queue_index: u32) -> Result<u32> {
        let blocks = queue_index.wrapping_sub(self.done);
        if blocks > self.progress.rung.load(Acquire).wrapping_sub(self.done) {
            return Err(EIO);
        }
        self.done = queue_index;
        self.progress.done.store(queue_index, Release);
        Ok(blocks)
    }

    /// Blocks that the controller has not completed yet.
    #[inline]
    pub fn outstanding(&self) -> u32 {
        self.progress.rung.load(Relaxed).wrapping_sub(self.done)
    }
}

impl RecvQueue {
    /// Buffers that can be posted.
    #[inline]
    pub fn free_entries(&self) -> u32 {
        self.ring.free()
    }

    /// Posts one buffer; `wr_id` comes back in the completion of a frame that starts in it. `ENOSPC` if the ring is
    /// full. The controller sees it at the next [`RecvQueue::ring`].
    #[inline]
    pub fn post(&mut self, wr_id: u64, addr: DmaAddress, len: u32) -> Result {
        self.ring
            .post(wr_id, &[dma_sge(addr, len)])
            .map_err(post_error)?;
        Ok(())
    }

    /// Hands posted buffers to the controller, and kicks it if it asks for that. Returns whether it did.
    #[inline]
    pub fn ring(&mut self) -> bool {
        self.ring.ring()
    }

    /// Frees the entries before `queue_index` of a receive completion, and returns how many: the frame fills that
    /// many buffers, in the order in which they were posted. `EIO` as in [`SendReclaim::completed`].
    #[inline]
    pub fn completed(&mut self, queue_index: u32) -> Result<u32> {
        self.ring.completed(queue_index).map_err(|_| EIO)
    }
}

impl QpControl {
    /// Number of the pair, for [`super::Port::set_rss`]. Any context.
    pub fn number(&self) -> u32 {
        self.object.object.number
    }

    /// Ends sending and receiving: everything posted completes with `WrFlush`. Sleeps.
    pub fn flush(&self) -> Result {
        self.object.modify(QpStateCode::Err, 0, 0)
    }
}
