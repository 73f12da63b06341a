// SPDX-License-Identifier: GPL-2.0
/*
 * DMA buffers of memory devices: a program can hand on a part of a device, or register it with an RDMA device, by a file descriptor. See
 * memory_device_helpers.h.
 *
 * A buffer is one more way to have the device open. It does not keep the device from being revoked; then nobody has the memory by the buffer
 * any more, as with mappings.
 */

#include <linux/dma-buf.h>
#include <linux/fcntl.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/overflow.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/nupa_memory.h>

#include "memory_device_internal.h"

MODULE_IMPORT_NS("DMA_BUF");

struct memory_dmabuf {
	struct nk_memory_view view;
	struct dma_buf *dmabuf;
	/* Of the device's list; not in it if the device was revoked before. Under the device's files_lock. */
	struct list_head entry;
};

/* Other devices cannot have the memory. Our own RDMA device has it without an attachment (nk_memory_dmabuf_find_range()). */
static int memory_dmabuf_attach(struct dma_buf *dmabuf, struct dma_buf_attachment *attachment)
{
	struct memory_dmabuf *buf = dmabuf->priv;
	struct nk_memory_device *dev = buf->view.dev;
	bool revoked;

	down_read(&dev->lock);
	revoked = dev->revoked;
	up_read(&dev->lock);
	return revoked ? -ENODEV : -EOPNOTSUPP;
}

/* Nobody is attached. */
static struct sg_table *memory_dmabuf_map(struct dma_buf_attachment *attachment, enum dma_data_direction direction)
{
	return ERR_PTR(-EOPNOTSUPP);
}

static void memory_dmabuf_unmap(struct dma_buf_attachment *attachment, struct sg_table *table, enum dma_data_direction direction)
{
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

	mutex_lock(&dev->files_lock);
	if (!list_empty(&buf->entry)) {
		list_del(&buf->entry);
		dev->opens--;
	}
	mutex_unlock(&dev->files_lock);
	put_device(&dev->dev);
	kfree(buf);
}

/* CPUs and our own RDMA device see the same bytes without begin_cpu_access(). What other hosts see is as of any mapping. */
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

/* Takes the memory away from those that have mapped a buffer; nobody can map one any more. Sleeps. */
void nk_memory_revoke_dmabufs(struct nk_memory_device *dev)
{
	struct memory_dmabuf *buf;
	struct file *file;

	lockdep_assert_held(&dev->files_lock);
	list_for_each_entry(buf, &dev->dmabufs, entry) {
		/*
		 * Without a reference it is about to be released, and nobody has mapped it. Its file is there until it is out of the list,
		 * its inode is not.
		 */
		file = get_file_active(&buf->dmabuf->file);
		if (!file)
			continue;
		unmap_mapping_range(file->f_mapping, 0, 0, 1);
		/* This is never the release itself, which needs the lock: that is done later, or by a worker. */
		fput(file);
	}
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
