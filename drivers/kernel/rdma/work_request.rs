// SPDX-License-Identifier: GPL-2.0
//! Work requests of kernel users.

use crate::{bindings, error::unsupported, Access, Ah, Driver, Mr, QpType};
use core::{
    marker::PhantomData,
    ptr::{self, NonNull},
};
use kernel::prelude::*;

/// What a send request asks for. Immediate data is in network order as given.
pub enum SendOperation<'a, D: Driver> {
    /// Consumes a receive request at the peer.
    Send {
        /// Immediate data.
        imm: Option<u32>,
    },
    /// As `Send`, and invalidates a key of the peer.
    SendInvalidate {
        /// The key.
        key: u32,
    },
    /// Sends a datagram.
    Datagram {
        /// Where to.
        ah: &'a Ah<D>,
        /// Queue pair there.
        qpn: u32,
        /// Its queue key.
        qkey: u32,
        /// Immediate data.
        imm: Option<u32>,
    },
    /// Writes to memory of the peer.
    Write {
        /// Address within the region.
        addr: u64,
        /// Key of the region.
        rkey: u32,
        /// Immediate data, which consumes a receive request.
        imm: Option<u32>,
    },
    /// Reads memory of the peer.
    Read {
        /// Address within the region.
        addr: u64,
        /// Key of the region.
        rkey: u32,
    },
    /// Compares and swaps 8 bytes of the peer's memory.
    CompareSwap {
        /// Address within the region.
        addr: u64,
        /// Key of the region.
        rkey: u32,
        /// What is expected there.
        compare: u64,
        /// What to put there.
        swap: u64,
    },
    /// Adds to 8 bytes of the peer's memory.
    FetchAdd {
        /// Address within the region.
        addr: u64,
        /// Key of the region.
        rkey: u32,
        /// What to add.
        add: u64,
    },
    /// Invalidates an own key.
    LocalInvalidate {
        /// The key.
        key: u32,
    },
    /// Registers the pages of a region.
    Register(FastRegistration<'a, D>),
}

/// A fast registration: pages that were mapped before are what `key` stands for from now on.
pub struct FastRegistration<'a, D: Driver> {
    /// The region.
    pub mr: &'a Mr<D>,
    /// Key, of which the lowest byte is the user's choice.
    pub key: u32,
    /// Rights.
    pub access: Access,
    /// Address for descriptors.
    pub iova: u64,
    /// Bytes.
    pub len: u64,
}

/// One piece of memory (`struct ib_sge`).
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// Address within the region that the key stands for.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
    /// Local key.
    pub lkey: u32,
}

/// Pieces of a request.
///
/// # Safety
///
/// `list` holds `count` entries that stay for `'a`, or `count` is not positive.
unsafe fn pieces<'a>(
    list: *const bindings::ib_sge,
    count: i32,
) -> impl ExactSizeIterator<Item = Piece> + 'a {
    let count = usize::try_from(count).unwrap_or(0);
    let list: &'a [bindings::ib_sge] = match count {
        0 => &[],
        // SAFETY: By this function's contract.
        _ => unsafe { core::slice::from_raw_parts(list, count) },
    };
    list.iter().map(|sge| Piece {
        addr: sge.addr,
        len: sge.length,
        lkey: sge.lkey,
    })
}

/// A send request (`struct ib_send_wr` and those that begin with it).
pub struct SendWr<'a, D: Driver> {
    wr: &'a bindings::ib_send_wr,
    datagrams: bool,
    _driver: PhantomData<fn() -> D>,
}

impl<'a, D: Driver> SendWr<'a, D> {
    /// What comes back in the completion.
    pub fn id(&self) -> u64 {
        // SAFETY: A number and a pointer share the space; either is a number.
        unsafe { self.wr.__bindgen_anon_1.wr_id }
    }

    fn has(&self, flag: bindings::ib_send_flags) -> bool {
        self.wr.send_flags & flag != 0
    }

    /// Whether a completion is wanted.
    pub fn signaled(&self) -> bool {
        self.has(bindings::ib_send_flags_IB_SEND_SIGNALED)
    }

    /// Whether the peer's completion counts as solicited.
    pub fn solicited(&self) -> bool {
        self.has(bindings::ib_send_flags_IB_SEND_SOLICITED)
    }

    /// Whether earlier READs and atomics come first.
    pub fn fenced(&self) -> bool {
        self.has(bindings::ib_send_flags_IB_SEND_FENCE)
    }

    /// Whether the data is to be copied now ([`SendWr::copy_inline`]) and has no keys.
    pub fn inline(&self) -> bool {
        self.has(bindings::ib_send_flags_IB_SEND_INLINE)
    }

    /// Where the data is.
    pub fn pieces(&self) -> impl ExactSizeIterator<Item = Piece> + 'a {
        // SAFETY: The poster vouches for the request.
        unsafe { pieces(self.wr.sg_list, self.wr.num_sge) }
    }

    /// Copies the data of an inline request to the start of `buf`; returns how many bytes. `EINVAL` if there are more.
    pub fn copy_inline(&self, buf: &mut [u8]) -> Result<usize> {
        let mut at = 0usize;
        for piece in self.pieces() {
            let len = piece.len as usize;
            let end = at.checked_add(len).ok_or(EINVAL)?;
            let to = buf.get_mut(at..end).ok_or(EINVAL)?;
            // SAFETY: In an inline request addresses are the kernel's own, and the poster vouches for the range.
            unsafe { ptr::copy_nonoverlapping(piece.addr as *const u8, to.as_mut_ptr(), len) };
            at = end;
        }
        Ok(at)
    }

    /// What it asks for. `EOPNOTSUPP` for what is not in [`SendOperation`].
    pub fn operation(&self) -> Result<SendOperation<'a, D>> {
        // SAFETY: Immediate data and key share the space; either is a number.
        let (imm, key) = unsafe { (self.wr.ex.imm_data, self.wr.ex.invalidate_rkey) };
        match self.wr.opcode {
            bindings::ib_wr_opcode_IB_WR_SEND if self.datagrams => Ok(self.datagram(None)),
            bindings::ib_wr_opcode_IB_WR_SEND_WITH_IMM if self.datagrams => {
                Ok(self.datagram(Some(imm)))
            }
            _ if self.datagrams => Err(unsupported()),
            bindings::ib_wr_opcode_IB_WR_SEND => Ok(SendOperation::Send { imm: None }),
            bindings::ib_wr_opcode_IB_WR_SEND_WITH_IMM => {
                Ok(SendOperation::Send { imm: Some(imm) })
            }
            bindings::ib_wr_opcode_IB_WR_SEND_WITH_INV => Ok(SendOperation::SendInvalidate { key }),
            bindings::ib_wr_opcode_IB_WR_RDMA_WRITE => Ok(self.write(None)),
            bindings::ib_wr_opcode_IB_WR_RDMA_WRITE_WITH_IMM => Ok(self.write(Some(imm))),
            bindings::ib_wr_opcode_IB_WR_RDMA_READ => {
                let (addr, rkey) = self.remote();
                Ok(SendOperation::Read { addr, rkey })
            }
            bindings::ib_wr_opcode_IB_WR_ATOMIC_CMP_AND_SWP => Ok(self.compare_swap()),
            bindings::ib_wr_opcode_IB_WR_ATOMIC_FETCH_AND_ADD => Ok(self.fetch_add()),
            bindings::ib_wr_opcode_IB_WR_LOCAL_INV => Ok(SendOperation::LocalInvalidate { key }),
            bindings::ib_wr_opcode_IB_WR_REG_MR => Ok(self.register()),
            _ => Err(unsupported()),
        }
    }

    fn datagram(&self, imm: Option<u32>) -> SendOperation<'a, D> {
        // SAFETY: Requests of a datagram queue pair are of this type, and the poster vouches for the handle, which is
        // one of this device and so of `D`.
        unsafe {
            let wr = &*ptr::from_ref(self.wr).cast::<bindings::ib_ud_wr>();
            SendOperation::Datagram {
                ah: Ah::from_raw(wr.ah),
                qpn: wr.remote_qpn,
                qkey: wr.remote_qkey,
                imm,
            }
        }
    }

    /// Address and key of an `RDMA_*` request.
    fn remote(&self) -> (u64, u32) {
        // SAFETY: Requests with these opcodes are of this type.
        let wr = unsafe { &*ptr::from_ref(self.wr).cast::<bindings::ib_rdma_wr>() };
        (wr.remote_addr, wr.rkey)
    }

    fn write(&self, imm: Option<u32>) -> SendOperation<'a, D> {
        let (addr, rkey) = self.remote();
        SendOperation::Write { addr, rkey, imm }
    }

    fn atomic(&self) -> &'a bindings::ib_atomic_wr {
        // SAFETY: Requests with these opcodes are of this type.
        unsafe { &*ptr::from_ref(self.wr).cast() }
    }

    fn compare_swap(&self) -> SendOperation<'a, D> {
        let wr = self.atomic();
        SendOperation::CompareSwap {
            addr: wr.remote_addr,
            rkey: wr.rkey,
            compare: wr.compare_add,
            swap: wr.swap,
        }
    }

    fn fetch_add(&self) -> SendOperation<'a, D> {
        let wr = self.atomic();
        SendOperation::FetchAdd {
            addr: wr.remote_addr,
            rkey: wr.rkey,
            add: wr.compare_add,
        }
    }

    fn register(&self) -> SendOperation<'a, D> {
        // SAFETY: Requests with this opcode are of this type; the poster vouches for the region, which is one of this
        // device and so of `D`.
        unsafe {
            let wr = &*ptr::from_ref(self.wr).cast::<bindings::ib_reg_wr>();
            SendOperation::Register(FastRegistration {
                mr: Mr::from_raw(wr.mr),
                key: wr.key,
                access: Access::from_raw(wr.access),
                iova: (*wr.mr).iova,
                len: (*wr.mr).length,
            })
        }
    }
}

/// A list of send requests, to be posted in order.
pub struct SendWrs<'a, D: Driver> {
    next: *const bindings::ib_send_wr,
    last: *const bindings::ib_send_wr,
    datagrams: bool,
    _requests: PhantomData<&'a D>,
}

impl<'a, D: Driver> SendWrs<'a, D> {
    /// # Safety
    ///
    /// `first` is null or the first of a list of requests for a queue pair of `qp_type` of a device of `D`, which stays
    /// with all that it names for `'a`.
    pub(crate) unsafe fn from_raw(first: *const bindings::ib_send_wr, qp_type: QpType) -> Self {
        Self {
            next: first,
            last: ptr::null(),
            datagrams: qp_type != QpType::Rc,
            _requests: PhantomData,
        }
    }

    /// The request that was taken last: the one that failed, where posting ends early.
    pub(crate) fn taken(&self) -> *const bindings::ib_send_wr {
        self.last
    }
}

impl<'a, D: Driver> Iterator for SendWrs<'a, D> {
    type Item = SendWr<'a, D>;

    fn next(&mut self) -> Option<SendWr<'a, D>> {
        // SAFETY: By the contract of `from_raw`.
        let wr = unsafe { self.next.as_ref() }?;
        (self.last, self.next) = (self.next, wr.next);
        Some(SendWr {
            wr,
            datagrams: self.datagrams,
            _driver: PhantomData,
        })
    }
}

/// A receive request (`struct ib_recv_wr`).
pub struct RecvWr<'a>(&'a bindings::ib_recv_wr);

impl<'a> RecvWr<'a> {
    /// What comes back in the completion.
    pub fn id(&self) -> u64 {
        // SAFETY: A number and a pointer share the space; either is a number.
        unsafe { self.0.__bindgen_anon_1.wr_id }
    }

    /// Where the message goes.
    pub fn pieces(&self) -> impl ExactSizeIterator<Item = Piece> + 'a {
        // SAFETY: The poster vouches for the request.
        unsafe { pieces(self.0.sg_list, self.0.num_sge) }
    }
}

/// A list of receive requests, to be posted in order.
pub struct RecvWrs<'a> {
    next: *const bindings::ib_recv_wr,
    last: *const bindings::ib_recv_wr,
    _requests: PhantomData<&'a ()>,
}

impl<'a> RecvWrs<'a> {
    /// # Safety
    ///
    /// `first` is null or the first of a list of requests that stays with all that it names for `'a`.
    pub(crate) unsafe fn from_raw(first: *const bindings::ib_recv_wr) -> Self {
        Self {
            next: first,
            last: ptr::null(),
            _requests: PhantomData,
        }
    }

    /// As [`SendWrs::taken`].
    pub(crate) fn taken(&self) -> *const bindings::ib_recv_wr {
        self.last
    }
}

impl<'a> Iterator for RecvWrs<'a> {
    type Item = RecvWr<'a>;

    fn next(&mut self) -> Option<RecvWr<'a>> {
        // SAFETY: By the contract of `from_raw`.
        let wr = unsafe { self.next.as_ref() }?;
        (self.last, self.next) = (self.next, wr.next);
        Some(RecvWr(wr))
    }
}

/// A queue pair as completions name it; only the core looks behind it.
#[derive(Clone, Copy)]
pub struct QpHandle(NonNull<bindings::ib_qp>);

// SAFETY: It is a name here, never followed.
unsafe impl Send for QpHandle {}
// SAFETY: As above.
unsafe impl Sync for QpHandle {}

impl QpHandle {
    pub(crate) fn new(qp: NonNull<bindings::ib_qp>) -> Self {
        Self(qp)
    }

    pub(crate) fn as_raw(self) -> *mut bindings::ib_qp {
        self.0.as_ptr()
    }
}
