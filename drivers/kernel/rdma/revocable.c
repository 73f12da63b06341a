// SPDX-License-Identifier: GPL-2.0
/*
 * Mappings of processes that are taken away while the process lives.
 *
 * The RDMA core can do that as well, but for all mappings of a device at once (rdma_user_mmap_disassociate()), and not while one is being made. So an area of
 * these is moved from the device's file to one of the memory's own, as for a DMA buffer (dma_buf_mmap()). Pages are there once they are touched, and whoever touches one
 * finds out whether the memory was revoked. To take them away needs no lock of a process's memory, which the process may hold for long.
 */

#include <linux/anon_inodes.h>
#include <linux/file.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/slab.h>
#include "revocable.h"

static int nk_rdma_revocable_release(struct inode *inode, struct file *file)
{
	struct nk_rdma_revocable *revocable = file->private_data;

	__free_page(revocable->dummy);
	kfree(revocable);
	return 0;
}

static const struct file_operations nk_rdma_revocable_fops = {
	.owner = THIS_MODULE,
	.release = nk_rdma_revocable_release,
};

struct file *nk_rdma_revocable_new(phys_addr_t phys, bool cached)
{
	struct nk_rdma_revocable *revocable = kzalloc(sizeof(*revocable), GFP_KERNEL_ACCOUNT);
	struct file *file;

	if (!revocable)
		return ERR_PTR(-ENOMEM);
	revocable->dummy = alloc_page(GFP_KERNEL_ACCOUNT | __GFP_ZERO);
	if (!revocable->dummy) {
		kfree(revocable);
		return ERR_PTR(-ENOMEM);
	}
	revocable->pfn = PHYS_PFN(phys);
	revocable->cached = cached;
	/* An inode of its own: its areas are found by that. */
	file = anon_inode_create_getfile("[nupa_region]", &nk_rdma_revocable_fops, revocable, O_RDWR, NULL);
	if (IS_ERR(file)) {
		__free_page(revocable->dummy);
		kfree(revocable);
	}
	return file;
}

void nk_rdma_revocable_put(struct file *file)
{
	fput(file);
}

struct nk_rdma_page {
	struct nk_rdma_revocable *revocable;
	struct vm_fault *vmf;
};

/* Inserts a page, unless there is one, or the memory was revoked. Called with the lock of the page table held, which nk_rdma_revoke() takes after it. */
static int nk_rdma_insert_page(pte_t *pte, unsigned long addr, void *data)
{
	const struct nk_rdma_page *page = data;
	const struct vm_fault *vmf = page->vmf;
	unsigned long pfn = page->revocable->pfn + (vmf->pgoff - READ_ONCE(page->revocable->start_pgoff));

	/* Pairs with that in nk_rdma_revoke(): it finds this page table, which may be new, or what it has stored is seen here. */
	smp_mb();
	if (READ_ONCE(page->revocable->revoked))
		return -ESTALE;
	if (pte_none(ptep_get(pte)))
		set_pte_at(vmf->vma->vm_mm, addr, pte, pte_mkspecial(pfn_pte(pfn, vmf->vma->vm_page_prot)));
	return 0;
}

/*
 * Page tables are allocated here, which takes as long as the process is made to wait for memory. Nothing that whoever revokes the memory waits for is held meanwhile. So
 * this is not vmf_insert_mixed(), which does not say whether the memory was revoked until the page was there.
 */
static vm_fault_t nk_rdma_revocable_fault(struct vm_fault *vmf)
{
	struct nk_rdma_revocable *revocable = vmf->vma->vm_file->private_data;
	struct nk_rdma_page page = { revocable, vmf };

	switch (apply_to_page_range(vmf->vma->vm_mm, vmf->address, PAGE_SIZE, nk_rdma_insert_page, &page)) {
	case 0:
		return VM_FAULT_NOPAGE;
	case -ESTALE:
		return vmf_insert_mixed(vmf->vma, vmf->address, page_to_pfn(revocable->dummy));
	default:
		return VM_FAULT_OOM;
	}
}

static const struct vm_operations_struct nk_rdma_revocable_ops = {
	.fault = nk_rdma_revocable_fault,
};

/* Lets a process map all of the memory, for mmap() of a device's file, a few times: -EBUSY after that. entry is what it was found by, the same each time. */
int nk_rdma_revocable_mmap(struct file *file, struct vm_area_struct *vma, struct rdma_user_mmap_entry *entry)
{
	struct nk_rdma_revocable *revocable = file->private_data;

	if (!(vma->vm_flags & VM_SHARED) || vma_pages(vma) != entry->npages)
		return -EINVAL;
	if (vma->vm_flags & VM_EXEC)
		return -EPERM;
	/* To take away what was mapped many times would take long, and somebody waits for that. Areas do not grow, and have no copies. */
	if (atomic_inc_return(&revocable->maps) > NK_RDMA_MOST_MAPS) {
		atomic_dec(&revocable->maps);
		return -EBUSY;
	}
	WRITE_ONCE(revocable->start_pgoff, entry->start_pgoff);
	/* As io_remap_pfn_range() and memremap() have it, so that all hosts see the same bytes. */
	vma->vm_page_prot = pgprot_decrypted(vma->vm_page_prot);
	if (!revocable->cached)
		vma->vm_page_prot = pgprot_noncached(vma->vm_page_prot);
	/*
	 * Children have no part in the queue pair. Not VM_PFNMAP: VFIO keeps what such an area maps, and does not hear of its end. Nobody pins pages of a VM_IO area.
	 */
	vm_flags_mod(vma, VM_MIXEDMAP | VM_IO | VM_DONTEXPAND | VM_DONTDUMP | VM_DONTCOPY, VM_MAYEXEC);
	vma_set_file(vma, file);
	vma->vm_ops = &nk_rdma_revocable_ops;
	return 0;
}

/* Takes the memory away. When this returns no process reaches it, and none will. May sleep. */
void nk_rdma_revoke(struct file *file)
{
	struct nk_rdma_revocable *revocable = file->private_data;

	WRITE_ONCE(revocable->revoked, true);
	/* Pairs with that in nk_rdma_insert_page(). */
	smp_mb();
	unmap_mapping_range(file->f_mapping, 0, 0, 1);
}
