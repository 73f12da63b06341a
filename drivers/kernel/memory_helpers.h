/* SPDX-License-Identifier: GPL-2.0 */
/* Memory that is not Rust's own, by physical address and by pointer: what nk::window and nk::hostmem are made of. */

#ifndef NK_MEMORY_HELPERS_H
#define NK_MEMORY_HELPERS_H

#include <linux/types.h>

struct page;

bool nk_request_memory(phys_addr_t start, size_t len, const char *name);
void nk_release_memory(phys_addr_t start, size_t len);
void *nk_map_memory(phys_addr_t start, size_t len);
void nk_store_fence(void);
void nk_load_fence(void);
void nk_write_back(void *addr, size_t len);
void nk_invalidate(void *addr, size_t len);
phys_addr_t nk_page_phys(const struct page *page);
void *nk_host_memory(phys_addr_t addr, size_t len, bool write);
bool nk_load_mc(const void *from, u64 *value);
bool nk_copy_mc(void *to, const void *from, size_t len);
void nk_copy(void *to, const void *from, size_t len);
void nk_copy_nontemporal(void *to, const void *from, size_t len);
bool nk_memory_is_persistent(phys_addr_t start, u64 len);
void nk_clear(void *addr, size_t len);

#endif
