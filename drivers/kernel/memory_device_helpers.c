// SPDX-License-Identifier: GPL-2.0
/*
 * See memory_device_helpers.h.
 *
 * The kernel crate's miscdevice has no owner, names that are known when the module is built, and no mappings that can be taken away.
 *
 * Pages are inserted when they are touched (as vfio-pci does), not by mmap(): so whoever has mapped a device and has its pages
 * taken away gets them back from the fault handler only, which knows whether the device is revoked.
 */

#include <linux/fs.h>
#include <linux/kref.h>
#include <linux/list.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/rwsem.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "memory_device_helpers.h"

struct nk_memory_device {
	struct miscdevice misc;
	/* Of the list of devices. */
	struct list_head entry;
	/* Who added it has one, and each open file. */
	struct kref refs;
	/* What is below. Taken inside of misc_mtx and mmap_lock, so nothing that takes one of them is called with it. */
	struct rw_semaphore lock;
	struct list_head files;
	unsigned int opens;
	bool revoked;
	/* These do not change. */
	phys_addr_t start;
	u64 len;
	char name[];
};

/* An open file. */
struct nk_memory_file {
	struct nk_memory_device *dev;
	struct list_head entry;
	/* Each inode of a device has mappings of its own. */
	struct address_space *mapping;
};

/* All devices: two of a name cannot be added. Before misc_mtx. */
static DEFINE_MUTEX(devices_lock);
static LIST_HEAD(devices);

static void memory_device_free(struct kref *refs)
{
	struct nk_memory_device *dev = container_of(refs, struct nk_memory_device, refs);

	kfree(dev);
}

/* misc_open() holds misc_mtx, so the device is there; private_data is its miscdevice. */
static int memory_open(struct inode *inode, struct file *filp)
{
	struct nk_memory_device *dev = container_of(filp->private_data, struct nk_memory_device, misc);
	struct nk_memory_file *file;

	file = kmalloc(sizeof(*file), GFP_KERNEL_ACCOUNT);
	if (!file)
		return -ENOMEM;
	file->dev = dev;
	file->mapping = filp->f_mapping;
	down_write(&dev->lock);
	if (dev->revoked) {
		up_write(&dev->lock);
		kfree(file);
		return -ENODEV;
	}
	kref_get(&dev->refs);
	list_add(&file->entry, &dev->files);
	dev->opens++;
	up_write(&dev->lock);
	filp->private_data = file;
	return 0;
}

/* Each mapping holds the file, so there are none any more. */
static int memory_release(struct inode *inode, struct file *filp)
{
	struct nk_memory_file *file = filp->private_data;
	struct nk_memory_device *dev = file->dev;

	down_write(&dev->lock);
	list_del(&file->entry);
	dev->opens--;
	up_write(&dev->lock);
	kref_put(&dev->refs, memory_device_free);
	kfree(file);
	return 0;
}

static loff_t memory_llseek(struct file *filp, loff_t offset, int whence)
{
	struct nk_memory_file *file = filp->private_data;

	return fixed_size_llseek(filp, offset, whence, file->dev->len);
}

static struct nk_memory_device *device_of(const struct vm_fault *vmf)
{
	struct nk_memory_file *file = vmf->vma->vm_file->private_data;

	return file->dev;
}

static vm_fault_t memory_fault(struct vm_fault *vmf)
{
	struct nk_memory_device *dev = device_of(vmf);
	vm_fault_t ret = VM_FAULT_SIGBUS;

	down_read(&dev->lock);
	if (!dev->revoked && vmf->pgoff < PHYS_PFN(dev->len))
		ret = vmf_insert_pfn(vmf->vma, vmf->address, PHYS_PFN(dev->start) + vmf->pgoff);
	up_read(&dev->lock);
	return ret;
}

#ifdef CONFIG_ARCH_SUPPORTS_PMD_PFNMAP
static vm_fault_t memory_huge_fault(struct vm_fault *vmf, unsigned int order)
{
	unsigned long addr = ALIGN_DOWN(vmf->address, PMD_SIZE);
	struct nk_memory_device *dev = device_of(vmf);
	struct vm_area_struct *vma = vmf->vma;
	vm_fault_t ret = VM_FAULT_SIGBUS;
	unsigned long pgoff, pfn;

	if (order != PMD_ORDER || addr < vma->vm_start || vma->vm_end - addr < PMD_SIZE)
		return VM_FAULT_FALLBACK;
	/* mmap() has checked that the mapping ends inside. */
	pgoff = vma->vm_pgoff + ((addr - vma->vm_start) >> PAGE_SHIFT);
	pfn = PHYS_PFN(dev->start) + pgoff;
	if (!IS_ALIGNED(pfn, 1UL << PMD_ORDER))
		return VM_FAULT_FALLBACK;
	down_read(&dev->lock);
	if (!dev->revoked)
		ret = vmf_insert_pfn_pmd(vmf, pfn, vmf->flags & FAULT_FLAG_WRITE);
	up_read(&dev->lock);
	return ret;
}
#endif

static const struct vm_operations_struct memory_vm_ops = {
	.fault = memory_fault,
#ifdef CONFIG_ARCH_SUPPORTS_PMD_PFNMAP
	.huge_fault = memory_huge_fault,
#endif
};

/* Private mappings would be copies, which is not what such memory is for; nor is it for code. */
static int memory_mmap(struct file *filp, struct vm_area_struct *vma)
{
	struct nk_memory_file *file = filp->private_data;
	struct nk_memory_device *dev = file->dev;
	u64 pages = PHYS_PFN(dev->len);
	bool revoked;

	/* It may be a moment later: then the first fault finds out. */
	down_read(&dev->lock);
	revoked = dev->revoked;
	up_read(&dev->lock);
	if (revoked)
		return -ENODEV;
	if (!(vma->vm_flags & VM_MAYSHARE))
		return -EINVAL;
	if (vma->vm_flags & VM_EXEC)
		return -EPERM;
	if (vma->vm_pgoff > pages || vma_pages(vma) > pages - vma->vm_pgoff)
		return -EINVAL;
	vm_flags_mod(vma, VM_PFNMAP | VM_DONTEXPAND | VM_DONTDUMP, VM_MAYEXEC);
	vma->vm_ops = &memory_vm_ops;
	return 0;
}

static const struct file_operations memory_fops = {
	.owner = THIS_MODULE,
	.open = memory_open,
	.release = memory_release,
	.llseek = memory_llseek,
	.mmap = memory_mmap,
	.get_unmapped_area = thp_get_unmapped_area,
};

static bool is_taken(const char *name)
{
	struct nk_memory_device *dev;

	lockdep_assert_held(&devices_lock);
	list_for_each_entry(dev, &devices, entry) {
		if (!strcmp(dev->name, name))
			return true;
	}
	return false;
}

/*
 * Adds a device of whole pages of memory, which nobody but root may open until somebody says so. -EEXIST if there is one of the name.
 * The memory stays what it is until the device is revoked. Sleeps.
 */
int nk_memory_device_add(struct device *parent, const u8 *name, size_t name_len, phys_addr_t start, u64 len,
			 struct nk_memory_device **added)
{
	struct nk_memory_device *dev;
	int ret;

	dev = kzalloc(struct_size(dev, name, name_len + 1), GFP_KERNEL);
	if (!dev)
		return -ENOMEM;
	memcpy(dev->name, name, name_len);
	kref_init(&dev->refs);
	init_rwsem(&dev->lock);
	INIT_LIST_HEAD(&dev->files);
	dev->start = start;
	dev->len = len;
	dev->misc = (struct miscdevice) {
		.minor = MISC_DYNAMIC_MINOR,
		.name = dev->name,
		.fops = &memory_fops,
		.parent = parent,
		.mode = 0600,
	};
	mutex_lock(&devices_lock);
	ret = is_taken(dev->name) ? -EEXIST : misc_register(&dev->misc);
	if (!ret)
		list_add(&dev->entry, &devices);
	mutex_unlock(&devices_lock);
	if (ret) {
		kfree(dev);
		return ret;
	}
	*added = dev;
	return 0;
}

/* Files that are open. Sleeps. */
unsigned int nk_memory_device_opens(struct nk_memory_device *dev)
{
	unsigned int opens;

	down_read(&dev->lock);
	opens = dev->opens;
	up_read(&dev->lock);
	return opens;
}

/*
 * Takes the memory away from all processes: none can open the device, and those that have mapped it get SIGBUS when they touch it. False, and
 * nothing is done, if it is open and not forced. Sleeps.
 */
bool nk_memory_device_revoke(struct nk_memory_device *dev, bool force)
{
	struct nk_memory_file *file;
	bool may;

	down_write(&dev->lock);
	may = force || !dev->opens;
	if (may && !dev->revoked) {
		dev->revoked = true;
		/* Files stay as long as they are in the list, and with them their inodes. */
		list_for_each_entry(file, &dev->files, entry)
			unmap_mapping_range(file->mapping, 0, 0, 1);
	}
	up_write(&dev->lock);
	return may;
}

/* The end of a device that is revoked. Sleeps. */
void nk_memory_device_remove(struct nk_memory_device *dev)
{
	mutex_lock(&devices_lock);
	misc_deregister(&dev->misc);
	list_del(&dev->entry);
	mutex_unlock(&devices_lock);
	kref_put(&dev->refs, memory_device_free);
}
