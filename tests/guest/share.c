// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * What a test of shared device memory does, for tests/guest/share.py: pyverbs has no memory that it did not allocate itself.
 * Functions return 0 or a pointer; else an error number, or NULL with errno set.
 */

#include <errno.h>
#include <infiniband/verbs.h>
#include <nupadv.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* A program's use of the device, with one connection. */
struct share {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
};

enum {
	ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
};

struct share *share_open(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL), **device = list;
	struct share *share = calloc(1, sizeof(*share));

	if (!share || !list)
		return NULL;
	while (*device && strcmp(ibv_get_device_name(*device), name))
		device++;
	errno = ENODEV;
	share->context = *device ? ibv_open_device(*device) : NULL;
	ibv_free_device_list(list);
	share->pd = share->context ? ibv_alloc_pd(share->context) : NULL;
	share->cq = share->pd ? ibv_create_cq(share->context, 16, NULL, NULL, 0) : NULL;
	if (share->cq) {
		struct ibv_qp_init_attr init = {
			.send_cq = share->cq,
			.recv_cq = share->cq,
			.qp_type = IBV_QPT_RC,
			.cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
		};

		share->qp = ibv_create_qp(share->pd, &init);
	}
	return share->qp ? share : NULL;
}

uint32_t share_number(struct share *share)
{
	return share->qp->qp_num;
}

int share_connect(struct share *share, uint32_t peer, const uint8_t *gid, int sgid_index)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = ACCESS,
		.path_mtu = IBV_MTU_4096,
		.dest_qp_num = peer,
		.max_dest_rd_atomic = 1,
		.max_rd_atomic = 1,
		.ah_attr = {.port_num = 1, .is_global = 1, .grh = {.sgid_index = sgid_index, .hop_limit = 64}},
	};
	int error;

	memcpy(&attr.ah_attr.grh.dgid, gid, sizeof(attr.ah_attr.grh.dgid));
	error = ibv_modify_qp(share->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	if (error)
		return error;
	attr.qp_state = IBV_QPS_RTR;
	error = ibv_modify_qp(share->qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	if (error)
		return error;
	attr.qp_state = IBV_QPS_RTS;
	return ibv_modify_qp(share->qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			     IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

struct ibv_dm *share_alloc(struct share *share, size_t len)
{
	struct ibv_alloc_dm_attr attr = {.length = len};

	return ibv_alloc_dm(share->context, &attr);
}

int share_export(struct ibv_dm *dm, struct nupadv_dm_handle *handle)
{
	return nupadv_export_dm(dm, handle);
}

struct ibv_dm *share_import(struct share *share, const struct nupadv_dm_handle *handle)
{
	return nupadv_import_dm(share->context, handle);
}

void *share_map(struct ibv_dm *dm, size_t *len)
{
	return nupadv_map_dm(dm, len);
}

int share_free(struct ibv_dm *dm)
{
	return ibv_free_dm(dm);
}

int share_load(struct ibv_dm *dm, void *to, uint64_t offset, size_t len)
{
	return ibv_memcpy_from_dm(to, dm, offset, len);
}

int share_store(struct ibv_dm *dm, const void *from, uint64_t offset, size_t len)
{
	return ibv_memcpy_to_dm(dm, offset, from, len);
}

struct ibv_mr *share_register(struct share *share, struct ibv_dm *dm, size_t len)
{
	return ibv_reg_dm_mr(share->pd, dm, 0, len, ACCESS | IBV_ACCESS_ZERO_BASED);
}

uint32_t share_key(struct ibv_mr *region)
{
	return region->rkey;
}

int share_deregister(struct ibv_mr *region)
{
	return ibv_dereg_mr(region);
}

/* Reads or writes `len` bytes of the peer's region; the status of the completion. */
int share_transfer(struct share *share, int reads, struct ibv_mr *local, uint64_t offset, uint32_t len, uint32_t key,
		   uint64_t remote_offset)
{
	struct ibv_sge sge = {.addr = offset, .length = len, .lkey = local->lkey};
	struct ibv_send_wr *bad, request = {
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = reads ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = {.remote_addr = remote_offset, .rkey = key},
	};
	struct ibv_wc completion = {};

	if (ibv_post_send(share->qp, &request, &bad))
		return -1;
	while (!ibv_poll_cq(share->cq, 1, &completion))
		;
	return completion.status;
}

/*
 * Adds 1 so many times to the word at `memory`. Programs on two nodes begin when both are there: each adds itself to the second
 * word, in another line.
 */
void share_count(void *memory, uint32_t times)
{
	_Atomic uint64_t *counter = memory, *present = (_Atomic uint64_t *)((char *)memory + 64);

	atomic_fetch_add(present, 1);
	while (atomic_load(present) < 2)
		;
	while (times--)
		atomic_fetch_add(counter, 1);
}
