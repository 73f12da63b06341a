# SPDX-License-Identifier: GPL-2.0 OR MIT
"""An MPI program for two ranks (mpi4py), as scripts/clients starts it on two nodes:  mpi_work.py pt2pt|collectives|one-sided|endless

Compares all data that it gets, and prints its figure.
"""

import sys
import time
from array import array

from mpi4py import MPI

WORLD = MPI.COMM_WORLD
RANK, PEER = WORLD.Get_rank(), 1 - WORLD.Get_rank()
SIZES = (0, 1, 8, 1000, 4096, 65536, 1 << 20)
ROUNDS = 200


def check(true, what):
    """Ends all ranks if something is not as it has to be."""
    if not true:
        print(f"rank {RANK}: {what} differs", flush=True)
        WORLD.Abort(1)


def pattern(size, seed):
    return bytearray((seed + place * 7) & 255 for place in range(size))


def pingpong(size, rounds):
    """Sends and gets a message so many times; returns the microseconds that one way takes."""
    mine, got = pattern(size, RANK), bytearray(size)
    WORLD.Barrier()
    start = time.perf_counter()
    for _ in range(rounds):
        if RANK == 0:
            WORLD.Send(mine, PEER)
            WORLD.Recv(got, PEER)
        else:
            WORLD.Recv(got, PEER)
            WORLD.Send(mine, PEER)
    taken = time.perf_counter() - start
    check(got == pattern(size, PEER), f"a message of {size} bytes")
    return taken * 1e6 / rounds / 2


def pt2pt():
    for size in SIZES:
        pingpong(size, 5)
    # Both at once, as halo exchanges do.
    got = [bytearray(65536) for _ in range(16)]
    requests = [WORLD.Irecv(into, PEER, tag) for tag, into in enumerate(got)]
    requests += [WORLD.Isend(pattern(65536, RANK + tag), PEER, tag) for tag in range(16)]
    MPI.Request.Waitall(requests)
    check(all(into == pattern(65536, PEER + tag) for tag, into in enumerate(got)), "what was sent both ways at once")
    return pingpong(8, ROUNDS), "us"


def collectives():
    for count in (1, 1000, 100000):
        mine, total = array("d", [RANK + 1.0] * count), array("d", bytes(8 * count))
        WORLD.Allreduce(mine, total)
        check(total == array("d", [3.0] * count), f"the sum of {count} numbers")
        both = array("d", bytes(16 * count))
        WORLD.Allgather(mine, both)
        check(both == array("d", [1.0] * count + [2.0] * count), "what was gathered")
        WORLD.Alltoall(both, total := array("d", bytes(16 * count)))
        check(total == array("d", [RANK + 1.0] * 2 * count), "what all sent to all")
        told = array("d", [7.0] * count) if RANK == 0 else array("d", bytes(8 * count))
        WORLD.Bcast(told, 0)
        check(told == array("d", [7.0] * count), "what was broadcast")
    mine, total = array("d", [1.0]), array("d", [0.0])
    WORLD.Barrier()
    start = time.perf_counter()
    for _ in range(ROUNDS):
        WORLD.Allreduce(mine, total)
    return (time.perf_counter() - start) * 1e6 / ROUNDS, "us"


def one_sided():
    words = 1000
    memory = array("q", [0] * (words + 1))
    window = MPI.Win.Create(memory, 8, comm=WORLD)
    window.Fence()
    # It has to stay until the fence.
    mine = array("q", range(RANK, RANK + words))
    window.Put(mine, PEER, 1)
    window.Fence()
    check(memory[1:] == array("q", range(PEER, PEER + words)), "what was put")
    got = array("q", bytes(8 * words))
    window.Get(got, PEER, 1)
    window.Fence()
    check(got == mine, "what was got")
    one, old = array("q", [1]), array("q", [0])
    start = time.perf_counter()
    for _ in range(ROUNDS):
        window.Lock(0)
        window.Fetch_and_op(one, old, 0, 0, MPI.SUM)
        window.Unlock(0)
    taken = time.perf_counter() - start
    window.Fence()
    check(RANK == 1 or memory[0] == 2 * ROUNDS, f"a counter: {memory[0]}")
    window.Free()
    return taken * 1e6 / ROUNDS, "us"


def endless():
    """Goes on until something is done to it."""
    while True:
        pingpong(65536, ROUNDS)


if __name__ == "__main__":
    figure, unit = {"endless": endless, "pt2pt": pt2pt, "collectives": collectives, "one-sided": one_sided}[sys.argv[1]]()
    if RANK == 0:
        print(f"compared; {figure:.2f} {unit}", flush=True)
