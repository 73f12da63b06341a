// SPDX-License-Identifier: GPL-2.0
/*
 * See memory_device_helpers.h.
 *
 * The kernel crate's miscdevice has no owner, names that are known when the module is built, and no mappings that can be taken away; and
 * whoever opens a misc device does so under a lock of all of them.
 *
 * Pages are inserted when they are touched (as vfio-pci does), not by mmap(): so whoever has mapped a device and has its pages
 * taken away gets them back from the fault handler only, which knows whether the device is revoked.
 */

#include <linux/file.h>
#include <linux/fs.h>
#include <linux/mm.h>
#include <linux/mmu_context.h>
#include <linux/module.h>
#include <linux/overflow.h>
#include <linux/random.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/xarray.h>
#include <linux/nupa_memory.h>

#include "memory_device_internal.h"

/* An inode that the device is opened by: each has mappings of its own. Under files_lock. */
struct nk_memory_mapping {
	struct list_head entry;
	struct address_space *mapping;
	unsigned int opens;
};

/* An open file. */
struct nk_memory_file {
	/* All of the device. */
	struct nk_memory_view view;
	struct nk_memory_mapping *mapping;
};

/* All devices: two of a name cannot be added. */
static DEFINE_MUTEX(devices_lock);
static LIST_HEAD(devices);

static const struct class memory_class = { .name = "nupa_memory" };

/*
 * Minors are given in turn, from any one on: a node of a device that is gone, such as a container's, does not soon open another one, nor
 * after the module was loaded anew.
 */
#define MINORS (1U << MINORBITS)
static DEFINE_XARRAY_ALLOC(minors);
static u32 next_minor;
static dev_t region;

/* The class is registered. */
static bool ready;

/* Lets devices be added. -EBUSY if they can be already. Sleeps. */
int nk_memory_device_init(void)
{
	int ret = -EBUSY;

	mutex_lock(&devices_lock);
	if (ready)
		goto unlock;
	ret = alloc_chrdev_region(&region, 0, MINORS, "nupa_memory");
	if (ret)
		goto unlock;
	ret = class_register(&memory_class);
	if (ret)
		unregister_chrdev_region(region, MINORS);
	ready = !ret;
	next_minor = get_random_u32_below(MINORS);
unlock:
	mutex_unlock(&devices_lock);
	return ret;
}

/* No device can be added any more; there are none. Sleeps. */
void nk_memory_device_exit(void)
{
	mutex_lock(&devices_lock);
	ready = false;
	if (!WARN_ON(!list_empty(&devices))) {
		class_unregister(&memory_class);
		unregister_chrdev_region(region, MINORS);
		xa_destroy(&minors);
	}
	mutex_unlock(&devices_lock);
}

static void memory_device_free(struct device *device)
{
	kfree(container_of(device, struct nk_memory_device, dev));
}

/* Finds the mapping of an inode, or takes what is new for it. */
static struct nk_memory_mapping *mapping_of(struct nk_memory_device *dev, struct address_space *mapping,
					    struct nk_memory_mapping **new)
{
	struct nk_memory_mapping *found;

	lockdep_assert_held(&dev->files_lock);
	list_for_each_entry(found, &dev->mappings, entry) {
		if (found->mapping == mapping)
			return found;
	}
	found = *new;
	*new = NULL;
	found->mapping = mapping;
	list_add(&found->entry, &dev->mappings);
	return found;
}

/* The open file has a reference to the cdev, and that one to the device. */
static int memory_open(struct inode *inode, struct file *filp)
{
	struct nk_memory_device *dev = container_of(inode->i_cdev, struct nk_memory_device, cdev);
	struct nk_memory_file *file = kmalloc(sizeof(*file), GFP_KERNEL_ACCOUNT);
	struct nk_memory_mapping *new = kzalloc(sizeof(*new), GFP_KERNEL_ACCOUNT);
	int ret = -ENOMEM;

	if (!file || !new)
		goto free;
	file->view = (struct nk_memory_view) { .dev = dev, .pages = PHYS_PFN(dev->len) };
	mutex_lock(&dev->files_lock);
	if (dev->revoked) {
		mutex_unlock(&dev->files_lock);
		ret = -ENODEV;
		goto free;
	}
	file->mapping = mapping_of(dev, filp->f_mapping, &new);
	file->mapping->opens++;
	dev->opens++;
	mutex_unlock(&dev->files_lock);
	filp->private_data = file;
	kfree(new);
	return 0;

free:
	kfree(new);
	kfree(file);
	return ret;
}

/* Each mapping holds the file, so there are none any more. */
static int memory_release(struct inode *inode, struct file *filp)
{
	struct nk_memory_file *file = filp->private_data;
	struct nk_memory_device *dev = file->view.dev;

	mutex_lock(&dev->files_lock);
	dev->opens--;
	if (!--file->mapping->opens) {
		list_del(&file->mapping->entry);
		kfree(file->mapping);
	}
	mutex_unlock(&dev->files_lock);
	kfree(file);
	return 0;
}

static struct nk_memory_device *device_of_file(const struct file *filp)
{
	struct nk_memory_file *file = filp->private_data;

	return file->view.dev;
}

static loff_t memory_llseek(struct file *filp, loff_t offset, int whence)
{
	return fixed_size_llseek(filp, offset, whence, device_of_file(filp)->len);
}

static vm_fault_t memory_fault(struct vm_fault *vmf)
{
	const struct nk_memory_view *view = vmf->vma->vm_private_data;
	struct nk_memory_device *dev = view->dev;
	vm_fault_t ret = VM_FAULT_SIGBUS;

	down_read(&dev->lock);
	if (!dev->revoked && vmf->pgoff < view->pages)
		ret = vmf_insert_pfn(vmf->vma, vmf->address, PHYS_PFN(dev->start) + view->start + vmf->pgoff);
	up_read(&dev->lock);
	return ret;
}

#ifdef CONFIG_ARCH_SUPPORTS_PMD_PFNMAP
static vm_fault_t memory_huge_fault(struct vm_fault *vmf, unsigned int order)
{
	const struct nk_memory_view *view = vmf->vma->vm_private_data;
	unsigned long addr = ALIGN_DOWN(vmf->address, PMD_SIZE);
	struct nk_memory_device *dev = view->dev;
	struct vm_area_struct *vma = vmf->vma;
	vm_fault_t ret = VM_FAULT_SIGBUS;
	unsigned long pgoff, pfn;

	if (order != PMD_ORDER || addr < vma->vm_start || vma->vm_end - addr < PMD_SIZE)
		return VM_FAULT_FALLBACK;
	/* mmap() has checked that the mapping ends inside. */
	pgoff = vma->vm_pgoff + ((addr - vma->vm_start) >> PAGE_SHIFT);
	pfn = PHYS_PFN(dev->start) + view->start + pgoff;
	if (!IS_ALIGNED(pfn, 1UL << PMD_ORDER))
		return VM_FAULT_FALLBACK;
	down_read(&dev->lock);
	if (!dev->revoked)
		ret = vmf_insert_pfn_pmd(vmf, pfn, vmf->flags & FAULT_FLAG_WRITE);
	up_read(&dev->lock);
	return ret;
}
#endif

/*
 * A fork copies no pages, and the child gets its own by the fault handler. What copies a huge page looks at it before it has the lock, and
 * would give the child one that is taken away meanwhile. It is the copy that is opened; MADV_KEEPONFORK may have undone what mmap() said.
 */
static void memory_vm_open(struct vm_area_struct *vma)
{
	vm_flags_set(vma, VM_WIPEONFORK);
}

static const struct vm_operations_struct memory_vm_ops = {
	.open = memory_vm_open,
	.fault = memory_fault,
#ifdef CONFIG_ARCH_SUPPORTS_PMD_PFNMAP
	.huge_fault = memory_huge_fault,
#endif
};

/* Whether a device has been revoked by now. Sleeps. Who holds files_lock reads it by that. */
bool nk_memory_is_revoked(struct nk_memory_device *dev)
{
	bool revoked;

	down_read(&dev->lock);
	revoked = dev->revoked;
	up_read(&dev->lock);
	return revoked;
}

/*
 * Maps a part of a device, which the file of the mapping keeps. Private mappings would be copies, which is not what such memory is for; nor
 * is it for code.
 */
int nk_memory_mmap(struct vm_area_struct *vma, struct nk_memory_view *view)
{
	/* It may be a moment later: then the first fault finds out. */
	if (nk_memory_is_revoked(view->dev))
		return -ENODEV;
	if (!(vma->vm_flags & VM_MAYSHARE))
		return -EINVAL;
	if (vma->vm_flags & VM_EXEC)
		return -EPERM;
	if (vma->vm_pgoff > view->pages || vma_pages(vma) > view->pages - vma->vm_pgoff)
		return -EINVAL;
	vm_flags_mod(vma, VM_PFNMAP | VM_DONTEXPAND | VM_DONTDUMP | VM_WIPEONFORK, VM_MAYEXEC);
	vma->vm_private_data = view;
	vma->vm_ops = &memory_vm_ops;
	return 0;
}

static int memory_mmap(struct file *filp, struct vm_area_struct *vma)
{
	struct nk_memory_file *file = filp->private_data;

	return nk_memory_mmap(vma, &file->view);
}

static long memory_ioctl(struct file *filp, unsigned int cmd, unsigned long arg)
{
	switch (cmd) {
	case NUPA_MEMORY_EXPORT_DMABUF:
		return nk_memory_export_dmabuf(device_of_file(filp), filp->f_mode, (void __user *)arg);
	default:
		return -ENOTTY;
	}
}

static const struct file_operations memory_fops = {
	.owner = THIS_MODULE,
	.open = memory_open,
	.release = memory_release,
	.llseek = memory_llseek,
	.mmap = memory_mmap,
	.unlocked_ioctl = memory_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
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
 * Adds a device of whole pages of memory, which nobody but root may open until somebody says so. -EEXIST if there is one of the name,
 * -ENODEV before nk_memory_device_init(). The memory stays what it is until the device is revoked. Sleeps.
 */
int nk_memory_device_add(struct device *parent, const u8 *name, size_t name_len, phys_addr_t start, u64 len, bool is_platform,
			 struct nk_memory_device **added)
{
	struct nk_memory_device *dev;
	u32 minor;
	int ret;

	dev = kzalloc(struct_size(dev, name, name_len + 1), GFP_KERNEL);
	if (!dev)
		return -ENOMEM;
	memcpy(dev->name, name, name_len);
	mutex_init(&dev->files_lock);
	INIT_LIST_HEAD(&dev->mappings);
	INIT_LIST_HEAD(&dev->dmabufs);
	init_rwsem(&dev->lock);
	dev->start = start;
	dev->len = len;
	dev->is_platform = is_platform;
	device_initialize(&dev->dev);
	dev->dev.class = &memory_class;
	dev->dev.parent = parent;
	dev->dev.release = memory_device_free;
	cdev_init(&dev->cdev, &memory_fops);
	dev->cdev.owner = THIS_MODULE;
	ret = dev_set_name(&dev->dev, "%s", dev->name);
	if (ret)
		goto put;
	mutex_lock(&devices_lock);
	ret = ready ? -EEXIST : -ENODEV;
	if (!ready || is_taken(dev->name))
		goto unlock;
	ret = xa_alloc_cyclic(&minors, &minor, dev, XA_LIMIT(0, MINORS - 1), &next_minor, GFP_KERNEL);
	if (ret < 0)
		goto unlock;
	dev->dev.devt = MKDEV(MAJOR(region), minor);
	ret = cdev_device_add(&dev->cdev, &dev->dev);
	if (ret) {
		/* Who knows the number may have opened it. */
		nk_memory_device_revoke(dev, true);
		nk_memory_device_await(dev);
		xa_erase(&minors, minor);
		goto unlock;
	}
	list_add(&dev->entry, &devices);
	mutex_unlock(&devices_lock);
	*added = dev;
	return 0;

unlock:
	mutex_unlock(&devices_lock);
put:
	put_device(&dev->dev);
	return ret;
}

/* Files that are open, and DMA buffers that there are. Sleeps. */
unsigned int nk_memory_device_opens(struct nk_memory_device *dev)
{
	unsigned int opens;

	mutex_lock(&dev->files_lock);
	opens = dev->opens;
	mutex_unlock(&dev->files_lock);
	return opens;
}

/*
 * Takes the memory away from all processes: none can open the device, and those that have mapped it get SIGBUS when they touch it. Other
 * devices are told, and may have it until nk_memory_device_await() returns. False, and nothing is done, if it is open and not forced. Sleeps.
 */
bool nk_memory_device_revoke(struct nk_memory_device *dev, bool force)
{
	struct nk_memory_mapping *mapping;
	bool may;

	mutex_lock(&dev->files_lock);
	may = force || !dev->opens;
	if (may && !dev->revoked) {
		down_write(&dev->lock);
		dev->revoked = true;
		up_write(&dev->lock);
		/* No more are inserted. Inodes stay as long as they are open. */
		list_for_each_entry(mapping, &dev->mappings, entry)
			unmap_mapping_range(mapping->mapping, 0, 0, 1);
		nk_memory_revoke_dmabufs(dev);
	}
	mutex_unlock(&dev->files_lock);
	return may;
}

/* Waits until other devices have let go of the memory of a device that is revoked. Sleeps. */
void nk_memory_device_await(struct nk_memory_device *dev)
{
	mutex_lock(&dev->files_lock);
	nk_memory_await_dmabufs(dev);
	mutex_unlock(&dev->files_lock);
}

/* The end of a device that is revoked. Sleeps. */
void nk_memory_device_remove(struct nk_memory_device *dev)
{
	mutex_lock(&devices_lock);
	cdev_device_del(&dev->cdev, &dev->dev);
	xa_erase(&minors, MINOR(dev->dev.devt));
	list_del(&dev->entry);
	mutex_unlock(&devices_lock);
	put_device(&dev->dev);
}

/* Offset into the device, in bytes, of an address in a mapping of it. */
static u64 offset_of_address(const struct vm_area_struct *vma, unsigned long addr)
{
	const struct nk_memory_view *view = vma->vm_private_data;

	return PFN_PHYS(view->start + vma->vm_pgoff) + (addr - vma->vm_start);
}

/*
 * Finds the device that the running process has mapped at addr, and takes a reference to its file. False unless all of len bytes, at least
 * one, are of one device, at rising offsets; they may be several mappings, as mprotect() makes them. Takes mmap_lock, so no lock that is
 * taken inside of that may be held. Sleeps.
 */
bool nk_memory_device_find_range(u64 addr, u64 len, struct nk_memory_range *found)
{
	struct mm_struct *mm = current->mm;
	const struct nk_memory_view *view;
	struct nk_memory_device *dev = NULL;
	struct vm_area_struct *vma;
	vm_flags_t flags = ~0UL;
	struct file *file = NULL;
	u64 offset = 0, next, end;

	if (!mm || !len)
		return false;
	addr = untagged_addr(addr);
	next = addr;
	if (check_add_overflow(addr, len, &end) || end > TASK_SIZE)
		return false;
	if (mmap_read_lock_killable(mm))
		return false;
	VMA_ITERATOR(vmi, mm, addr);
	for_each_vma_range(vmi, vma, end) {
		if (vma->vm_start > next || vma->vm_ops != &memory_vm_ops)
			break;
		view = vma->vm_private_data;
		if (!dev) {
			file = vma->vm_file;
			dev = view->dev;
			offset = offset_of_address(vma, addr);
		} else if (dev != view->dev || offset_of_address(vma, next) - offset != next - addr) {
			break;
		}
		flags &= vma->vm_flags;
		/* Protection keys, as who pins memory looks at them. */
		if (!arch_vma_access_permitted(vma, false, false, false))
			flags &= ~VM_READ;
		if (!arch_vma_access_permitted(vma, true, false, false))
			flags &= ~VM_WRITE;
		next = vma->vm_end;
	}
	if (!dev || next < end) {
		mmap_read_unlock(mm);
		return false;
	}
	found->file = get_file(file);
	found->dev = dev;
	found->offset = offset;
	found->readable = flags & VM_READ;
	found->writable = flags & VM_WRITE;
	mmap_read_unlock(mm);
	return true;
}

/* Whether it is a part of this device. Does not sleep. */
bool nk_memory_range_is_of(const struct nk_memory_range *range, const struct nk_memory_device *dev)
{
	return range->dev == dev;
}

/* Lets go of the file, which is closed later. Does not sleep. */
void nk_memory_range_put(const struct nk_memory_range *range)
{
	fput(range->file);
}
