# SPDX-License-Identifier: GPL-2.0 OR MIT
"""The pool that nodes share, below our drivers: CXL memory as a DAX device, and ivshmem with its interrupts."""

import hashlib
import random
import select
import socket

import pytest

from modes import POOLS, only
from test_pool_nodes import works
from waiting import PATIENCE, wait_until

pytestmark = only(*POOLS, why="about the memory of pools")

PROGRAM = "python3 /nupa/tests/guest/pool.py"
PIECE = 1 << 20
VECTORS = 4


class Memory:
    """The pool as programs on a node see it, without a driver of ours."""

    def __init__(self, node):
        self.node = node
        if node.fabric == "cxl":
            self.file = "/dev/" + node.run("nupa-pool device_dax", timeout=60).out.strip()
        else:
            node.run(f"echo 1 >{node.device_directory()}/enable")
            self.file = node.device_directory() + "/resource2"

    def write(self, offset, seed):
        self.node.run(f"{PROGRAM} write {self.file} {offset} {PIECE} {seed}")

    def check(self, offset, seed):
        """Insists that the node sees what was written with the seed."""
        seen = self.node.run(f"{PROGRAM} sum {self.file} {offset} {PIECE}").out.strip()
        assert seen == hashlib.sha256(random.Random(seed).randbytes(PIECE)).hexdigest(), f"{self.node.name}, {offset}"


@pytest.fixture
def pool(fabric):
    """What two nodes share. Nothing is kept of a pool that was there, so whoever brings drivers up next formats it."""
    return [Memory(node) for node in fabric.bare(1, 2)]


def test_both_nodes_see_the_same_bytes(pool, saw):
    one, two = pool
    # The front, what a 32-bit offset of pages still reaches, and the very end.
    places = [0, 100 << 20, -PIECE]
    for seed, offset in enumerate(places):
        one.write(offset, seed)
    for seed, offset in enumerate(places):
        two.check(offset, seed)
        two.write(offset, seed + 100)
    for seed, offset in enumerate(places):
        one.check(offset, seed + 100)
    saw(f"{len(places)} MiB each way in {one.file}")


@only("cxl", why="only CXL memory is a DAX device")
def test_a_dax_device_goes_from_driver_to_driver(pool):
    node = pool[1].node
    driver = "/sys/bus/dax/devices/dax0.0/driver"
    for name in ("device_dax", "none", "none", "device_dax", "device_dax"):
        assert node.run(f"nupa-pool {name}").out == "dax0.0\n"
        bound = node.run(f"test ! -e {driver} || basename $(readlink {driver})").out.strip()
        assert bound == ("" if name == "none" else name)
    refused = node.run("nupa-pool no_such_driver", check=False)
    assert refused.code == 1 and "no driver no_such_driver on the dax bus" in refused.err


def refused(node, parameters, hint):
    """What the driver says of the pool when it is loaded like this; that has to have a hint what to do."""
    mark = node.log.position()
    result = node.run(f"insmod /nupa/build/modules/nupa_fabric.ko {parameters}; nupa-pool nupa_fabric", check=False)
    if node.fabric == "cxl":
        assert result.code == 1 and "nupa_fabric does not take dax0.0" in result.err, result

    def said():
        lines = node.log.since(mark).splitlines()
        return next((line for line in lines if "nupa_" in line and hint in line), None)

    line = wait_until("a message that tells what to do", said, 10)
    node.run("nupa-down")
    return line.split("] ")[-1].strip()


def test_memory_without_a_pool_is_refused(pool, fabric, saw):
    """Who is not told to format leaves foreign bytes alone and says why; then one formats, and both are at work."""
    one, two = pool
    one.write(0, 7)
    line = refused(one.node, "pool_format=0", "pool_format=1")
    two.check(0, 7)
    nodes = fabric.ensure(1, 2)
    assert nodes[0].pings(nodes[1].ip, 3) == 3
    saw(line)


def test_caches_that_are_not_coherent(pool, fabric, rdma, saw):
    """Hosts that write back and invalidate by hand move all kinds of data; one that would not is no part of their pool."""
    pool[0].write(0, 8)
    try:
        for memory in pool:
            memory.node.run("nupa-up pool_coherent=0", timeout=60)
        nodes = fabric.ensure(1, 2)
        works(fabric, rdma, *nodes)
        rdma.kill_all()
        nodes[1].run("nupa-down")
        line = refused(nodes[1], "pool_format=1 pool_coherent=1", "pool_coherent")
    finally:
        one, _ = fabric.bare(1, 2)
        Memory(one).write(0, 9)
    fabric.ensure(1, 2)
    saw(line)


class Peer:
    """A device of the ivshmem server that is this process."""

    def __init__(self, run_dir):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(10 * PATIENCE)
        self.socket.connect(str(run_dir / "ivshmem.sock"))
        assert self.receive() == (0, [])
        self.number, _ = self.receive()
        assert self.receive()[0] == -1
        self.vectors = {}
        while len(self.vectors.get(self.number, [])) < VECTORS:
            device, files = self.receive()
            self.vectors.setdefault(device, []).extend(files)

    def receive(self):
        message, files, _, _ = socket.recv_fds(self.socket, 8, 1)
        return int.from_bytes(message, "little", signed=True), files

    def raised(self, timeout):
        """Vectors whose interrupts were raised since the last look, after the first of them came."""
        own = self.vectors[self.number]
        ready, _, _ = select.select(own, [], [], timeout)
        for file in ready:
            with open(file, "rb", buffering=0, closefd=False) as counter:
                assert counter.read(8) == (1).to_bytes(8, "little")
        return [own.index(file) for file in ready]


@only("ivshmem", why="CXL memory has no doorbells")
def test_doorbells_interrupt_the_device_and_vector_they_name(pool, fabric):
    peer = Peer(fabric.run_dir)
    numbers = []
    for memory in pool:
        registers = memory.node.device_directory() + "/resource0"
        numbers.append(int(memory.node.run(f"{PROGRAM} id {registers}").out))
        for vector in range(VECTORS):
            memory.node.run(f"{PROGRAM} ring {registers} {peer.number} {vector}")
            assert peer.raised(10 * PATIENCE) == [vector]
    assert len({*numbers, peer.number}) == 3
    # Other nodes of the run may be there, too.
    assert {*numbers, peer.number} <= set(peer.vectors)
    assert all(len(vectors) == VECTORS for vectors in peer.vectors.values())
