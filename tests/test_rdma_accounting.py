# SPDX-License-Identifier: GPL-2.0 OR MIT
"""What a process has allocated is counted: by its memory cgroup, and by its user where it is device memory."""

import errno

import pytest

from modes import POOLS, only
from test_cleared import ONE, OTHER, PAGE, program_of
from verbs import ALL_ACCESS, VerbFailed

CGROUPS = "/run/nupa-test-cgroups"
CGROUP = f"{CGROUPS}/test"
MIB = 1 << 20
# Pages of a region, of which the engine keeps 8 bytes each, and how many such regions.
PAGES, REGIONS = 2048, 100
KEPT = REGIONS * PAGES * 8


@pytest.fixture
def cgroup(settled, rdma):
    """A memory cgroup on node 1; what it costs to exceed its limit is not printed."""
    node = settled[0]
    node.run(f"mkdir -p {CGROUPS} && mount -t cgroup2 none {CGROUPS} && echo +memory >{CGROUPS}/cgroup.subtree_control && "
             f"mkdir {CGROUP} && dmesg -n 1")
    yield node
    rdma.kill_all()
    node.run(f"rmdir {CGROUP}; umount {CGROUPS}; dmesg -n 7")


def kernel_memory(node):
    """Bytes that the kernel has allocated for the cgroup."""
    found = node.run(f"grep -w ^kernel {CGROUP}/memory.stat").out
    return int(found.split()[1])


def counted(rdma, node):
    """A program in the cgroup, and a protection domain."""
    program = rdma.program(node)
    node.run(f"echo {program.pid()} >{CGROUP}/cgroup.procs")
    return program, program.pd()


@only(*POOLS, why="there the addresses of a region's pages are in the host's memory; a controller has its own")
def test_regions_are_charged_to_the_cgroup(cgroup, rdma, saw):
    program, pd = counted(rdma, cgroup)
    program.scattered_regions(pd, PAGES, 1, ALL_ACCESS)
    before = kernel_memory(cgroup)
    program.scattered_regions(pd, PAGES, REGIONS, ALL_ACCESS, wait=60)
    grown = kernel_memory(cgroup) - before
    assert grown > KEPT, f"{grown} bytes for {REGIONS} regions of {PAGES} pages"
    program.end(kill=True)
    # A limit ends who exceeds it, and nobody else.
    other = rdma.program(cgroup)
    program, pd = counted(rdma, cgroup)
    program.scattered_regions(pd, PAGES, 1, ALL_ACCESS)
    cgroup.run(f"echo $(($(cat {CGROUP}/memory.current) + {KEPT // 2})) >{CGROUP}/memory.max")
    # A kernel without swap has no such file.
    cgroup.run(f"cd {CGROUP}; test ! -e memory.swap.max || echo 0 >memory.swap.max")
    with pytest.raises(VerbFailed) as refused:
        program.scattered_regions(pd, PAGES, REGIONS, ALL_ACCESS, wait=60)
    assert refused.value.errno == errno.ENOMEM or "wait status 9" in str(refused.value), refused.value
    other.scattered_regions(other.pd(), PAGES, 10, ALL_ACCESS)
    saw(f"{grown >> 10} KiB for {REGIONS} regions of {PAGES} pages; with room for half of them the program ends")


def test_device_memory_is_shared_between_users(settled, rdma, saw):
    """A user has half of the device memory at most, so that there is some for others."""
    first, second = (program_of(user, rdma, settled[0]) for user in (ONE, OTHER))
    size = first.device()["max_dm_size"]
    half = size // 2 // PAGE * PAGE
    assert first.fails("device_memory", half + PAGE) == errno.ENOMEM
    pieces = [first.device_memory(half // 2 // PAGE * PAGE) for _ in range(2)]
    assert first.fails("device_memory", 2 * PAGE) == errno.ENOMEM
    assert program_of(ONE, rdma, settled[0]).fails("device_memory", 2 * PAGE) == errno.ENOMEM
    second.device_memory(half)
    first.destroy(pieces[0])
    first.device_memory(PAGE)
    saw(f"{half >> 10} KiB of {size >> 10} for one user, as much for the other")
