// SPDX-License-Identifier: GPL-2.0
/*
 * A device that imports DMA buffers, for tests: /dev/nupa_importer. It maps a buffer for itself, and reads and writes what it was told is there by
 * physical address, as a device without an IOMMU does. It lets go when it is told to, a while later. A file has one buffer, written to it as text:
 *
 *     FD KIND	KIND is static, pinned (dynamic, but does not hear of moves), paged (needs struct pages) or dynamic; a second word "to" after
 *		it maps the buffer for reading only
 *
 * read() at an offset returns the buffer's bytes, and write() after the first changes them. Both fail with ESTALE once the buffer was taken away.
 */

#include <linux/dma-buf.h>
#include <linux/dma-mapping.h>
#include <linux/dma-resv.h>
#include <linux/fs.h>
#include <linux/io.h>
#include <linux/iommu.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/platform_device.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/workqueue.h>

MODULE_IMPORT_NS("DMA_BUF");
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Imports DMA buffers, for tests of NUPA");

static unsigned int delay_ms = 500;
module_param(delay_ms, uint, 0644);
MODULE_PARM_DESC(delay_ms, "how long it takes to let go");

static struct platform_device *importer;

struct import {
	/* Of files. */
	struct mutex lock;
	struct dma_buf *dmabuf;
	struct dma_buf_attachment *attachment;
	enum dma_data_direction direction;
	/* Under the lock of the buffer's resv. */
	struct sg_table *table;
	bool taken;
	struct delayed_work let_go;
};

static void unmap(struct import *import)
{
	if (import->table)
		dma_buf_unmap_attachment(import->attachment, import->table, import->direction);
	import->table = NULL;
}

static void let_go(struct work_struct *work)
{
	struct import *import = container_of(to_delayed_work(work), struct import, let_go);
	dma_resv_lock(import->dmabuf->resv, NULL);
	unmap(import);
	dma_resv_unlock(import->dmabuf->resv);
}

static void invalidate(struct dma_buf_attachment *attachment)
{
	struct import *import = attachment->importer_priv;

	import->taken = true;
	if (delay_ms)
		schedule_delayed_work(&import->let_go, msecs_to_jiffies(delay_ms));
	else
		unmap(import);
}

static const struct dma_buf_attach_ops pinned_ops = { .allow_peer2peer = true };
static const struct dma_buf_attach_ops paged_ops = { .invalidate_mappings = invalidate };
static const struct dma_buf_attach_ops dynamic_ops = { .allow_peer2peer = true, .invalidate_mappings = invalidate };

static int import_buffer(struct import *import, const char *text)
{
	const struct dma_buf_attach_ops *ops = &dynamic_ops;
	struct dma_buf_attachment *attachment;
	struct dma_buf *dmabuf;
	char kind[16] = "", way[4] = "";
	struct sg_table *table;
	int fd;

	if (import->attachment || sscanf(text, "%d %15s %3s", &fd, kind, way) < 2)
		return -EINVAL;
	if (!strcmp(kind, "static"))
		ops = NULL;
	else if (!strcmp(kind, "pinned"))
		ops = &pinned_ops;
	else if (!strcmp(kind, "paged"))
		ops = &paged_ops;
	import->direction = strcmp(way, "to") ? DMA_BIDIRECTIONAL : DMA_TO_DEVICE;
	dmabuf = dma_buf_get(fd);
	if (IS_ERR(dmabuf))
		return PTR_ERR(dmabuf);
	import->dmabuf = dmabuf;
	attachment = dma_buf_dynamic_attach(dmabuf, &importer->dev, ops, import);
	if (IS_ERR(attachment)) {
		dma_buf_put(dmabuf);
		return PTR_ERR(attachment);
	}
	import->attachment = attachment;
	dma_resv_lock(dmabuf->resv, NULL);
	table = dma_buf_map_attachment(attachment, import->direction);
	if (!IS_ERR(table))
		import->table = table;
	dma_resv_unlock(dmabuf->resv);
	if (!IS_ERR(table))
		return 0;
	import->attachment = NULL;
	dma_buf_detach(dmabuf, attachment);
	cancel_delayed_work_sync(&import->let_go);
	dma_buf_put(dmabuf);
	return PTR_ERR(table);
}

/* One page, or what is left of it. The DMA address is the physical one. */
static ssize_t transfer(struct import *import, char __user *to, const char __user *from, size_t len, loff_t *place)
{
	struct dma_resv *resv = import->dmabuf->resv;
	struct scatterlist *sg;
	ssize_t ret = 0;
	loff_t at = *place;
	void *bytes;
	int i;

	dma_resv_lock(resv, NULL);
	if (!import->table || import->taken) {
		dma_resv_unlock(resv);
		return -ESTALE;
	}
	len = min_t(size_t, len, PAGE_SIZE - offset_in_page(at));
	for_each_sgtable_dma_sg(import->table, sg, i) {
		if (at >= sg_dma_len(sg)) {
			at -= sg_dma_len(sg);
			continue;
		}
		bytes = memremap(sg_dma_address(sg) + ALIGN_DOWN(at, PAGE_SIZE), PAGE_SIZE, MEMREMAP_WB);
		if (!bytes) {
			ret = -ENXIO;
			break;
		}
		if (to)
			ret = copy_to_user(to, bytes + offset_in_page(at), len) ? -EFAULT : len;
		else
			ret = copy_from_user(bytes + offset_in_page(at), from, len) ? -EFAULT : len;
		memunmap(bytes);
		break;
	}
	dma_resv_unlock(resv);
	if (ret > 0)
		*place += ret;
	return ret;
}

static int importer_open(struct inode *inode, struct file *filp)
{
	struct import *import = kzalloc(sizeof(*import), GFP_KERNEL);

	if (!import)
		return -ENOMEM;
	mutex_init(&import->lock);
	INIT_DELAYED_WORK(&import->let_go, let_go);
	filp->private_data = import;
	return 0;
}

static ssize_t importer_read(struct file *filp, char __user *to, size_t len, loff_t *place)
{
	struct import *import = filp->private_data;
	ssize_t ret = -EINVAL;

	mutex_lock(&import->lock);
	if (import->attachment)
		ret = transfer(import, to, NULL, len, place);
	mutex_unlock(&import->lock);
	return ret;
}

static ssize_t importer_write(struct file *filp, const char __user *from, size_t len, loff_t *place)
{
	struct import *import = filp->private_data;
	char text[32] = "";
	ssize_t ret;

	mutex_lock(&import->lock);
	if (import->attachment) {
		ret = transfer(import, NULL, from, len, place);
	} else if (len >= sizeof(text) || copy_from_user(text, from, len)) {
		ret = -EFAULT;
	} else {
		ret = import_buffer(import, text);
		if (!ret)
			ret = len;
	}
	mutex_unlock(&import->lock);
	return ret;
}

static int importer_release(struct inode *inode, struct file *filp)
{
	struct import *import = filp->private_data;
	struct dma_buf *dmabuf = import->dmabuf;

	if (import->attachment) {
		/* After this the buffer is not taken away any more. */
		dma_resv_lock(dmabuf->resv, NULL);
		unmap(import);
		import->taken = true;
		dma_resv_unlock(dmabuf->resv);
		dma_buf_detach(dmabuf, import->attachment);
		cancel_delayed_work_sync(&import->let_go);
		dma_buf_put(dmabuf);
	}
	kfree(import);
	return 0;
}

static const struct file_operations importer_fops = {
	.owner = THIS_MODULE,
	.open = importer_open,
	.read = importer_read,
	.write = importer_write,
	.llseek = default_llseek,
	.release = importer_release,
};

static struct miscdevice importer_misc = { .minor = MISC_DYNAMIC_MINOR, .name = "nupa_importer", .fops = &importer_fops };

static int __init importer_init(void)
{
	int ret;

	importer = platform_device_register_simple("nupa_importer", PLATFORM_DEVID_NONE, NULL, 0);
	if (IS_ERR(importer))
		return PTR_ERR(importer);
	ret = dma_coerce_mask_and_coherent(&importer->dev, DMA_BIT_MASK(64));
	if (!ret && device_iommu_mapped(&importer->dev))
		ret = -EOPNOTSUPP;
	if (!ret)
		ret = misc_register(&importer_misc);
	if (ret)
		platform_device_unregister(importer);
	return ret;
}

static void __exit importer_exit(void)
{
	misc_deregister(&importer_misc);
	platform_device_unregister(importer);
}

module_init(importer_init);
module_exit(importer_exit);
