# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Memory devices and verbs: what a program has mapped of one can be registered, as any memory can."""

import errno

import pytest

from guest.pattern import pattern
from modes import POOLS, long, only
from test_memory_devices import MIB, PAGE, attach, create, refused, without_devices
from test_nupactl import NUPACTL
from test_rdma_direct import direct_writes
from verbs import ALL_ACCESS, remote, sge

pytestmark = only(*POOLS, why="there are memory devices on pools only")

SIZE = 4 * MIB


@pytest.fixture
def nodes(settled):
    yield from without_devices(settled)


class Holder:
    """One end of a connection, whose program has mapped a device."""

    def __init__(self, side, name):
        self.side, self.program = side, side.program
        self.file = self.program.map_open(f"/dev/nupa/{name}")
        self.size = self.file.size
        self.address = self.program.map_at(self.file, self.size)
        # The same again, to look at.
        self.view = self.program.map_map(self.file, self.size)

    def register(self, offset=0, length=None, access=ALL_ACCESS):
        length = self.size - offset if length is None else length
        return self.program.region_at(self.side.pd, self.address + offset, length, access)

    def fails(self, address, length, access=ALL_ACCESS):
        """The errno of a registration that must fail."""
        return self.program.fails("region_at", self.side.pd, address, length, access)

    def fill(self, seed, **place):
        self.program.map_fill(self.view, seed, **place)

    def check(self, seed, **place):
        difference = self.program.map_check(self.view, seed, **place)
        assert difference is None, f"{self.program.node.name}: {difference}"


def write(side, source, target):
    side.post_send("RDMA_WRITE", sges=[source], remote=target)
    side.done("RDMA_WRITE")


@pytest.mark.parametrize("own", [pytest.param(True, marks=long), False], ids=["own", "attached"])
def test_a_mapping_is_a_region(nodes, rdma, saw, own):
    """Of memory of the node's own, and of another node's: target and source of requests of all kinds."""
    one, two = nodes
    attach(two, "m", create(one, "m", SIZE))
    a, b = rdma.rc(*(nodes if own else reversed(nodes)))
    holder, look = Holder(a, "m"), Holder(b, "m")
    # It does not begin with a page.
    region, begin = holder.register(MIB + 5, MIB), MIB + 5
    local = b.region(MIB, 3)
    look.fill(9)
    b.post_send("RDMA_READ", sges=[sge(local)], remote=remote(region))
    b.done("RDMA_READ")
    assert b.program.load(local.buffer, 0, MIB) == pattern(9, begin + MIB)[begin:].hex()
    before = direct_writes(b.program.node)
    for seed in (7, 8, 4):
        look.fill(9)
        b.program.fill(local.buffer, seed)
        write(b, sge(local), remote(region))
        look.check(seed, offset=begin, size=MIB)
        # And nothing beside it.
        look.check(9, size=begin)
        behind = begin + MIB
        assert look.program.map_load(look.view, behind, PAGE) == pattern(9, behind + PAGE)[behind:].hex()
    direct = direct_writes(b.program.node) - before
    # The requester's node itself writes to what is the responder's own: the READ has brought the grant.
    assert direct == (3 if own else 0)
    # A source of messages, and where they go.
    inbox = b.region(MIB, 5)
    b.post_recv([sge(inbox)])
    a.post_send("SEND", sges=[sge(region)])
    a.done("SEND")
    b.done("RECV")
    assert b.program.load(inbox.buffer, 0, MIB) == b.program.load(local.buffer, 0, MIB)
    a.post_recv([sge(region)])
    b.program.fill(local.buffer, 6)
    b.post_send("SEND", sges=[sge(local)])
    b.done("SEND")
    a.done("RECV")
    look.check(6, offset=begin, size=MIB)
    # Aligned as atomics want it.
    word = region.address + 3
    old = int.from_bytes(pattern(6, 11)[3:], "little")
    for added in (0, 5):
        b.post_send("ATOMIC_FETCH_AND_ADD", sges=[sge(local, 0, 8)], remote=[word, region.rkey], add=5)
        b.done("FETCH_ADD")
        assert int.from_bytes(bytes.fromhex(b.program.load(local.buffer, 0, 8)), "little") == (old + added) % (1 << 64)
    b.post_send("RDMA_WRITE", sges=[sge(local, 0, 2)], remote=[region.address + MIB - 1, region.rkey])
    b.failed("REM_ACCESS_ERR")
    saw(f"written, read, sent and received; {direct} of 3 written by the requester's node")


def test_what_cannot_be_registered(nodes, rdma, saw):
    """As with other memory: what is not mapped, what may not be written, and what is not all of one device in order."""
    one, two = nodes
    for name in ("m", "n"):
        create(one, name, 4 * PAGE)
    a, _ = rdma.rc(one, two)
    m, program = Holder(a, "m"), a.program
    program.map_unmap(m.view)
    start = m.address
    found = [m.fails(start, 5 * PAGE), m.fails(start - 1, PAGE)]
    # As of ib_umem_get().
    assert m.fails(start, (1 << 64) - PAGE) == errno.EINVAL
    reader = program.map_open("/dev/nupa/m", write=False)
    read_only = program.map_at(reader, 4 * PAGE, protection="R")
    found += [m.fails(read_only, PAGE), m.fails(read_only, PAGE, access="MW_BIND")]
    region = program.region_at(a.pd, read_only, PAGE, "REMOTE_READ")
    assert program.fails("reregister", region, access=ALL_ACCESS) == errno.EACCES
    # Several mappings of one device are as good as one, as long as each allows it.
    program.map_protect_at(start + PAGE, PAGE, "R")
    found += [m.fails(start, 4 * PAGE)]
    program.region_at(a.pd, start, 4 * PAGE, "REMOTE_READ")
    program.map_protect_at(start + PAGE, PAGE, "RW")
    program.region_at(a.pd, start, 4 * PAGE, ALL_ACCESS)
    # Not in the order of the device; another one; a hole.
    program.map_at(m.file, PAGE, offset=0, address=start + PAGE)
    found += [m.fails(start, 2 * PAGE)]
    program.map_at(program.map_open("/dev/nupa/n"), PAGE, offset=PAGE, address=start + PAGE)
    found += [m.fails(start, 2 * PAGE)]
    program.map_unmap_at(start + PAGE, PAGE)
    found += [m.fails(start, 2 * PAGE), m.fails(start, 3 * PAGE)]
    left = program.region_at(a.pd, start + 2 * PAGE, 2 * PAGE, ALL_ACCESS)
    # A region keeps its kind of memory, as with ibv_reg_dm_mr().
    other = program.buffer(2 * PAGE, 1)
    assert program.fails("reregister", left, buffer=other) == errno.EINVAL
    program.reregister(left, pd=program.pd(), access="REMOTE_READ")
    # A device that has ended.
    one.run(f"{NUPACTL} memory remove --force m")
    found += [m.fails(start + 2 * PAGE, 2 * PAGE)]
    assert found == [errno.EFAULT] * len(found), found
    saw(f"{len(found)} kinds of memory are refused")


def test_a_region_keeps_the_memory(nodes, rdma, saw):
    """A device with a region counts as open. If it is removed all the same, the region goes on, and nobody else gets the memory."""
    one, two = nodes
    total = rdma.program(one).device()["max_dm_size"]
    handle = create(one, "m", total)
    a, b = rdma.rc(one, two)
    m, local = Holder(a, "m"), b.region(PAGE, 1)
    region = m.register(PAGE, PAGE)
    program = a.program
    program.map_unmap(m.view)
    program.map_unmap_at(m.address, total)
    program.map_close(m.file)
    busy = refused(one, "remove m")
    # Who has it is to be found all the same.
    (listed,) = [mr for mr in one.run("rdma -dd -j resource show mr").json() if mr["pid"] == program.pid()]
    assert listed["drv_memory_device"] == 1 and listed["mrlen"] == PAGE, listed
    for _ in range(2):
        write(b, sge(local), remote(region))
    one.run(f"{NUPACTL} memory remove --force m")
    refused(two, f"attach late {handle}")
    assert "no room for" in refused(one, "create more 4096")
    before = direct_writes(two)
    for seed in (2, 3):
        b.program.fill(local.buffer, seed)
        write(b, sge(local), remote(region))
    assert direct_writes(two) == before + 2
    b.post_send("RDMA_READ", sges=[sge(local)], remote=remote(region))
    b.done("RDMA_READ")
    assert b.program.load(local.buffer, 0, PAGE) == pattern(3, PAGE).hex()
    program.destroy(region)
    create(one, "m", total)
    b.post_send("RDMA_WRITE", sges=[sge(local)], remote=remote(region))
    b.failed("REM_ACCESS_ERR")
    again = rdma.program(one, device=None)
    assert again.map_left(again.map_map(again.map_open("/dev/nupa/m"), total)) is None
    saw(busy.strip().splitlines()[-1])


def test_programs_that_end(nodes, rdma, saw):
    """Killed with a region; without a driver any more."""
    one, two = nodes
    total = rdma.program(one).device()["max_dm_size"]
    create(one, "m", total)
    for kill in (True, False):
        a, b = rdma.rc(one, two)
        m, local = Holder(a, "m"), b.region(PAGE, 1)
        region = m.register()
        for _ in range(2):
            write(b, sge(local), remote(region))
        refused(one, "remove m")
        a.program.end(kill=kill)
        b.program.end()
    one.run(f"{NUPACTL} memory remove m")
    create(one, "m", total)
    a, _ = rdma.rc(one, two)
    m = Holder(a, "m")
    m.register()
    device, driver = one.device(), one.driver_directory()
    one.run(f"echo {device} >{driver}/unbind")
    try:
        assert a.program.map_touch(m.view) == "SIGBUS"
    finally:
        one.run(f"echo {device} >{driver}/bind")
        one.up()
        one.await_ping(two.ip)
    # The program is still there.
    create(one, "m", total)
    assert a.program.map_touch(m.view) == "SIGBUS"
    saw(f"{total >> 10} KiB came back three times")
