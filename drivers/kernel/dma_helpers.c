// SPDX-License-Identifier: GPL-2.0
/* See dma_helpers.h. */

#include <linux/array_size.h>
#include <linux/device.h>
#include <linux/dma-mapping.h>
#include <linux/dmaengine.h>
#include <linux/err.h>
#include <linux/mm.h>
#include <linux/string.h>
#include <asm/barrier.h>
#include <asm/processor.h>

#include "dma_helpers.h"

/* Bindings of struct dma_chan would be those of half the driver model. */
static struct dma_chan *to_chan(struct nk_dma_chan *channel)
{
	return (struct dma_chan *)channel;
}

static struct device *dma_device_of(struct nk_dma_chan *channel)
{
	return dmaengine_get_dma_device(to_chan(channel));
}

/*
 * Drivers that do not keep to Documentation/driver-api/dmaengine/provider.rst: idxd and ae4dma sleep where softirqs use a channel, ptdma says of copies that
 * failed that they were made, and both of AMD's do not stop what their hardware copies.
 */
static const char *const unfit[] = { "idxd", "ptdma", "ae4dma" };

/* What is wanted of a channel, and whether one was refused. */
struct wanted {
	u64 end;
	bool refused;
};

/*
 * A channel that hangs has to be told to end, and callbacks write to what is freed then. So both is asked for. Addresses are compared before
 * anything is mapped, which would warn.
 */
static bool is_fit(struct dma_chan *chan, void *param)
{
	struct dma_device *dma = chan->device;
	struct wanted *wanted = param;

	if (dma->device_terminate_all && dma->device_synchronize && dma->dev->driver &&
	    match_string(unfit, ARRAY_SIZE(unfit), dma->dev->driver->name) < 0 &&
	    dma_get_mask(dmaengine_get_dma_device(chan)) >= wanted->end)
		return true;
	wanted->refused = true;
	return false;
}

/*
 * One for the caller alone that has addresses for a range, at least one byte. An error pointer if there is none: ENXIO if there are some, but they are
 * of no use. Sleeps.
 */
struct nk_dma_chan *nk_dma_request(phys_addr_t start, u64 len)
{
	struct wanted wanted = { .end = start + len - 1 };
	struct dma_chan *chan;
	dma_cap_mask_t mask;

	dma_cap_zero(mask);
	dma_cap_set(DMA_MEMCPY, mask);
	chan = dma_request_channel(mask, is_fit, &wanted);
	if (!chan)
		return ERR_PTR(wanted.refused ? -ENXIO : -ENODEV);
	return (struct nk_dma_chan *)chan;
}

/*
 * Has the driver of `user` be unbound before that of the channel, if the latter is to be unbound first. That is so until the former is unbound, also if
 * the channel is given back before. False if the two depend on each other the other way round. Sleeps.
 */
bool nk_dma_link(struct nk_dma_chan *channel, struct device *user)
{
	return device_link_add(user, to_chan(channel)->device->dev, DL_FLAG_AUTOREMOVE_CONSUMER);
}

/* Sleeps. */
void nk_dma_release(struct nk_dma_chan *channel)
{
	dma_release_channel(to_chan(channel));
}

const char *nk_dma_name(struct nk_dma_chan *channel)
{
	return dma_chan_name(to_chan(channel));
}

/* What source, destination and length are multiples of. */
u32 nk_dma_alignment(struct nk_dma_chan *channel)
{
	return 1U << to_chan(channel)->device->copy_align;
}

u32 nk_dma_max_segment(struct nk_dma_chan *channel)
{
	return dma_get_max_seg_size(to_chan(channel)->device->dev);
}

/* Memory of the page allocator, which the channel reads, or memory of another device, which it writes; the latter need not have struct pages. */
bool nk_dma_map(struct nk_dma_chan *channel, phys_addr_t start, size_t len, bool to_device, dma_addr_t *addr)
{
	struct device *dev = dma_device_of(channel);

	*addr = to_device ? dma_map_phys(dev, start, len, DMA_TO_DEVICE, 0) :
			    dma_map_phys(dev, start, len, DMA_FROM_DEVICE, DMA_ATTR_MMIO);
	return !dma_mapping_error(dev, *addr);
}

void nk_dma_unmap(struct nk_dma_chan *channel, dma_addr_t addr, size_t len, bool to_device)
{
	struct device *dev = dma_device_of(channel);

	if (to_device)
		dma_unmap_phys(dev, addr, len, DMA_TO_DEVICE, 0);
	else
		dma_unmap_phys(dev, addr, len, DMA_FROM_DEVICE, DMA_ATTR_MMIO);
}

static void ended(void *param, const struct dmaengine_result *result)
{
	struct nk_dma_results *results = param;

	if (result->result != DMA_TRANS_NOERROR)
		atomic_inc(&results->failed);
	/* Who sees that it has ended sees whether it failed. */
	smp_mb__before_atomic();
	atomic_inc(&results->ended);
}

/*
 * Each copy has a callback: some drivers know of no other way to say that it failed, and channels need not keep an order. False if the channel
 * takes no more now. Softirqs are off.
 */
bool nk_dma_submit(struct nk_dma_chan *channel, dma_addr_t to, dma_addr_t from, size_t len, struct nk_dma_results *results,
		   s32 *cookie)
{
	struct dma_async_tx_descriptor *tx;
	dma_cookie_t submitted;

	tx = dmaengine_prep_dma_memcpy(to_chan(channel), to, from, len, DMA_PREP_INTERRUPT | DMA_CTRL_ACK);
	if (!tx)
		return false;
	tx->callback_result = ended;
	tx->callback_param = results;
	submitted = dmaengine_submit(tx);
	if (dma_submit_error(submitted))
		return false;
	/* Else it stays that of the copy before, whose status is asked for. */
	*cookie = submitted;
	return true;
}

void nk_dma_issue(struct nk_dma_chan *channel)
{
	dma_async_issue_pending(to_chan(channel));
}

/* Has a driver that finds out what has ended when it is asked do so. False if it says that there was an error. */
bool nk_dma_look(struct nk_dma_chan *channel, s32 cookie)
{
	return dma_async_is_tx_complete(to_chan(channel), cookie, NULL, NULL) != DMA_ERROR;
}

/* What those copies stored comes before anything that is done later. */
u32 nk_dma_ended(const struct nk_dma_results *results)
{
	u32 count = atomic_read(&results->ended);

	dma_rmb();
	return count;
}

u32 nk_dma_failed(const struct nk_dma_results *results)
{
	return atomic_read(&results->failed);
}

/* After it has returned 0 nothing is copied, and no callback runs, if the driver does what its device_synchronize() is for. Sleeps. */
int nk_dma_terminate(struct nk_dma_chan *channel)
{
	return dmaengine_terminate_sync(to_chan(channel));
}

void nk_dma_relax(void)
{
	cpu_relax();
}
