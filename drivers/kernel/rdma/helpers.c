// SPDX-License-Identifier: GPL-2.0
/* See helpers.h. */

#include <linux/mm.h>
#include <linux/rtnetlink.h>
#include <net/netlink.h>
#include <rdma/ib_pma.h>
#include <rdma/uverbs_ioctl.h>
#include <rdma/uverbs_std_types.h>
#include <rdma/nupa-abi.h>
#include <uapi/rdma/rdma_netlink.h>

#define UVERBS_MODULE_NAME nk_rdma
#include <rdma/uverbs_named_ioctl.h>

#include "helpers.h"

/* What the driver adds to the interface of the RDMA core (nupa-abi.h). */

static_assert(sizeof(struct nk_rdma_dm_handle) == sizeof(struct nupa_ib_dm_handle));

static const struct nk_rdma_methods *nk_rdma_methods_of(struct ib_device *ibdev)
{
	return container_of(ibdev, struct nk_rdma_device, ib)->methods;
}

ADD_UVERBS_ATTRIBUTES_SIMPLE(nk_rdma_dm_alloc, UVERBS_OBJECT_DM, UVERBS_METHOD_DM_ALLOC,
			     UVERBS_ATTR_PTR_OUT(NUPA_IB_ATTR_ALLOC_DM_MMAP_OFFSET, UVERBS_ATTR_TYPE(u64),
						 UA_MANDATORY),
			     UVERBS_ATTR_PTR_IN(NUPA_IB_ATTR_ALLOC_DM_IMPORT,
						UVERBS_ATTR_TYPE(struct nupa_ib_dm_handle), UA_OPTIONAL),
			     UVERBS_ATTR_IDR(NUPA_IB_ATTR_ALLOC_DM_RING, UVERBS_OBJECT_QP, UVERBS_ACCESS_READ,
					     UA_OPTIONAL),
			     UVERBS_ATTR_PTR_IN(NUPA_IB_ATTR_ALLOC_DM_KEY, UVERBS_ATTR_TYPE(u32), UA_OPTIONAL),
			     UVERBS_ATTR_PTR_OUT(NUPA_IB_ATTR_ALLOC_DM_REGION,
						 UVERBS_ATTR_TYPE(struct nupa_ib_dm_region), UA_OPTIONAL));

/* The queue pair of an attribute that may be missing: 1 if there is one, 0 if not. */
static int nk_rdma_optional_qp(struct uverbs_attr_bundle *attrs, u16 attr, struct ib_qp **qp)
{
	if (!uverbs_attr_is_valid(attrs, attr))
		return 0;
	*qp = uverbs_attr_get_obj(attrs, attr);
	return IS_ERR(*qp) ? PTR_ERR(*qp) : 1;
}

static int UVERBS_HANDLER(NUPA_IB_METHOD_DM_EXPORT)(struct uverbs_attr_bundle *attrs)
{
	struct ib_dm *dm = uverbs_attr_get_obj(attrs, NUPA_IB_ATTR_DM_EXPORT_HANDLE);
	const struct nk_rdma_methods *methods;
	struct nk_rdma_dm_handle handle = {};
	struct ib_qp *qp;
	int ret;

	if (IS_ERR(dm))
		return PTR_ERR(dm);
	methods = nk_rdma_methods_of(dm->device);
	ret = nk_rdma_optional_qp(attrs, NUPA_IB_ATTR_DM_EXPORT_RING, &qp);
	/* Nobody gets a handle of a ring: it stays zeroes. */
	if (ret > 0)
		ret = methods->export_ring(dm, qp);
	else if (!ret)
		ret = methods->export_dm(dm, &handle);
	if (ret)
		return ret;
	return uverbs_copy_to(attrs, NUPA_IB_ATTR_DM_EXPORT_RESP, &handle, sizeof(handle));
}

DECLARE_UVERBS_NAMED_METHOD(NUPA_IB_METHOD_DM_EXPORT,
			    UVERBS_ATTR_IDR(NUPA_IB_ATTR_DM_EXPORT_HANDLE, UVERBS_OBJECT_DM, UVERBS_ACCESS_READ,
					    UA_MANDATORY),
			    UVERBS_ATTR_PTR_OUT(NUPA_IB_ATTR_DM_EXPORT_RESP,
						UVERBS_ATTR_TYPE(struct nupa_ib_dm_handle), UA_MANDATORY),
			    UVERBS_ATTR_IDR(NUPA_IB_ATTR_DM_EXPORT_RING, UVERBS_OBJECT_QP, UVERBS_ACCESS_READ,
					    UA_OPTIONAL));

/* Few attributes, so that the RDMA core needs no memory for them: these are called to post and to poll. */

static int UVERBS_HANDLER(NUPA_IB_METHOD_QP_KICK)(struct uverbs_attr_bundle *attrs)
{
	struct ib_qp *qp = uverbs_attr_get_obj(attrs, NUPA_IB_ATTR_QP_KICK_HANDLE);
	const struct nk_rdma_methods *methods;
	u32 wanted;
	int ret;

	if (IS_ERR(qp))
		return PTR_ERR(qp);
	ret = uverbs_get_flags32(&wanted, attrs, NUPA_IB_ATTR_QP_KICK_QUEUES,
				 NUPA_IB_KICK_SEND | NUPA_IB_KICK_RECV | NUPA_IB_KICK_PEER |
				 NUPA_IB_KICK_EVENT);
	if (ret)
		return ret;
	if (!wanted)
		return -EINVAL;
	methods = nk_rdma_methods_of(qp->device);
	if (wanted & NUPA_IB_KICK_PEER)
		methods->kick_peer(qp);
	if (wanted & NUPA_IB_KICK_EVENT)
		methods->kick_event(qp);
	return methods->kick_qp(qp, wanted & NUPA_IB_KICK_SEND, wanted & NUPA_IB_KICK_RECV);
}

DECLARE_UVERBS_NAMED_METHOD(NUPA_IB_METHOD_QP_KICK,
			    UVERBS_ATTR_IDR(NUPA_IB_ATTR_QP_KICK_HANDLE, UVERBS_OBJECT_QP, UVERBS_ACCESS_READ,
					    UA_MANDATORY),
			    UVERBS_ATTR_FLAGS_IN(NUPA_IB_ATTR_QP_KICK_QUEUES, enum nupa_ib_kick_queues,
						 UA_MANDATORY));

static int UVERBS_HANDLER(NUPA_IB_METHOD_SRQ_KICK)(struct uverbs_attr_bundle *attrs)
{
	struct ib_srq *srq = uverbs_attr_get_obj(attrs, NUPA_IB_ATTR_SRQ_KICK_HANDLE);

	if (IS_ERR(srq))
		return PTR_ERR(srq);
	nk_rdma_methods_of(srq->device)->kick_srq(srq);
	return 0;
}

DECLARE_UVERBS_NAMED_METHOD(NUPA_IB_METHOD_SRQ_KICK,
			    UVERBS_ATTR_IDR(NUPA_IB_ATTR_SRQ_KICK_HANDLE, UVERBS_OBJECT_SRQ, UVERBS_ACCESS_READ,
					    UA_MANDATORY));

static int UVERBS_HANDLER(NUPA_IB_METHOD_CQ_POLL)(struct uverbs_attr_bundle *attrs)
{
	struct ib_cq *cq = uverbs_attr_get_obj(attrs, NUPA_IB_ATTR_CQ_POLL_HANDLE);

	if (IS_ERR(cq))
		return PTR_ERR(cq);
	nk_rdma_methods_of(cq->device)->poll_cq(cq);
	return 0;
}

DECLARE_UVERBS_NAMED_METHOD(NUPA_IB_METHOD_CQ_POLL,
			    UVERBS_ATTR_IDR(NUPA_IB_ATTR_CQ_POLL_HANDLE, UVERBS_OBJECT_CQ, UVERBS_ACCESS_READ,
					    UA_MANDATORY));

static int UVERBS_HANDLER(NUPA_IB_METHOD_QUERY_CLOCK)(struct uverbs_attr_bundle *attrs)
{
	struct ib_ucontext *context = ib_uverbs_get_ucontext(attrs);
	u64 clock;
	int ret;

	if (IS_ERR(context))
		return PTR_ERR(context);
	ret = nk_rdma_methods_of(context->device)->query_clock(context->device, &clock);
	if (ret)
		return ret;
	return uverbs_copy_to(attrs, NUPA_IB_ATTR_QUERY_CLOCK_RESP, &clock, sizeof(clock));
}

DECLARE_UVERBS_NAMED_METHOD(NUPA_IB_METHOD_QUERY_CLOCK,
			    UVERBS_ATTR_PTR_OUT(NUPA_IB_ATTR_QUERY_CLOCK_RESP, UVERBS_ATTR_TYPE(u64),
						UA_MANDATORY));

ADD_UVERBS_METHODS(nk_rdma_clock, UVERBS_OBJECT_DEVICE, &UVERBS_METHOD(NUPA_IB_METHOD_QUERY_CLOCK));
ADD_UVERBS_METHODS(nk_rdma_dm, UVERBS_OBJECT_DM, &UVERBS_METHOD(NUPA_IB_METHOD_DM_EXPORT));
ADD_UVERBS_METHODS(nk_rdma_qp, UVERBS_OBJECT_QP, &UVERBS_METHOD(NUPA_IB_METHOD_QP_KICK));
ADD_UVERBS_METHODS(nk_rdma_srq, UVERBS_OBJECT_SRQ, &UVERBS_METHOD(NUPA_IB_METHOD_SRQ_KICK));
ADD_UVERBS_METHODS(nk_rdma_cq, UVERBS_OBJECT_CQ, &UVERBS_METHOD(NUPA_IB_METHOD_CQ_POLL));

static const struct uapi_definition nk_rdma_definitions[] = {
	UAPI_DEF_CHAIN_OBJ_TREE(UVERBS_OBJECT_DEVICE, &nk_rdma_clock),
	UAPI_DEF_CHAIN_OBJ_TREE(UVERBS_OBJECT_DM, &nk_rdma_dm_alloc),
	UAPI_DEF_CHAIN_OBJ_TREE(UVERBS_OBJECT_DM, &nk_rdma_dm),
	UAPI_DEF_CHAIN_OBJ_TREE(UVERBS_OBJECT_QP, &nk_rdma_qp),
	UAPI_DEF_CHAIN_OBJ_TREE(UVERBS_OBJECT_SRQ, &nk_rdma_srq),
	UAPI_DEF_CHAIN_OBJ_TREE(UVERBS_OBJECT_CQ, &nk_rdma_cq),
	{},
};

/* Device */

struct ib_device *nk_rdma_alloc(size_t size)
{
	return _ib_alloc_device(size, &init_net);
}

void nk_rdma_set_device(struct ib_device *ibdev, const struct nk_rdma_methods *methods, struct device *parent,
			u64 guid, int vectors)
{
	container_of(ibdev, struct nk_rdma_device, ib)->methods = methods;
	ibdev->node_type = RDMA_NODE_IB_CA;
	ibdev->node_guid = cpu_to_be64(guid);
	ibdev->phys_port_cnt = 1;
	ibdev->num_comp_vectors = vectors;
	ibdev->dev.parent = parent;
	ibdev->driver_def = nk_rdma_definitions;
}

static int nk_rdma_netdev_event(struct notifier_block *nb, unsigned long event, void *info)
{
	struct nk_rdma_follower *follower = container_of(nb, struct nk_rdma_follower, nb);
	struct net_device *dev = netdev_notifier_info_to_dev(info);

	/* Only the port's own device; others on top of it (VLAN, bridge) have no parent. */
	if (dev->dev.parent != follower->parent)
		return NOTIFY_DONE;
	if (event == NETDEV_REGISTER)
		ib_device_set_netdev(follower->ibdev, dev, 1);
	else if (event == NETDEV_UNREGISTER)
		ib_device_set_netdev(follower->ibdev, NULL, 1);
	return NOTIFY_DONE;
}

int nk_rdma_follow(struct nk_rdma_follower *follower, struct ib_device *ibdev, struct device *parent)
{
	follower->nb.notifier_call = nk_rdma_netdev_event;
	/* Before the RDMA core, so that it finds the port when it looks for who wants GIDs. */
	follower->nb.priority = 1;
	follower->ibdev = ibdev;
	follower->parent = parent;
	return register_netdevice_notifier(&follower->nb);
}

void nk_rdma_unfollow(struct nk_rdma_follower *follower)
{
	unregister_netdevice_notifier(&follower->nb);
}

enum ib_port_state nk_rdma_port_state(struct ib_device *ibdev, u32 port)
{
	struct net_device *dev = ib_device_get_netdev(ibdev, port);
	enum ib_port_state state = IB_PORT_DOWN;

	if (dev) {
		state = ib_get_curr_port_state(dev);
		dev_put(dev);
	}
	return state;
}

/* Counters of the port */

/*
 * The class of performance management, by which the RDMA core itself reads what it shows in counters/. What others send over
 * the fabric has a completion, and is not answered.
 */
static bool nk_rdma_asks_for(const struct ib_wc *wc, const struct ib_mad *in, __be16 attribute)
{
	return !wc && in->mad_hdr.mgmt_class == IB_MGMT_CLASS_PERF_MGMT &&
	       in->mad_hdr.method == IB_MGMT_METHOD_GET && in->mad_hdr.attr_id == attribute;
}

void nk_rdma_hide_stats(struct rdma_hw_stats *stats, unsigned int count)
{
	bitmap_set(stats->is_disabled, 0, count);
}

bool nk_rdma_asks_for_traffic(const struct ib_wc *wc, const struct ib_mad *in)
{
	return nk_rdma_asks_for(wc, in, IB_PMA_PORT_COUNTERS) || nk_rdma_asks_for(wc, in, IB_PMA_PORT_COUNTERS_EXT);
}

/* Counters of 32 bits stay at their end. */
static __be32 nk_rdma_narrow(u64 value)
{
	return cpu_to_be32(min_t(u64, value, U32_MAX));
}

int nk_rdma_answer_perf(const struct ib_wc *wc, const struct ib_mad *in, struct ib_mad *out,
			const struct nk_rdma_traffic *traffic)
{
	/* Behind the class' own header. */
	void *body = out->data + 40;

	if (nk_rdma_asks_for(wc, in, IB_PMA_CLASS_PORT_INFO)) {
		struct ib_class_port_info *info = body;

		info->base_version = 1;
		info->class_version = 1;
		info->capability_mask = IB_PMA_CLASS_CAP_EXT_WIDTH;
	} else if (nk_rdma_asks_for(wc, in, IB_PMA_PORT_COUNTERS)) {
		struct ib_pma_portcounters *counters = body;

		/* Data is counted in words. */
		counters->port_xmit_data = nk_rdma_narrow(traffic->xmit_bytes / 4);
		counters->port_rcv_data = nk_rdma_narrow(traffic->rcv_bytes / 4);
		counters->port_xmit_packets = nk_rdma_narrow(traffic->xmit_packets);
		counters->port_rcv_packets = nk_rdma_narrow(traffic->rcv_packets);
	} else if (nk_rdma_asks_for(wc, in, IB_PMA_PORT_COUNTERS_EXT)) {
		struct ib_pma_portcounters_ext *counters = body;

		counters->port_xmit_data = cpu_to_be64(traffic->xmit_bytes / 4);
		counters->port_rcv_data = cpu_to_be64(traffic->rcv_bytes / 4);
		counters->port_xmit_packets = cpu_to_be64(traffic->xmit_packets);
		counters->port_rcv_packets = cpu_to_be64(traffic->rcv_packets);
		/* There is no multicast. */
		counters->port_unicast_xmit_packets = counters->port_xmit_packets;
		counters->port_unicast_rcv_packets = counters->port_rcv_packets;
	} else {
		return IB_MAD_RESULT_SUCCESS;
	}
	return IB_MAD_RESULT_SUCCESS | IB_MAD_RESULT_REPLY;
}

/* Requests from user space */

struct ib_ucontext *nk_rdma_udata_context(struct ib_udata *udata)
{
	return rdma_udata_to_uverbs_attr_bundle(udata)->context;
}

struct ib_udata *nk_rdma_bundle_udata(struct uverbs_attr_bundle *attrs)
{
	return &attrs->driver_udata;
}

int nk_rdma_no_udata(struct ib_udata *udata)
{
	return ib_no_udata_io(udata);
}

int nk_rdma_udata_in_empty(struct ib_udata *udata)
{
	return ib_is_udata_in_empty(udata);
}

int nk_rdma_respond_empty(struct ib_udata *udata)
{
	return ib_respond_empty_udata(udata);
}

int nk_rdma_mmap(struct ib_ucontext *context, struct vm_area_struct *vma, struct rdma_user_mmap_entry *entry,
		 phys_addr_t phys, bool cached, bool inherited)
{
	pgprot_t prot = cached ? vma->vm_page_prot : pgprot_noncached(vma->vm_page_prot);

	if (vma->vm_flags & VM_EXEC)
		return -EPERM;
	vm_flags_clear(vma, VM_MAYEXEC);
	if (!inherited)
		vm_flags_set(vma, VM_DONTCOPY);
	return rdma_user_mmap_io(context, vma, PHYS_PFN(phys), entry->npages * PAGE_SIZE, prot, entry);
}

/* Device memory */

int nk_rdma_dm_import(struct uverbs_attr_bundle *attrs, struct nk_rdma_dm_handle *handle)
{
	int ret = uverbs_copy_from(handle, attrs, NUPA_IB_ATTR_ALLOC_DM_IMPORT);

	return ret == -ENOENT ? 0 : ret ?: 1;
}

int nk_rdma_dm_ring(struct uverbs_attr_bundle *attrs, struct ib_qp **qp)
{
	return nk_rdma_optional_qp(attrs, NUPA_IB_ATTR_ALLOC_DM_RING, qp);
}

int nk_rdma_dm_key(struct uverbs_attr_bundle *attrs, u32 *key)
{
	int ret = uverbs_copy_from(key, attrs, NUPA_IB_ATTR_ALLOC_DM_KEY);

	return ret == -ENOENT ? 0 : ret ?: 1;
}

int nk_rdma_answer_region(struct uverbs_attr_bundle *attrs, u64 addr, u64 len)
{
	struct nupa_ib_dm_region region = { .addr = addr, .len = len };

	return uverbs_copy_to(attrs, NUPA_IB_ATTR_ALLOC_DM_REGION, &region, sizeof(region));
}

int nk_rdma_answer_dm(struct uverbs_attr_bundle *attrs, u64 offset)
{
	return uverbs_copy_to(attrs, NUPA_IB_ATTR_ALLOC_DM_MMAP_OFFSET, &offset, sizeof(offset));
}

/* Details of resources */

struct nlattr *nk_rdma_details_start(struct sk_buff *message)
{
	return nla_nest_start(message, RDMA_NLDEV_ATTR_DRIVER);
}

void nk_rdma_details_end(struct sk_buff *message, struct nlattr *table, bool complete)
{
	if (complete)
		nla_nest_end(message, table);
	else
		nla_nest_cancel(message, table);
}

/* User memory */

bool nk_rdma_access_writable(int access)
{
	return ib_access_writable(access);
}

struct ib_umem *nk_rdma_umem_get(struct ib_device *ibdev, u64 addr, size_t size, int access)
{
	return ib_umem_get_va(ibdev, addr, size, access);
}

size_t nk_rdma_umem_blocks(struct ib_umem *umem, unsigned long size)
{
	return ib_umem_num_dma_blocks(umem, size);
}

void nk_rdma_umem_start(struct ib_block_iter *iter, struct ib_umem *umem, unsigned long size)
{
	__rdma_umem_block_iter_start(iter, umem, size);
}

/* An entry of memory that is pinned, and where the next one is. */
struct scatterlist *nk_rdma_umem_piece(struct scatterlist *sg, u64 *addr, size_t *len)
{
	*addr = sg_dma_address(sg);
	*len = sg_dma_len(sg);
	return sg_next(sg);
}

bool nk_rdma_umem_next(struct ib_block_iter *iter, dma_addr_t *addr)
{
	if (!__rdma_umem_block_iter_next(iter))
		return false;
	*addr = rdma_block_iter_dma_address(iter);
	return true;
}
