# SPDX-License-Identifier: GPL-2.0 OR MIT
"""The memory that nodes share, below our drivers: CXL memory as a DAX device, and ivshmem with its interrupts; what is a pool."""

import hashlib
import pathlib
import random
import select
import socket
import stat

import pytest

from modes import POOLS, long, long_but_on, only
from nodes import DEVICES
from test_pool_nodes import works
from waiting import PATIENCE, wait_until

pytestmark = only(*POOLS, why="about the memory of pools")

PROGRAM = "python3 /nupa/tests/guest/pool.py"
PIECE = 1 << 20
VECTORS = 4
# How the memory of Looking Glass, another user of ivshmem devices, begins.
FOREIGN = b"[[KVMFR]]\0" + bytes(range(1, 119))


class Memory:
    """The pool as programs on a node see it, without a driver of ours."""

    def __init__(self, node):
        self.node = node
        if node.fabric == "cxl":
            self.file = "/dev/" + node.run("nupa-pool device_dax", timeout=60).out.strip()
        else:
            node.run(f"echo 1 >{node.device_directory()}/enable")
            self.file = node.device_directory() + "/resource2"
        self.device = node.run("nupa-pool device").out.strip()

    def format(self, *options, check=True):
        """Formats the memory as a pool; nothing but `nupa-mkpool` does."""
        return self.node.run(f"nupa-pool format {self.device} {' '.join(options)}", timeout=60, check=check)

    def backing(self):
        """The file of the host that is the memory."""
        lines = pathlib.Path(f"/proc/{self.node.pid}/maps").read_text().splitlines()
        return next(path for path in map(pathlib.Path, (line.split()[-1] for line in lines))
                    if path.name == "pool" or path.name.startswith("nupa-pool-"))

    def fill(self, head):
        """Makes the memory one that begins like this, and is zero behind. No driver has it now."""
        backing = self.backing()
        size = backing.stat().st_size
        with backing.open("r+b") as file:
            file.truncate(0)
            file.truncate(size)
            file.write(head)
        return backing

    def write(self, offset, seed):
        self.node.run(f"{PROGRAM} write {self.file} {offset} {PIECE} {seed}")

    def check(self, offset, seed):
        """Insists that the node sees what was written with the seed."""
        seen = self.node.run(f"{PROGRAM} sum {self.file} {offset} {PIECE}").out.strip()
        assert seen == hashlib.sha256(random.Random(seed).randbytes(PIECE)).hexdigest(), f"{self.node.name}, {offset}"


@pytest.fixture
def pool(fabric):
    """What two nodes share, which no driver of ours has."""
    return [Memory(node) for node in fabric.bare(1, 2)]


def digest(path):
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@long
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
    one.format("--yes")
    saw(f"{len(places)} MiB each way in {one.file}")


def test_the_memory_is_nobody_elses(pool):
    status = pool[0].backing().stat()
    assert stat.S_IMODE(status.st_mode) == 0o600, oct(status.st_mode)


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
    # What is left alone is no error, and said at a lower level than nodes print that are new.
    result = node.run(f"dmesg -n 7; insmod /nupa/build/modules/nupa_fabric.ko {parameters}; nupa-pool nupa_fabric", check=False)
    if node.fabric == "cxl":
        assert result.code == 1 and "nupa_fabric does not take dax0.0" in result.err, result

    def said():
        lines = node.log.since(mark).splitlines()
        return next((line for line in lines if "nupa_" in line and hint in line), None)

    line = wait_until("a message that tells what to do", said, 10)
    node.run("nupa-down")
    return line.split("] ")[-1].strip()


def test_memory_of_others_is_never_touched(pool, fabric, saw):
    """What is no pool stays as it is, byte for byte, whatever is loaded and brought up; only who names it can format it."""
    one, two = pool
    backing = one.fill(FOREIGN)
    before = digest(backing)
    line = refused(one.node, "", "left alone")
    up = one.node.run("nupa-up", timeout=60, check=False)
    assert up.code != 0 and "it is not blank, so it is left alone" in up.err, up
    assert "|[[KVMFR]]." in up.err, "nupa-up does not show what is there"
    one.node.run("nupa-down")
    unasked = Memory(one.node).format(check=False)
    assert unasked.code == 1 and "without --yes" in unasked.err and "|[[KVMFR]]." in unasked.out, unasked
    assert digest(backing) == before
    aliases = one.node.run("modinfo -F alias /nupa/build/modules/nupa_fabric.ko").out
    assert "10F0" in aliases and "1110" not in aliases, f"udev would load the driver for other devices: {aliases}"
    assert "formatted as pool" in one.format("--yes").out
    nodes = fabric.ensure(1, 2)
    assert nodes[0].pings(nodes[1].ip, 3) == 3
    saw(line)


def test_a_pool_in_use_is_not_formatted(pair, fabric):
    """Neither on a node that takes part in it, nor on one that does not."""
    one, two = pair
    device = two.run("nupa-pool device").out.strip()
    taken = two.run(f"nupa-pool format {device} --yes", check=False)
    assert taken.code == 1 and f"driver {DEVICES[two.fabric][1]} has it" in taken.err, taken
    two.run("nupa-down")
    lives = two.run(f"nupa-pool format {device} --yes", check=False, timeout=60)
    assert lives.code == 1 and "use the pool; nothing is formatted" in lives.err, lives
    assert "A pool for 8 nodes" in lives.out and "Nodes that live: " in lives.out, lives
    fabric.ensure(1, 2)
    assert one.pings(two.ip, 3) == 3


@only("ivshmem", why="nodes format CXL memory in the same way")
def test_of_nodes_that_format_at_once_one_does(pool, fabric):
    """Both find blank memory, and one pool there afterwards."""
    pool[0].fill(b"")
    formatting = [memory.node.spawn(f"nupa-pool format {memory.device} --if-blank") for memory in pool]
    results = [each.wait(60) for each in formatting]
    assert [result.code for result in results] == [0, 0], [str(result) for result in results]
    made = [result.out for result in results]
    assert sum("formatted as pool" in out for out in made) >= 1, made
    assert len({memory.format("--show").out for memory in pool}) == 1
    nodes = fabric.ensure(1, 2)
    assert nodes[0].pings(nodes[1].ip, 3) == 3


@long_but_on("cxl")
def test_caches_that_are_not_coherent(pool, fabric, rdma, saw):
    """Hosts that write back and invalidate by hand move all kinds of data; one that would not is no part of their pool."""
    pool[0].format("--yes", "--non-coherent")
    try:
        for memory in pool:
            memory.node.run("nupa-up pool_coherent=0", timeout=60)
        nodes = fabric.ensure(1, 2)
        works(fabric, rdma, *nodes)
        rdma.kill_all()
        nodes[1].run("nupa-down")
        line = refused(nodes[1], "pool_coherent=1", "pool_coherent")
    finally:
        one, _ = fabric.bare(1, 2)
        Memory(one).format("--yes")
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


@long
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
