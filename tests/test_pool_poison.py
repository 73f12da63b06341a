# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Memory of a pool that has lost what was stored there: it costs the node whose it is, and neither hosts nor the others.

QEMU keeps a list of poisoned places of CXL memory and answers loads from them all the same, so a driver is told which line it is
to take for one.
"""

import re

import pytest

import traffic
from modes import long, only
from waiting import wait_until

# Of a pool of 256 MiB for 8 nodes (Documentation/pool.md).
NODES, SLOTS, SLOT, RINGS = 8, 0x1000, 0x100, 0x2000
STRIDE = 0x1000 + 256 * 256 + (1 << 20)
CLASSES, FRAMES = 3, 2
LINE = 64


def number(node):
    """The node's id in the pool."""
    peers = node.run("cat /sys/kernel/debug/nupa_fabric-*/peers").out
    return int(re.search(r"^ *(\d+) .* this node$", peers, re.MULTILINE)[1])


def slot(one, two):
    """The line of node two's slot that only it writes, and how the log names it."""
    theirs = number(two)
    return SLOTS + theirs * SLOT + 0x40, f"slot of node {theirs}"


def ring(one, two):
    """The line that says how many frames node two has sent to node one."""
    ours, theirs = number(one), number(two)
    pair = theirs * (NODES - 1) + ours - (ours > theirs)
    return (RINGS + (pair * CLASSES + FRAMES) * STRIDE,
            f"indices of the ring of frames from node {theirs} to node {ours}")


def entries(one, two):
    """All entries of that ring are as good: the next one is in the first few lines after a while."""
    line, name = ring(one, two)
    return line + 0x1000, name.replace("indices", "entries")


def poison(node, what):
    node.run(f"echo {what} >$(echo /sys/kernel/debug/nupa_pool-*/poison)")


@only("cxl", "ivshmem", why="about the memory of pools")
@pytest.mark.parametrize("place", [slot, pytest.param(ring, marks=long), entries])
def test_poison_costs_the_node_whose_line_it_is(trio, saw, place):
    """Node 1 cannot read a line of node 2's: it has no more to do with node 2, goes on with node 3, and says so."""
    one, two, three = trio
    line, name = place(one, two)
    theirs = number(two)
    boots = [node.read("/proc/sys/kernel/random/boot_id") for node in trio]
    mark = one.log.position()

    def said():
        lines = [line.split("] ")[-1] for line in one.log.since(mark).splitlines() if "memory error" in line]
        return lines[0] if lines else None

    poison(one, line)
    try:
        # More frames than the ring has entries.
        sending = two.spawn(f"ping -n -q -c 300 -i 0.002 -W 1 {one.ip}")
        complaint = wait_until("node 1 to say what it lost", said, 20)
        found = re.search(r"node (\d+) is lost to a memory error in the pool: (.*) \(offset (0x[0-9a-f]+)\)", complaint)
        assert found and (int(found[1]), found[2]) == (theirs, name), complaint
        assert int(found[3], 16) // LINE * LINE == line, complaint
        for source, target in ((one, three), (two, three)):
            traffic.tcp(source, target.ip, size=1 << 20)
        if place is slot:
            assert one.pings(two.ip, 1, deadline=1) == 0
        sending.abandon()
    finally:
        poison(one, "none")
    one.await_ping(two.ip)
    traffic.tcp(one, two.ip, size=1 << 20)
    assert [node.read("/proc/sys/kernel/random/boot_id") for node in trio] == boots
    saw(complaint)
