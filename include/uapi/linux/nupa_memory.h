/* SPDX-License-Identifier: ((GPL-2.0 WITH Linux-syscall-note) OR MIT) */
/* What programs can ask of an open memory device, /dev/nupa/NAME (Documentation/memory.md). */

#ifndef _UAPI_LINUX_NUPA_MEMORY_H
#define _UAPI_LINUX_NUPA_MEMORY_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define NUPA_MEMORY_IOCTL_TYPE	0xDC

/**
 * struct nupa_memory_dmabuf - which part of a memory device a DMA buffer is to be of
 * @size: sizeof(struct nupa_memory_dmabuf)
 * @open_flags: O_RDONLY or O_RDWR, for which the device must be open, and O_CLOEXEC or not
 * @offset: bytes into the device; whole pages
 * @length: bytes; whole pages, at least one
 * @flags: 0
 * @reserved: 0
 */
struct nupa_memory_dmabuf {
	__u32		size;
	__u32		open_flags;
	__aligned_u64	offset;
	__aligned_u64	length;
	__u32		flags;
	__u32		reserved;
};

/*
 * Exports a part of the device as a DMA buffer, and returns its file descriptor. Later versions of the structure are longer: a kernel
 * takes one that it does not know as long as what it does not know is zero, and fails with E2BIG else.
 */
#define NUPA_MEMORY_EXPORT_DMABUF	_IO(NUPA_MEMORY_IOCTL_TYPE, 0)

#endif
