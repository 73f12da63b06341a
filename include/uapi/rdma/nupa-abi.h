/* SPDX-License-Identifier: ((GPL-2.0 WITH Linux-syscall-note) OR MIT) */
/*
 * What nupa_rdma.ko and its provider in user space tell each other through uverbs. drivers/proto/uabi.rs says the same in Rust,
 * and what the fields mean in full; a test of the provider compares the two. Descriptors, completions and doorbell pages are
 * those of the controller (Documentation/controller.md).
 *
 * Integers are little-endian, and so are all hosts.
 */

#ifndef NUPA_ABI_USER_H
#define NUPA_ABI_USER_H

#include <linux/types.h>
#include <rdma/ib_user_ioctl_cmds.h>

/*
 * Increment this value if any changes that break userspace ABI compatibility are made. Documentation/rdma.md has a table of
 * what works with what.
 */
#define NUPA_IB_UVERBS_ABI_VERSION	5

/* In the last word of a doorbell slot, for as long as the process has its device. */
#define NUPA_IB_SLOT_LIVE		1
/*
 * In that of a send queue: a number that changes before a mapping of a peer's region for that queue (NUPA_IB_ATTR_ALLOC_DM_KEY) is taken away; one that changes if it
 * was taken away although the process was copying, which it says by the last bit.
 */
#define NUPA_IB_SLOT_MAPPINGS		0x0000fffe
#define NUPA_IB_SLOT_FORCED		0x7fff0000
#define NUPA_IB_SLOT_COPIES		0x80000000

enum nupa_ib_context_flags {
	/* There are no trapped pages: queues are kicked by NUPA_IB_METHOD_QP_KICK and NUPA_IB_METHOD_SRQ_KICK. */
	NUPA_IB_CONTEXT_KICK_BY_COMMAND	= 1 << 0,
	/* Queue pairs of connections to other nodes may have process rings (Documentation/process-rings.md). */
	NUPA_IB_CONTEXT_PROCESS_RINGS	= 1 << 1,
	/* WRITEs may go into process rings, too. */
	NUPA_IB_CONTEXT_RING_WRITES	= 1 << 2,
};

struct nupa_ib_alloc_ucontext_resp {
	__aligned_u64	caps;
	__u16		node;
	__u8		max_log_sq;
	__u8		max_log_rq;
	__u8		max_log_cq;
	__u8		flags;		/* enum nupa_ib_context_flags */
	__u8		reserved[2];
	__u32		clock_khz;	/* 0: completions have no timestamps */
	__u32		reserved1;
};

/* Offsets are for mmap(). */
struct nupa_ib_doorbell {
	__aligned_u64	shared_offset;
	__aligned_u64	trapped_offset;
	__u16		slot;
	__u16		recv_slot;
	__u32		reserved;
};

/* Rings are page-aligned memory of the process; their sizes are logarithms. */
struct nupa_ib_create_cq {
	__aligned_u64	ring;
	__u8		log_entries;
	__u8		reserved[7];
};

struct nupa_ib_create_cq_resp {
	struct nupa_ib_doorbell	doorbell;
	__u32		cqn;
	__u32		reserved;
};

struct nupa_ib_resize_cq {
	__aligned_u64	ring;
	__u8		log_entries;
	__u8		reserved[7];
};

struct nupa_ib_create_qp {
	__aligned_u64	send_ring;
	__aligned_u64	recv_ring;
	__u8		log_send_blocks;
	__u8		log_recv_entries;
	__u8		log_recv_stride;
	__u8		reserved[5];
};

struct nupa_ib_create_qp_resp {
	struct nupa_ib_doorbell	doorbell;
};

struct nupa_ib_create_srq {
	__aligned_u64	ring;
	__u8		log_entries;
	__u8		log_stride;
	__u8		reserved[6];
};

struct nupa_ib_create_srq_resp {
	struct nupa_ib_doorbell	doorbell;
	__u32		srqn;
	__u32		reserved;
};

struct nupa_ib_create_ah_resp {
	__u16		node;
	__u16		sgid_index;
	__u32		reserved;
};

/* Names device memory that is shared. Whoever has it may read and write the memory. */
struct nupa_ib_dm_handle {
	__aligned_u64	secret;
	__aligned_u64	fabric_id;
	__aligned_u64	len;
	__u32		epoch;
	__u16		node;
	__u16		index;
};

/* Of UVERBS_METHOD_DM_ALLOC, beside those of the RDMA core. */
enum nupa_ib_alloc_dm_attrs {
	NUPA_IB_ATTR_ALLOC_DM_MMAP_OFFSET = (1U << UVERBS_ID_NS_SHIFT),	/* out, __u64 */
	NUPA_IB_ATTR_ALLOC_DM_IMPORT,		/* in, optional, struct nupa_ib_dm_handle */
	NUPA_IB_ATTR_ALLOC_DM_RING,		/* optional, UVERBS_OBJECT_QP: the ring that its peer receives from it with */
	NUPA_IB_ATTR_ALLOC_DM_KEY,		/* in, optional, __u32, with the one before: that peer's region with this key instead */
	NUPA_IB_ATTR_ALLOC_DM_REGION,		/* out, with the one before, struct nupa_ib_dm_region */
};

/* A region of device memory of another node's. */
struct nupa_ib_dm_region {
	__aligned_u64	addr;			/* of its first byte, as requests name it */
	__aligned_u64	len;
};

/* Of UVERBS_OBJECT_DM: lets others import an allocation for as long as it exists. */
enum nupa_ib_dm_methods {
	NUPA_IB_METHOD_DM_EXPORT = (1U << UVERBS_ID_NS_SHIFT),
};

enum nupa_ib_dm_export_attrs {
	NUPA_IB_ATTR_DM_EXPORT_HANDLE = (1U << UVERBS_ID_NS_SHIFT),	/* UVERBS_OBJECT_DM */
	NUPA_IB_ATTR_DM_EXPORT_RESP,		/* out, struct nupa_ib_dm_handle; zeroes for a ring */
	NUPA_IB_ATTR_DM_EXPORT_RING,		/* optional, UVERBS_OBJECT_QP: the one whose ring it is */
};

/* Of UVERBS_OBJECT_QP: has the controller look at queues of a pair. */
enum nupa_ib_qp_methods {
	NUPA_IB_METHOD_QP_KICK = (1U << UVERBS_ID_NS_SHIFT),
};

enum nupa_ib_qp_kick_attrs {
	NUPA_IB_ATTR_QP_KICK_HANDLE = (1U << UVERBS_ID_NS_SHIFT),	/* UVERBS_OBJECT_QP */
	NUPA_IB_ATTR_QP_KICK_QUEUES,		/* in, __u32, enum nupa_ib_kick_queues */
};

enum nupa_ib_kick_queues {
	NUPA_IB_KICK_SEND	= 1 << 0,
	NUPA_IB_KICK_RECV	= 1 << 1,
	/* Not a queue: the peer has a message in its process ring, and waits for an event. */
	NUPA_IB_KICK_PEER	= 1 << 2,
	/* Not a queue: a message in its own process ring has a receive entry now. */
	NUPA_IB_KICK_EVENT	= 1 << 3,
};

/* Of UVERBS_OBJECT_SRQ: has the controller look at a shared receive queue. */
enum nupa_ib_srq_methods {
	NUPA_IB_METHOD_SRQ_KICK = (1U << UVERBS_ID_NS_SHIFT),
};

enum nupa_ib_srq_kick_attrs {
	NUPA_IB_ATTR_SRQ_KICK_HANDLE = (1U << UVERBS_ID_NS_SHIFT),	/* UVERBS_OBJECT_SRQ */
};

/*
 * Of UVERBS_OBJECT_CQ: a process that found no completion has the controller work in its time, where the controller is software
 * of this host. What completes is in the ring as ever.
 */
enum nupa_ib_cq_methods {
	NUPA_IB_METHOD_CQ_POLL = (1U << UVERBS_ID_NS_SHIFT),
};

enum nupa_ib_cq_poll_attrs {
	NUPA_IB_ATTR_CQ_POLL_HANDLE = (1U << UVERBS_ID_NS_SHIFT),	/* UVERBS_OBJECT_CQ */
};

/* Of UVERBS_OBJECT_DEVICE: reads the clock that timestamps of completions are taken from. */
enum nupa_ib_device_methods {
	NUPA_IB_METHOD_QUERY_CLOCK = (1U << UVERBS_ID_NS_SHIFT),
};

enum nupa_ib_query_clock_attrs {
	NUPA_IB_ATTR_QUERY_CLOCK_RESP = (1U << UVERBS_ID_NS_SHIFT),	/* out, __u64 */
};

#endif /* NUPA_ABI_USER_H */
