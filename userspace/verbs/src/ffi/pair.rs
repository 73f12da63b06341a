// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Connected queue pairs.

use std::ffi::c_int;
use std::ptr::NonNull;
use std::rc::Rc;

use super::context::{check, none, Domain};
use super::queue::CompletionQueue;
use super::region::Region;
use super::sys::{self, Plain};
use crate::error::Error;

/// The port of each device that has one.
const PORT: u8 = 1;
/// Packet sequence numbers and numbers of queue pairs have so many bits.
const BITS_24: u32 = 0x00ff_ffff;

/// Requests that a queue pair has room for.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// In its send queue.
    pub send: u16,
    /// In its receive queue.
    pub receive: u16,
}

/// The other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its address.
    pub gid: [u8; 16],
    /// Number of its queue pair.
    pub number: u32,
    /// What its requests begin to count from.
    pub psn: u32,
}

/// Memory of another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Where it begins there.
    pub address: u64,
    /// Its key.
    pub key: u32,
}

/// What a request does at the other end.
#[derive(Clone, Copy, Debug)]
pub enum Target {
    /// SEND: it takes a receive request.
    Receiver,
    /// WRITE to memory.
    Memory(Remote),
}

/// A connected queue pair. All its requests make a completion.
///
/// # Invariant
///
/// `raw` is what `ibv_create_qp()` returned, and is destroyed when this is dropped.
pub struct QueuePair {
    raw: NonNull<sys::ibv_qp>,
    completions: Rc<CompletionQueue>,
    domain: Rc<Domain>,
}

impl QueuePair {
    /// One that takes receive requests already; `remote` lets the other end write to regions that let it.
    ///
    /// # Errors
    ///
    /// If the kernel or the provider refuses.
    pub fn new(
        domain: &Rc<Domain>,
        completions: &Rc<CompletionQueue>,
        sizes: Sizes,
        remote: bool,
    ) -> Result<Self, Error> {
        let mut wanted = sys::ibv_qp_init_attr::zeroed();
        wanted.send_cq = completions.raw();
        wanted.recv_cq = completions.raw();
        wanted.qp_type = sys::IBV_QPT_RC;
        wanted.sq_sig_all = 1;
        wanted.cap.max_send_wr = sizes.send.into();
        wanted.cap.max_recv_wr = sizes.receive.into();
        wanted.cap.max_send_sge = 1;
        wanted.cap.max_recv_sge = 1;
        // SAFETY: domain and queue exist (their invariants), and are kept below; the attributes live during the call.
        let raw = unsafe {
            let functions = domain.context().functions();
            functions.ibv_create_qp(domain.raw(), &mut wanted)
        };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("make a queue pair"))?;
        let pair = Self {
            raw,
            completions: completions.clone(),
            domain: domain.clone(),
        };
        let mut to = sys::ibv_qp_attr::zeroed();
        to.qp_state = sys::IBV_QPS_INIT;
        to.port_num = PORT;
        if remote {
            to.qp_access_flags = sys::IBV_ACCESS_REMOTE_WRITE;
        }
        let mask = sys::IBV_QP_STATE
            | sys::IBV_QP_PKEY_INDEX
            | sys::IBV_QP_PORT
            | sys::IBV_QP_ACCESS_FLAGS;
        pair.modify(to, mask)?;
        Ok(pair)
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        // SAFETY: it exists (invariant), and its number does not change.
        unsafe { self.raw.as_ref().qp_num }
    }

    /// Its completion queue.
    pub fn completions(&self) -> &CompletionQueue {
        &self.completions
    }

    /// Connects it to a peer, from an entry of the device's GID table. Its own requests begin to count from `psn`.
    ///
    /// # Errors
    ///
    /// If the kernel refuses.
    pub fn connect(&self, peer: &Peer, gid_index: u8, psn: u32) -> Result<(), Error> {
        let mut to = sys::ibv_qp_attr::zeroed();
        to.qp_state = sys::IBV_QPS_RTR;
        to.path_mtu = sys::IBV_MTU_4096;
        to.dest_qp_num = peer.number & BITS_24;
        to.rq_psn = peer.psn & BITS_24;
        to.max_dest_rd_atomic = 1;
        // 0.64 ms, as InfiniBand has it.
        to.min_rnr_timer = 12;
        to.ah_attr.is_global = 1;
        to.ah_attr.port_num = PORT;
        to.ah_attr.grh.dgid.raw = peer.gid;
        to.ah_attr.grh.sgid_index = gid_index;
        to.ah_attr.grh.hop_limit = 1;
        let mask = sys::IBV_QP_STATE
            | sys::IBV_QP_AV
            | sys::IBV_QP_PATH_MTU
            | sys::IBV_QP_DEST_QPN
            | sys::IBV_QP_RQ_PSN
            | sys::IBV_QP_MAX_DEST_RD_ATOMIC
            | sys::IBV_QP_MIN_RNR_TIMER;
        self.modify(to, mask)?;
        let mut to = sys::ibv_qp_attr::zeroed();
        to.qp_state = sys::IBV_QPS_RTS;
        to.sq_psn = psn & BITS_24;
        to.timeout = 14;
        to.retry_cnt = 7;
        to.rnr_retry = 7;
        to.max_rd_atomic = 1;
        let mask = sys::IBV_QP_STATE
            | sys::IBV_QP_TIMEOUT
            | sys::IBV_QP_RETRY_CNT
            | sys::IBV_QP_RNR_RETRY
            | sys::IBV_QP_SQ_PSN
            | sys::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(to, mask)
    }

    fn modify(&self, mut to: sys::ibv_qp_attr, mask: sys::ibv_qp_attr_mask) -> Result<(), Error> {
        // SAFETY: the queue pair exists (invariant); the attributes live during the call.
        let returned = unsafe {
            let functions = self.domain.context().functions();
            functions.ibv_modify_qp(self.raw.as_ptr(), &mut to, mask as c_int)
        };
        check("set up a queue pair", returned)
    }

    /// Posts a request that takes bytes from a region.
    ///
    /// # Errors
    ///
    /// If the region has no such range, or the queue no room.
    pub fn post_send(
        &self,
        id: u64,
        region: &Region,
        (offset, bytes): (usize, u32),
        target: Target,
    ) -> Result<(), Error> {
        let mut element = region.element(offset, bytes)?;
        let mut request = sys::ibv_send_wr::zeroed();
        request.wr_id = id;
        request.sg_list = &mut element;
        request.num_sge = 1;
        match target {
            Target::Receiver => request.opcode = sys::IBV_WR_SEND,
            Target::Memory(remote) => {
                request.opcode = sys::IBV_WR_RDMA_WRITE;
                request.wr.rdma = sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 {
                    remote_addr: remote.address,
                    rkey: remote.key,
                };
            }
        }
        // SAFETY: the queue pair exists and its context is open (invariants), and that names the provider's function for it, as
        // `ibv_post_send()` in the header calls it. Request and element live during the call, which copies them. That the memory is there when
        // the device reads it is the region's invariant.
        let returned: c_int = unsafe {
            let operations = &(*self.domain.context().raw()).ops;
            let post = operations.post_send.ok_or(NO_POST)?;
            post(self.raw.as_ptr(), &mut request, &mut none())
        };
        check("post a request", returned)
    }

    /// Posts a request that takes what the other end sends into a region.
    ///
    /// # Errors
    ///
    /// As of [`post_send`](Self::post_send).
    pub fn post_receive(
        &self,
        id: u64,
        region: &Region,
        (offset, bytes): (usize, u32),
    ) -> Result<(), Error> {
        let mut element = region.element(offset, bytes)?;
        let mut request = sys::ibv_recv_wr {
            wr_id: id,
            next: none(),
            sg_list: &mut element,
            num_sge: 1,
        };
        // SAFETY: as in `post_send`; a region's memory consists of atomics, so that the device may write to it.
        let returned: c_int = unsafe {
            let operations = &(*self.domain.context().raw()).ops;
            let post = operations.post_recv.ok_or(NO_POST)?;
            post(self.raw.as_ptr(), &mut request, &mut none())
        };
        check("post a receive request", returned)
    }
}

/// No provider is without these functions.
const NO_POST: Error = Error::Refused {
    what: "post a request",
    errno: 0,
};

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: by the invariant.
        let _ = unsafe {
            let functions = self.domain.context().functions();
            functions.ibv_destroy_qp(self.raw.as_ptr())
        };
    }
}
