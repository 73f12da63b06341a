/* SPDX-License-Identifier: GPL-2.0 */
/* The dmaengine API, of which most is inline, as nk::dma_channel uses it. */

#ifndef NK_DMA_HELPERS_H
#define NK_DMA_HELPERS_H

#include <linux/atomic.h>
#include <linux/types.h>

struct device;
struct nk_dma_chan;

/* What callbacks have said of the copies of a batch. */
struct nk_dma_results {
	/* Copies that have ended, and those of them that were not done. */
	atomic_t ended;
	atomic_t failed;
};

struct nk_dma_chan *nk_dma_request(phys_addr_t start, u64 len);
bool nk_dma_link(struct nk_dma_chan *channel, struct device *user);
void nk_dma_release(struct nk_dma_chan *channel);
const char *nk_dma_name(struct nk_dma_chan *channel);
u32 nk_dma_alignment(struct nk_dma_chan *channel);
u32 nk_dma_max_segment(struct nk_dma_chan *channel);
bool nk_dma_map(struct nk_dma_chan *channel, phys_addr_t start, size_t len, bool to_device, dma_addr_t *addr);
void nk_dma_unmap(struct nk_dma_chan *channel, dma_addr_t addr, size_t len, bool to_device);
bool nk_dma_submit(struct nk_dma_chan *channel, dma_addr_t to, dma_addr_t from, size_t len, struct nk_dma_results *results,
		   s32 *cookie);
void nk_dma_issue(struct nk_dma_chan *channel);
bool nk_dma_look(struct nk_dma_chan *channel, s32 cookie);
u32 nk_dma_ended(const struct nk_dma_results *results);
u32 nk_dma_failed(const struct nk_dma_results *results);
int nk_dma_terminate(struct nk_dma_chan *channel);
void nk_dma_relax(void);

#endif
