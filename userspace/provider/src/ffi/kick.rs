// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Kicks where there is no trapped page to store to: the kernel gives them, asked by methods of the driver's own.
//!
//! Rings do as they always do; what they store to the trapped page goes to one that nobody looks at ([`DoorbellPair`]). The
//! entry points that hand over requests (`super::called`) then look at the slot once more, with the queue's lock given
//! back ([`Called`]). So what is only for such devices costs the others nothing.
//!
//! [`DoorbellPair`]: super::memory::DoorbellPair

use std::fmt::Debug;
use std::sync::Arc;

use nupa_engine::hal::SlotWord;
use nupa_engine::rings::Doorbell;
use nupa_proto::doorbell::need_kick;
use nupa_proto::uabi::{
    CQ_POLL_HANDLE, KICK_EVENT, KICK_PEER, KICK_RECV, KICK_SEND, METHOD_CQ_POLL, METHOD_QP_KICK,
    METHOD_SRQ_KICK, QP_KICK_HANDLE, QP_KICK_QUEUES, SRQ_KICK_HANDLE,
};
use rustix::io::Errno;

use super::context::Context;
use super::ioctl::{self, object_id, Attributes};
use super::memory::Slot;
use super::sys;

/// Tries of a command that the kernel has no memory for at the moment. A kick that is lost is not made up for before the
/// engine looks at the queue for another reason.
const TRIES: u32 = 1000;

/// Has the engine look at a queue.
pub(crate) trait Kick: Debug + Send + Sync {
    /// Does that.
    fn kick(&self);
}

/// A way to kick a queue, for all that post to it.
pub(crate) type SharedKick = Arc<dyn Kick>;

/// A queue that is kicked by a call.
#[derive(Clone, Debug)]
pub(crate) struct Called {
    slot: Slot,
    kick: SharedKick,
}

impl Called {
    pub(crate) fn new(slot: &Slot, kick: SharedKick) -> Self {
        Self {
            slot: slot.clone(),
            kick,
        }
    }

    /// Has the engine look at the queue.
    pub(crate) fn kick(&self) {
        self.kick.kick();
    }

    /// Does what may ring the queue, and calls if the engine has asked to be told of that.
    ///
    /// Another thread may ring it as well: whatever was rung since is looked at here too, so there may be a call too many,
    /// but never one too few. The ring has stored its index and issued the fence before the event index is loaded.
    pub(crate) fn around<T>(&self, ring: impl FnOnce() -> T) -> T {
        let old = self.slot.load(SlotWord::Index);
        let result = ring();
        let (new, event) = (
            self.slot.load(SlotWord::Index),
            self.slot.load(SlotWord::Event),
        );
        if need_kick(event, new, old) {
            self.kick.kick();
        }
        result
    }
}

/// The calls of an object's queues; none where there are trapped pages, or where it has no such queue.
#[derive(Clone, Debug, Default)]
pub(crate) struct Calls {
    /// Of the send queue, or the shared receive queue.
    pub(crate) queue: Option<Called>,
    /// Of the receive queue.
    pub(crate) recv: Option<Called>,
}

/// Whose doorbell slots are asked for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Owner {
    /// A completion queue, which is never kicked.
    Completions,
    /// A queue pair.
    Pair(*mut sys::ibv_qp),
    /// A shared receive queue.
    Shared(*mut sys::ibv_srq),
}

/// A queue that is kicked by a command.
///
/// # Invariants
///
/// The object is one that the kernel made for this provider, and exists whenever it is kicked.
#[derive(Debug)]
enum Command {
    Send(*mut sys::ibv_qp),
    Recv(*mut sys::ibv_qp),
    Shared(*mut sys::ibv_srq),
}

// SAFETY: the pointers are to objects that any thread may name in a command.
unsafe impl Send for Command {}
// SAFETY: as above; the commands do not change them.
unsafe impl Sync for Command {}

impl Owner {
    /// Kicks of the object's queues by commands: of the one that it has in any case, and of a receive queue.
    ///
    /// # Safety
    ///
    /// The object is one that the kernel made for this provider, and exists for as long as its queues are posted to.
    pub(super) unsafe fn commands(self) -> (Option<SharedKick>, Option<SharedKick>) {
        match self {
            Self::Completions => (None, None),
            Self::Pair(qp) => (
                Some(Arc::new(Command::Send(qp))),
                Some(Arc::new(Command::Recv(qp))),
            ),
            Self::Shared(srq) => (Some(Arc::new(Command::Shared(srq))), None),
        }
    }
}

impl Command {
    /// Runs the command.
    fn run(&self) -> Result<(), Errno> {
        match *self {
            // SAFETY: the object exists (invariant).
            Self::Send(qp) => unsafe { kick_pair(qp, KICK_SEND) },
            // SAFETY: as above.
            Self::Recv(qp) => unsafe { kick_pair(qp, KICK_RECV) },
            Self::Shared(srq) => {
                // SAFETY: as above; it belongs to an open context.
                let (context, handle) = unsafe { ((*srq).context, (*srq).handle) };
                let attributes = Attributes::new([ioctl::object(SRQ_KICK_HANDLE, handle)]);
                // SAFETY: as above; a handle points to nothing.
                unsafe { attributes.execute(context, SRQ, METHOD_SRQ_KICK) }
            }
        }
    }
}

/// The objects that methods are of.
const QP: u16 = object_id(sys::UVERBS_OBJECT_QP);
const SRQ: u16 = object_id(sys::UVERBS_OBJECT_SRQ);
const CQ: u16 = object_id(sys::UVERBS_OBJECT_CQ);

/// Kicks those queues of a pair that `KICK_*` bits name.
///
/// # Safety
///
/// The kernel made the pair for this provider, and it exists.
unsafe fn kick_pair(qp: *mut sys::ibv_qp, queues: u32) -> Result<(), Errno> {
    // SAFETY: the caller's word; it belongs to an open context.
    let (context, handle) = unsafe { ((*qp).context, (*qp).handle) };
    let attributes = Attributes::new([
        ioctl::object(QP_KICK_HANDLE, handle),
        ioctl::number(QP_KICK_QUEUES, queues),
    ]);
    // SAFETY: as above; neither a handle nor a number points to anything.
    unsafe { attributes.execute(context, QP, METHOD_QP_KICK) }
}

/// Has the kernel's engine work in this program's time because there is no completion. False, without a call, if the empty polls of another
/// queue count.
///
/// # Safety
///
/// The kernel made the queue for this provider, and it exists.
pub(super) unsafe fn work(cq: *mut sys::ibv_cq) -> bool {
    // SAFETY: the caller's word; it belongs to an open context.
    let (context, handle) = unsafe { ((*cq).context, (*cq).handle) };
    // SAFETY: as above.
    if !unsafe { Context::of(context) }.works_for(handle) {
        return false;
    }
    let attributes = Attributes::new([ioctl::object(CQ_POLL_HANDLE, handle)]);
    // SAFETY: as above; a handle points to nothing. An error says that the device is gone, which the program sees by itself.
    let _ = unsafe { attributes.execute(context, CQ, METHOD_CQ_POLL) };
    true
}

impl Kick for Command {
    fn kick(&self) {
        try_often(|| self.run());
    }
}

/// Runs a command that may find no memory.
fn try_often(mut run: impl FnMut() -> Result<(), Errno>) {
    for _ in 0..TRIES {
        match run() {
            Err(Errno::NOMEM | Errno::INTR | Errno::AGAIN) => std::thread::yield_now(),
            // Any other error says that the device is gone, whose queues are flushed.
            Ok(()) | Err(_) => return,
        }
    }
}

/// Has the kernel make the event that the pair's program waits for: a message in its process ring has a receive entry now.
///
/// # Safety
///
/// The kernel made the pair for this provider, and it exists.
pub(crate) unsafe fn make_event(qp: *mut sys::ibv_qp) {
    // SAFETY: the caller's word.
    try_often(|| unsafe { kick_pair(qp, KICK_EVENT) });
}

/// Has the kernel of a pair's peer make the event that the peer waits for: there is a message in its process ring.
///
/// # Safety
///
/// The kernel made the pair for this provider, and it exists.
pub(crate) unsafe fn kick_peer(qp: *mut sys::ibv_qp) {
    // SAFETY: the caller's word.
    try_often(|| unsafe { kick_pair(qp, KICK_PEER) });
}
