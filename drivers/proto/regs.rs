// SPDX-License-Identifier: GPL-2.0 OR MIT
//! BARs and the control registers of BAR 0.
//!
//! Registers are little-endian and naturally aligned. A 32-bit register takes 4-byte accesses; a 64-bit register takes
//! one 8-byte access or two 4-byte accesses, low half first. Anything else reads as zero and is ignored when written.
//! A surprise-removed function reads as all ones everywhere, which no [`MAGIC`] matches.

/// BAR of the control registers (trapped, not prefetchable, 64-bit).
pub const BAR_CONTROL: u8 = 0;
/// BAR of the doorbell page pairs, see [`crate::doorbell`].
pub const BAR_DOORBELL: u8 = 2;
/// BAR of the MSI-X table and pending bits.
pub const BAR_MSIX: u8 = 4;

/// Bytes of BAR 0.
pub const CONTROL_SIZE: usize = 0x1000;
/// Offset of the MSI-X table in BAR 4.
pub const MSIX_TABLE_OFFSET: u32 = 0;
/// Offset of the MSI-X pending bit array in BAR 4.
pub const MSIX_PBA_OFFSET: u32 = 0x800;
/// Bytes of BAR 4.
pub const MSIX_BAR_SIZE: u64 = 0x1000;
/// MSI-X vectors a controller offers.
pub const MSIX_VECTORS: u16 = 65;

/// RO u32: reads [`MAGIC`].
pub const REG_MAGIC: usize = 0x00;
/// RO u32: interface version, major in the upper half, minor in the lower.
pub const REG_VERSION: usize = 0x04;
/// RO u64: capabilities, `CAP_*`.
pub const REG_CAPS: usize = 0x08;
/// RO u32: state, `STATUS_*`.
pub const REG_STATUS: usize = 0x10;
/// RW u32: commands to the function, `CONTROL_*`.
pub const REG_CONTROL: usize = 0x14;
/// RO u32: id of this node.
pub const REG_NODE_ID: usize = 0x18;
/// RO u32: number of node ids that this fabric can have (ids are below it).
pub const REG_MAX_NODES: usize = 0x1c;
/// RO u64: EUI-64 of this node; non-zero.
pub const REG_NODE_GUID: usize = 0x20;
/// RO u64: random identity of the fabric, drawn when the switch starts.
pub const REG_FABRIC_ID: usize = 0x28;
/// RO u32: link speed in Mb/s.
pub const REG_LINK_SPEED: usize = 0x30;
/// RO u32: this node's epoch: goes up by one with each reset of the function.
pub const REG_EPOCH: usize = 0x34;
/// RO u32: doorbell page pairs in BAR 2.
pub const REG_DOORBELL_PAGES: usize = 0x38;
/// RO u32: `FAULT_*`, why [`STATUS_FATAL`] is set.
pub const REG_FAULT: usize = 0x3c;
/// RW u64: DMA address of the admin submission ring, 4 KiB aligned.
pub const REG_ADMIN_SQ: usize = 0x40;
/// RW u64: DMA address of the admin completion ring, 4 KiB aligned.
pub const REG_ADMIN_CQ: usize = 0x48;
/// RW u32: log2 of the entries of both admin rings, at most [`ADMIN_MAX_LOG_ENTRIES`].
pub const REG_ADMIN_SIZE: usize = 0x50;
/// WO u32: free-running producer index of the admin submission ring; the write starts execution.
pub const REG_ADMIN_DOORBELL: usize = 0x54;
/// RW u64: DMA address of the shared doorbell pages in the host's memory, one behind the other, 4 KiB aligned; 0: they
/// are in BAR 2. Only with [`CAP_HOST_DOORBELLS`]; taken over when the function is enabled, zeroed by a reset.
pub const REG_DOORBELL_MEMORY: usize = 0x58;
/// RO u64: bytes of device memory, a multiple of 4 KiB; 0: none. It lies in BAR 2 behind the doorbell page pairs
/// ([`crate::doorbell::device_memory_offset`]) and, for the DMA engine, at [`DEVICE_MEMORY_BASE`].
pub const REG_DEVICE_MEMORY: usize = 0x60;
/// RO u64: the function's clock, which timestamps of completions are taken from; never goes back, and goes on through resets.
/// Only with [`CAP_TIMESTAMP`], as [`REG_CLOCK_KHZ`].
pub const REG_CLOCK: usize = 0x68;
/// RO u32: kHz of the clock; non-zero.
pub const REG_CLOCK_KHZ: usize = 0x70;

/// Address of the function's own memory as its DMA engine sees it: memory regions of it are registered by
/// addresses from here on, which no host memory has.
pub const DEVICE_MEMORY_BASE: u64 = 1 << 63;

/// Value of [`REG_MAGIC`]: "NUPA".
pub const MAGIC: u32 = u32::from_le_bytes(*b"NUPA");
/// Interface major version: a driver refuses another one.
pub const VERSION_MAJOR: u16 = 3;
/// Interface minor version: additions that an older driver can ignore.
pub const VERSION_MINOR: u16 = 3;
/// Value of [`REG_VERSION`].
pub const VERSION: u32 = ((VERSION_MAJOR as u32) << 16) | VERSION_MINOR as u32;

/// Largest log2 of admin ring entries.
pub const ADMIN_MAX_LOG_ENTRIES: u32 = 8;

/// The function takes admin commands.
pub const STATUS_READY: u32 = 1 << 0;
/// The function stopped; only a reset helps. [`REG_FAULT`] says why.
pub const STATUS_FATAL: u32 = 1 << 1;
/// The link to the switch is up.
pub const STATUS_LINK_UP: u32 = 1 << 2;

/// Starts the function: admin rings are taken over; [`STATUS_READY`] follows. Clearing it is the same as a reset.
pub const CONTROL_ENABLE: u32 = 1 << 0;
/// Resets the function: every object is gone, epoch goes up, [`STATUS_READY`] reads 0 when done. Reads as 0.
pub const CONTROL_RESET: u32 = 1 << 1;

/// No fault.
pub const FAULT_NONE: u32 = 0;
/// Admin ring address or size is unusable.
pub const FAULT_ADMIN_RING: u32 = 1;
/// Admin producer index ran ahead by more than the ring holds.
pub const FAULT_ADMIN_INDEX: u32 = 2;
/// An event queue could not be written.
pub const FAULT_EVENT_QUEUE: u32 = 3;
/// [`REG_DOORBELL_MEMORY`] is not aligned, or not all of it can be read and written.
pub const FAULT_DOORBELL_MEMORY: u32 = 4;
/// Of a function that is software: its place in the shared memory pool is lost, or others have taken it for dead.
pub const FAULT_POOL: u32 = 5;

/// RC queue pairs.
pub const CAP_RC: u64 = 1 << 0;
/// UD queue pairs.
pub const CAP_UD: u64 = 1 << 1;
/// Raw frame queue pairs (the netdevice).
pub const CAP_RAW: u64 = 1 << 2;
/// Push slots in doorbell pages.
pub const CAP_PUSH: u64 = 1 << 3;
/// Shared receive queues.
pub const CAP_SRQ: u64 = 1 << 4;
/// FETCH_ADD and CMP_SWAP on 64 bits.
pub const CAP_ATOMIC: u64 = 1 << 5;
/// FAST_REG, LOCAL_INV and SEND_INV; keys are allocated by `AllocKey`.
pub const CAP_MEM_MGT: u64 = 1 << 6;
/// Memory windows type 2B.
pub const CAP_MW: u64 = 1 << 7;
/// FLUSH and ATOMIC_WRITE.
pub const CAP_FLUSH: u64 = 1 << 8;
/// Shared doorbell pages may lie in the host's memory, and better do: see [`crate::doorbell`].
pub const CAP_HOST_DOORBELLS: u64 = 1 << 9;
/// Completion queues may be told to overwrite entries that their owner has not taken.
pub const CAP_CQ_OVERRUN: u64 = 1 << 10;
/// Multicast groups of UD queue pairs.
pub const CAP_MULTICAST: u64 = 1 << 11;
/// The function has a clock, and completions can carry timestamps.
pub const CAP_TIMESTAMP: u64 = 1 << 12;
