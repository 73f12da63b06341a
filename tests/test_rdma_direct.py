# SPDX-License-Identifier: GPL-2.0 OR MIT
"""WRITEs to device memory in the pool: the sender's node does them by itself, and programs cannot tell but by the counter."""

import pytest

from modes import POOLS, only
from verbs import ALL_ACCESS, DEVICE, remote, sge

pytestmark = only(*POOLS, why="about device memory that nodes share")

PAGE = 4096
# More than the engine copies at one go.
LONG = 5 << 20
# So much that it is copied past the caches.
BULK = (9 << 20) + 13


def direct_writes(node):
    """WRITEs that a node has done by itself."""
    return int(node.run(f"cat /sys/class/infiniband/{DEVICE}/ports/1/hw_counters/tx_direct_writes").out)


class Target:
    """Device memory of one side, and a region of all of it."""

    def __init__(self, side, size):
        self.program, self.pd, self.size = side.program, side.pd, size
        self.memory = self.program.device_memory(size)
        self.region = self.program.device_region(self.pd, self.memory, size, ALL_ACCESS)

    def at(self, offset=0):
        return [self.region.address + offset, self.region.rkey]

    def load(self, offset, length):
        return self.program.device_load(self.memory, offset, length)


def write(side, source, target, offset=0):
    side.post_send("RDMA_WRITE", sges=[source], remote=target.at(offset))
    side.done("RDMA_WRITE")


@pytest.fixture
def ends(settled, rdma):
    return rdma.rc(*settled)


def test_bytes_and_count(settled, ends, saw):
    """The first WRITE to a region goes through the ring, all others are done directly: the bytes are there at completion."""
    one, _ = settled
    a, b = ends
    target, local = Target(b, 4 * PAGE), a.region(2 * PAGE, 1)
    before = direct_writes(one)
    write(a, sge(local, 0, 100), target)
    assert direct_writes(one) == before
    for seed in range(2, 22):
        a.program.fill(local.buffer, seed)
        write(a, sge(local), target, seed)
        assert target.load(seed, 2 * PAGE) == a.program.load(local.buffer, 0, 2 * PAGE), seed
    assert direct_writes(one) == before + 20
    # The other way, and from device memory to device memory.
    back, there = Target(a, PAGE), [target.region.address + 5, 1000, target.region.lkey]
    before = direct_writes(settled[1])
    for _ in range(3):
        write(b, there, back, 7)
    assert direct_writes(settled[1]) == before + 2
    assert back.load(7, 1000) == target.load(5, 1000)
    saw("20 of 21, and 2 of 3 from device memory")


def test_order(settled, ends, saw):
    """Messages between WRITEs, many at once: each finds what was written before it."""
    one, _ = settled
    a, b = ends
    target, local, inbox = Target(b, 64 * PAGE), a.region(PAGE, 1), b.region(PAGE, 2)
    before = direct_writes(one)
    for seed in range(1, 31):
        a.program.fill(local.buffer, seed)
        b.post_recv([sge(inbox)])
        a.post_send("RDMA_WRITE", sges=[sge(local)], remote=target.at(PAGE * seed))
        a.post_send("SEND", sges=[sge(local)])
        a.post_send("RDMA_WRITE", sges=[sge(local)], remote=target.at(PAGE * (seed + 1)))
        b.done("RECV")
        assert target.load(PAGE * seed, PAGE) == a.program.load(local.buffer, 0, PAGE), seed
        assert [done["status"] for done in a.poll(3)] == ["SUCCESS"] * 3
    b.check(inbox, [[0, 30, 0, PAGE]])
    count = direct_writes(one) - before
    assert count
    saw(f"90 requests, of which {count} direct writes")


@pytest.mark.parametrize("size", [LONG, BULK], ids=["long", "bulk"])
def test_long(settled, ends, saw, size):
    """One that takes the engine several turns."""
    one, _ = settled
    a, b = ends
    target, local = Target(b, size + PAGE), a.region(size, 1)
    write(a, sge(local, 0, 8), target)
    before = direct_writes(one)
    a.program.fill(local.buffer, 3)
    for at in (0, 3):
        write(a, sge(local), target, at)
        for offset in (0, 65531, 1 << 20, (4 << 20) - PAGE, 4 << 20, size - PAGE):
            assert target.load(at + offset, PAGE) == a.program.load(local.buffer, offset, PAGE), offset
        assert target.load(at + size, 8) == bytes(8).hex()
    assert direct_writes(one) == before + 2
    saw(f"{size} bytes")


def test_deregistration(settled, ends, saw):
    """Once a region is deregistered nobody writes there, and who tries is told as ever."""
    one, _ = settled
    a, b = ends
    target, local = Target(b, PAGE), a.region(PAGE, 1)
    before = direct_writes(one)
    for _ in range(2):
        write(a, sge(local), target)
    assert direct_writes(one) == before + 1
    b.program.destroy(target.region)
    written = target.load(0, PAGE)
    a.program.fill(local.buffer, 9)
    a.post_send("RDMA_WRITE", sges=[sge(local)], remote=target.at())
    a.failed("REM_ACCESS_ERR")
    assert target.load(0, PAGE) == written
    assert direct_writes(one) == before + 1
    saw("refused, nothing written")


def test_program_that_dies(settled, rdma, saw):
    """Memory of a program that was killed is another's, and nobody who wrote to it before writes to it."""
    one, two = settled
    a, b = rdma.rc(one, two)
    target, local = Target(b, PAGE), a.region(PAGE, 1)
    for _ in range(3):
        write(a, sge(local), target)
    b.program.end(kill=True)
    # Of memory that is free the first is given, which is what the other had.
    taken = Target(rdma.rc(one, two)[1], 16 * PAGE)
    taken.program.device_store(taken.memory, 0, bytes(taken.size).hex())
    a.post_send("RDMA_WRITE", sges=[sge(local)], remote=target.at())
    assert a.poll(1, 60.0)[0]["status"] != "SUCCESS"
    assert not int(taken.load(0, taken.size), 16)
    saw("nothing arrives where it did")


def test_others_are_as_they_were(settled, ends, saw):
    """READs and atomics on the same memory see what was written directly; immediate data arrives."""
    a, b = ends
    target, local = Target(b, PAGE), a.region(PAGE, 1)
    for seed in (3, 4):
        a.program.fill(local.buffer, seed)
        write(a, sge(local), target)
    back = a.region(PAGE, 5)
    a.post_send("RDMA_READ", sges=[sge(back)], remote=target.at())
    a.done("RDMA_READ")
    a.check(back, [[0, 4, 0, PAGE]])
    b.post_recv()
    a.post_send("RDMA_WRITE_WITH_IMM", sges=[sge(back, 0, 100)], remote=target.at(), imm=77)
    a.done("RDMA_WRITE")
    b.done("RECV_RDMA_WITH_IMM", imm=77)
    far = b.region(PAGE, 6)
    for _ in range(2):
        a.post_send("RDMA_WRITE", sges=[sge(local)], remote=remote(far))
        a.done("RDMA_WRITE")
    b.check(far, [[0, 4, 0, PAGE]])
    saw("read back, immediate data, other memory")
