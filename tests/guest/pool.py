# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Reaches the pool's memory without a driver of ours, on a node:

  pool.py write FILE OFFSET BYTES SEED   writes random bytes of the seed; FILE is /dev/daxX.Y or a resource2
  pool.py sum FILE OFFSET BYTES          prints the SHA-256 of what is there; OFFSET may count from the end
  pool.py ring FILE PEER VECTOR          raises an interrupt of another device; FILE is an ivshmem's resource0
  pool.py id FILE                        prints the number that the ivshmem device has
"""

import ctypes
import hashlib
import mmap
import os
import pathlib
import random
import sys

# Registers of ivshmem-doorbell, BAR 0.
IV_POSITION, DOORBELL = 8, 12


def size_of(path):
    """Bytes of a DAX device, which its file does not tell, or of a BAR."""
    size = pathlib.Path("/sys/bus/dax/devices") / path.name / "size"
    return int(size.read_text()) if size.exists() else path.stat().st_size


def memory(path):
    descriptor = os.open(path, os.O_RDWR | os.O_SYNC)
    return mmap.mmap(descriptor, size_of(path))


def registers(path):
    """The 256 bytes of registers, which lie somewhere in a page. Python's own mmap maps no more than a file's size."""
    start = int((path.parent / "resource").read_text().split()[0], 0) % mmap.PAGESIZE
    descriptor = os.open(path, os.O_RDWR | os.O_SYNC)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    page = libc.mmap(None, ctypes.c_size_t(mmap.PAGESIZE), mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED,
                     descriptor, ctypes.c_long(0))
    if page == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
    return (ctypes.c_uint32 * 64).from_address(page + start)


def place(pool, offset):
    """An offset that may count from the end."""
    return offset if offset >= 0 else len(pool) + offset


def main(command, path, *arguments):
    path = pathlib.Path(path)
    numbers = [int(argument) for argument in arguments]
    if command == "write":
        pool = memory(path)
        offset, count, seed = numbers
        start = place(pool, offset)
        pool[start:start + count] = random.Random(seed).randbytes(count)
    elif command == "sum":
        pool = memory(path)
        offset, count = numbers
        start = place(pool, offset)
        print(hashlib.sha256(pool[start:start + count]).hexdigest())
    elif command == "ring":
        peer, vector = numbers
        registers(path)[DOORBELL // 4] = peer << 16 | vector
    elif command == "id":
        print(registers(path)[IV_POSITION // 4])
    else:
        sys.exit(__doc__)


main(*sys.argv[1:])
