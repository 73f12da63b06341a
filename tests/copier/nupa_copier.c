// SPDX-License-Identifier: GPL-2.0
/*
 * A DMA engine without hardware, for tests: one channel that copies from the host's memory to a range of other memory, which is named when the
 * module is loaded. Usually a timer's interrupt does what hardware does. What it has done is found out by a tasklet, or by who asks for the status before
 * that, as many drivers have it. DMA addresses are physical ones.
 *
 * Real hardware does not depend on its host taking interrupts. A busy emulator may deliver a timer's interrupt many milliseconds late while its
 * processors run on. So who asks for the status has the work done as well if the timer is overdue.
 */

#include <linux/delay.h>
#include <linux/dma-mapping.h>
#include <linux/dmaengine.h>
#include <linux/hrtimer.h>
#include <linux/interrupt.h>
#include <linux/io.h>
#include <linux/iommu.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/platform_device.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/workqueue.h>

/* Well below the 10 ms after which NUPA's driver gives a channel up. */
#define OVERDUE (2 * NSEC_PER_MSEC)

MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Copies memory as a DMA engine does, for tests of NUPA");

static unsigned long start, size;
module_param(start, ulong, 0444);
MODULE_PARM_DESC(start, "physical address of the memory that it copies to");
module_param(size, ulong, 0444);
MODULE_PARM_DESC(size, "bytes of that");

static unsigned long copied;
module_param(copied, ulong, 0444);
MODULE_PARM_DESC(copied, "bytes that were copied");

static unsigned int align;
module_param(align, uint, 0444);
MODULE_PARM_DESC(align, "source, destination and length are multiples of two to the power of this");

static unsigned int fail_in;
module_param(fail_in, uint, 0644);
MODULE_PARM_DESC(fail_in, "the copy that so many further on fails, half done; 0: none");

static unsigned int hang_in;
module_param(hang_in, uint, 0644);
MODULE_PARM_DESC(hang_in, "the same of one that is not done until the channel is terminated; it is half done, and the rest is stored then");

static unsigned int delay_us = 1;
module_param(delay_us, uint, 0644);
MODULE_PARM_DESC(delay_us, "how long it takes to begin with what was issued");

static unsigned int refuse_in;
module_param(refuse_in, uint, 0644);
MODULE_PARM_DESC(refuse_in, "the same of one that is not taken");

static unsigned int end_ms;
module_param(end_ms, uint, 0644);
MODULE_PARM_DESC(end_ms, "how long it takes to terminate a channel that hangs");

static bool reverse;
module_param(reverse, bool, 0444);
MODULE_PARM_DESC(reverse, "whether copies that are submitted together are done the last one first");

static bool threaded;
module_param(threaded, bool, 0644);
MODULE_PARM_DESC(threaded, "whether what has ended is told by a work item of the processor that has the interrupt, and by nothing else");

static unsigned int busy;
module_param(busy, uint, 0644);
MODULE_PARM_DESC(busy, "attempts to terminate the channel that are refused");

static char *name = "nupa_copier";
module_param(name, charp, 0444);
MODULE_PARM_DESC(name, "of its driver");

static bool synchronizes = true;
module_param(synchronizes, bool, 0444);
MODULE_PARM_DESC(synchronizes, "whether it can be waited for after it was terminated");

struct copier {
	struct dma_device dma;
	struct dma_chan chan;
	void *target;
	/* Of all that follows. */
	spinlock_t lock;
	struct list_head submitted;
	struct list_head issued;
	struct list_head done;
	bool hangs;
	/* When what was issued is to be done. */
	ktime_t due;
	struct hrtimer timer;
	struct tasklet_struct reaper;
	struct work_struct slow_reaper;
};

struct copy {
	struct dma_async_tx_descriptor tx;
	struct list_head list;
	dma_addr_t from, to;
	size_t len;
	enum dmaengine_tx_result result;
};

static struct platform_device *platform;
static struct copier copier;

static bool is_due(unsigned int *in)
{
	return *in && !--*in;
}

static void transfer(struct copy *copy, size_t begin, size_t end)
{
	memcpy(copier.target + (copy->to - start) + begin, phys_to_virt(copy->from) + begin, end - begin);
}

/* The device at work. False once it hangs. */
static bool do_copy(struct copy *copy)
{
	if (copy->to < start || copy->to + copy->len > start + size || is_due(&fail_in)) {
		if (copy->to >= start && copy->to + copy->len <= start + size)
			transfer(copy, 0, copy->len / 2);
		copy->result = DMA_TRANS_WRITE_FAILED;
		return true;
	}
	if (is_due(&hang_in)) {
		transfer(copy, 0, copy->len / 2);
		copier.hangs = true;
		return false;
	}
	transfer(copy, 0, copy->len);
	copied += copy->len;
	copy->result = DMA_TRANS_NOERROR;
	return true;
}

static void do_issued(void)
{
	struct copy *copy, *next;

	lockdep_assert_held(&copier.lock);
	list_for_each_entry_safe(copy, next, &copier.issued, list) {
		if (copier.hangs || !do_copy(copy))
			break;
		list_move_tail(&copy->list, &copier.done);
	}
}

static void do_overdue(void)
{
	unsigned long flags;

	spin_lock_irqsave(&copier.lock, flags);
	if (ktime_sub(ktime_get(), copier.due) > OVERDUE)
		do_issued();
	spin_unlock_irqrestore(&copier.lock, flags);
}

static enum hrtimer_restart work(struct hrtimer *timer)
{
	unsigned long flags;

	spin_lock_irqsave(&copier.lock, flags);
	/* The interrupt may be one of before, whose work was done without it. */
	if (!ktime_before(ktime_get(), copier.due))
		do_issued();
	spin_unlock_irqrestore(&copier.lock, flags);
	if (threaded)
		queue_work_on(smp_processor_id(), system_percpu_wq, &copier.slow_reaper);
	else
		tasklet_schedule(&copier.reaper);
	return HRTIMER_NORESTART;
}

/* Tells of copies that have ended. */
static void reap(void)
{
	struct copy *copy, *next;
	unsigned long flags;
	LIST_HEAD(done);

	spin_lock_irqsave(&copier.lock, flags);
	list_splice_init(&copier.done, &done);
	list_for_each_entry(copy, &done, list)
		copier.chan.completed_cookie = copy->tx.cookie;
	spin_unlock_irqrestore(&copier.lock, flags);
	list_for_each_entry_safe(copy, next, &done, list) {
		struct dmaengine_result result = { .result = copy->result };

		dma_descriptor_unmap(&copy->tx);
		if (copy->tx.callback_result)
			copy->tx.callback_result(copy->tx.callback_param, &result);
		else if (copy->tx.callback)
			copy->tx.callback(copy->tx.callback_param);
		kfree(copy);
	}
}

static void reaper(struct tasklet_struct *tasklet)
{
	reap();
}

static void slow_reaper(struct work_struct *work)
{
	reap();
}

static dma_cookie_t submit(struct dma_async_tx_descriptor *tx)
{
	struct copy *copy = container_of(tx, struct copy, tx);
	unsigned long flags;

	spin_lock_irqsave(&copier.lock, flags);
	if (is_due(&refuse_in)) {
		spin_unlock_irqrestore(&copier.lock, flags);
		kfree(copy);
		return -EBUSY;
	}
	tx->cookie = copier.chan.cookie == INT_MAX ? DMA_MIN_COOKIE : copier.chan.cookie + 1;
	copier.chan.cookie = tx->cookie;
	list_add_tail(&copy->list, &copier.submitted);
	spin_unlock_irqrestore(&copier.lock, flags);
	return tx->cookie;
}

static struct dma_async_tx_descriptor *prepare(struct dma_chan *chan, dma_addr_t to, dma_addr_t from, size_t len, unsigned long flags)
{
	struct copy *copy = kzalloc(sizeof(*copy), GFP_NOWAIT);

	if (!copy)
		return NULL;
	if (WARN_ON_ONCE((from | to | len) & ((1UL << align) - 1))) {
		kfree(copy);
		return NULL;
	}
	dma_async_tx_descriptor_init(&copy->tx, chan);
	copy->tx.tx_submit = submit;
	copy->tx.flags = flags;
	copy->from = from;
	copy->to = to;
	copy->len = len;
	return &copy->tx;
}

static void issue(struct dma_chan *chan)
{
	struct copy *copy, *next;
	unsigned long flags;

	spin_lock_irqsave(&copier.lock, flags);
	if (reverse) {
		list_for_each_entry_safe(copy, next, &copier.submitted, list)
			list_move(&copy->list, &copier.issued);
	} else {
		list_splice_tail_init(&copier.submitted, &copier.issued);
	}
	copier.due = ktime_add_us(ktime_get(), delay_us);
	hrtimer_start(&copier.timer, copier.due, HRTIMER_MODE_ABS_PINNED_HARD);
	spin_unlock_irqrestore(&copier.lock, flags);
}

static enum dma_status status(struct dma_chan *chan, dma_cookie_t cookie, struct dma_tx_state *state)
{
	if (!threaded) {
		do_overdue();
		reap();
	}
	if (cookie < DMA_MIN_COOKIE)
		return DMA_ERROR;
	if (reverse)
		return DMA_OUT_OF_ORDER;
	return dma_async_is_complete(cookie, READ_ONCE(chan->completed_cookie), READ_ONCE(chan->cookie));
}

static int terminate(struct dma_chan *chan)
{
	unsigned long flags;

	if (busy) {
		busy--;
		return -EBUSY;
	}
	spin_lock_irqsave(&copier.lock, flags);
	copier.due = KTIME_MAX;
	spin_unlock_irqrestore(&copier.lock, flags);
	hrtimer_try_to_cancel(&copier.timer);
	return 0;
}

static void drop(struct list_head *list)
{
	struct copy *copy, *next;

	list_for_each_entry_safe(copy, next, list, list)
		kfree(copy);
}

static void synchronize(struct dma_chan *chan)
{
	unsigned long flags;
	struct copy *copy;
	LIST_HEAD(left);

	hrtimer_cancel(&copier.timer);
	if (copier.hangs)
		msleep(end_ms);
	spin_lock_irqsave(&copier.lock, flags);
	/* The last that it stores. */
	copy = list_first_entry_or_null(&copier.issued, struct copy, list);
	if (copier.hangs && copy) {
		/* Whose it is may not give it away before. */
		WARN_ON(!page_count(virt_to_page(phys_to_virt(copy->from))));
		transfer(copy, copy->len / 2, copy->len);
	}
	copier.hangs = false;
	list_splice_init(&copier.issued, &left);
	list_splice_init(&copier.submitted, &left);
	spin_unlock_irqrestore(&copier.lock, flags);
	tasklet_kill(&copier.reaper);
	flush_work(&copier.slow_reaper);
	drop(&left);
}

static void free_resources(struct dma_chan *chan)
{
	synchronize(chan);
	WARN_ON(!list_empty(&copier.done));
}

static int alloc_resources(struct dma_chan *chan)
{
	chan->cookie = DMA_MIN_COOKIE;
	chan->completed_cookie = DMA_MIN_COOKIE;
	return 1;
}

static void release(struct dma_device *dma)
{
}

static void init_device(struct dma_device *dma, struct device *dev)
{
	spin_lock_init(&copier.lock);
	INIT_LIST_HEAD(&copier.submitted);
	INIT_LIST_HEAD(&copier.issued);
	INIT_LIST_HEAD(&copier.done);
	hrtimer_setup(&copier.timer, work, CLOCK_MONOTONIC, HRTIMER_MODE_ABS_HARD);
	tasklet_setup(&copier.reaper, reaper);
	INIT_WORK(&copier.slow_reaper, slow_reaper);
	INIT_LIST_HEAD(&dma->channels);
	dma->dev = dev;
	dma_cap_set(DMA_MEMCPY, dma->cap_mask);
	dma_cap_set(DMA_PRIVATE, dma->cap_mask);
	if (reverse)
		dma_cap_set(DMA_COMPLETION_NO_ORDER, dma->cap_mask);
	dma->copy_align = align;
	dma->device_alloc_chan_resources = alloc_resources;
	dma->device_free_chan_resources = free_resources;
	dma->device_prep_dma_memcpy = prepare;
	dma->device_issue_pending = issue;
	dma->device_tx_status = status;
	dma->device_terminate_all = terminate;
	if (synchronizes)
		dma->device_synchronize = synchronize;
	dma->device_release = release;
	copier.chan.device = dma;
	list_add_tail(&copier.chan.device_node, &dma->channels);
}

static int probe(struct platform_device *platform)
{
	struct device *dev = &platform->dev;
	int ret;

	ret = dma_coerce_mask_and_coherent(dev, DMA_BIT_MASK(64));
	if (ret)
		return ret;
	if (device_iommu_mapped(dev))
		return -EOPNOTSUPP;
	copier.target = devm_memremap(dev, start, size, MEMREMAP_WB);
	if (IS_ERR(copier.target))
		return PTR_ERR(copier.target);
	init_device(&copier.dma, dev);
	return dma_async_device_register(&copier.dma);
}

static void remove(struct platform_device *platform)
{
	dma_async_device_unregister(&copier.dma);
	tasklet_kill(&copier.reaper);
	cancel_work_sync(&copier.slow_reaper);
}

static struct platform_driver driver = { .probe = probe, .remove = remove };

static int __init copier_init(void)
{
	int ret;

	driver.driver.name = name;
	ret = platform_driver_register(&driver);
	if (ret)
		return ret;
	platform = platform_device_register_simple(name, PLATFORM_DEVID_NONE, NULL, 0);
	if (IS_ERR(platform))
		platform_driver_unregister(&driver);
	return PTR_ERR_OR_ZERO(platform);
}

static void __exit copier_exit(void)
{
	platform_device_unregister(platform);
	platform_driver_unregister(&driver);
}

module_init(copier_init);
module_exit(copier_exit);
