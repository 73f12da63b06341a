// SPDX-License-Identifier: GPL-2.0
/*
 * Tries the kernel's copy on a host, with a memcpy() that keeps no order and stores no whole words, as the kernel's
 * "rep movsb" need not: one thread copies messages, the other polls for their last word. Exit status 0 if nothing was torn
 * or came too late. With -DPLAIN it is what there was before, and fails.
 */

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;

#define IS_ALIGNED(x, a) (((x) & ((a) - 1)) == 0)
#define READ_ONCE(x) (*(const volatile __typeof__(x) *)&(x))
#define WRITE_ONCE(x, value) (*(volatile __typeof__(x) *)&(x) = (value))
#define get_unaligned(p) (((const struct { __typeof__(*(p)) value; } __attribute__((packed, may_alias)) *)(p))->value)
#define put_unaligned(v, p) ((void)(((struct { __typeof__(*(p)) value; } __attribute__((packed, may_alias)) *)(p))->value = (v)))
#define barrier() __asm__ volatile("" ::: "memory")
#define dma_wmb() __atomic_thread_fence(__ATOMIC_RELEASE)
#define dma_rmb() __atomic_thread_fence(__ATOMIC_ACQUIRE)

/* As slow and as perverse as a memcpy() may be: single bytes, the last one first. */
static void *bytewise(void *to, const void *from, size_t len)
{
	while (len--)
		((volatile char *)to)[len] = ((const char *)from)[len];
	return to;
}

#define memcpy bytewise
#include "../copy.h"
#undef memcpy

#ifdef PLAIN
#define nk_copy_ordered nk_move
#endif

enum { ROUNDS = 200000, MAX = 4096 };

static u64 to[MAX / 8], from[MAX / 8];
static size_t words;
static bool done;

static void *reader(void *unused)
{
	u64 seen = 0;

	while (!__atomic_load_n(&done, __ATOMIC_RELAXED)) {
		u64 number = __atomic_load_n(&to[words - 1], __ATOMIC_ACQUIRE);

		if (number == seen)
			continue;
		seen = number;
		if (number >> 32 != (number & 0xffffffff)) {
			printf("%zu bytes: the last word is torn: %#llx\n", words * 8, (unsigned long long)number);
			exit(1);
		}
		for (size_t i = 0; i < words - 1; i++) {
			u64 word = __atomic_load_n(&to[i], __ATOMIC_ACQUIRE);

			if (word < number) {
				printf("%zu bytes: word %zu came too late: %#llx, not %#llx\n", words * 8, i,
				       (unsigned long long)word, (unsigned long long)number);
				exit(1);
			}
		}
	}
	return unused;
}

static void poll(size_t len)
{
	pthread_t thread;

	words = len / 8;
	done = false;
	memset(to, 0, sizeof(to));
	if (pthread_create(&thread, NULL, reader, NULL))
		exit(2);
	for (u64 round = 1; round <= ROUNDS; round++) {
		for (size_t i = 0; i < words; i++)
			from[i] = round << 32 | round;
		nk_copy_ordered(to, from, len);
	}
	__atomic_store_n(&done, true, __ATOMIC_RELAXED);
	pthread_join(thread, NULL);
}

/* Every length, place and overlap of some bytes moves what memmove() moves. */
static void move(void)
{
	unsigned char ours[96], theirs[96];

	for (size_t len = 0; len <= 40; len++)
		for (size_t a = 0; a < 48; a++)
			for (size_t b = 0; b < 48; b++) {
				for (size_t i = 0; i < sizeof(ours); i++)
					ours[i] = theirs[i] = i;
				nk_copy_ordered(ours + b, ours + a, len);
				memmove(theirs + b, theirs + a, len);
				if (memcmp(ours, theirs, sizeof(ours))) {
					printf("%zu bytes from %zu to %zu are wrong\n", len, a, b);
					exit(1);
				}
			}
}

/* Whole lines of a ring and more, where the destination is ahead of the source by a little modulo a page, and where it is not. */
static void move_ahead(void)
{
	static unsigned char source[4 * 4096], ours[4 * 4096], theirs[4 * 4096];
	unsigned char *base = ours + 4096 - ((uintptr_t)ours - (uintptr_t)source) % 4096;

	for (size_t i = 0; i < sizeof(source); i++)
		source[i] = i * 31 + i / 251;
	for (size_t len = 0; len <= 5000; len += len < 200 ? 1 : 97)
		for (size_t ahead = 0; ahead <= 33; ahead++)
			for (size_t from = 0; from <= 16; from += 8) {
				unsigned char *to = base + from + ahead;

				memset(ours, 0, sizeof(ours));
				memset(theirs, 0, sizeof(theirs));
				nk_copy_ordered(to, source + from, len);
				memcpy(theirs + (to - ours), source + from, len);
				if (memcmp(ours, theirs, sizeof(ours))) {
					printf("%zu bytes to a place that is ahead by %zu are wrong\n", len, ahead);
					exit(1);
				}
			}
}

int main(void)
{
	static const size_t lens[] = { 8, 16, 24, 64, 72, 256, 1000, 4096 };

	move();
	move_ahead();
	for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++)
		poll(lens[i]);
	return 0;
}
