// SPDX-License-Identifier: GPL-2.0
/* See device_helpers.h. */

#include <linux/bottom_half.h>
#include <linux/cpumask.h>
#include <linux/dma-map-ops.h>
#include <linux/dma-mapping.h>
#include <linux/hrtimer.h>
#include <linux/interrupt.h>
#include <linux/io.h>
#include <linux/iommu-dma.h>
#include <linux/kthread.h>
#include <linux/mm.h>
#include <linux/pci.h>
#include <linux/range.h>

#include <../drivers/dax/dax-private.h>

#include "device_helpers.h"

unsigned long nk_spin_lock_irqsave(spinlock_t *lock)
{
	unsigned long flags;

	spin_lock_irqsave(lock, flags);
	return flags;
}

void nk_spin_unlock_irqrestore(spinlock_t *lock, unsigned long flags)
{
	spin_unlock_irqrestore(lock, flags);
}

bool nk_spin_trylock_irqsave(spinlock_t *lock, unsigned long *flags)
{
	unsigned long saved;
	bool locked = spin_trylock_irqsave(lock, saved);

	*flags = saved;
	return locked;
}

void nk_irq_spread(struct pci_dev *pdev, unsigned int irq, unsigned int index)
{
	irq_set_affinity(irq, cpumask_of(cpumask_local_spread(index, dev_to_node(&pdev->dev))));
}

void nk_mb(void)
{
	mb();
}

/* Memory of dma_alloc_coherent() is mapped linearly, or page by page where an IOMMU made it contiguous. */
phys_addr_t nk_coherent_phys(void *addr)
{
	if (is_vmalloc_addr(addr))
		return page_to_phys(vmalloc_to_page(addr)) + offset_in_page(addr);
	return virt_to_phys(addr);
}

/* What dma_map_direct() asks, after which a DMA address is the physical one. A device that does no DMA has no mask. */
int nk_dma_physical(struct device *dev)
{
	if (get_dma_ops(dev) || use_dma_iommu(dev) || dev->dma_range_map)
		return -EOPNOTSUPP;
	if (!dev->dma_mask)
		dev->dma_mask = &dev->coherent_dma_mask;
	return dma_set_mask_and_coherent(dev, DMA_BIT_MASK(64));
}

/* As device_dax and kmem do, without dax_dev_rwsem: ranges of a bound device do not change. */
int nk_dax_range(struct dev_dax *dax, phys_addr_t *start, u64 *len)
{
	if (dax->nr_range != 1)
		return -EINVAL;
	*start = dax->ranges[0].range.start;
	*len = range_len(&dax->ranges[0].range);
	return 0;
}

void nk_bh_disable(void)
{
	local_bh_disable();
}

void nk_bh_enable(void)
{
	local_bh_enable();
}

struct task_struct *nk_thread_create(int (*run)(void *data), void *data, const char *name)
{
	return kthread_create(run, data, "%s", name);
}

bool nk_thread_should_stop(void)
{
	return kthread_should_stop();
}

/* Looks at the flag after the state is set, so that a waker that sets it before it wakes the task is never missed. */
void nk_thread_sleep(const bool *woken, u64 ns)
{
	ktime_t limit = ns_to_ktime(ns);

	set_current_state(TASK_IDLE);
	if (!READ_ONCE(*woken) && !kthread_should_stop())
		schedule_hrtimeout_range(&limit, 0, HRTIMER_MODE_REL);
	__set_current_state(TASK_RUNNING);
}
