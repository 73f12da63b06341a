// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What `nupa_rdma.ko` and its provider in user space tell each other through uverbs: the driver-specific tails of
//! verbs commands (`struct ib_udata`), and methods of the driver's own. For programs in C the same is in
//! `include/uapi/rdma/nupa-abi.h`.
//!
//! Queue memory belongs to the process: the provider allocates it page-aligned and names it in the command, the kernel
//! pins it (`ib_umem`) and hands its pages to the controller. Doorbell pages are the kernel's and are mapped with
//! `mmap()` on the context's file at the offsets that a [`Doorbell`] gives. Structures may grow at their end: the
//! kernel takes shorter requests as zero-extended and longer ones only if the rest is zero
//! (`ib_copy_validate_udata_in()`), and answers no more than was asked for (`ib_respond_udata()`).
//! Integers are little-endian, as everywhere; the only hosts are.

mod ring;

pub use ring::{InvalidRequest, Ring};

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// `uverbs_abi_ver` of the device; the provider accepts this one only (Documentation/rdma.md, "Versions").
pub const ABI_VERSION: u32 = 5;

/// What the provider's library says of itself, as its symbol `NUPA_PROVIDER`: who only reads the file finds it by its first bytes.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct ProviderInfo {
    /// [`ProviderInfo::MAGIC`].
    pub magic: [u8; 16],
    /// The [`ABI_VERSION`] that it accepts.
    pub abi: U32,
    /// [`crate::VERSION`], and zeroes behind it.
    pub version: [u8; 28],
}
assert_size!(ProviderInfo, 48);

impl ProviderInfo {
    /// The bytes that it is found by.
    pub const MAGIC: [u8; 16] = *b"\x7fnupa-provider\x01\0";
    /// That of a provider of this source.
    pub const THIS: Self = Self {
        magic: Self::MAGIC,
        abi: U32::new(ABI_VERSION),
        version: Self::padded(crate::VERSION),
    };

    const fn padded(version: &str) -> [u8; 28] {
        let bytes = version.as_bytes();
        let mut padded = [0; 28];
        let mut at = 0;
        while at < bytes.len() {
            padded[at] = bytes[at];
            at += 1;
        }
        padded
    }

    /// The version, if it is text.
    pub fn version(&self) -> Option<&str> {
        let end = self.version.iter().position(|byte| *byte == 0)?;
        core::str::from_utf8(self.version.get(..end)?).ok()
    }
}

/// [`ContextResponse::flags`]: there are no trapped pages. Queues are kicked by [`METHOD_QP_KICK`] and [`METHOD_SRQ_KICK`],
/// as ever only where the event index asks for that, and a program that finds a completion queue empty calls [`METHOD_CQ_POLL`]: of the
/// queues that it polls in turn, for one, because the engine then works for all.
pub const CONTEXT_KICK_BY_COMMAND: u8 = 1 << 0;

/// [`ContextResponse::flags`]: queue pairs of connections to other nodes may have process rings (`Documentation/process-rings.md`).
pub const CONTEXT_PROCESS_RINGS: u8 = 1 << 1;

/// [`ContextResponse::flags`]: WRITEs may go into process rings, too.
pub const CONTEXT_RING_WRITES: u8 = 1 << 2;

/// What [`crate::doorbell::Slot::driver`] is in the doorbell pages of a process that has its device. When the device is
/// taken away, however that comes about, the kernel destroys the queues, then puts pages of zeroes in place of the
/// doorbell pages (and a function that was pulled reads as all ones). So whoever reads anything else here, and then finds
/// a completion queue empty, will get no completion any more.
pub const SLOT_LIVE: u32 = 1;
/// Bits of the same word of a queue pair's send queue: a number that changes before a mapping of a peer's region ([`ALLOC_DM_KEY`]) is taken away. A process that copies
/// something there puts [`SLOT_COPIES`] into the word, unless the number is another one than before the region was looked for.
pub const SLOT_MAPPINGS: u32 = 0x0000_fffe;
/// A number above that, which changes if the mapping was taken away although [`SLOT_COPIES`] stood for long: what was stored meanwhile may be lost.
pub const SLOT_FORCED: u32 = 0x7fff_0000;
/// Bit of the same word: the process is copying.
pub const SLOT_COPIES: u32 = 1 << 31;

/// The word with the next number in some of its bits. It is never that of a function which was pulled.
pub const fn next_in(word: u32, bits: u32) -> u32 {
    let number = (word | !bits).wrapping_add(1) & bits;
    let word = word & !bits;
    // All ones are left out.
    if number == bits {
        word
    } else {
        word | number
    }
}

/// `alloc_ucontext` response.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ContextResponse {
    /// `CAP_*` of [`crate::regs`].
    pub caps: U64,
    /// This node.
    pub node: U16,
    /// log2 of the most blocks of a send queue.
    pub max_log_sq: u8,
    /// log2 of the most entries of a receive queue or shared receive queue.
    pub max_log_rq: u8,
    /// log2 of the most entries of a completion queue.
    pub max_log_cq: u8,
    /// `CONTEXT_*`.
    pub flags: u8,
    /// Zero.
    pub reserved: [u8; 2],
    /// kHz of the clock that timestamps of completions are taken from ([`METHOD_QUERY_CLOCK`]); 0: there are none.
    pub clock_khz: U32,
    /// Zero.
    pub reserved1: U32,
}
assert_size!(ContextResponse, 24);

/// Attribute of the uverbs method `UVERBS_METHOD_DM_ALLOC`, the driver's own (`UVERBS_ID_DRIVER_NS`), which the kernel
/// writes: 64-bit offset for `mmap()` of the allocation, which takes whole pages.
pub const ALLOC_DM_MMAP_OFFSET: u16 = 1 << 12;
/// Attribute of the same method, which may be missing: a [`crate::pool::sharing::DmHandle`]. The process gets no memory of its
/// own then but what is exported under it, which must be as long as it asks for.
pub const ALLOC_DM_IMPORT: u16 = ALLOC_DM_MMAP_OFFSET + 1;

/// Attribute of the same method, which may be missing: a queue pair. The process gets the process ring that the queue pair's peer receives from
/// it with, if there is one (else `ENOENT`), and must ask for [`RING_SIZE`](crate::process_ring::RING_SIZE) bytes.
pub const ALLOC_DM_RING: u16 = ALLOC_DM_IMPORT + 1;

/// Attribute of the same method, which may be missing, with [`ALLOC_DM_RING`]: a key of the queue pair's peer, 32 bits. Instead of the ring the process gets the
/// region of device memory that the key names for requests of the queue pair, for as long as it may write and read there: if the peer has granted that
/// (`Documentation/pool.md`, "Mapped regions"), and it is whole pages, else `ENOENT`. It asks for 0 bytes, and maps as many as [`ALLOC_DM_REGION`] says.
pub const ALLOC_DM_KEY: u16 = ALLOC_DM_RING + 1;
/// Attribute of the same method, which the kernel writes with [`ALLOC_DM_KEY`]: a [`RegionPlace`].
pub const ALLOC_DM_REGION: u16 = ALLOC_DM_KEY + 1;

/// Where a region of device memory is.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct RegionPlace {
    /// Address of its first byte, as requests name it.
    pub addr: U64,
    /// Its bytes.
    pub len: U64,
}
assert_size!(RegionPlace, 16);

/// Method of `UVERBS_OBJECT_DM`, the driver's own: lets others import an allocation, for as long as it exists.
pub const METHOD_DM_EXPORT: u16 = 1 << 12;
/// Attribute of [`METHOD_DM_EXPORT`]: the allocation.
pub const EXPORT_DM: u16 = 1 << 12;
/// Attribute of [`METHOD_DM_EXPORT`], which the kernel writes: a [`crate::pool::sharing::DmHandle`].
pub const EXPORT_DM_HANDLE: u16 = EXPORT_DM + 1;
/// Attribute of [`METHOD_DM_EXPORT`], which may be missing: the queue pair whose process ring the allocation is. Nobody but its peer may import it
/// then.
pub const EXPORT_DM_RING: u16 = EXPORT_DM_HANDLE + 1;

/// Method of `UVERBS_OBJECT_QP`, the driver's own: has the controller look at queues of a pair, for processes that have no
/// trapped page.
pub const METHOD_QP_KICK: u16 = 1 << 12;
/// Attribute of [`METHOD_QP_KICK`]: the queue pair.
pub const QP_KICK_HANDLE: u16 = 1 << 12;
/// Attribute of [`METHOD_QP_KICK`]: which of its queues, 32 bits of `KICK_*`, one at least.
pub const QP_KICK_QUEUES: u16 = QP_KICK_HANDLE + 1;
/// The send queue.
pub const KICK_SEND: u32 = 1 << 0;
/// The receive queue. `EINVAL` if the pair has none of its own.
pub const KICK_RECV: u32 = 1 << 1;
/// Not a queue: the queue pair's peer has a message in its process ring, and waits for an event.
pub const KICK_PEER: u32 = 1 << 2;
/// Not a queue: a message in the queue pair's own process ring has waited for a receive entry, and there is one now. The event of its receive
/// completion queue is made, if that is armed.
pub const KICK_EVENT: u32 = 1 << 3;

/// Method of `UVERBS_OBJECT_SRQ`, the driver's own: has the controller look at a shared receive queue.
pub const METHOD_SRQ_KICK: u16 = 1 << 12;
/// Attribute of [`METHOD_SRQ_KICK`]: the queue.
pub const SRQ_KICK_HANDLE: u16 = 1 << 12;

/// Method of `UVERBS_OBJECT_CQ`, the driver's own: a process that found no completion has the controller work in its time, where
/// that is software of this host. What completes is in the ring as ever.
pub const METHOD_CQ_POLL: u16 = 1 << 12;
/// Attribute of [`METHOD_CQ_POLL`]: the queue.
pub const CQ_POLL_HANDLE: u16 = 1 << 12;

/// Method of `UVERBS_OBJECT_DEVICE`, the driver's own: reads the clock that timestamps of completions are taken from.
pub const METHOD_QUERY_CLOCK: u16 = 1 << 12;
/// Attribute of [`METHOD_QUERY_CLOCK`], which the kernel writes: 64 bits.
pub const QUERY_CLOCK: u16 = 1 << 12;

/// Doorbell slots of a queue, and where their page pair is mapped.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Doorbell {
    /// Offset for `mmap()` of the shared page (read, write); pairs of a context differ in it, so it names the pair.
    pub shared_offset: U64,
    /// Offset for `mmap()` of the trapped page (write); 0 with [`CONTEXT_KICK_BY_COMMAND`], where there is none.
    pub trapped_offset: U64,
    /// Slot of the completion queue, shared receive queue or send queue.
    pub slot: U16,
    /// Slot of the receive queue, [`crate::doorbell::SLOT_NONE`] if there is none.
    pub recv_slot: U16,
    /// Zero.
    pub reserved: U32,
}
assert_size!(Doorbell, 24);

/// `create_cq` request. The ring has the power of two of entries that `log_entries` says, at least as many as the
/// verb asks for, and is zeroed.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct CreateCqRequest {
    /// Address of the ring in the process, page-aligned.
    pub ring: U64,
    /// log2 of its entries.
    pub log_entries: u8,
    /// Zero.
    pub reserved: [u8; 7],
}
assert_size!(CreateCqRequest, 16);

/// `create_cq` response.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct CreateCqResponse {
    /// Doorbell slot.
    pub doorbell: Doorbell,
    /// Number of the queue in the controller.
    pub cqn: U32,
    /// Zero.
    pub reserved: U32,
}
assert_size!(CreateCqResponse, 32);

/// `resize_cq` request.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ResizeCqRequest {
    /// Address of the new ring in the process, page-aligned.
    pub ring: U64,
    /// log2 of its entries.
    pub log_entries: u8,
    /// Zero.
    pub reserved: [u8; 7],
}
assert_size!(ResizeCqRequest, 16);

/// `create_qp` request.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct CreateQpRequest {
    /// Address of the send ring in the process, page-aligned; 0 if the queue pair cannot send.
    pub send_ring: U64,
    /// Address of the receive ring in the process, page-aligned; 0 with a shared receive queue.
    pub recv_ring: U64,
    /// log2 of the 64-byte blocks of the send ring.
    pub log_send_blocks: u8,
    /// log2 of the entries of the receive ring.
    pub log_recv_entries: u8,
    /// log2 of the bytes of a receive entry.
    pub log_recv_stride: u8,
    /// Zero.
    pub reserved: [u8; 5],
}
assert_size!(CreateQpRequest, 24);

/// `create_qp` response.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct CreateQpResponse {
    /// Doorbell slots.
    pub doorbell: Doorbell,
}
assert_size!(CreateQpResponse, 24);

/// `create_srq` request.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct CreateSrqRequest {
    /// Address of the ring in the process, page-aligned.
    pub ring: U64,
    /// log2 of its entries.
    pub log_entries: u8,
    /// log2 of the bytes of an entry.
    pub log_stride: u8,
    /// Zero.
    pub reserved: [u8; 6],
}
assert_size!(CreateSrqRequest, 16);

/// `create_srq` response.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct CreateSrqResponse {
    /// Doorbell slot.
    pub doorbell: Doorbell,
    /// Number of the queue in the controller.
    pub srqn: U32,
    /// Zero.
    pub reserved: U32,
}
assert_size!(CreateSrqResponse, 32);

/// `create_ah` response: what the kernel resolved, for the provider to put into descriptors.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct CreateAhResponse {
    /// Node that the address belongs to.
    pub node: U16,
    /// Index into the controller's GID table.
    pub sgid_index: U16,
    /// Zero.
    pub reserved: U32,
}
assert_size!(CreateAhResponse, 8);
