/* SPDX-License-Identifier: GPL-2.0 */
/* C inline functions and macros about devices, locks and threads that nk calls, one out-of-line function each. */

#ifndef NK_DEVICE_HELPERS_H
#define NK_DEVICE_HELPERS_H

#include <linux/spinlock.h>
#include <linux/types.h>

struct dev_dax;
struct device;
struct pci_dev;
struct task_struct;

unsigned long nk_spin_lock_irqsave(spinlock_t *lock);
void nk_spin_unlock_irqrestore(spinlock_t *lock, unsigned long flags);
bool nk_spin_trylock_irqsave(spinlock_t *lock, unsigned long *flags);
void nk_irq_spread(struct pci_dev *pdev, unsigned int irq, unsigned int index);
void nk_mb(void);
phys_addr_t nk_coherent_phys(void *addr);
int nk_dma_physical(struct device *dev);
int nk_dax_range(struct dev_dax *dax, phys_addr_t *start, u64 *len);
void nk_bh_disable(void);
void nk_bh_enable(void);
struct task_struct *nk_thread_create(int (*run)(void *data), void *data, const char *name);
bool nk_thread_should_stop(void);
void nk_thread_sleep(const bool *woken, u64 ns);

#endif
