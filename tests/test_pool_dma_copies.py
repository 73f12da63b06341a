# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Payload that a DMA channel copies to the pool (`dma_copies`), by a DMA engine without hardware (tests/copier)."""

import subprocess

import pytest

from modes import POOLS, long, only
from nodes import TOP
from test_cleared import largest_piece
from test_pool_nodes import works
from test_rdma_direct import Target, direct_writes
from verbs import remote, sge
from waiting import DEBUG_KERNEL, wait_until

pytestmark = only(*POOLS, why="controllers copy by themselves")

PARAMETERS = "/sys/module/nupa_copier/parameters"
# From how many bytes on the channel copies here, fewer, and a lot more: by no means whole pieces.
FROM, FEW, MANY = 8192, 8191, 300_001


def memory(node):
    """Where the pool is: its physical address, and its bytes."""
    if node.fabric == "cxl":
        node.run("nupa-pool none", timeout=60)
    directory = node.device_directory()
    if node.fabric == "cxl":
        start, size = node.run(f"cat {directory}/resource {directory}/size").out.split()
        return int(start, 0), int(size)
    bars = node.run(f"cat {directory}/resource").out.splitlines()
    start, end, _ = (int(word, 0) for word in bars[2].split())
    return start, end - start + 1


def load_copier(node, **parameters):
    start, size = memory(node)
    module = f"/nupa/build/copier{'-debug' if DEBUG_KERNEL else ''}/nupa_copier.ko"
    more = " ".join(f"{name}={value}" for name, value in parameters.items())
    node.run(f"insmod {module} start={start} size={size} {more}")


def up(node, parameters=f"dma_copies={FROM}"):
    """What the driver says of channels, when it is loaded like this."""
    mark = node.log.position()
    node.run(f"dmesg -n 7; nupa-up {parameters}", timeout=60)
    return wait_until("a word of channels", lambda: [line for line in node.log.since(mark).splitlines() if "DMA channel" in line])


@pytest.fixture
def bare(fabric):
    subprocess.run([TOP / "scripts" / "build", "copier"], check=True, stdout=subprocess.DEVNULL)
    nodes = fabric.bare(1, 2)
    try:
        yield nodes
    finally:
        for node in nodes:
            # The driver has given the channel back then, or this fails.
            node.run("nupa-down; if [ -d /sys/module/nupa_copier ]; then rmmod nupa_copier; fi", timeout=60)


@pytest.fixture
def nodes(bare, fabric):
    """Two nodes with a channel each, the second one's for aligned copies."""
    for node, align in zip(bare, (0, 6)):
        load_copier(node, align=align)
        (line,) = up(node)
        assert f"copies payload to the pool, from {FROM} bytes on" in line, line
    return fabric.ensure(1, 2)


def wait_for_release(node):
    """Until the driver has given the channel back. To unload the channel's would unbind the pool."""
    wait_until("the channel to be given back", lambda: node.run("cat /sys/bus/platform/devices/nupa_copier/dma/*/in_use").out == "0\n")


def copied(node):
    """Bytes that the channel has copied. The driver and the device agree on that."""
    shown = dict(line.split() for line in node.run("cat /sys/kernel/debug/nupa_pool-*/dma_copies").out.splitlines())
    device = int(node.run(f"cat {PARAMETERS}/copied").out)
    assert int(shown["bytes"]) == device, (shown, device)
    return device


def hung(node, mark):
    """Fails unless the channel has hung since then, and that was said once."""
    said = [line for line in node.log.since(mark).splitlines() if "DMA channel" in line and "has not ended after" not in line]
    assert len(said) == 1 and "does not finish a copy; it is not used any more" in said[0], said


class Two:
    """Two programs, memory in the pool of the second one and in its host, and a source on each side."""

    def __init__(self, rdma, nodes, **options):
        self.nodes = nodes
        self.a, self.b = rdma.rc(*nodes, **options)
        self.target = Target(self.b, MANY + 4096)
        self.local, self.there = self.a.region(MANY, 1), self.b.region(MANY, 2)
        # The first one goes through the ring, and brings leave to write.
        self.write(self.target, 8)

    def write(self, target, size, offset=0, seed=None):
        if seed is not None:
            self.a.program.fill(self.local.buffer, seed)
        self.a.post_send("RDMA_WRITE", sges=[sge(self.local, 0, size)], remote=target.at(offset))
        self.a.done("RDMA_WRITE")

    def expect(self, size, offset=0):
        assert self.target.load(offset, size) == self.a.program.load(self.local.buffer, 0, size), (size, offset)

    def write_directly(self, size, offset=0, seed=None):
        before = direct_writes(self.nodes[0])
        self.write(self.target, size, offset, seed)
        self.expect(size, offset)
        assert direct_writes(self.nodes[0]) == before + 1

    def write_by_ring(self, size, seed):
        self.a.program.fill(self.local.buffer, seed)
        self.a.post_send("RDMA_WRITE", sges=[sge(self.local, 0, size)], remote=remote(self.there))
        self.a.done("RDMA_WRITE")
        assert self.b.program.load(self.there.buffer, 0, size) == self.a.program.load(self.local.buffer, 0, size)

    def read(self, size, seed):
        self.b.program.fill(self.there.buffer, seed)
        self.a.post_send("RDMA_READ", sges=[sge(self.local, 0, size)], remote=remote(self.there))
        self.a.done("RDMA_READ")
        assert self.a.program.load(self.local.buffer, 0, size) == self.b.program.load(self.there.buffer, 0, size)


def test_the_channel_copies_what_is_long(nodes, fabric, rdma, saw):
    """WRITEs that the requester's node does by itself, and others, and answers to READs. Both sides count the same bytes."""
    one, two = nodes
    pair = Two(rdma, nodes)
    before, answered = copied(one), copied(two)
    pair.write_directly(FEW, seed=3)
    pair.write_by_ring(FEW, 4)
    pair.read(FEW, 5)
    assert (copied(one), copied(two)) == (before, answered)
    counts = []
    for seed, offset in enumerate((0, 64, 13), 6):
        pair.write_directly(MANY, offset, seed)
        counts.append(copied(one) - before)
    # All but the end of each piece, and what is too short for a channel.
    assert counts[-1] > 2.9 * MANY * 0.95, counts
    pair.write_by_ring(MANY, 9)
    ring = copied(one) - before - counts[-1]
    assert ring > MANY * 0.9
    pair.read(MANY, 10)
    # This channel copies lines, which buffers and entries begin with.
    response = copied(two) - answered
    assert response > MANY * 0.9
    # What comes from the pool the processor copies.
    mark = copied(two)
    device = [pair.target.region.address, MANY, pair.target.region.lkey]
    inbox = pair.a.region(MANY, 3)
    pair.a.post_recv([sge(inbox)])
    pair.b.post_send("SEND", sges=[device])
    pair.b.done("SEND")
    pair.a.done("RECV")
    assert pair.a.program.load(inbox.buffer, 0, MANY) == pair.target.load(0, MANY)
    assert copied(two) == mark
    works(fabric, rdma, *nodes)
    saw(f"{counts[-1]} bytes of 3 direct WRITEs of {MANY}, {ring} of one by the ring, {response} of an answer")


@long
def test_what_a_channel_does_not_take(nodes, rdma, saw):
    """The processor copies that, and the channel goes on."""
    one, _ = nodes
    pair = Two(rdma, nodes, send_sges=3)
    mark = one.log.position()
    # The first of a batch, and so on to the last, and one too many. How many there are is up to where its pages are.
    size, places = 20_000, (0, 50_000, 120_000)
    pieces = [sge(pair.local, place, size) for place in places]
    one.run(f"echo 1000 >{PARAMETERS}/delay_us")
    for nth in range(1, 20):
        one.run(f"echo {nth} >{PARAMETERS}/refuse_in")
        pair.a.program.fill(pair.local.buffer, nth)
        pair.a.post_send("RDMA_WRITE", sges=pieces, remote=pair.target.at())
        pair.a.done("RDMA_WRITE")
        for index, place in enumerate(places):
            assert pair.target.load(index * size, size) == pair.a.program.load(pair.local.buffer, place, size), (nth, place)
        if one.run(f"cat {PARAMETERS}/refuse_in").out != "0\n":
            break
    assert 3 < nth < 19, nth
    one.run(f"echo 0 >{PARAMETERS}/refuse_in")
    before = copied(one)
    pair.write_directly(MANY, seed=9)
    assert copied(one) > before
    assert "DMA channel" not in one.log.since(mark)
    saw(f"each of {nth - 1}, and the channel is still used")


@pytest.mark.parametrize("what, how", [
    pytest.param("write_directly", "fail_in", marks=long), pytest.param("write_directly", "hang_in", marks=long),
    pytest.param("write_by_ring", "fail_in", marks=long), ("write_by_ring", "hang_in")])
def test_a_channel_that_does_not_copy(nodes, fabric, rdma, saw, how, what):
    """It is not used any more, which is said once; all bytes are there, and what a channel stores that is to end does not come later."""
    one, _ = nodes
    pair = Two(rdma, nodes)
    mark = one.log.position()
    # Not the first of a message.
    one.run(f"echo 300 >{PARAMETERS}/end_ms; echo 5 >{PARAMETERS}/{how}")
    for seed in range(3, 6):
        getattr(pair, what)(MANY, seed=seed)
    assert one.run("head -n 1 /sys/kernel/debug/nupa_pool-*/dma_copies").out == "from never\n"
    wait_for_release(one)
    getattr(pair, what)(MANY, seed=6)
    said = [line for line in one.log.since(mark).splitlines() if "DMA channel" in line]
    assert len(said) == 1 and "it is not used any more" in said[0], said
    works(fabric, rdma, *nodes)
    saw(said[0].split("] ")[-1].strip())


def test_nobody_has_memory_that_a_channel_may_still_change(nodes, rdma, saw):
    """A program is killed whose WRITE hangs, for less than a peer waits for it, and then the one that is written to: who has its memory next finds nothing there but its own."""
    one, two = nodes
    pair = Two(rdma, nodes)
    mark = one.log.position()
    one.run(f"echo 600 >{PARAMETERS}/end_ms; echo 5 >{PARAMETERS}/hang_in")
    pair.a.program.fill(pair.local.buffer, 3)
    pair.a.post_send("RDMA_WRITE", sges=[sge(pair.local)], remote=pair.target.at())
    pair.a.program.end(kill=True)
    pair.b.program.end(kill=True)
    other = rdma.program(two)
    memory, size = largest_piece(other)
    # All there is, so what was written to is in it.
    assert size == other.device()["max_dm_size"]
    wait_for_release(one)
    hung(one, mark)
    left = other.device_left(memory, size)
    assert left is None, left
    saw(f"{size >> 10} KiB, and nothing was stored late")


def test_the_driver_goes_while_a_channel_hangs(nodes, rdma, saw):
    """It waits for that."""
    one, _ = nodes
    pair = Two(rdma, nodes)
    mark = one.log.position()
    one.run(f"echo 1000 >{PARAMETERS}/end_ms; echo 5 >{PARAMETERS}/hang_in")
    pair.a.post_send("RDMA_WRITE", sges=[sge(pair.local)], remote=pair.target.at())
    rdma.kill_all()
    one.run("nupa-down && rmmod nupa_copier", timeout=60)
    hung(one, mark)
    saw("unloaded")


@long
def test_a_channel_that_cannot_be_ended_at_first(nodes, fabric, rdma, saw):
    """Its driver says so three times; nothing is copied by others before."""
    one, _ = nodes
    pair = Two(rdma, nodes)
    mark = one.log.position()
    one.run(f"echo 3 >{PARAMETERS}/busy; echo 5 >{PARAMETERS}/hang_in")
    pair.write_directly(MANY, seed=3)
    assert one.run(f"cat {PARAMETERS}/busy").out == "0\n"
    wait_for_release(one)
    hung(one, mark)
    works(fabric, rdma, *nodes)
    saw("asked four times")


@pytest.mark.parametrize("what", [pytest.param("write_directly", marks=long), "write_by_ring"])
def test_a_channel_that_needs_the_processor_that_waits(nodes, fabric, rdma, saw, what):
    """What has ended is told by a work item of that processor: the channel is given up at the first copy, which is made all the same."""
    one, _ = nodes
    pair = Two(rdma, nodes)
    mark = one.log.position()
    one.run(f"echo 1 >{PARAMETERS}/threaded")
    getattr(pair, what)(MANY, seed=3)
    wait_for_release(one)
    hung(one, mark)
    works(fabric, rdma, *nodes)
    saw("given up")


@long
def test_a_channel_that_keeps_no_order(bare, fabric, rdma, saw):
    """All copies of a batch are waited for."""
    for node in bare:
        load_copier(node, reverse=1)
        up(node)
    one, two = nodes = fabric.ensure(1, 2)
    pair = Two(rdma, nodes)
    before = copied(one), copied(two)
    for seed in range(3, 6):
        pair.write_directly(MANY, seed=seed)
        pair.write_by_ring(MANY, seed + 10)
        pair.read(MANY, seed + 20)
    moved = copied(one) - before[0], copied(two) - before[1]
    assert moved[0] > 5 * MANY and moved[1] > 2 * MANY, moved
    saw(f"{moved[0]} and {moved[1]} bytes")


def test_a_channel_that_ends_later_than_peers_wait(nodes, rdma, saw):
    """The log says so meanwhile."""
    one, _ = nodes
    pair = Two(rdma, nodes)
    mark = one.log.position()
    one.run(f"echo 2000 >{PARAMETERS}/end_ms; echo 5 >{PARAMETERS}/hang_in")
    pair.write_directly(MANY, seed=3)
    said = [line for line in one.log.since(mark).splitlines() if "has not ended after 1000 ms" in line]
    assert len(said) == 1, one.log.since(mark)
    saw(said[0].split("] ")[-1].strip())


def test_the_device_of_a_channel_goes(nodes, rdma, saw):
    """The pool's driver is unbound first, and gives the channel back."""
    one, _ = nodes
    rdma.kill_all()
    bound = f"[ -e {one.device_directory()}/driver ]"
    one.run(bound)
    one.run("echo nupa_copier >/sys/bus/platform/drivers/nupa_copier/unbind", timeout=60)
    assert one.run(bound, check=False).code
    saw("the pool was unbound")


def test_a_channel_that_is_not_worth_it(bare, saw):
    """One that copies as this processor does is not faster; without one there is nothing to measure. It is free for others then."""
    one, _ = bare
    (none,) = up(one, "dma_copies=-1")
    assert "there is no DMA channel for it" in none, none
    one.run("nupa-down")
    load_copier(one)
    (slow,) = up(one, "dma_copies=-1")
    assert "is not faster" in slow, slow
    measured = int(one.run(f"cat {PARAMETERS}/copied").out)
    assert measured
    one.run("rmmod nupa_copier")
    saw(f"measured with {measured} bytes")


def test_a_channel_that_hangs_while_it_is_measured(bare, saw):
    """What it reads stays its own until it was told to end, or the copier warns."""
    one, _ = bare
    load_copier(one, hang_in=5, end_ms=300)
    (hung,) = up(one, "dma_copies=-1")
    assert "does not finish a copy" in hung, hung
    one.run("rmmod nupa_copier")
    saw(hung.split("] ")[-1].strip())


@pytest.mark.parametrize("lacks", [{"name": "idxd"}, {"synchronizes": 0}])
def test_a_channel_that_may_not_be_used(bare, saw, lacks):
    """Its driver is one that sleeps where softirqs use channels, or nobody can tell when it has ended. It stays free for others."""
    one, _ = bare
    load_copier(one, **lacks)
    (none,) = up(one)
    assert "there is no DMA channel for it (ENXIO)" in none, none
    one.run("rmmod nupa_copier")
    saw(none.split("] ")[-1].strip())
