/* SPDX-License-Identifier: GPL-2.0 */
/* C inline functions and macros about devices, locks and processes that nk calls, one out-of-line function each. */

#ifndef NK_DEVICE_HELPERS_H
#define NK_DEVICE_HELPERS_H

#include <linux/spinlock.h>
#include <linux/types.h>

struct dev_dax;
struct devlink;
struct devlink_ops;
struct device;
struct pci_dev;
struct task_struct;

void nk_spin_lock_irq(spinlock_t *lock);
void nk_spin_unlock_irq(spinlock_t *lock);
bool nk_spin_trylock_irq(spinlock_t *lock);
void nk_irq_spread(struct pci_dev *pdev, unsigned int irq, unsigned int index);
bool nk_is_memory_bar(struct pci_dev *pdev, unsigned int bar);
void nk_mb(void);
size_t nk_host_name(char *name, size_t len);
phys_addr_t nk_coherent_phys(void *addr);
int nk_dma_physical(struct device *dev);
struct devlink *nk_devlink_alloc(const struct devlink_ops *ops, size_t priv_size, struct device *dev);
int nk_dax_range(struct dev_dax *dax, phys_addr_t *start, u64 *len);
bool nk_bh_is_disabled(void);
void nk_cond_resched(void);
struct task_struct *nk_kthread_run_on(int (*run)(void *data), void *data, unsigned int cpu, const char *name);
bool nk_cpu_is_online(unsigned int cpu);
void nk_kthread_pause(unsigned long *told);
void nk_yield(void);
bool nk_capable_of_resources(void);
void nk_bh_disable(void);
void nk_bh_enable(void);
u32 nk_charged_user(void);

#endif
