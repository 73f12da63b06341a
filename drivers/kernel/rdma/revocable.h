/* SPDX-License-Identifier: GPL-2.0 */
/* Mappings of processes that are taken away while the process lives. */

#ifndef NK_RDMA_REVOCABLE_H
#define NK_RDMA_REVOCABLE_H

#include <linux/atomic.h>
#include <linux/fs.h>
#include <rdma/ib_verbs.h>

/* Most maps of one memory. */
#define NK_RDMA_MOST_MAPS 8

/* Memory that processes may map until it is revoked. What they store afterwards goes to a page that is nobody's. Its file keeps it, and its areas keep that. */
struct nk_rdma_revocable {
	/* The first page, and the page that is there afterwards. */
	unsigned long pfn;
	struct page *dummy;
	bool cached;
	/* Where it is offered in the device's file. */
	unsigned long start_pgoff;
	/* How often it was mapped, ended maps included. */
	atomic_t maps;
	/* Stored before the pages are taken away, and read with the lock of the page table held that one is inserted into. */
	bool revoked;
};

struct file *nk_rdma_revocable_new(phys_addr_t phys, bool cached);
void nk_rdma_revocable_put(struct file *file);
int nk_rdma_revocable_mmap(struct file *file, struct vm_area_struct *vma, struct rdma_user_mmap_entry *entry);
void nk_rdma_revoke(struct file *file);

#endif
