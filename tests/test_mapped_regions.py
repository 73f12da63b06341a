# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Device memory of another node that a program has mapped (Documentation/process-rings.md, "Mapped regions")."""

import errno
import mmap

import pytest

from modes import POOLS, long, only
from test_power import SLEEP
from test_process_rings import connected, free_again, requests
from verbs import ALL_ACCESS, remote, sge

pytestmark = only(*POOLS, why="only hosts of a pool whose caches are coherent map memory of each other")

SIZE = 16 * mmap.PAGESIZE
# After so many WRITEs to a region it is mapped.
ENOUGH = 100
# How often a process may map one.
MOST_MAPS = 8
THEIRS, MINE = "aa" * 64, "55" * 64


class Target:
    """Device memory of a side, and a region of it."""

    def __init__(self, side, access=ALL_ACCESS, size=SIZE):
        self.program = side.program
        self.memory = side.program.device_memory(size)
        self.region = side.program.device_region(side.pd, self.memory, size, access)
        self.region.size = size

    def load(self, offset, length):
        return self.program.device_load(self.memory, offset, length)


def write(sender, source, target, number, length=64, offset=0):
    sender.program.fill(source.buffer, number % 251)
    sender.post_send("RDMA_WRITE", sges=[sge(source, 0, length)], remote=remote(target.region, offset), wr_id=number)
    sender.done("RDMA_WRITE", wr_id=number)


def bytes_of(sender, source, length=64):
    return sender.program.load(source.buffer, 0, length)


def mapped(rdma, pair, **options):
    """Two sides, of which the first has mapped device memory of the second: the sides, what it writes, where to, and where it has mapped that once more."""
    a, b = connected(rdma, pair, "", **options)
    source, target = a.region(SIZE, 1), Target(b)
    for number in range(ENOUGH):
        write(a, source, target, number)
    offset = a.program.peer_region(SIZE)
    assert offset is not None, f"{pair[0].name}: the region was not mapped: {a.program.mappings()}"
    return a, b, source, target, a.program.peer_map(offset, SIZE)


@pytest.mark.parametrize("events", [pytest.param(False, id="polled", marks=long), pytest.param(True, id="events")])
def test_writes_and_reads_are_copies(pair, rdma, saw, events):
    """No engine sees them, and all bytes are there as soon as they are posted."""
    a, b, source, target, _ = mapped(rdma, pair, events=events)
    back = a.region(SIZE, 2)
    before = [requests(node) for node in pair]
    lengths = [1, 7, 8, 9, 64, 4096, 5000, SIZE]
    for number, length in enumerate(lengths, 1000):
        write(a, source, target, number, length)
        assert target.load(0, length) == bytes_of(a, source, length), f"WRITE of {length} bytes"
        a.post_send("RDMA_READ", sges=[sge(back, 0, length)], remote=remote(target.region), wr_id=number)
        done = a.done("RDMA_READ", wr_id=number)
        assert done["byte_len"] == length, done
        assert a.program.load(back.buffer, 0, length) == bytes_of(a, source, length), f"READ of {length} bytes"
    assert [requests(node) for node in pair] == before, "an engine has seen some"
    saw(f"{len(lengths)} WRITEs and READs of up to {SIZE} bytes")
    # What is outside is refused as ever.
    a.post_send("RDMA_WRITE", sges=[sge(source, 0, 8)], remote=remote(target.region, SIZE - 4))
    a.failed("REM_ACCESS_ERR")


def test_what_is_only_read_is_mapped(pair, rdma):
    a, b = connected(rdma, pair, "")
    target, back = Target(b), a.region(SIZE, 2)
    for number in range(ENOUGH):
        a.post_send("RDMA_READ", sges=[sge(back, 0, 64)], remote=remote(target.region), wr_id=number)
        a.done("RDMA_READ", wr_id=number)
    assert a.program.peer_region(SIZE) is not None, a.program.mappings()
    before = [requests(node) for node in pair]
    write(a, a.region(SIZE, 1), target, ENOUGH)
    a.post_send("RDMA_READ", sges=[sge(back, 0, 64)], remote=remote(target.region))
    a.done("RDMA_READ", byte_len=64)
    assert bytes_of(a, back) == target.load(0, 64) != "00" * 64
    assert [requests(node) for node in pair] == before, "an engine has seen some"


@pytest.mark.parametrize("access, size", [
    pytest.param("LOCAL_WRITE|REMOTE_WRITE", SIZE, id="unreadable"), pytest.param(ALL_ACCESS, SIZE - 8, id="uneven", marks=long)])
def test_what_may_not_be_mapped_is_not(pair, rdma, access, size):
    """Memory that the peer may not read, and pages that are not the region's alone."""
    a, b = connected(rdma, pair, "")
    source, target = a.region(SIZE, 1), Target(b, access, size)
    for number in range(ENOUGH):
        write(a, source, target, number)
    assert target.load(0, 64) == bytes_of(a, source)
    pages = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    assert a.program.peer_region(pages) is None


def deregister(a, b, target):
    b.program.destroy(target.region)


def destroy_pair(a, b, target):
    b.program.destroy(b.qp)


def take_rights(a, b, target):
    b.program.set_access(b.qp, "LOCAL_WRITE|REMOTE_WRITE")


def fail(a, b, target):
    b.program.to_state(b.qp, "ERR")


@pytest.mark.parametrize("end, split", [
    (deregister, False), pytest.param(deregister, True, marks=long), pytest.param(destroy_pair, False, marks=long), (take_rights, False),
    pytest.param(fail, False, marks=long)])
def test_who_stores_on_stores_nowhere(pair, rdma, saw, end, split):
    """A program that goes on to store by its own instructions, when what allowed it has ended, changes nothing, however it has arranged its mapping."""
    a, b, _, target, place = mapped(rdma, pair)
    where, offset = place, 0
    if split:
        where, offset = a.program.peer_split(place, SIZE), 2 * mmap.PAGESIZE
    a.program.peer_store(where, THEIRS)
    assert target.load(offset, 64) == THEIRS
    a.program.begin("peer_store", where, THEIRS, 1.0)
    end(a, b, target)
    b.program.device_store(target.memory, offset, MINE)
    count = a.program.result(30)
    compare_end(a, target, where, offset)
    if split:
        a.program.peer_store(place, THEIRS)
        assert target.load(0, 64) != THEIRS
    saw(f"stored {count} times")


def compare_end(a, target, where, offset=0):
    """Fails unless a store changes nothing but what its program sees itself."""
    a.program.peer_store(where, THEIRS)
    assert target.load(offset, 64) == MINE, "it was overwritten"
    assert a.program.peer_load(where, 64) == THEIRS, "what it stores it finds, and nothing else"


def test_a_queue_pair_that_is_reset_has_nothing_mapped(pair, rdma):
    """Nor has its program, which has mapped it once more."""
    a, b, _, target, place = mapped(rdma, pair)
    a.program.to_state(a.qp, "RESET")
    b.program.device_store(target.memory, 0, MINE)
    compare_end(a, target, place)


@long
def test_a_region_is_mapped_a_few_times(pair, rdma):
    """All of its mappings are taken away while its owner waits, so there are not many."""
    a, b, _, target, place = mapped(rdma, pair)
    # The provider has mapped it as well.
    assert a.program.peer_maps(a.program.peer_region(SIZE), SIZE, 100) == [MOST_MAPS - 2, "EBUSY"]
    deregister(a, b, target)
    b.program.device_store(target.memory, 0, MINE)
    compare_end(a, target, place)


def test_requests_behind_the_end_go_to_the_engines(pair, rdma):
    """A region that is deregistered is refused; another one is written to, and mapped in its turn."""
    a, b, source, target, _ = mapped(rdma, pair)
    other = Target(b)
    b.program.destroy(target.region)
    for number in range(ENOUGH):
        write(a, source, other, number)
    assert other.load(0, 64) == bytes_of(a, source)
    assert a.program.peer_region(SIZE) is not None, "the other one is not mapped"
    a.post_send("RDMA_WRITE", sges=[sge(source, 0, 8)], remote=remote(target.region))
    a.failed("REM_ACCESS_ERR")


@pytest.mark.parametrize("kill, dies", [
    pytest.param(False, 0, id="closed-user", marks=long), pytest.param(False, 1, id="closed-owner", marks=long),
    pytest.param(True, 0, id="killed-user", marks=long), pytest.param(True, 1, id="killed-owner")])
def test_mappings_do_not_leak(pair, rdma, dies, kill):
    """Whichever of the two ends first, and however: all device memory is free afterwards, and until then nobody else gets it."""
    total = rdma.program(pair[1]).device()["max_dm_size"]
    a, b, source, target, place = mapped(rdma, pair)
    first, second = ((a, b), (b, a))[dies]
    assert first.program.end(kill=kill) in (0, 9)
    if dies == 0:
        b.program.device_store(target.memory, 0, MINE)
        assert target.load(0, 64) == MINE
    else:
        a.post_send("RDMA_WRITE", sges=[sge(source, 0, 8)], remote=remote(target.region))
        (done,) = a.poll(timeout=30)
        assert done["status"] in ("REM_ACCESS_ERR", "RETRY_EXC_ERR", "REM_INV_REQ_ERR"), done
        other = rdma.program(pair[1])
        memory = other.device_memory(total, wait=60)
        a.program.peer_store(place, THEIRS, 0.5)
        assert other.device_left(memory, total) is None, "memory of another program was written to"
        other.end()
    assert second.program.end() == 0
    free_again(rdma, pair, total)


@long
@pytest.mark.parametrize("sleeper", [0, 1], ids=["user", "owner"])
def test_a_mapping_ends_when_a_node_sleeps(pair, rdma, saw, sleeper):
    """All devices of the node whose program has the mapping, or of the memory's, are suspended and resumed: what is stored there afterwards nobody finds."""
    total = rdma.program(pair[1]).device()["max_dm_size"]
    a, b, _, target, place = mapped(rdma, pair)
    a.program.peer_store(place, THEIRS)
    assert target.load(0, 64) == THEIRS
    slept = pair[sleeper].spawn(SLEEP).wait(90)
    assert slept.code == 0, f"it did not sleep:\n{slept}"
    if sleeper == 0:
        b.program.device_store(target.memory, 0, MINE)
        compare_end(a, target, place)
    else:
        b.program.end(kill=True)
        other = rdma.program(pair[1])
        memory = other.device_memory(total, wait=60)
        a.program.peer_store(place, THEIRS, 0.5)
        assert other.device_left(memory, total) is None, "memory of another program was written to"
    saw(f"{pair[sleeper].name} slept")


@long
def test_a_child_does_not_inherit_a_mapping(pair, rdma):
    """After fork() the parent's mapping goes on, and ends as it would have."""
    a, b, source, target, place = mapped(rdma, pair)
    a.program.fork_and_go_on()
    assert a.program.peer_regions_of_child() == 0
    a.program.peer_store(place, THEIRS)
    assert target.load(0, 64) == THEIRS
    b.program.destroy(target.region)
    b.program.device_store(target.memory, 0, MINE)
    a.program.peer_store(place, THEIRS)
    assert target.load(0, 64) == MINE
    a.program.end_child()


def test_a_region_cannot_be_registered(pair, rdma):
    """Nobody would take that away again."""
    a, _, _, _, place = mapped(rdma, pair)
    assert a.program.fails("region_at", a.pd, place, SIZE, ALL_ACCESS) in (errno.EFAULT, errno.EINVAL)
