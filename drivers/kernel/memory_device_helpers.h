/* SPDX-License-Identifier: GPL-2.0 */
/* Character devices that processes map physical memory by: what nk::memory_device is made of. */

#ifndef NK_MEMORY_DEVICE_HELPERS_H
#define NK_MEMORY_DEVICE_HELPERS_H

#include <linux/types.h>

struct device;
struct nk_memory_device;

int nk_memory_device_init(void);
void nk_memory_device_exit(void);
int nk_memory_device_add(struct device *parent, const u8 *name, size_t name_len, phys_addr_t start, u64 len,
			 struct nk_memory_device **added);
unsigned int nk_memory_device_opens(struct nk_memory_device *dev);
bool nk_memory_device_revoke(struct nk_memory_device *dev, bool force);
void nk_memory_device_remove(struct nk_memory_device *dev);

#endif
