// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * A process without rights that makes as much work for its node as it can, for tests/test_rdma_storm.py.
 *
 * usage: storm DEVICE messages QUEUES MIB SECONDS   queue pairs that send themselves messages of so many MiB
 *        storm DEVICE flush    QUEUES DEPTH SECONDS queue pairs in the error state that are given work again and again
 *        storm DEVICE scribble QUEUES DEPTH SECONDS the same, while threads change the doorbells of all
 *        storm DEVICE park     QUEUES 0 SECONDS     queue pairs whose sends wait for receive buffers that never come
 *
 * Prints "storm" when it begins, and how many completions there were at its end.
 */

#include <errno.h>
#include <error.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum {
	PORT = 1,
	SGES = 8,
	SLOT_WORDS = 4, /* of 16 bytes: index, and more */
	SLOTS_BYTES = 2048, /* slots of a doorbell page; what is behind is not rung */
	POLLED = 64,
	MAX_PAGES = 64,
	FEEDERS = 2,
	ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
};

struct storm {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp **queues;
	int count;
	struct ibv_sge sges[SGES];
	int sge_count;
};

static _Atomic int over;

static void must(int ok, const char *what)
{
	if (!ok)
		error(1, errno, "%s", what);
}

static double now(void)
{
	struct timespec at;

	clock_gettime(CLOCK_MONOTONIC, &at);
	return at.tv_sec + at.tv_nsec / 1e9;
}

static void open_device(struct storm *storm, const char *name)
{
	struct ibv_device **device = ibv_get_device_list(NULL);

	must(device != NULL, "no devices");
	while (*device && strcmp(ibv_get_device_name(*device), name))
		device++;
	must(*device != NULL, "no such device");
	storm->context = ibv_open_device(*device);
	must(storm->context != NULL, "open");
	storm->pd = ibv_alloc_pd(storm->context);
	must(storm->pd != NULL, "protection domain");
}

static void make_queues(struct storm *storm, int count, int depth, int sges)
{
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = depth, .max_recv_wr = 4, .max_send_sge = sges, .max_recv_sge = sges},
	};
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = PORT, .qp_access_flags = ACCESS};

	storm->cq = ibv_create_cq(storm->context, count * (depth + 4), NULL, NULL, 0);
	must(storm->cq != NULL, "completion queue");
	init.send_cq = init.recv_cq = storm->cq;
	storm->queues = calloc(count, sizeof(*storm->queues));
	for (storm->count = 0; storm->count < count; storm->count++) {
		struct ibv_qp *queue = ibv_create_qp(storm->pd, &init);

		must(queue != NULL, "queue pair");
		errno = ibv_modify_qp(queue, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
		must(!errno, "to INIT");
		storm->queues[storm->count] = queue;
	}
}

static struct ibv_gid_entry own_gid(struct ibv_context *context)
{
	struct ibv_gid_entry gids[64];
	ssize_t count = ibv_query_gid_table(context, gids, 64, 0);

	for (ssize_t at = 0; at < count; at++)
		if (gids[at].gid_type == IBV_GID_TYPE_ROCE_V2 && !memcmp(gids[at].gid.raw, "\0\0\0\0\0\0\0\0\0\0\xff\xff", 12))
			return gids[at];
	errno = ENODEV;
	must(0, "no RoCE v2 GID of an IPv4 address");
	return gids[0];
}

/* Connects each queue pair to itself. */
static void connect_queues(struct storm *storm)
{
	struct ibv_gid_entry gid = own_gid(storm->context);

	for (int at = 0; at < storm->count; at++) {
		struct ibv_qp *queue = storm->queues[at];
		struct ibv_qp_attr attr = {
			.qp_state = IBV_QPS_RTR,
			.path_mtu = IBV_MTU_4096,
			.dest_qp_num = queue->qp_num,
			.max_dest_rd_atomic = 1,
			.min_rnr_timer = 12,
			.ah_attr = {.is_global = 1,
				    .port_num = PORT,
				    .grh = {.dgid = gid.gid, .sgid_index = gid.gid_index, .hop_limit = 64}},
		};

		errno = ibv_modify_qp(queue, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
							    IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
		must(!errno, "to RTR");
		attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
					    .max_rd_atomic = 1};
		errno = ibv_modify_qp(queue, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
							    IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
		must(!errno, "to RTS");
	}
}

/* Messages of so many bytes are made of the same memory again and again. */
static void make_memory(struct storm *storm, size_t bytes)
{
	size_t part = bytes / SGES;
	void *memory = mmap(NULL, part, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	struct ibv_mr *region;

	must(memory != MAP_FAILED, "memory");
	region = ibv_reg_mr(storm->pd, memory, part, ACCESS);
	must(region != NULL, "region");
	for (storm->sge_count = 0; storm->sge_count < SGES; storm->sge_count++)
		storm->sges[storm->sge_count] = (struct ibv_sge){(uintptr_t)memory, part, region->lkey};
}

static int post_send(struct storm *storm, int at)
{
	struct ibv_send_wr *bad, wr = {.wr_id = at, .sg_list = storm->sges, .num_sge = storm->sge_count,
				       .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};

	return ibv_post_send(storm->queues[at], &wr, &bad);
}

static void post_receive(struct storm *storm, int at)
{
	struct ibv_recv_wr *bad, wr = {.wr_id = at, .sg_list = storm->sges, .num_sge = storm->sge_count};

	errno = ibv_post_recv(storm->queues[at], &wr, &bad);
	must(!errno, "receive");
}

static long messages(struct storm *storm, double end)
{
	struct ibv_wc done[POLLED];
	long total = 0;

	for (int at = 0; at < storm->count; at++) {
		post_receive(storm, at);
		must(!post_send(storm, at), "send");
	}
	while (now() < end) {
		int count = ibv_poll_cq(storm->cq, POLLED, done);

		for (int at = 0; at < count; at++) {
			must(done[at].status == IBV_WC_SUCCESS, ibv_wc_status_str(done[at].status));
			if (done[at].opcode & IBV_WC_RECV)
				continue;
			total++;
			post_receive(storm, done[at].wr_id);
			must(!post_send(storm, done[at].wr_id), "send");
		}
	}
	return total;
}

static long flush(struct storm *storm, double end)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
	struct ibv_wc done[POLLED];
	long total = 0;

	for (int at = 0; at < storm->count; at++)
		must(!ibv_modify_qp(storm->queues[at], &attr, IBV_QP_STATE), "to ERR");
	while (now() < end) {
		for (int at = 0; at < storm->count; at++)
			while (post_send(storm, at) == 0)
				;
		/* To post may have taken all of the time. */
		for (int count; (count = ibv_poll_cq(storm->cq, POLLED, done)) > 0;) {
			total += count;
			if (now() >= end)
				break;
		}
	}
	return total;
}

static void park(struct storm *storm)
{
	for (int at = 0; at < storm->count; at++)
		must(!post_send(storm, at), "send");
}

static long wait_until(double end)
{
	while (now() < end)
		sleep(1);
	return 0;
}

/* Doorbell pages of the process. */
static int doorbells(uint32_t *pages[MAX_PAGES])
{
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[512], rights[8];
	unsigned long start, end;
	int count = 0;

	must(maps != NULL, "maps");
	while (fgets(line, sizeof(line), maps))
		if (strstr(line, "/dev/infiniband/") && sscanf(line, "%lx-%lx %7s", &start, &end, rights) == 3 && rights[1] == 'w')
			for (; start < end && count < MAX_PAGES; start += 4096)
				pages[count++] = (uint32_t *)start;
	fclose(maps);
	must(count > 0, "no doorbell page");
	return count;
}

/* Moves all indices on, all the time. */
static void *scribble(void *unused)
{
	uint32_t *pages[MAX_PAGES];
	int count = doorbells(pages);

	for (uint32_t step = 1; !atomic_load(&over); step = step * 5 % 61 + 1)
		for (int page = 0; page < count; page++)
			for (int word = 0; word < SLOTS_BYTES / 4; word += SLOT_WORDS)
				((_Atomic uint32_t *)pages[page])[word] += step;
	return unused;
}

int main(int count, char **args)
{
	pthread_t feeders[FEEDERS];
	struct storm storm = {0};
	double end;
	long total;

	if (count != 6)
		error(2, 0, "usage: storm DEVICE messages|flush|scribble|park QUEUES MIB|DEPTH SECONDS");
	int queues = atoi(args[3]), size = atoi(args[4]);

	open_device(&storm, args[1]);
	if (!strcmp(args[2], "messages") || !strcmp(args[2], "park")) {
		make_queues(&storm, queues, 4, SGES);
		make_memory(&storm, size ? (size_t)size << 20 : SGES * 4096);
		connect_queues(&storm);
	} else {
		make_queues(&storm, queues, size, 1);
	}
	if (!strcmp(args[2], "park"))
		park(&storm);
	puts("storm");
	fflush(stdout);
	end = now() + atoi(args[5]);
	if (!strcmp(args[2], "scribble"))
		for (int at = 0; at < FEEDERS; at++)
			must(!pthread_create(&feeders[at], NULL, scribble, NULL), "thread");
	if (!strcmp(args[2], "park"))
		total = wait_until(end);
	else
		total = strcmp(args[2], "messages") ? flush(&storm, end) : messages(&storm, end);
	atomic_store(&over, 1);
	printf("%ld\n", total);
	fflush(stdout);
	/* What it leaves is the kernel's to tidy up. */
	_exit(0);
}
