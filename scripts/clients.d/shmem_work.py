# SPDX-License-Identifier: GPL-2.0 OR MIT
"""An OpenSHMEM program for two processes, as scripts/clients starts it on two nodes:  shmem_work.py

There is no package of OpenSHMEM for Python, so it calls the library of C. Compares all data that it gets, and prints its figure.
"""

import ctypes
import sys
import time

WORDS = 1000
ROUNDS = 200
PUTS = 2000
SHMEM_CMP_EQ = 0  # as Open MPI's shmem.h counts

library = ctypes.CDLL("liboshmem.so.40", mode=ctypes.RTLD_GLOBAL)
library.shmem_malloc.restype = ctypes.c_void_p
library.shmem_malloc.argtypes = [ctypes.c_size_t]
library.shmem_putmem.argtypes = library.shmem_getmem.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
library.shmem_long_atomic_fetch_add.restype = ctypes.c_long
library.shmem_long_atomic_fetch_add.argtypes = [ctypes.c_void_p, ctypes.c_long, ctypes.c_int]
library.shmem_long_p.argtypes = [ctypes.c_void_p, ctypes.c_long, ctypes.c_int]
library.shmem_long_wait_until.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_long]


def words_at(place, count):
    return (ctypes.c_long * count).from_address(place)


def check(true, what):
    """Ends all processes if something is not as it has to be."""
    if not true:
        print(f"{what} differs", flush=True)
        library.shmem_global_exit(1)


def main():
    library.shmem_init()
    rank = library.shmem_my_pe()
    peer = 1 - rank
    memory = library.shmem_malloc(8 * (WORDS + 2))
    counter, signal, data = memory, memory + 8, memory + 16
    words_at(memory, WORDS + 2)[:] = [0] * (WORDS + 2)
    library.shmem_barrier_all()
    # Data, then a signal that it is there.
    mine = (ctypes.c_long * WORDS)(*range(rank, rank + WORDS))
    library.shmem_putmem(data, mine, 8 * WORDS, peer)
    library.shmem_fence()
    library.shmem_long_p(signal, 1, peer)
    library.shmem_long_wait_until(signal, SHMEM_CMP_EQ, 1)
    check(list(words_at(data, WORDS)) == list(range(peer, peer + WORDS)), "what was put before the signal")
    got = (ctypes.c_long * WORDS)()
    library.shmem_getmem(got, data, 8 * WORDS, peer)
    check(list(got) == list(mine), "what was got")
    library.shmem_barrier_all()
    for _ in range(ROUNDS):
        library.shmem_long_atomic_fetch_add(counter, 1, 0)
    library.shmem_barrier_all()
    check(rank != 0 or words_at(counter, 1)[0] == 2 * ROUNDS, "a counter")
    library.shmem_barrier_all()
    # The other one waits in the barrier meanwhile.
    start = time.perf_counter()
    for number in range(PUTS if rank == 1 else 0):
        library.shmem_long_p(signal, number, 0)
        library.shmem_quiet()
    taken = time.perf_counter() - start
    library.shmem_barrier_all()
    check(rank != 0 or words_at(signal, 1)[0] == PUTS - 1, "what was put last")
    library.shmem_barrier_all()
    library.shmem_finalize()
    if rank == 1:
        print(f"compared; {taken * 1e6 / PUTS:.2f} us", flush=True)


if __name__ == "__main__":
    sys.exit(main())
