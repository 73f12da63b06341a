/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Direct verbs of NUPA: what its provider, libnupa-rdmav34.so, has beyond the verbs of libibverbs.
 *
 * Device memory (ibv_alloc_dm) of hosts that share a pool of memory lies in the pool, so programs on several of them can
 * map the same bytes. Link with the provider where it is installed, or look the functions up with dlsym().
 */

#ifndef NUPADV_H
#define NUPADV_H

#include <infiniband/verbs.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Names exported device memory, for any process on any node of the fabric. Whoever has it may read and write the memory: send it
 * only to those who are to.
 */
struct nupadv_dm_handle {
	uint8_t bytes[32];
};

/*
 * Lets others import device memory until it is freed (by ibv_free_dm, or because its process ends). Exporting again gives the
 * same handle. Returns 0, or the error: EOPNOTSUPP if the device is not one of a pool's, ENOSPC if this node exports as much as it
 * can, EDQUOT if this user has its share of that.
 */
int nupadv_export_dm(struct ibv_dm *dm, struct nupadv_dm_handle *handle);

/*
 * The memory that a handle names, as device memory of this context: ibv_memcpy_to_dm(), ibv_reg_dm_mr() and so on are about the
 * same bytes. It stays until ibv_free_dm, also if whoever allocated it frees it or dies; nobody else gets it meanwhile.
 *
 * Returns NULL with errno set: EOPNOTSUPP if the device is not one of a pool's, EINVAL if the handle is none of this fabric,
 * ENOENT if nothing is exported under it (any more), ESTALE if the node that exported it has left, died or was reset since, ENOSPC
 * if this node has imported as much as it can, EDQUOT if this user has its share of that.
 */
struct ibv_dm *nupadv_import_dm(struct ibv_context *context, const struct nupadv_dm_handle *handle);

/*
 * Where device memory is mapped, until it is freed; stores its bytes in *len unless that is NULL. In a pool that is coherent it is
 * plain cached memory, for atomics as well; otherwise its users write back and invalidate what they share. That of a controller is
 * not cached.
 */
void *nupadv_map_dm(struct ibv_dm *dm, size_t *len);

#ifdef __cplusplus
}
#endif

#endif
