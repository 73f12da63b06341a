// SPDX-License-Identifier: GPL-2.0
/* See device_helpers.h. */

#include <linux/bottom_half.h>
#include <linux/capability.h>
#include <linux/cc_platform.h>
#include <linux/cpumask.h>
#include <linux/cred.h>
#include <linux/device.h>
#include <linux/dma-map-ops.h>
#include <linux/dma-mapping.h>
#include <linux/dmi.h>
#include <linux/interrupt.h>
#include <linux/io.h>
#include <linux/iommu-dma.h>
#include <linux/jiffies.h>
#include <linux/kthread.h>
#include <linux/mm.h>
#include <linux/pci.h>
#include <linux/processor.h>
#include <linux/range.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/sizes.h>
#include <linux/string.h>
#include <linux/uidgid.h>
#include <linux/user_namespace.h>
#include <linux/utsname.h>
#include <net/devlink.h>

#include <../drivers/dax/dax-private.h>

#include "device_helpers.h"

/*
 * Locks with interrupts off that are released in any order: interrupts come back as they were before the first of them with
 * the last. A CPU that holds one stays the same.
 */
struct nk_irq_locks {
	unsigned long flags;
	unsigned int held;
};

#ifdef CONFIG_PREEMPT_RT
#error "spinlocks have to keep interrupts off"
#endif

static DEFINE_PER_CPU(struct nk_irq_locks, nk_irq_locks);

static void locked(unsigned long flags)
{
	struct nk_irq_locks *locks = this_cpu_ptr(&nk_irq_locks);

	if (!locks->held++)
		locks->flags = flags;
}

void nk_spin_lock_irq(spinlock_t *lock)
{
	unsigned long flags;

	spin_lock_irqsave(lock, flags);
	locked(flags);
}

bool nk_spin_trylock_irq(spinlock_t *lock)
{
	unsigned long flags;

	if (!spin_trylock_irqsave(lock, flags))
		return false;
	locked(flags);
	return true;
}

void nk_spin_unlock_irq(spinlock_t *lock)
{
	struct nk_irq_locks *locks = this_cpu_ptr(&nk_irq_locks);

	if (--locks->held)
		spin_unlock(lock);
	else
		spin_unlock_irqrestore(lock, locks->flags);
}

void nk_irq_spread(struct pci_dev *pdev, unsigned int irq, unsigned int index)
{
	irq_set_affinity(irq, cpumask_of(cpumask_local_spread(index, dev_to_node(&pdev->dev))));
}

bool nk_is_memory_bar(struct pci_dev *pdev, unsigned int bar)
{
	return bar < PCI_STD_NUM_BARS && pci_resource_flags(pdev, bar) & IORESOURCE_MEM;
}

void nk_mb(void)
{
	mb();
}

/*
 * What tells this machine from others and is the same after a restart: the firmware's UUID, or where it has none the host's
 * name, which somebody may be changing just now. The kernel leaves UUIDs of zeroes out.
 */
size_t nk_host_name(char *name, size_t len)
{
	const char *known = dmi_get_system_info(DMI_PRODUCT_UUID);
	ssize_t copied = strscpy(name, known ?: init_utsname()->nodename, len);

	return copied < 0 ? len - 1 : copied;
}

/* Memory of dma_alloc_coherent() is mapped linearly, or page by page where an IOMMU made it contiguous. */
phys_addr_t nk_coherent_phys(void *addr)
{
	if (is_vmalloc_addr(addr))
		return page_to_phys(vmalloc_to_page(addr)) + offset_in_page(addr);
	return virt_to_phys(addr);
}

static void forget_dma_parms(void *dev)
{
	((struct device *)dev)->dma_parms = NULL;
}

/* As long as the device is bound. Buses of devices that do DMA give them some; users of a device expect them. */
static int add_dma_parms(struct device *dev)
{
	if (dev->dma_parms)
		return 0;
	dev->dma_parms = devm_kzalloc(dev, sizeof(*dev->dma_parms), GFP_KERNEL);
	if (!dev->dma_parms)
		return -ENOMEM;
	return devm_add_action_or_reset(dev, forget_dma_parms, dev);
}

/* What dma_map_direct() asks, after which a DMA address is the physical one. A device that does no DMA has no mask. */
int nk_dma_physical(struct device *dev)
{
	int error;

	/* phys_to_dma() sets a bit of the address then, and other hosts would read what is encrypted with this one's key. */
	if (cc_platform_has(CC_ATTR_MEM_ENCRYPT)) {
		dev_err(dev, "memory encryption is on, with which a pool cannot be used: boot with mem_encrypt=off\n");
		return -EOPNOTSUPP;
	}
	if (get_dma_ops(dev) || use_dma_iommu(dev) || dev->dma_range_map) {
		dev_err(dev, "an IOMMU translates this device's addresses; see Documentation/pool.md\n");
		return -EOPNOTSUPP;
	}
	if (!dev->dma_mask)
		dev->dma_mask = &dev->coherent_dma_mask;
	error = add_dma_parms(dev);
	if (error)
		return error;
	/* What works with pages takes pieces of scatterlists of any length. */
	dma_set_max_seg_size(dev, SZ_2G);
	return dma_set_mask_and_coherent(dev, DMA_BIT_MASK(64));
}

struct devlink *nk_devlink_alloc(const struct devlink_ops *ops, size_t priv_size, struct device *dev)
{
	return devlink_alloc(ops, priv_size, dev);
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

void nk_cond_resched(void)
{
	cond_resched();
}

struct task_struct *nk_kthread_run_on(int (*run)(void *data), void *data, unsigned int cpu, const char *name)
{
	struct task_struct *task;

	if (cpu >= nr_cpu_ids || !cpu_possible(cpu))
		return ERR_PTR(-EINVAL);
	task = kthread_create_on_node(run, data, cpu_to_node(cpu), "%s/%u", name, cpu);
	if (!IS_ERR(task)) {
		kthread_bind(task, cpu);
		wake_up_process(task);
	}
	return task;
}

bool nk_cpu_is_online(unsigned int cpu)
{
	return cpu < nr_cpu_ids && cpu_online(cpu);
}

/*
 * Between two rounds of a thread that never sleeps. Ticks mostly find it with bottom halves off, which to RCU is a reader, and on
 * a processor without ticks there are none; so it says by itself that it is none, once a jiffy.
 */
void nk_kthread_pause(unsigned long *told)
{
	unsigned long now = jiffies;

	if (now != *told) {
		*told = now;
		local_irq_disable();
		rcu_momentary_eqs();
		local_irq_enable();
	}
	cond_resched_tasks_rcu_qs();
	cpu_relax();
}

void nk_yield(void)
{
	yield();
}

bool nk_capable_of_resources(void)
{
	return capable(CAP_SYS_RESOURCE);
}

bool nk_bh_is_disabled(void)
{
	return in_softirq() && !in_hardirq() && !in_nmi() && !irqs_disabled();
}

void nk_bh_disable(void)
{
	local_bh_disable();
}

void nk_bh_enable(void)
{
	local_bh_enable();
}

/* The outermost namespace that is not root's names who pays. */
u32 nk_charged_user(void)
{
	const struct user_namespace *ns;
	kuid_t uid = current_uid();

	for (ns = current_user_ns(); ns->parent; ns = ns->parent)
		if (!uid_eq(ns->owner, GLOBAL_ROOT_UID))
			uid = ns->owner;
	return __kuid_val(uid);
}
