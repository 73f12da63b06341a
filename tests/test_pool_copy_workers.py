# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Long payload that several processors copy (`copy_workers`)."""

import pytest

from modes import POOLS, long, only
from test_pool_dma_copies import Two
from test_pool_nodes import works
from test_pool_poison import device_memory, poison
from test_rdma_direct import Target
from verbs import sge
from waiting import wait_until

pytestmark = only(*POOLS, why="controllers copy by themselves")

# From how many bytes on workers copy, and a lot more: by no means whole pages.
FROM, MANY = 32768, 300_001
FILE = "/sys/kernel/debug/nupa_pool-*/copy_workers"
# How often payload is moved until workers have copied some of it.
TRIES = 20


@pytest.fixture
def nodes(fabric):
    """Two nodes with a worker each, which has the time to begin."""
    bare = fabric.bare(1, 2)
    try:
        for node in bare:
            mark = node.log.position()
            node.run("dmesg -n 7; nupa-up copy_workers=4", timeout=60)
            wait_until("a word of workers", lambda: "up to 1 workers copy long payload as well" in node.log.since(mark))
            node.run(f"echo wait >$(echo {FILE})")
        yield fabric.ensure(1, 2)
    finally:
        for node in bare:
            node.run("nupa-down", timeout=60)


def shown(node):
    """Bytes that workers have copied, and pieces that they could not copy."""
    found = {word: int(value) for word, value in map(str.split, node.run(f"cat {FILE}").out.splitlines())}
    assert found["workers"] == 1, "there are two processors, of which one runs the function"
    return found["bytes"], found["failed"]


def test_workers_copy_what_is_long(nodes, fabric, rdma, saw):
    """To the pool and from it, in either direction: the bytes are right, and workers have copied some of them on both nodes. They copy nothing that is short."""
    one, other = nodes
    two = Two(rdma, nodes)
    two.write_directly(FROM - 1, seed=3)
    two.write_by_ring(FROM - 1, 4)
    assert [shown(node) for node in nodes] == [(0, 0), (0, 0)]

    def copied(by, step):
        """Bytes that workers have copied on each node when each of these has copied some. A node that takes payload as it arrives may take all of it in pieces
        that are too short: then there is more of it."""
        all_bytes = [0, 0]
        for seed in range(5, 5 + TRIES):
            before = [shown(node)[0] for node in nodes]
            step(seed)
            more = [shown(node)[0] - old for node, old in zip(nodes, before)]
            assert all(count < MANY for count in more), "who submits copies as well"
            all_bytes = [old + new for old, new in zip(all_bytes, more)]
            if all(count for node, count in zip(nodes, all_bytes) if node in by):
                break
        assert [count > 0 for count in all_bytes] == [node in by for node in nodes], all_bytes
        return all_bytes

    ways = {
        "direct WRITE": copied([one], lambda seed: two.write_directly(MANY, seed=seed)),
        "WRITE": copied(nodes, lambda seed: two.write_by_ring(MANY, seed)),
        "READ": copied(nodes, lambda seed: two.read(MANY, seed)),
    }
    works(fabric, rdma, *nodes)
    assert [shown(node)[1] for node in nodes] == [0, 0]
    saw(f"bytes that workers copied on each node, of {MANY} at a time: {ways}")


def test_memory_that_cannot_be_read_fails_the_request(nodes, fabric, rdma, saw):
    """A worker finds it: the direct WRITE fails as it does with one processor, and data goes on to move."""
    one, other = nodes
    a, b = rdma.rc(one, other)
    source, target = Target(a, MANY), Target(b, MANY)
    # The first one goes through the ring, and brings leave to write.
    for _ in range(2):
        a.post_send("RDMA_WRITE", sges=[sge(source.region, 0, MANY)], remote=target.at())
        a.done("RDMA_WRITE")
    bytes_before, failed = shown(one)
    assert bytes_before and not failed
    poison(one, device_memory(one))
    try:
        a.post_send("RDMA_WRITE", sges=[sge(source.region, 0, MANY)], remote=target.at())
        a.failed("LOC_PROT_ERR")
    finally:
        poison(one, "none")
    _, failed = shown(one)
    assert failed
    works(fabric, rdma, one, other)
    saw(f"LOC_PROT_ERR; workers failed to copy {failed} pieces")


@long
def test_workers_run_when_they_may(nodes, fabric, rdma, saw):
    """As they do by themselves: nobody waits for them. All bytes are right whoever copies them."""
    for node in nodes:
        node.run(f"echo go >$(echo {FILE})")
    two = Two(rdma, nodes)
    for seed in range(3, 43):
        two.write_directly(MANY, seed=seed)
        two.write_by_ring(MANY, seed + 50)
        two.read(MANY, seed + 100)
    works(fabric, rdma, *nodes)
    saw(f"bytes that workers copied on each node: {[shown(node)[0] for node in nodes]}")
