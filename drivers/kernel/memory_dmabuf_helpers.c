// SPDX-License-Identifier: GPL-2.0
/*
 * DMA buffers of memory devices: a program can hand on a part of a device, or register it with an RDMA device, by a file descriptor. See
 * memory_device_helpers.h.
 *
 * A buffer is one more way to have the device open. It does not keep the device from being revoked; then nobody has the memory by the buffer
 * any more, as with mappings.
 */

#include <linux/cc_platform.h>
#include <linux/completion.h>
#include <linux/dma-buf.h>
#include <linux/dma-map-ops.h>
#include <linux/dma-mapping.h>
#include <linux/dma-resv.h>
#include <linux/fcntl.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/overflow.h>
#include <linux/scatterlist.h>
#include <linux/sizes.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/nupa_memory.h>

#include "memory_device_internal.h"

MODULE_IMPORT_NS("DMA_BUF");

struct memory_dmabuf {
	struct nk_memory_view view;
	struct dma_buf *dmabuf;
	/*
	 * A reference. The buffer is released with its dentry, which lets go of the inode first, and which an O_PATH descriptor keeps when
	 * dmabuf->file is already freed.
	 */
	struct inode *inode;
	/* Of the device's list; not in it if the device was revoked before. Under the device's files_lock. */
	struct list_head entry;
	/* Under the lock of dmabuf->resv, which nothing is taken inside of. */
	bool revoked;
	unsigned int maps;
	/* When it was revoked. */
	bool was_mapped;
	/* It was revoked, and no device has mapped it any more. */
	struct completion unmapped;
};

/* Bytes of an entry of a device's table at most. */
#define SEGMENT SZ_1G

/*
 * Whether another device reaches the memory by the address that CPUs have it at, and sees what is in their caches; an IOMMU between them is the DMA
 * API's. So it is with memory of the platform, such as that of CXL, which could be the kernel's own. With a BAR of another PCI device it may be
 * otherwise: what leads from one to the other is not looked at.
 */
static bool can_reach(const struct nk_memory_device *memory, struct device *device)
{
	/* What has no pages is mapped as memory of a device: caches are not written back, and what CPUs encrypt is not decrypted. */
	if (!memory->is_platform || !device->dma_mask || !dev_is_dma_coherent(device) || cc_platform_has(CC_ATTR_MEM_ENCRYPT))
		return false;
	return memory->start + memory->len - 1 <= min_not_zero(dma_get_mask(device), device->bus_dma_limit);
}

/* The memory has no pages, and is taken away: a device has to bear both. What it pins is taken away all the same, and there is nothing to pin. */
static int memory_dmabuf_attach(struct dma_buf *dmabuf, struct dma_buf_attachment *attachment)
{
	struct memory_dmabuf *buf = dmabuf->priv;
	struct nk_memory_device *dev = buf->view.dev;

	/* It may be a moment later: then mapping it fails. */
	if (nk_memory_is_revoked(dev))
		return -ENODEV;
	if (!attachment->peer2peer || !dma_buf_attach_revocable(attachment) || !can_reach(dev, attachment->dev))
		return -EOPNOTSUPP;
	return 0;
}

/* Unmaps the first entries of a table, and frees it. */
static void free_table(struct device *device, struct sg_table *table, unsigned int mapped, enum dma_data_direction direction)
{
	struct scatterlist *sg;
	unsigned int i;

	for_each_sg(table->sgl, sg, mapped, i)
		dma_unmap_resource(device, sg_dma_address(sg), sg_dma_len(sg), direction, 0);
	/* This is how many sg_free_table() frees. */
	table->orig_nents = table->nents;
	sg_free_table(table);
	kfree(table);
}

static struct sg_table *memory_dmabuf_map(struct dma_buf_attachment *attachment, enum dma_data_direction direction)
{
	struct dma_buf *dmabuf = attachment->dmabuf;
	struct memory_dmabuf *buf = dmabuf->priv;
	phys_addr_t start = buf->view.dev->start + PFN_PHYS(buf->view.start);
	struct sg_table *table;
	struct scatterlist *sg;
	u64 done = 0, len;
	dma_addr_t addr;
	unsigned int i;
	int ret;

	dma_resv_assert_held(dmabuf->resv);
	if (buf->revoked)
		return ERR_PTR(-ENODEV);
	if (direction != DMA_TO_DEVICE && !(dmabuf->file->f_mode & FMODE_WRITE))
		return ERR_PTR(-EACCES);
	table = kzalloc(sizeof(*table), GFP_KERNEL);
	if (!table)
		return ERR_PTR(-ENOMEM);
	ret = sg_alloc_table(table, DIV_ROUND_UP(dmabuf->size, SEGMENT), GFP_KERNEL);
	if (ret) {
		kfree(table);
		return ERR_PTR(ret);
	}
	for_each_sg(table->sgl, sg, table->nents, i) {
		len = min_t(u64, dmabuf->size - done, SEGMENT);
		addr = dma_map_resource(attachment->dev, start + done, len, direction, 0);
		if (dma_mapping_error(attachment->dev, addr)) {
			free_table(attachment->dev, table, i, direction);
			return ERR_PTR(-EIO);
		}
		sg_dma_address(sg) = addr;
		sg_dma_len(sg) = len;
		done += len;
	}
	/* There are no pages, and nobody is to look for them. */
	table->orig_nents = 0;
	buf->maps++;
	return table;
}

static void memory_dmabuf_unmap(struct dma_buf_attachment *attachment, struct sg_table *table, enum dma_data_direction direction)
{
	struct memory_dmabuf *buf = attachment->dmabuf->priv;

	dma_resv_assert_held(attachment->dmabuf->resv);
	free_table(attachment->dev, table, table->nents, direction);
	if (!--buf->maps && buf->revoked)
		complete(&buf->unmapped);
}

/* Tells devices to let go; none can map the memory any more. */
static void revoke_from_devices(struct memory_dmabuf *buf)
{
	struct dma_buf *dmabuf = buf->dmabuf;

	dma_resv_lock(dmabuf->resv, NULL);
	buf->revoked = true;
	buf->was_mapped = buf->maps;
	dma_buf_invalidate_mappings(dmabuf);
	dma_resv_unlock(dmabuf->resv);
}

/*
 * Waits until devices that had mapped the memory have let go, which has an end by the contract of revocable attachments. What none had mapped is not
 * waited for: whoever has the file can add fences (DMA_BUF_IOCTL_IMPORT_SYNC_FILE), and they say nothing there.
 */
static void wait_for_devices(struct memory_dmabuf *buf)
{
	struct dma_buf *dmabuf = buf->dmabuf;
	bool mapped;

	if (!buf->was_mapped)
		return;
	dma_resv_lock(dmabuf->resv, NULL);
	/* Until then they may write. */
	dma_resv_wait_timeout(dmabuf->resv, DMA_RESV_USAGE_BOOKKEEP, false, MAX_SCHEDULE_TIMEOUT);
	mapped = buf->maps;
	dma_resv_unlock(dmabuf->resv);
	if (mapped)
		wait_for_completion(&buf->unmapped);
}

/*
 * The file of the mapping stays that of the buffer, which has an address space of its own: remap_file_pages() maps by it again, and by the
 * device's file that would be more than the buffer. Another driver may have been asked to map the buffer by a file of its own
 * (dma_buf_mmap()), which may be open for more than the buffer is.
 */
static int memory_dmabuf_mmap(struct dma_buf *dmabuf, struct vm_area_struct *vma)
{
	struct memory_dmabuf *buf = dmabuf->priv;

	if (!(dmabuf->file->f_mode & FMODE_WRITE)) {
		if (vma->vm_flags & VM_WRITE)
			return -EACCES;
		vm_flags_clear(vma, VM_MAYWRITE);
	}
	return nk_memory_mmap(vma, &buf->view);
}

/* Mappings, attachments and ranges hold the file, so there are none any more. */
static void memory_dmabuf_release(struct dma_buf *dmabuf)
{
	struct memory_dmabuf *buf = dmabuf->priv;
	struct nk_memory_device *dev = buf->view.dev;
	struct inode *inode = buf->inode;

	mutex_lock(&dev->files_lock);
	if (!list_empty(&buf->entry)) {
		list_del(&buf->entry);
		dev->opens--;
	}
	mutex_unlock(&dev->files_lock);
	iput(inode);
	put_device(&dev->dev);
	kfree(buf);
}

/* CPUs and devices see the same bytes without begin_cpu_access(). What other hosts see is as of any mapping. */
static const struct dma_buf_ops memory_dmabuf_ops = {
	.attach = memory_dmabuf_attach,
	.map_dma_buf = memory_dmabuf_map,
	.unmap_dma_buf = memory_dmabuf_unmap,
	.mmap = memory_dmabuf_mmap,
	.release = memory_dmabuf_release,
};

/* Makes a buffer of whole pages that lie inside. -ENODEV if the device has been revoked. Sleeps. */
static struct dma_buf *memory_dmabuf_new(struct nk_memory_device *dev, u64 offset, u64 length, int mode)
{
	DEFINE_DMA_BUF_EXPORT_INFO(info);
	struct memory_dmabuf *buf = kzalloc(sizeof(*buf), GFP_KERNEL_ACCOUNT);
	struct dma_buf *dmabuf;
	bool revoked;

	if (!buf)
		return ERR_PTR(-ENOMEM);
	buf->view = (struct nk_memory_view) { .dev = dev, .start = PHYS_PFN(offset), .pages = PHYS_PFN(length) };
	INIT_LIST_HEAD(&buf->entry);
	init_completion(&buf->unmapped);
	get_device(&dev->dev);
	/* For people, in /proc/PID/fdinfo: whose device it is. The buffer keeps the device. */
	info.exp_name = dev->name;
	info.ops = &memory_dmabuf_ops;
	info.size = length;
	info.flags = mode;
	info.priv = buf;
	dmabuf = dma_buf_export(&info);
	if (IS_ERR(dmabuf)) {
		put_device(&dev->dev);
		kfree(buf);
		return dmabuf;
	}
	/* From here on it ends by memory_dmabuf_release(). */
	buf->dmabuf = dmabuf;
	buf->inode = file_inode(dmabuf->file);
	ihold(buf->inode);
	mutex_lock(&dev->files_lock);
	revoked = dev->revoked;
	if (!revoked) {
		list_add(&buf->entry, &dev->dmabufs);
		dev->opens++;
	}
	mutex_unlock(&dev->files_lock);
	if (!revoked)
		return dmabuf;
	dma_buf_put(dmabuf);
	return ERR_PTR(-ENODEV);
}

/* NUPA_MEMORY_EXPORT_DMABUF of a file that is open with this mode. Returns the buffer's file descriptor. Sleeps. */
long nk_memory_export_dmabuf(struct nk_memory_device *dev, fmode_t mode, void __user *arg)
{
	struct nupa_memory_dmabuf asked;
	struct dma_buf *dmabuf;
	u32 size, access;
	u64 end;
	int ret;

	if (get_user(size, (u32 __user *)arg))
		return -EFAULT;
	if (size < sizeof(asked))
		return -EINVAL;
	if (size > PAGE_SIZE)
		return -E2BIG;
	ret = copy_struct_from_user(&asked, sizeof(asked), arg, size);
	if (ret)
		return ret;
	if (asked.flags || asked.reserved || asked.open_flags & ~(O_ACCMODE | O_CLOEXEC))
		return -EINVAL;
	/* Who may only write can map nothing. */
	access = asked.open_flags & O_ACCMODE;
	if (access != O_RDONLY && access != O_RDWR)
		return -EINVAL;
	if (!(mode & FMODE_READ) || (access == O_RDWR && !(mode & FMODE_WRITE)))
		return -EACCES;
	if (!asked.length || !PAGE_ALIGNED(asked.offset) || !PAGE_ALIGNED(asked.length))
		return -EINVAL;
	if (check_add_overflow(asked.offset, asked.length, &end) || end > dev->len)
		return -EINVAL;
	dmabuf = memory_dmabuf_new(dev, asked.offset, asked.length, access);
	if (IS_ERR(dmabuf))
		return PTR_ERR(dmabuf);
	ret = dma_buf_fd(dmabuf, asked.open_flags & O_CLOEXEC);
	if (ret < 0)
		dma_buf_put(dmabuf);
	return ret;
}

/* Takes the memory away from processes that have mapped a buffer, and tells devices; nobody can map one any more. Sleeps. */
void nk_memory_revoke_dmabufs(struct nk_memory_device *dev)
{
	struct memory_dmabuf *buf;

	lockdep_assert_held(&dev->files_lock);
	/* Buffers are not released meanwhile: that takes the lock. */
	list_for_each_entry(buf, &dev->dmabufs, entry) {
		unmap_mapping_range(buf->inode->i_mapping, 0, 0, 1);
		revoke_from_devices(buf);
	}
}

/* Waits until devices have let go of the buffers of a device that was revoked. Sleeps. */
void nk_memory_await_dmabufs(struct nk_memory_device *dev)
{
	struct memory_dmabuf *buf;

	lockdep_assert_held(&dev->files_lock);
	list_for_each_entry(buf, &dev->dmabufs, entry)
		wait_for_devices(buf);
}

/*
 * Finds the device that a file descriptor of the running process is a DMA buffer of, and takes a reference to the buffer. False unless it is
 * one of ours, and all of len bytes at offset, at least one, are in it. Does not sleep.
 */
bool nk_memory_dmabuf_find_range(int fd, u64 offset, u64 len, struct nk_memory_range *found)
{
	struct dma_buf *dmabuf = dma_buf_get(fd);
	struct memory_dmabuf *buf;
	u64 end;

	if (IS_ERR(dmabuf))
		return false;
	if (dmabuf->ops != &memory_dmabuf_ops || !len || check_add_overflow(offset, len, &end) || end > dmabuf->size) {
		dma_buf_put(dmabuf);
		return false;
	}
	buf = dmabuf->priv;
	found->file = dmabuf->file;
	found->dev = buf->view.dev;
	found->offset = PFN_PHYS(buf->view.start) + offset;
	found->readable = dmabuf->file->f_mode & FMODE_READ;
	found->writable = dmabuf->file->f_mode & FMODE_WRITE;
	return true;
}
