# SPDX-License-Identifier: GPL-2.0 OR MIT
"""The pool that nodes share, below our drivers: CXL memory as a DAX device, and ivshmem with its interrupts."""

import hashlib
import random
import select
import shutil
import socket

import pytest

from nodes import Node, make_run_dir, stop_all
from waiting import PATIENCE

PROGRAM = "python3 /nupa/tests/guest/pool.py"
PIECE = 1 << 20
VECTORS = 4


class Pool:
    """Nodes of one mode with a run directory, and so a pool, of their own."""

    def __init__(self, fabric):
        self.run_dir = make_run_dir(f"nupa-test-{fabric}-")
        self.nodes = [Node(number, self.run_dir, cpus=1, fabric=fabric) for number in (1, 2)]
        self.files = {}

    def start(self):
        for node in self.nodes:
            node.begin_start()
        for node in self.nodes:
            node.finish_start()
            self.prepare(node)

    def prepare(self, node):
        """Finds the file that is the memory on a node."""
        if node.fabric == "cxl":
            self.files[node] = "/dev/" + node.run("nupa-pool device_dax", timeout=60).out.strip()
        else:
            node.run(f"echo 1 >{self.device(node)}/enable")
            self.files[node] = self.device(node) + "/resource2"

    def device(self, node):
        """Directory of a node's ivshmem device in sysfs."""
        address = node.run("lspci -Dn -d 1af4:1110 | cut -d' ' -f1").out.strip()
        return f"/sys/bus/pci/devices/{address}"

    def write(self, node, offset, seed):
        node.run(f"{PROGRAM} write {self.files[node]} {offset} {PIECE} {seed}")

    def check(self, node, offset, seed):
        """Insists that a node sees what was written with the seed."""
        seen = node.run(f"{PROGRAM} sum {self.files[node]} {offset} {PIECE}").out.strip()
        assert seen == hashlib.sha256(random.Random(seed).randbytes(PIECE)).hexdigest(), f"{node.name}, {offset}"

    def close(self):
        stop_all(self.run_dir)
        shutil.rmtree(self.run_dir, ignore_errors=True)


@pytest.fixture(scope="module", params=["cxl", "ivshmem"])
def pool(request):
    """Two nodes with a pool between them."""
    nodes = Pool(request.param)
    try:
        nodes.start()
        yield nodes
    finally:
        nodes.close()


def test_both_nodes_see_the_same_bytes(pool, saw):
    one, two = pool.nodes
    # The front, what a 32-bit offset of pages still reaches, and the very end.
    places = [0, 100 << 20, -PIECE]
    for seed, offset in enumerate(places):
        pool.write(one, offset, seed)
    for seed, offset in enumerate(places):
        pool.check(two, offset, seed)
        pool.write(two, offset, seed + 100)
    for seed, offset in enumerate(places):
        pool.check(one, offset, seed + 100)
    saw(f"{len(places)} MiB each way in {pool.files[one]}")


def test_the_pool_outlives_a_node_that_dies(pool):
    one, two = pool.nodes
    pool.write(one, 2 * PIECE, 7)
    one.kill()
    pool.check(two, 2 * PIECE, 7)
    pool.write(two, 3 * PIECE, 8)
    one.start()
    pool.prepare(one)
    pool.check(one, 2 * PIECE, 7)
    pool.check(one, 3 * PIECE, 8)


@pytest.mark.parametrize("pool", ["cxl"], indirect=True, scope="module")
def test_a_dax_device_goes_from_driver_to_driver(pool):
    node = pool.nodes[1]
    driver = "/sys/bus/dax/devices/dax0.0/driver"
    for name in ("device_dax", "none", "none", "device_dax", "device_dax"):
        assert node.run(f"nupa-pool {name}").out == "dax0.0\n"
        bound = node.run(f"test ! -e {driver} || basename $(readlink {driver})").out.strip()
        assert bound == ("" if name == "none" else name)
    refused = node.run("nupa-pool no_such_driver", check=False)
    assert refused.code == 1 and "no driver no_such_driver on the dax bus" in refused.err
    pool.prepare(node)


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


@pytest.mark.parametrize("pool", ["ivshmem"], indirect=True, scope="module")
def test_doorbells_interrupt_the_device_and_vector_they_name(pool):
    peer = Peer(pool.run_dir)
    numbers = []
    for node in pool.nodes:
        registers = pool.device(node) + "/resource0"
        numbers.append(int(node.run(f"{PROGRAM} id {registers}").out))
        for vector in range(VECTORS):
            node.run(f"{PROGRAM} ring {registers} {peer.number} {vector}")
            assert peer.raised(10 * PATIENCE) == [vector]
    assert sorted([*numbers, peer.number]) == [0, 1, 2]
    assert sorted(peer.vectors) == [0, 1, 2]
    assert all(len(vectors) == VECTORS for vectors in peer.vectors.values())
