/* SPDX-License-Identifier: GPL-2.0 */
/* A copy that programs may poll for; also compiled by tests/copy.c, on a host. */

#ifndef NK_COPY_H
#define NK_COPY_H

/* How memory is read. False if it has lost what was stored there; a part may be copied then. */
typedef bool nk_load_fn(const void *from, u64 *value);
typedef bool nk_move_fn(void *to, const void *from, size_t len);

/* As a whole, if it is aligned. */
static inline bool nk_load_word(const void *from, u64 *value)
{
	*value = IS_ALIGNED((unsigned long)from, sizeof(u64)) ? READ_ONCE(*(const u64 *)from) :
								get_unaligned((const u64 *)from);
	return true;
}

/*
 * Whether memcpy() would be slow here. Where it is "rep movsb", AMD's Zen 3 takes nine times as long if the destination is 1 to 31 bytes
 * ahead of the source modulo 4096, for short copies too. That is one of 128 places that a program may receive at. Other processors are
 * not told apart: by words they may be slower at these places than they could be.
 */
static __always_inline bool nk_memcpy_is_slow(const void *to, const void *from)
{
	return (((unsigned long)to - (unsigned long)from) & 4095) - 1 < 31;
}

/* Least bytes that nk_move_words() moves, and what it moves at one go. */
#define NK_BLOCK 32

static __always_inline bool nk_move_block(void *to, const void *from, nk_load_fn *load)
{
	/* In registers, which an array would not be. */
	u64 a, b, c, d;

	if (!load(from, &a) || !load(from + 8, &b) || !load(from + 16, &c) || !load(from + 24, &d))
		return false;
	put_unaligned(a, (u64 *)to);
	put_unaligned(b, (u64 *)(to + 8));
	put_unaligned(c, (u64 *)(to + 16));
	put_unaligned(d, (u64 *)(to + 24));
	/* Or the compiler makes one memmove() of several. */
	barrier();
	return true;
}

/* By words. The ranges do not overlap. */
static __always_inline bool nk_move_words(void *to, const void *from, size_t len, nk_load_fn *load)
{
	size_t done;

	for (done = 0; len - done >= NK_BLOCK; done += NK_BLOCK) {
		if (!nk_move_block(to + done, from + done, load))
			return false;
	}
	/* The last bytes, and some of those before them again. */
	return done == len || nk_move_block(to + len - NK_BLOCK, from + len - NK_BLOCK, load);
}

/*
 * The ranges may overlap where a process copies to itself; memcpy() is the faster one where they do not. Inline, so that of a length that
 * the compiler knows, such as 2 and 4, it is one load.
 */
static __always_inline bool nk_move(void *to, const void *from, size_t len)
{
	if (to < from + len && from < to + len)
		memmove(to, from, len);
	else if (len >= NK_BLOCK && nk_memcpy_is_slow(to, from))
		return nk_move_words(to, from, len, nk_load_word);
	else
		memcpy(to, from, len);
	return true;
}

/* Of what does not end with an aligned word. */
static __always_inline bool nk_copy_unordered(void *to, const void *from, size_t len, nk_move_fn *move)
{
	u32 word;
	u16 half;

	if (len == sizeof(word) && IS_ALIGNED((unsigned long)to, sizeof(word))) {
		if (!move(&word, from, sizeof(word)))
			return false;
		WRITE_ONCE(*(u32 *)to, word);
		return true;
	}
	if (len == sizeof(half) && IS_ALIGNED((unsigned long)to, sizeof(half))) {
		if (!move(&half, from, sizeof(half)))
			return false;
		WRITE_ONCE(*(u16 *)to, half);
		return true;
	}
	return move(to, from, len);
}

/*
 * Copies bytes that others look at meanwhile. All that was copied before is visible before any of it. If the destination ends
 * at a multiple of 8, its last 8 bytes are stored as a whole, after all others: who polls for them finds the rest. Aligned
 * pieces of 2, 4, 8 and 16 bytes consist of whole stores; memcpy() may be one of single bytes ("rep movsb").
 */
static __always_inline bool nk_copy_ordered_by(void *to, const void *from, size_t len, nk_load_fn *load,
					       nk_move_fn *move)
{
	size_t rest;
	u64 first, last;

	dma_wmb();
	dma_rmb();
	if (len < sizeof(u64) || !IS_ALIGNED((unsigned long)to + len, sizeof(u64)))
		return nk_copy_unordered(to, from, len, move);
	rest = len - sizeof(u64);
	/* Both words are loaded before anything is stored, for the ranges may overlap. */
	if (!load(from + rest, &last))
		return false;
	if (rest == sizeof(u64)) {
		if (!load(from, &first))
			return false;
		WRITE_ONCE(*(u64 *)to, first);
	} else if (!move(to, from, rest)) {
		return false;
	}
	dma_wmb();
	WRITE_ONCE(*(u64 *)(to + rest), last);
	return true;
}

/* From memory that is there. */
static inline void nk_copy_ordered(void *to, const void *from, size_t len)
{
	nk_copy_ordered_by(to, from, len, nk_load_word, nk_move);
}

#endif
