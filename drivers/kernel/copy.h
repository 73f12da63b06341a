/* SPDX-License-Identifier: GPL-2.0 */
/* A copy that programs may poll for; also compiled by tests/copy.c, on a host. */

#ifndef NK_COPY_H
#define NK_COPY_H

/* The ranges may overlap where a process copies to itself; memcpy() is the faster one where they do not. */
static inline void nk_move(void *to, const void *from, size_t len)
{
	if (to < from + len && from < to + len)
		memmove(to, from, len);
	else
		memcpy(to, from, len);
}

static inline u64 nk_load_word(const void *from)
{
	return IS_ALIGNED((unsigned long)from, sizeof(u64)) ? READ_ONCE(*(const u64 *)from) :
							      get_unaligned((const u64 *)from);
}

/* Of what does not end with an aligned word. */
static inline void nk_copy_unordered(void *to, const void *from, size_t len)
{
	if (len == sizeof(u32) && IS_ALIGNED((unsigned long)to, sizeof(u32)))
		WRITE_ONCE(*(u32 *)to, get_unaligned((const u32 *)from));
	else if (len == sizeof(u16) && IS_ALIGNED((unsigned long)to, sizeof(u16)))
		WRITE_ONCE(*(u16 *)to, get_unaligned((const u16 *)from));
	else
		nk_move(to, from, len);
}

/*
 * Copies bytes that others look at meanwhile. All that was copied before is visible before any of it. If the destination ends
 * at a multiple of 8, its last 8 bytes are stored as a whole, after all others: who polls for them finds the rest. Aligned
 * pieces of 2, 4, 8 and 16 bytes consist of whole stores; memcpy() may be one of single bytes ("rep movsb").
 */
static inline void nk_copy_ordered(void *to, const void *from, size_t len)
{
	size_t rest;
	u64 first, last;

	dma_wmb();
	dma_rmb();
	if (len < sizeof(u64) || !IS_ALIGNED((unsigned long)to + len, sizeof(u64))) {
		nk_copy_unordered(to, from, len);
		return;
	}
	rest = len - sizeof(u64);
	/* Both words are loaded before anything is stored, for the ranges may overlap. */
	last = nk_load_word(from + rest);
	if (rest == sizeof(u64)) {
		first = nk_load_word(from);
		WRITE_ONCE(*(u64 *)to, first);
	} else {
		nk_move(to, from, rest);
	}
	dma_wmb();
	WRITE_ONCE(*(u64 *)(to + rest), last);
}

#endif
