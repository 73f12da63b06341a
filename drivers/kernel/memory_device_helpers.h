/* SPDX-License-Identifier: GPL-2.0 */
/* Character devices that processes map physical memory by: what nk::memory_device is made of. */

#ifndef NK_MEMORY_DEVICE_HELPERS_H
#define NK_MEMORY_DEVICE_HELPERS_H

#include <linux/types.h>

struct device;
struct file;
struct nk_memory_device;

/* A part of a device that a process has mapped, or has a DMA buffer of. */
struct nk_memory_range {
	/* A reference, so it counts as an open file of the device until nk_memory_range_put(). */
	struct file *file;
	/* The file keeps it. */
	const struct nk_memory_device *dev;
	/* Bytes into the device. */
	u64 offset;
	/* What the mappings, or the file of the DMA buffer, let the process do with all of it. */
	bool readable;
	bool writable;
};

int nk_memory_device_init(void);
void nk_memory_device_exit(void);
int nk_memory_device_add(struct device *parent, const u8 *name, size_t name_len, phys_addr_t start, u64 len, bool is_platform,
			 struct nk_memory_device **added);
unsigned int nk_memory_device_opens(struct nk_memory_device *dev);
bool nk_memory_device_revoke(struct nk_memory_device *dev, bool force);
void nk_memory_device_await(struct nk_memory_device *dev);
void nk_memory_device_remove(struct nk_memory_device *dev);
bool nk_memory_device_find_range(u64 addr, u64 len, struct nk_memory_range *found);
bool nk_memory_dmabuf_find_range(int fd, u64 offset, u64 len, struct nk_memory_range *found);
bool nk_memory_range_is_of(const struct nk_memory_range *range, const struct nk_memory_device *dev);
void nk_memory_range_put(const struct nk_memory_range *range);

#endif
