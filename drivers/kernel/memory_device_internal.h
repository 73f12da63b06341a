/* SPDX-License-Identifier: GPL-2.0 */
/* What memory_device_helpers.c and memory_dmabuf_helpers.c have in common. */

#ifndef NK_MEMORY_DEVICE_INTERNAL_H
#define NK_MEMORY_DEVICE_INTERNAL_H

#include <linux/cdev.h>
#include <linux/device.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/rwsem.h>

#include "memory_device_helpers.h"

struct vm_area_struct;

struct nk_memory_device {
	struct device dev;
	struct cdev cdev;
	/* Of the list of devices. */
	struct list_head entry;
	/* The files that are open, and the DMA buffers that there are: opens counts both. */
	struct mutex files_lock;
	struct list_head mappings;
	struct list_head dmabufs;
	unsigned int opens;
	/* Held for reading while a page is inserted. Inside of mmap_lock. */
	struct rw_semaphore lock;
	/* Written with both locks, read with either. */
	bool revoked;
	/* These do not change. */
	phys_addr_t start;
	u64 len;
	/* Memory of the platform, not of a PCI device. */
	bool is_platform;
	char name[];
};

/* A part of a device, whole pages. That of a mapping is its vm_private_data. */
struct nk_memory_view {
	struct nk_memory_device *dev;
	/* Pages into the device, and pages. */
	unsigned long start;
	unsigned long pages;
};

bool nk_memory_is_revoked(struct nk_memory_device *dev);
int nk_memory_mmap(struct vm_area_struct *vma, struct nk_memory_view *view);
long nk_memory_export_dmabuf(struct nk_memory_device *dev, fmode_t mode, void __user *arg);
void nk_memory_revoke_dmabufs(struct nk_memory_device *dev);
void nk_memory_await_dmabufs(struct nk_memory_device *dev);

#endif
