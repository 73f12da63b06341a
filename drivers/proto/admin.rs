// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Admin commands: they create, change and destroy the function's objects.
//!
//! The admin queue is a ring of 64-byte [`Command`]s and one of 64-byte [`Completion`]s of the same number of entries;
//! commands are executed and completed in order. A completion belongs to the driver once its phase bit is that of the
//! pass ([`crate::cqe::phase`]). If an event queue 0 exists, an `Admin` event follows each batch of completions.
//! Command and result bodies are the structures below, zero-extended to the size of the body; reserved fields are zero,
//! and a command with a non-zero reserved field is refused as `InvalidField`.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a command.
pub const COMMAND_SIZE: usize = 64;
/// Bytes of a completion.
pub const COMPLETION_SIZE: usize = 64;
/// Bytes of a command's or result's body.
pub const BODY_SIZE: usize = 56;
/// Offset of the word that hands a completion over.
pub const COMPLETION_VALID_OFFSET: usize = 4;

wire_enum! {
    /// Admin command codes.
    AdminOpcode: u16 {
        /// [`DeviceLimits`] of the function.
        QueryDevice = 1,
        /// [`NodeInfo`] of one node; command body [`ById`] (node id).
        QueryNode = 2,
        /// Writes a bit map of the nodes that are up; command body [`BufferRef`], at least `max_nodes / 8` bytes.
        ListNodes = 3,
        /// Writes the [`PortCounters`]; command body [`BufferRef`].
        QueryCounters = 4,
        /// Creates an event queue; [`CreateEq`], result [`Created`].
        CreateEq = 8,
        /// Destroys an event queue; [`ById`].
        DestroyEq = 9,
        /// Creates a completion queue; [`CreateCq`], result [`Created`].
        CreateCq = 10,
        /// Sets event moderation of a completion queue; [`ModifyCq`].
        ModifyCq = 11,
        /// Destroys a completion queue; [`ById`].
        DestroyCq = 12,
        /// Allocates a protection domain; result [`Created`].
        AllocPd = 13,
        /// Frees a protection domain; [`ById`].
        DeallocPd = 14,
        /// Registers memory; [`CreateMr`], result [`Created`] (the key).
        CreateMr = 15,
        /// Deregisters memory; [`ById`] (the key).
        DestroyMr = 16,
        /// Creates a queue pair; its parameters, a [`CreateQp`], lie in memory: [`BufferRef`], result [`Created`].
        CreateQp = 17,
        /// Changes state and attributes of a queue pair; [`ModifyQp`].
        ModifyQp = 18,
        /// Reads state and attributes of a queue pair; [`ById`], result [`QpState`].
        QueryQp = 19,
        /// Destroys a queue pair; [`ById`].
        DestroyQp = 20,
        /// Sets the receive filter of the raw port; [`SetRxFilter`].
        SetRxFilter = 24,
        /// Sets the table that spreads frames over raw queue pairs; [`SetRss`].
        SetRss = 25,
        /// Creates a shared receive queue; [`CreateSrq`], result [`Created`].
        CreateSrq = 32,
        /// Sets the limit of a shared receive queue; [`ModifySrq`].
        ModifySrq = 33,
        /// Reads the state of a shared receive queue; [`ById`], result [`SrqState`].
        QuerySrq = 34,
        /// Destroys a shared receive queue; [`ById`].
        DestroySrq = 35,
        /// Replaces pages, domain or rights of a memory region; [`ModifyMr`], result [`Created`] (the new key).
        ModifyMr = 36,
        /// Allocates a key that FAST_REG or BIND_MW binds; [`AllocKey`], result [`Created`]. `DestroyMr` frees it.
        AllocKey = 37,
        /// Sets or clears an entry of the GID table; [`SetGid`].
        SetGid = 38,
    }
}

/// A command as it lies in the submission ring.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct Command {
    /// An [`AdminOpcode`].
    pub opcode: U16,
    /// Handed back in the completion.
    pub command_id: U16,
    /// Zero.
    pub reserved: U32,
    /// Command body.
    pub body: [u8; BODY_SIZE],
}
assert_size!(Command, COMMAND_SIZE);

/// A completion as it lies in the completion ring.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct Completion {
    /// From the command.
    pub command_id: U16,
    /// A [`crate::status::AdminStatus`].
    pub status: U16,
    /// Phase bit; stored last.
    pub valid: U32,
    /// Result body.
    pub body: [u8; BODY_SIZE],
}
assert_size!(Completion, COMPLETION_SIZE);
const _: () = assert!(core::mem::offset_of!(Completion, valid) == COMPLETION_VALID_OFFSET);

/// Names one object: node id, queue number, domain or key.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ById {
    /// The object.
    pub id: U32,
    /// Zero.
    pub reserved: U32,
}
assert_size!(ById, 8);

/// A buffer in the function's DMA address space, physically contiguous for it.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct BufferRef {
    /// DMA address.
    pub addr: U64,
    /// Bytes.
    pub len: U32,
    /// Zero.
    pub reserved: U32,
}
assert_size!(BufferRef, 16);

/// Number or key of a new object.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Created {
    /// The object.
    pub id: U32,
    /// Zero.
    pub reserved: U32,
}
assert_size!(Created, 8);

/// Where a queue or region lies: one contiguous range, or a list of pages.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct PageList {
    /// Direct (`pages` 0): DMA address of the memory. Else: DMA address of an array of `pages` 64-bit page addresses.
    pub addr: U64,
    /// Entries of the array, or 0.
    pub pages: U32,
    /// log2 of the page size, 12 to 30; 0 if direct.
    pub page_shift: u8,
    /// 0: `addr` is the array itself. 1: `addr` is an array of DMA addresses of 4 KiB pages which hold the array,
    /// [`LIST_PAGE_ENTRIES`] entries each.
    pub levels: u8,
    /// Zero.
    pub reserved: [u8; 2],
}
assert_size!(PageList, 16);

/// Page addresses in each page of a list of two levels.
pub const LIST_PAGE_ENTRIES: usize = 512;

/// Result of `QueryDevice`: what there is at most of each object.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct DeviceLimits {
    /// Queue pairs.
    pub max_qp: U32,
    /// Completion queues.
    pub max_cq: U32,
    /// Event queues.
    pub max_eq: U32,
    /// Memory regions.
    pub max_mr: U32,
    /// Protection domains.
    pub max_pd: U32,
    /// Largest memory region in bytes.
    pub max_mr_size: U64,
    /// log2 of the blocks of a send queue.
    pub max_log_sq: u8,
    /// log2 of the entries of a receive queue.
    pub max_log_rq: u8,
    /// log2 of the entries of a completion queue.
    pub max_log_cq: u8,
    /// log2 of the entries of an event queue.
    pub max_log_eq: u8,
    /// Unicast and multicast addresses of the receive filter.
    pub max_rx_addresses: U16,
    /// Entries of the spreading table.
    pub rss_entries: U16,
    /// READs and atomics in flight per queue pair, as target and as initiator.
    pub max_rd_atomic: U16,
    /// Entries of the GID table.
    pub max_gids: U16,
    /// Firmware (controller model) version: major, minor, patch.
    pub firmware: [U16; 3],
    /// log2 of the entries of a shared receive queue.
    pub max_log_srq: u8,
    /// Zero.
    pub reserved: u8,
    /// Shared receive queues.
    pub max_srq: U32,
    /// Pages of a key that FAST_REG binds.
    pub max_fast_reg_pages: U32,
}
assert_size!(DeviceLimits, 56);

/// Result of `QueryNode`.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct NodeInfo {
    /// EUI-64 of the node.
    pub guid: U64,
    /// The node's epoch.
    pub epoch: U32,
    /// 1 if the node's link is up and its driver has enabled its controller.
    pub up: U32,
}
assert_size!(NodeInfo, 16);

/// Creates an event queue.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct CreateEq {
    /// Ring memory.
    pub ring: PageList,
    /// Doorbell page pair.
    pub doorbell_page: U32,
    /// Doorbell slot.
    pub doorbell_slot: U16,
    /// MSI-X vector that it raises.
    pub vector: U16,
    /// log2 of the entries.
    pub log_entries: u8,
    /// Zero.
    pub reserved: [u8; 7],
}
assert_size!(CreateEq, 32);

/// Creates a completion queue.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct CreateCq {
    /// Ring memory, zeroed.
    pub ring: PageList,
    /// Doorbell page pair.
    pub doorbell_page: U32,
    /// Doorbell slot.
    pub doorbell_slot: U16,
    /// log2 of the entries.
    pub log_entries: u8,
    /// Zero.
    pub reserved: u8,
    /// Event queue that takes its events.
    pub eqn: U32,
    /// Zero.
    pub reserved1: U32,
}
assert_size!(CreateCq, 32);

/// Sets event moderation of a completion queue: an armed queue raises its event when `max_count` entries have come in
/// or `usecs` microseconds after the first, whichever is earlier. 0 and 1 mean no waiting.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ModifyCq {
    /// Completion queue.
    pub cqn: U32,
    /// Longest wait in microseconds.
    pub usecs: U16,
    /// Entries that end the wait.
    pub max_count: U16,
}
assert_size!(ModifyCq, 8);

/// Local writes allowed (receives, READ results).
pub const ACCESS_LOCAL_WRITE: u32 = 1 << 0;
/// Remote writes allowed.
pub const ACCESS_REMOTE_WRITE: u32 = 1 << 1;
/// Remote reads allowed.
pub const ACCESS_REMOTE_READ: u32 = 1 << 2;
/// Remote atomics allowed.
pub const ACCESS_REMOTE_ATOMIC: u32 = 1 << 3;
/// Memory windows may be bound to the region.
pub const ACCESS_MW_BIND: u32 = 1 << 4;
/// Remote FLUSH for global visibility allowed.
pub const ACCESS_FLUSH_GLOBAL: u32 = 1 << 5;
/// Remote FLUSH for persistence allowed.
pub const ACCESS_FLUSH_PERSISTENT: u32 = 1 << 6;
/// Addresses within a memory window start at zero (BIND_MW only).
pub const ACCESS_ZERO_BASED: u32 = 1 << 7;
/// All rights that a region can have.
pub const ACCESS_ALL: u32 = ACCESS_LOCAL_WRITE
    | ACCESS_REMOTE_WRITE
    | ACCESS_REMOTE_READ
    | ACCESS_REMOTE_ATOMIC
    | ACCESS_MW_BIND
    | ACCESS_FLUSH_GLOBAL
    | ACCESS_FLUSH_PERSISTENT;

/// Registers memory.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct CreateMr {
    /// Pages of the region; the first byte is `iova % page size` into the first page.
    pub pages: PageList,
    /// Address that descriptors use for the first byte.
    pub iova: U64,
    /// Bytes.
    pub len: U64,
    /// Protection domain.
    pub pd: U32,
    /// `ACCESS_*`.
    pub access: U32,
}
assert_size!(CreateMr, 40);

/// [`ModifyMr::mask`]: `region.pages`, `region.iova` and `region.len` are to be set (`IB_MR_REREG_TRANS`).
pub const MR_MASK_PAGES: u32 = 1 << 0;
/// [`ModifyMr::mask`]: `region.pd` is to be set (`IB_MR_REREG_PD`).
pub const MR_MASK_PD: u32 = 1 << 1;
/// [`ModifyMr::mask`]: `region.access` is to be set (`IB_MR_REREG_ACCESS`).
pub const MR_MASK_ACCESS: u32 = 1 << 2;

/// Changes a memory region as a whole: a request finds it as it was or as it is. The key gets a new variant.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ModifyMr {
    /// Key of the region.
    pub key: U32,
    /// `MR_MASK_*`: which fields count; the others are zero.
    pub mask: U32,
    /// What it is to be.
    pub region: CreateMr,
}
assert_size!(ModifyMr, 48);

wire_enum! {
    /// What a key that `AllocKey` returns is for.
    KeyKind: u8 {
        /// FAST_REG gives it pages; a local and a remote key.
        FastReg = 0,
        /// BIND_MW gives it a range of a region (memory window type 2B); a remote key only.
        Window = 1,
    }
}

/// Allocates a key without memory.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct AllocKey {
    /// Protection domain.
    pub pd: U32,
    /// Most pages that FAST_REG will give it, 1 to [`DeviceLimits::max_fast_reg_pages`]; 0 for a window.
    pub max_pages: U32,
    /// A [`KeyKind`].
    pub kind: u8,
    /// Zero.
    pub reserved: [u8; 7],
}
assert_size!(AllocKey, 16);

wire_enum! {
    /// Kind of a queue pair.
    QpType: u8 {
        /// Reliable connection.
        Rc = 0,
        /// Unreliable datagram.
        Ud = 1,
        /// Ethernet frames.
        Raw = 2,
    }
}

wire_enum! {
    /// State of a queue pair; values follow `enum ib_qp_state` (include/rdma/ib_verbs.h).
    QpStateCode: u8 {
        /// Nothing is processed; everything in it is forgotten.
        Reset = 0,
        /// Receives may be posted.
        Init = 1,
        /// Receives are processed.
        Rtr = 2,
        /// Everything is processed.
        Rts = 3,
        /// Sends are drained, none is started.
        Sqd = 4,
        /// The send side failed (UD).
        Sqe = 5,
        /// Everything completes with a flush error.
        Err = 6,
    }
}

/// The queue pair may use [`crate::ident::DMA_LKEY`].
pub const QP_FLAG_PRIVILEGED: u8 = 1 << 0;
/// Every send descriptor is signaled.
pub const QP_FLAG_SIGNAL_ALL: u8 = 1 << 1;
/// The UD queue pair gets number [`crate::ident::GSI_QPN`], of which there is one.
pub const QP_FLAG_GSI: u8 = 1 << 2;
/// Receive entries come from the shared receive queue `srqn`; the queue pair has no receive ring, `recv_cqn` counts.
pub const QP_FLAG_SRQ: u8 = 1 << 3;

/// Parameters of a new queue pair.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct CreateQp {
    /// Send ring memory.
    pub sq: PageList,
    /// Receive ring memory.
    pub rq: PageList,
    /// A [`QpType`].
    pub qp_type: u8,
    /// `QP_FLAG_*`.
    pub flags: u8,
    /// log2 of the send queue's blocks.
    pub log_sq: u8,
    /// log2 of the receive queue's entries.
    pub log_rq: u8,
    /// log2 of the bytes of a receive entry.
    pub log_rq_stride: u8,
    /// Zero.
    pub reserved: [u8; 3],
    /// Protection domain.
    pub pd: U32,
    /// Completion queue of the send side.
    pub send_cqn: U32,
    /// Completion queue of the receive side.
    pub recv_cqn: U32,
    /// Doorbell page pair of both queues.
    pub doorbell_page: U32,
    /// Doorbell slot of the send queue.
    pub sq_slot: U16,
    /// Doorbell slot of the receive queue.
    pub rq_slot: U16,
    /// Shared receive queue, with [`QP_FLAG_SRQ`].
    pub srqn: U32,
}
assert_size!(CreateQp, 64);

/// [`ModifyQp::mask`]: `state` is to be set.
pub const QP_MASK_STATE: u32 = 1 << 0;
/// [`ModifyQp::mask`]: `remote_node`, `remote_qpn` and `remote_epoch` are to be set.
pub const QP_MASK_REMOTE: u32 = 1 << 1;
/// [`ModifyQp::mask`]: `access` is to be set.
pub const QP_MASK_ACCESS: u32 = 1 << 2;
/// [`ModifyQp::mask`]: `qkey` is to be set.
pub const QP_MASK_QKEY: u32 = 1 << 3;
/// [`ModifyQp::mask`]: `rnr_timeout_us` is to be set.
pub const QP_MASK_RNR: u32 = 1 << 4;
/// [`ModifyQp::mask`]: `max_rd_atomic` and `max_dest_rd_atomic` are to be set.
pub const QP_MASK_RD_ATOMIC: u32 = 1 << 5;
/// [`ModifyQp::rnr_timeout_us`]: wait for ever.
pub const RNR_FOREVER: u32 = u32::MAX;

/// Changes a queue pair. Transitions follow the InfiniBand specification's state diagram (volume 1, 10.3.1).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ModifyQp {
    /// Queue pair.
    pub qpn: U32,
    /// `QP_MASK_*`: which fields count.
    pub mask: U32,
    /// A [`QpStateCode`].
    pub state: u8,
    /// Zero.
    pub reserved: u8,
    /// Node of the peer (RC).
    pub remote_node: U16,
    /// Queue pair of the peer (RC).
    pub remote_qpn: U32,
    /// Epoch of the peer's node (RC).
    pub remote_epoch: U32,
    /// `ACCESS_*` that remote requests may use at most (RC).
    pub access: U32,
    /// Queue key (UD).
    pub qkey: U32,
    /// Longest wait for a receive buffer at the target, in microseconds.
    pub rnr_timeout_us: U32,
    /// READs and atomics in flight as initiator; 0: none may be posted (RC).
    pub max_rd_atomic: u8,
    /// READs and atomics in flight as target; 0: they are refused (RC).
    pub max_dest_rd_atomic: u8,
    /// Zero.
    pub reserved1: [u8; 6],
}
assert_size!(ModifyQp, 40);

/// Result of `QueryQp`.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct QpState {
    /// A [`QpStateCode`].
    pub state: u8,
    /// Zero.
    pub reserved: [u8; 3],
    /// Index up to which the device has taken the send queue.
    pub sq_index: U32,
    /// Index up to which the device has taken the receive queue.
    pub rq_index: U32,
    /// Zero.
    pub reserved1: U32,
}
assert_size!(QpState, 16);

/// Creates a shared receive queue (RC and UD).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct CreateSrq {
    /// Ring memory: entries as in a receive queue.
    pub ring: PageList,
    /// Protection domain: that of the entries' keys.
    pub pd: U32,
    /// Doorbell page pair.
    pub doorbell_page: U32,
    /// Doorbell slot.
    pub doorbell_slot: U16,
    /// log2 of the entries.
    pub log_entries: u8,
    /// log2 of the bytes of an entry.
    pub log_stride: u8,
    /// `QP_FLAG_PRIVILEGED` or 0: entries may use [`crate::ident::DMA_LKEY`].
    pub flags: u8,
    /// Zero.
    pub reserved: [u8; 3],
}
assert_size!(CreateSrq, 32);

/// Arms the limit of a shared receive queue: the first time that fewer entries than this are left, an `SrqLimit` event
/// is raised and the limit becomes 0 (none).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ModifySrq {
    /// Shared receive queue.
    pub srqn: U32,
    /// Entries.
    pub limit: U32,
}
assert_size!(ModifySrq, 8);

/// Result of `QuerySrq`.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct SrqState {
    /// The limit, 0 if none is armed.
    pub limit: U32,
    /// Index up to which the device has taken entries.
    pub index: U32,
}
assert_size!(SrqState, 8);

/// [`SetGid::flags`]: the entry is in use; without, it is cleared.
pub const GID_VALID: u32 = 1 << 0;

/// Sets an entry of the GID table, which source addresses of datagrams are taken from.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct SetGid {
    /// GID in network order; an IPv4 address is mapped (::ffff:a.b.c.d).
    pub gid: [u8; 16],
    /// Entry, below [`DeviceLimits::max_gids`].
    pub index: U32,
    /// `GID_VALID` or 0.
    pub flags: U32,
}
assert_size!(SetGid, 24);

/// Take frames for any unicast address.
pub const RX_PROMISC: u32 = 1 << 0;
/// Take frames for any multicast address.
pub const RX_ALL_MULTICAST: u32 = 1 << 1;
/// Take broadcast frames.
pub const RX_BROADCAST: u32 = 1 << 2;

/// Sets the receive filter. Until the first call nothing is received.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct SetRxFilter {
    /// Array of `count` addresses of 6 bytes each, unicast or multicast; may be null with count 0.
    pub addresses: U64,
    /// Addresses.
    pub count: U32,
    /// `RX_*`.
    pub flags: U32,
}
assert_size!(SetRxFilter, 16);

/// Sets the spreading table: a frame with hash `h` goes to raw queue pair `table[h % count]`.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct SetRss {
    /// Array of `count` queue pair numbers of 4 bytes each; count 0 stops reception.
    pub table: U64,
    /// Entries, at most [`DeviceLimits::rss_entries`].
    pub count: U32,
    /// Zero.
    pub reserved: U32,
}
assert_size!(SetRss, 16);

/// Counters of a node's port since the function was reset.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct PortCounters {
    /// Frames sent.
    pub tx_frames: U64,
    /// Bytes of those.
    pub tx_bytes: U64,
    /// Frames received.
    pub rx_frames: U64,
    /// Bytes of those.
    pub rx_bytes: U64,
    /// Frames that found no receive buffer in time and were given up.
    pub rx_no_buffer: U64,
    /// Frames that this node's receive filter refused.
    pub rx_filtered: U64,
    /// Sends that had to wait for a receive buffer at the target.
    pub tx_rnr_waits: U64,
    /// Sends that ended in an error.
    pub tx_errors: U64,
    /// RC and UD messages (SEND, WRITE, READ, atomics) sent.
    pub tx_messages: U64,
    /// Bytes of those.
    pub tx_message_bytes: U64,
    /// RC and UD messages served as target.
    pub rx_messages: U64,
    /// Bytes of those.
    pub rx_message_bytes: U64,
    /// Remote requests that this node refused.
    pub remote_access_errors: U64,
    /// Malformed descriptors.
    pub bad_descriptors: U64,
    /// Kicks.
    pub kicks: U64,
    /// Interrupts raised.
    pub interrupts: U64,
    /// READs served as target.
    pub rx_reads: U64,
    /// Bytes of those.
    pub rx_read_bytes: U64,
    /// Atomics and atomic writes served as target.
    pub rx_atomics: U64,
    /// Requests that found no receive entry.
    pub rx_rnr_naks: U64,
    /// Datagrams that arrived and were dropped: queue key, state, or no or too short an entry.
    pub rx_datagram_drops: U64,
    /// Requests that failed because the peer was gone.
    pub tx_retry_exceeded: U64,
    /// Requests and receive entries that completed with a flush error.
    pub flushed: U64,
    /// Completion queues that overflowed.
    pub cq_overflows: U64,
}
assert_size!(PortCounters, 192);

/// Names of [`PortCounters`]' fields, in order; used by every tool that shows them.
pub const PORT_COUNTER_NAMES: [&str; 24] = [
    "tx_frames",
    "tx_bytes",
    "rx_frames",
    "rx_bytes",
    "rx_no_buffer",
    "rx_filtered",
    "tx_rnr_waits",
    "tx_errors",
    "tx_messages",
    "tx_message_bytes",
    "rx_messages",
    "rx_message_bytes",
    "remote_access_errors",
    "bad_descriptors",
    "kicks",
    "interrupts",
    "rx_reads",
    "rx_read_bytes",
    "rx_atomics",
    "rx_rnr_naks",
    "rx_datagram_drops",
    "tx_retry_exceeded",
    "flushed",
    "cq_overflows",
];
