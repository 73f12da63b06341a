# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Memory of a pool that has lost what was stored there: it costs the node whose it is, and neither hosts nor the others.

QEMU keeps a list of poisoned places of CXL memory and answers loads from them all the same, so a driver is told which line it is
to take for one.
"""

import re

import pytest

import traffic
from modes import long, only
from verbs import ALL_ACCESS, Side, connect, sge
from waiting import wait_until

# Of a pool of 256 MiB for 8 nodes (Documentation/pool.md).
NODES, SLOTS, SLOT, RINGS = 8, 0x1000, 0x100, 0x2000
ENTRIES = 256 * 256
FRAME_RING, LONG_RING, SHORT_RING = (ENTRIES + (1 << log_bulk) for log_bulk in (20, 19, 17))
WORDS, CONSUMER = 0x1000, 0x80
STRIDE = WORDS + 2 * LONG_RING + FRAME_RING + 2 * SHORT_RING
FRAMES = 2
LINE = 64
PAGE = 4096
# Seconds for which a node that was refused twice stays away (drivers/fabric/hal/pool/rate_limit.rs).
SECOND_REFUSAL = 30
POOL, DIRECTORY = 256 << 20, 0x10000


def number(node):
    """The node's id in the pool."""
    peers = node.run("cat /sys/kernel/debug/nupa_fabric-*/peers").out
    return int(re.search(r"^ *(\d+) .* this node$", peers, re.MULTILINE)[1])


def slot(one, two):
    """The line of node two's slot that only it writes, and how the log names it."""
    theirs = number(two)
    return SLOTS + theirs * SLOT + 0x40, f"slot of node {theirs}"


def rings(source, target):
    """Where the rings from one node of the pool to another begin."""
    pair = source * (NODES - 1) + target - (target > source)
    return RINGS + pair * STRIDE


def indices(one, two):
    """The line that says how much node two has taken of what node one sends."""
    ours, theirs = number(one), number(two)
    return rings(ours, theirs) + CONSUMER, f"indices of the rings from node {ours} to node {theirs}"


def entries(one, two):
    """All lines of a ring are as good, here that of frames."""
    ours, theirs = number(one), number(two)
    line = rings(theirs, ours) + WORDS + FRAMES * LONG_RING
    return line, f"ring of frames from node {theirs} to node {ours}"


def poison(node, what):
    node.run(f"echo {what} >$(echo /sys/kernel/debug/nupa_pool-*/poison)")


@only("cxl", "ivshmem", why="about the memory of pools")
@pytest.mark.parametrize("place", [*(pytest.param(place, marks=long) for place in (slot, indices)), entries])
def test_poison_costs_the_node_whose_line_it_is(trio, saw, place):
    """Node 1 cannot read a line of node 2's: it has no more to do with node 2, goes on with node 3, and says so."""
    one, two, three = trio
    # Who is refused comes back at once the first time, and then after pauses that grow: this is to be the first time.
    two.run("nupa-down && nupa-up", timeout=60)
    for node in (one, three):
        node.await_ping(two.ip)
    line, name = place(one, two)
    theirs = number(two)
    boots = [node.read("/proc/sys/kernel/random/boot_id") for node in trio]
    mark = one.log.position()

    def said():
        lines = [line.split("] ")[-1] for line in one.log.since(mark).splitlines() if "memory error" in line]
        return lines[0] if lines else None

    poison(one, line)
    try:
        # More frames than the ring has lines, of which there are four in 256 bytes.
        sending = two.spawn(f"ping -n -q -c 1100 -i 0.002 -W 1 {one.ip}")
        complaint = wait_until("node 1 to say what it lost", said, 60)
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
    # It may have come back while its line was poisoned, and been refused a second time.
    one.await_ping(two.ip, SECOND_REFUSAL + 30)
    traffic.tcp(one, two.ip, size=1 << 20)
    assert [node.read("/proc/sys/kernel/random/boot_id") for node in trio] == boots
    saw(complaint)


def device_memory(node):
    """Where in the pool the first byte is of what the node's programs get."""
    start = RINGS + NODES * (NODES - 1) * STRIDE
    share = (POOL - start) // NODES // PAGE * PAGE
    return start + number(node) * share + DIRECTORY


OPERANDS = {
    "RDMA_READ": {},
    "ATOMIC_CMP_AND_SWP": {"compare": 0, "swap": 1},
    "ATOMIC_FETCH_AND_ADD": {"add": 1},
    "ATOMIC_WRITE": {"data": "0102030405060708"},
}


@only("cxl", "ivshmem", why="about the memory of pools")
@pytest.mark.parametrize("opcode", OPERANDS)
def test_poisoned_device_memory_fails_the_request(settled, rdma, saw, opcode):
    """A request on a poisoned word of the target's device memory fails; the target goes on, and other memory is as good as before."""
    two = settled[1]
    a, b = (Side(rdma.program(node), extended=True, operations=f"WITH_{opcode}", inline=64) for node in settled)
    connect(a, b)
    memory = b.program.device_memory(2 * PAGE)
    far = b.program.device_region(b.pd, memory, 2 * PAGE, ALL_ACCESS)
    local = a.region(64, 1)
    sges = {} if opcode == "ATOMIC_WRITE" else {"sges": [sge(local, 0, 8)]}

    def post(offset):
        a.post_send(opcode, extended=True, remote=[far.address + offset, far.rkey], **sges, **OPERANDS[opcode])

    boot = two.read("/proc/sys/kernel/random/boot_id")
    poison(two, device_memory(two))
    try:
        post(PAGE)
        (done,) = a.poll()
        assert done["status"] == "SUCCESS", done
        post(0)
        a.failed("REM_OP_ERR")
    finally:
        poison(two, "none")
    assert b.program.device_load(memory, 0, 8) == bytes(8).hex()
    assert two.read("/proc/sys/kernel/random/boot_id") == boot
    traffic.tcp(settled[0], two.ip, size=1 << 20)
    saw("REM_OP_ERR")
