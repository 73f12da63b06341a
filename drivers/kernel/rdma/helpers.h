/* SPDX-License-Identifier: GPL-2.0 */
/* C inline functions and macros of the RDMA core that nk_rdma calls, one out-of-line function each. */

#ifndef NK_RDMA_HELPERS_H
#define NK_RDMA_HELPERS_H

#include <linux/netdevice.h>
#include <rdma/ib_mad.h>
#include <rdma/ib_umem.h>
#include <rdma/ib_verbs.h>
#include <rdma/iter.h>
#include <rdma/restrack.h>
#include <rdma/uverbs_ioctl.h>

/* Macros that bindgen cannot evaluate. */
enum nk_rdma_const {
	NK_RDMA_CORE_PORT_ROCE_V2 = RDMA_CORE_PORT_IBA_ROCE_UDP_ENCAP,
	NK_RDMA_MAD_SIZE = IB_MGMT_MAD_SIZE,
	NK_RDMA_PORT_CM_SUP = IB_PORT_CM_SUP,
	NK_RDMA_DEFAULT_PKEY = IB_DEFAULT_PKEY_FULL,
	NK_RDMA_REREG_TRANS = IB_MR_REREG_TRANS,
	NK_RDMA_REREG_PD = IB_MR_REREG_PD,
	NK_RDMA_REREG_ACCESS = IB_MR_REREG_ACCESS,
	NK_RDMA_DM_HANDLE_SIZE = 32,
};

/* Names device memory that is shared; what is in it is the driver's business. */
struct nk_rdma_dm_handle {
	u8 bytes[NK_RDMA_DM_HANDLE_SIZE];
};

/* What processes ask for by methods of the driver's own, for which ib_device_ops has no place. All may sleep. */
struct nk_rdma_methods {
	int (*export_dm)(struct ib_dm *dm, struct nk_rdma_dm_handle *handle);
	int (*export_ring)(struct ib_dm *dm, struct ib_qp *qp);
	int (*kick_qp)(struct ib_qp *qp, bool send, bool recv);
	void (*kick_peer)(struct ib_qp *qp);
	void (*kick_event)(struct ib_qp *qp);
	void (*kick_srq)(struct ib_srq *srq);
	void (*poll_cq)(struct ib_cq *cq);
	int (*query_clock)(struct ib_device *ibdev, u64 *clock);
};

/* A device; the driver's data is behind it. */
struct nk_rdma_device {
	struct ib_device ib;
	const struct nk_rdma_methods *methods;
};

/* Follows the network device of one port. */
struct nk_rdma_follower {
	struct notifier_block nb;
	struct ib_device *ibdev;
	struct device *parent;
};

/* What a port has moved. */
struct nk_rdma_traffic {
	u64 xmit_bytes;
	u64 rcv_bytes;
	u64 xmit_packets;
	u64 rcv_packets;
};

/* Device */
struct ib_device *nk_rdma_alloc(size_t size);
void nk_rdma_set_device(struct ib_device *ibdev, const struct nk_rdma_methods *methods, struct device *parent,
			u64 guid, int vectors);
int nk_rdma_follow(struct nk_rdma_follower *follower, struct ib_device *ibdev, struct device *parent);
void nk_rdma_unfollow(struct nk_rdma_follower *follower);
enum ib_port_state nk_rdma_port_state(struct ib_device *ibdev, u32 port);

/* Counters of the port, asked for by management datagrams; nk_rdma_answer_perf() returns what process_mad() has to. */
bool nk_rdma_asks_for_traffic(const struct ib_wc *wc, const struct ib_mad *in);
int nk_rdma_answer_perf(const struct ib_wc *wc, const struct ib_mad *in, struct ib_mad *out,
			const struct nk_rdma_traffic *traffic);

/* Sets of counters: hides the first of them, which only the port has. */
void nk_rdma_hide_stats(struct rdma_hw_stats *stats, unsigned int count);

/* Requests from user space */
struct ib_ucontext *nk_rdma_udata_context(struct ib_udata *udata);
struct ib_udata *nk_rdma_bundle_udata(struct uverbs_attr_bundle *attrs);
int nk_rdma_no_udata(struct ib_udata *udata);
int nk_rdma_udata_in_empty(struct ib_udata *udata);
int nk_rdma_respond_empty(struct ib_udata *udata);
int nk_rdma_mmap(struct ib_ucontext *context, struct vm_area_struct *vma, struct rdma_user_mmap_entry *entry,
		 phys_addr_t phys, bool cached, bool inherited);

/* Device memory. nk_rdma_dm_import() returns 1 if there is a handle, 0 if not; nk_rdma_dm_ring() and nk_rdma_dm_key() the same of a queue pair and of a key. */
int nk_rdma_dm_import(struct uverbs_attr_bundle *attrs, struct nk_rdma_dm_handle *handle);
int nk_rdma_dm_ring(struct uverbs_attr_bundle *attrs, struct ib_qp **qp);
int nk_rdma_dm_key(struct uverbs_attr_bundle *attrs, u32 *key);
int nk_rdma_answer_dm(struct uverbs_attr_bundle *attrs, u64 offset);
int nk_rdma_answer_region(struct uverbs_attr_bundle *attrs, u64 addr, u64 len);

/* Details of resources: one attribute that holds all that a driver adds. */
struct nlattr *nk_rdma_details_start(struct sk_buff *message);
void nk_rdma_details_end(struct sk_buff *message, struct nlattr *table, bool complete);

/* User memory */
bool nk_rdma_access_writable(int access);
struct ib_umem *nk_rdma_umem_get(struct ib_device *ibdev, u64 addr, size_t size, int access);
size_t nk_rdma_umem_blocks(struct ib_umem *umem, unsigned long size);
void nk_rdma_umem_start(struct ib_block_iter *iter, struct ib_umem *umem, unsigned long size);
struct scatterlist *nk_rdma_umem_piece(struct scatterlist *sg, u64 *addr, size_t *len);
bool nk_rdma_umem_next(struct ib_block_iter *iter, dma_addr_t *addr);

#endif
