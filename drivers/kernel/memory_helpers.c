// SPDX-License-Identifier: GPL-2.0
/* See memory_helpers.h. */

#include <linux/compiler.h>
#include <linux/io.h>
#include <linux/ioport.h>
#include <linux/libnvdimm.h>
#include <linux/mm.h>
#include <linux/overflow.h>
#include <linux/sizes.h>
#include <linux/string.h>
#include <linux/uaccess.h>
#include <linux/unaligned.h>
#include <asm/asm.h>
#include <asm/barrier.h>
#include <asm/cacheflush.h>
#include <asm/extable_fixup_types.h>

#include "copy.h"
#include "memory_helpers.h"

/* What an out-of-tree module cannot say in Kconfig. */
#ifndef CONFIG_X86_64
#error "NUPA is for x86-64: cache lines are written back and invalidated in no other processor's way."
#endif
#if PAGE_SHIFT != 12
#error "NUPA is for pages of 4 KiB: doorbell pages and the granules of device memory are that large."
#endif

bool nk_request_memory(phys_addr_t start, size_t len, const char *name)
{
	return request_mem_region(start, len, name);
}

void nk_release_memory(phys_addr_t start, size_t len)
{
	release_mem_region(start, len);
}

void *nk_map_memory(phys_addr_t start, size_t len)
{
	return memremap(start, len, MEMREMAP_WB);
}

/* Of coherent memory that others than this kernel's CPUs access. */
void nk_store_fence(void)
{
	dma_wmb();
}

void nk_load_fence(void)
{
	dma_rmb();
}

/* Cache lines to memory, and kept. Nothing is stored before they are there. */
void nk_write_back(void *addr, size_t len)
{
	arch_wb_cache_pmem(addr, len);
	wmb();
}

/* Cache lines out of the cache; dirty ones to memory. Nothing is loaded before they are gone. */
void nk_invalidate(void *addr, size_t len)
{
	for (; len > SZ_1G; addr += SZ_1G, len -= SZ_1G)
		clflush_cache_range(addr, SZ_1G);
	clflush_cache_range(addr, len);
}

/*
 * Where the kernel has mapped memory of the page allocator, from which memory for DMA comes; NULL for anything else. That
 * there is a struct page does not suffice: it may stand for a hole, which is not mapped, but such a one is reserved. So is
 * the page of zeroes, which a process that only reads may have pinned; it is mapped read-only.
 */
void *nk_host_memory(phys_addr_t addr, size_t len, bool write)
{
	unsigned long pfn = PHYS_PFN(addr);
	struct page *page;
	struct folio *folio;
	unsigned long last;
	phys_addr_t end;

	if (!len || check_add_overflow(addr, len - 1, &end))
		return NULL;
	last = PHYS_PFN(end);
	while (pfn <= last) {
		if (!pfn_valid(pfn))
			return NULL;
		page = pfn_to_page(pfn);
		if (PageReserved(page) && (write || !is_zero_pfn(pfn)))
			return NULL;
		/* What was allocated together is of one kind. */
		folio = page_folio(page);
		pfn += folio_nr_pages(folio) - folio_page_idx(folio, page);
	}
	return phys_to_virt(addr);
}

phys_addr_t nk_page_phys(const struct page *page)
{
	return page_to_phys(page);
}

/* What the platform calls persistent, as rxe has it; what it does not name is not. */
bool nk_memory_is_persistent(phys_addr_t start, u64 len)
{
	return region_intersects(start, len, IORESOURCE_MEM, IORES_DESC_PERSISTENT_MEMORY) == REGION_INTERSECTS;
}

void nk_clear(void *addr, size_t len)
{
	memset(addr, 0, len);
}

void nk_copy(void *to, const void *from, size_t len)
{
	nk_copy_ordered(to, from, len);
}

/*
 * As nk_copy(), and all of it is in memory before anything is stored later: what the caches have of it is written back. It leaves nothing
 * there, so that it costs less than a copy and a write-back, and than any copy of more than they hold.
 */
void nk_copy_nontemporal(void *to, const void *from, size_t len)
{
	size_t last = len >= sizeof(u64) && IS_ALIGNED((unsigned long)to + len, sizeof(u64)) ? sizeof(u64) : 0;

	if (to < from + len && from < to + len) {
		nk_copy_ordered(to, from, len);
		return nk_write_back(to, len);
	}
	dma_wmb();
	dma_rmb();
	memcpy_flushcache(to, from, len - last);
	if (last) {
		wmb();
		/* One store. */
		memcpy_flushcache(to + len - sizeof(u64), from + len - sizeof(u64), sizeof(u64));
	}
	wmb();
}

/*
 * Loads a word, as a whole if it is aligned, with acquire order; false if the memory has lost it. Of memory that is poisoned an
 * ordinary load would be a machine check that the kernel does not survive.
 */
static __always_inline bool load_mc(const void *from, u64 *value)
{
	u64 found;

	asm_goto_output("1: mov %[from], %[found]\n"
			_ASM_EXTABLE_TYPE(1b, %l[poisoned], EX_TYPE_DEFAULT_MCE_SAFE)
			: [found] "=r" (found) : [from] "m" (*(const u64 *)from) : "memory" : poisoned);
	*value = found;
	return true;
poisoned:
	return false;
}

bool nk_load_mc(const void *from, u64 *value)
{
	return load_mc(from, value);
}

/* Bytes that are copied at one go where ranges overlap. */
#define PIECE 256

/* By way of the stack, from the end at which nothing is overwritten before it is read. */
static bool copy_mc_overlapping(void *to, const void *from, size_t len)
{
	u8 piece[PIECE];
	size_t done, at, n;

	for (done = 0; done < len; done += n) {
		n = min_t(size_t, len - done, PIECE);
		at = to < from ? done : len - done - n;
		if (copy_mc_to_kernel(piece, from + at, n))
			return false;
		memcpy(to + at, piece, n);
	}
	return true;
}

static bool copy_mc(void *to, const void *from, size_t len)
{
	size_t n;

	if (to < from + len && from < to + len)
		return copy_mc_overlapping(to, from, len);
	/* Which is "rep movsb", too. */
	if (len >= NK_BLOCK && nk_memcpy_is_slow(to, from))
		return nk_move_words(to, from, len, load_mc);
	for (; len; to += n, from += n, len -= n) {
		n = min_t(size_t, len, SZ_1G);
		if (copy_mc_to_kernel(to, from, n))
			return false;
	}
	return true;
}

/* As nk_copy(), from memory that may have lost what was stored there: false if it has, and a part may be copied then. */
bool nk_copy_mc(void *to, const void *from, size_t len)
{
	return nk_copy_ordered_by(to, from, len, load_mc, copy_mc);
}
