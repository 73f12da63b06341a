# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Regions of other nodes that the provider has mapped (Documentation/process-rings.md, "Mapped regions"), for program.py: used as no provider uses them."""

import ctypes
import errno
import mmap
import time

MREMAP_MAYMOVE, MREMAP_FIXED = 1, 2
# What the kernel calls their file.
REGION = "anon_inode:[nupa_region]"

libc = ctypes.CDLL(None, use_errno=True)
libc.mremap.restype = ctypes.c_void_p
libc.mremap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)


class PeerRegions:
    """What a program does that stores and loads by its own instructions where its device is mapped."""

    def peer_region(self, size):
        """Offset in the device's file of a mapped region of so many bytes; None if there is no such."""
        with open("/proc/self/maps") as file:
            for line in file:
                place, _, offset, *_, path = line.split()
                start, end = (int(address, 16) for address in place.split("-"))
                if end - start == size and path == REGION:
                    return int(offset, 16)
        return None

    def peer_regions_of_child(self):
        """How many areas of mapped regions a child of `fork_and_go_on` has."""
        with open(f"/proc/{self.child[0]}/maps") as file:
            return sum(line.rstrip().endswith(REGION) for line in file)

    def peer_map(self, offset, size):
        """Maps what the provider has mapped once more, so that it stays whatever the provider does; returns where."""
        place = libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, self.context.cmd_fd, offset)
        if place == ctypes.c_void_p(-1).value:
            raise OSError(ctypes.get_errno(), "mmap")
        return place

    def peer_maps(self, offset, size, most):
        """As `peer_map`, until that is refused, or so many times; how often, and with which error it was refused."""
        for count in range(most):
            try:
                self.peer_map(offset, size)
            except OSError as error:
                return count, errno.errorcode[error.errno]
        return most, None

    def peer_store(self, address, text, seconds=0.0):
        """Stores bytes, again and again for so long; returns how often."""
        data, count = bytes.fromhex(text), 0
        end = time.monotonic() + seconds
        while True:
            ctypes.memmove(address, data, len(data))
            count += 1
            if time.monotonic() >= end:
                return count

    def peer_load(self, address, length):
        return ctypes.string_at(address, length).hex()

    def peer_split(self, address, size):
        """Unmaps the second page and moves what follows that; returns where it is then. Pages are not touched."""
        page = mmap.PAGESIZE
        if libc.munmap(address + page, page) != 0:
            raise OSError(ctypes.get_errno(), "munmap")
        rest = size - 2 * page
        moved = libc.mremap(address + 2 * page, rest, rest, MREMAP_MAYMOVE | MREMAP_FIXED, self.hole(rest))
        if moved == ctypes.c_void_p(-1).value:
            raise OSError(ctypes.get_errno(), "mremap")
        return moved

    def hole(self, size):
        """Where there is room for so many bytes."""
        place = libc.mmap(None, size, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        return place
