# SPDX-License-Identifier: GPL-2.0 OR MIT
"""DMA buffers of memory devices: handed on, mapped, and registered, as the device itself can be."""

import contextlib
import errno
import lzma
import os
import pathlib
import subprocess
import time

import pytest

from guest.pattern import pattern
from modes import POOLS, long, only
from nodes import TOP
from test_memory_device_regions import write
from test_memory_devices import MIB, PAGE, attach, create, refused, without_devices
from test_nupactl import NUPACTL, told
from test_rdma_direct import direct_writes
from verbs import ALL_ACCESS, remote, sge
from waiting import DEBUG_KERNEL

pytestmark = only(*POOLS, why="there are memory devices on pools only")

SIZE = 4 * MIB
# The buffer is of this part of a device of that size.
BEGIN, LENGTH = MIB + PAGE, 2 * MIB
# Seconds that a device takes to let go of memory.
LETS_GO = 2


@pytest.fixture
def nodes(settled):
    yield from without_devices(settled)


class Look:
    """A mapping of a part of a device, to look at."""

    def __init__(self, program, file, size, offset=0):
        self.program = program
        self.mapping = program.map_map(file, size, offset=offset)

    def fill(self, seed, **place):
        self.program.map_fill(self.mapping, seed, **place)

    def check(self, seed, **place):
        difference = self.program.map_check(self.mapping, seed, **place)
        assert difference is None, f"{self.program.node.name}: {difference}"

    def load(self, offset, size):
        return self.program.map_load(self.mapping, offset, size)


@contextlib.contextmanager
def graphics(node):
    """A device that imports DMA buffers for itself, without hardware; nodes have no copy of its driver. None if the kernel has none, as the debug kernel."""
    modules = pathlib.Path(os.environ["NUPA_KERNEL_DIR"]) / "modules"
    needs = [line.replace(":", "").split() for line in (modules / "modules.dep").read_text().splitlines() if "/vgem.ko" in line.split(":")[0]]
    if not needs:
        yield None
        return
    (TOP / "build" / "graphics").mkdir(exist_ok=True)
    names = []
    for place in reversed(needs[0]):
        names.append(pathlib.Path(place).name.removesuffix(".ko.xz"))
        (TOP / "build" / "graphics" / f"{names[-1]}.ko").write_bytes(lzma.decompress((modules / place).read_bytes()))
    for name in names:
        node.run(f"insmod /nupa/build/graphics/{name}.ko")
    try:
        yield "/dev/dri/" + node.run("basename /sys/devices/*/vgem/drm/render*").out.strip()
    finally:
        for name in reversed(names):
            node.run(f"rmmod {name}")


@long
@pytest.mark.parametrize("own", [True, False], ids=["own", "attached"])
def test_a_dmabuf_is_a_region(nodes, rdma, saw, own):
    """Of memory of the node's own, and of another node's: target and source of requests of a peer. The process needs nothing but the buffer."""
    one, two = nodes
    attach(two, "m", create(one, "m", SIZE))
    a, b = rdma.rc(*(nodes if own else reversed(nodes)))
    file = a.program.map_open("/dev/nupa/m")
    buffer = a.program.map_export(file, BEGIN, LENGTH)
    assert buffer.size == LENGTH
    all_of_it, look = Look(a.program, file, SIZE), Look(a.program, buffer, LENGTH)
    a.program.map_close(file)
    # It does not begin with a page.
    begin = PAGE + 5
    region = a.program.dmabuf_region(a.pd, buffer.file, MIB, ALL_ACCESS, begin)
    local = b.region(MIB, 3)
    all_of_it.fill(9)
    b.post_send("RDMA_READ", sges=[sge(local)], remote=remote(region))
    b.done("RDMA_READ")
    assert b.program.load(local.buffer, 0, MIB) == pattern(9, SIZE)[BEGIN + begin : BEGIN + begin + MIB].hex()
    before = direct_writes(b.program.node)
    for seed in (7, 8, 4):
        all_of_it.fill(9)
        b.program.fill(local.buffer, seed)
        write(b, sge(local), remote(region))
        look.check(seed, offset=begin, size=MIB)
        # And nothing beside it.
        all_of_it.check(9, size=BEGIN)
        assert look.load(0, begin) == pattern(9, BEGIN + begin)[BEGIN:].hex()
        behind = BEGIN + begin + MIB
        assert all_of_it.load(behind, SIZE - behind) == pattern(9, SIZE)[behind:].hex()
    direct = direct_writes(b.program.node) - before
    # As with a region of a mapping.
    assert direct == (3 if own else 0)
    inbox = b.region(MIB, 5)
    b.post_recv([sge(inbox)])
    a.post_send("SEND", sges=[[begin, MIB, region.lkey]])
    a.done("SEND")
    b.done("RECV")
    assert b.program.load(inbox.buffer, 0, MIB) == b.program.load(local.buffer, 0, MIB)
    a.post_recv([[begin, MIB, region.lkey]])
    b.program.fill(local.buffer, 6)
    b.post_send("SEND", sges=[sge(local)])
    b.done("SEND")
    a.done("RECV")
    look.check(6, offset=begin, size=MIB)
    b.post_send("RDMA_WRITE", sges=[sge(local, 0, 2)], remote=[begin + MIB - 1, region.rkey])
    b.failed("REM_ACCESS_ERR")
    saw(f"written, read, sent and received; {direct} of 3 written by the requester's node")


def test_exports_that_are_refused(nodes, rdma, saw):
    """What is not inside or not whole pages, what nobody knows, and more than the file allows."""
    one, _ = nodes
    create(one, "m", 4 * PAGE)
    program = rdma.program(one, device=None)
    file, reader = program.map_open("/dev/nupa/m"), program.map_open("/dev/nupa/m", write=False)

    def error(offset=0, length=PAGE, of=file, **other):
        return program.fails("map_export", of, offset, length, **other)

    outside = [(0, 5 * PAGE), (4 * PAGE, PAGE), (PAGE, (1 << 64) - PAGE), ((1 << 64) - PAGE, PAGE), (0, 0), (5, PAGE), (0, 5), (PAGE, 1 << 63)]
    found = [error(*place) for place in outside]
    found += [error(**{field: 1}) for field in ("more_flags", "reserved")]
    found += [error(size=size) for size in (0, 4, 31)]
    found += [error(mode="W"), error(cloexec=False, more_flags=os.O_NONBLOCK)]
    assert found == [errno.EINVAL] * len(found), found
    # What is longer is for kernels of the future.
    assert error(size=40, behind="00" * 7 + "01") == errno.E2BIG
    assert error(size=PAGE + 8, behind="00" * PAGE) == errno.E2BIG
    program.map_export(file, 0, PAGE, size=40, behind="00" * 8)
    assert error(of=reader) == errno.EACCES
    program.map_export(reader, 0, PAGE, mode="R", cloexec=False)
    program.map_export(file, 3 * PAGE, PAGE)
    assert program.fails("map_ioctl", file, 0xDC01, "00" * 32) == errno.ENOTTY
    # No numbers of files are lost, nor anything else that counts as open.
    assert [device["opens"] for device in told(one, "memory list")] == [5]
    program.end()
    one.run(f"{NUPACTL} memory remove m")
    saw(f"{len(found)} kinds of exports are EINVAL")


def test_what_a_dmabuf_does_not_allow(nodes, rdma, saw):
    """Mappings and regions stay inside of the buffer, and write to none that is for reading. Other devices get nothing."""
    one, two = nodes
    create(one, "m", 8 * PAGE)
    a, _ = rdma.rc(one, two)
    program = a.program
    file = program.map_open("/dev/nupa/m")
    buffer, reader = program.map_export(file, 2 * PAGE, 4 * PAGE), program.map_export(file, 2 * PAGE, 4 * PAGE, mode="R")
    # Mappings.
    for length, offset in ((5 * PAGE, 0), (2 * PAGE, 3 * PAGE)):
        assert program.fails("map_at", buffer, length, offset) == errno.EINVAL
    assert program.fails("map_map", buffer, PAGE, private=True) == errno.EINVAL
    assert program.fails("map_at", buffer, PAGE, protection="RX") == errno.EPERM
    assert program.fails("map_at", reader, PAGE) == errno.EACCES
    place, read_only = program.map_at(buffer, PAGE), program.map_at(reader, PAGE, protection="R")
    assert program.fails("map_protect_at", read_only, PAGE, "RW") == errno.EACCES
    assert program.fails("map_remap", read_only, PAGE, 3) == errno.EINVAL
    # It is another part of the buffer then, and not of the device.
    program.map_remap(place, PAGE, 3)
    all_of_it = Look(program, file, 8 * PAGE)
    all_of_it.fill(1)
    held = pattern(1, 8 * PAGE)
    assert program.map_peek(place, PAGE) == held[5 * PAGE : 6 * PAGE].hex()
    assert program.map_peek(read_only, PAGE) == held[2 * PAGE : 3 * PAGE].hex()
    assert program.fails("map_remap", place, PAGE, 4) == errno.EINVAL
    # Another process, which must not open the device, has what it was given and nothing else.
    other = rdma.program(one, device=None)
    taken = other.map_take(program.pid(), reader.file)
    other.become_user(65534, 1 << 20)
    assert other.fails("map_open", "/dev/nupa/m") == errno.EACCES and other.fails("map_at", taken, PAGE) == errno.EACCES
    shown = other.map_at(taken, 4 * PAGE, protection="R")
    assert other.map_peek(shown, 4 * PAGE) == held[2 * PAGE : 6 * PAGE].hex()
    # Regions.
    assert program.fails("dmabuf_region", a.pd, buffer.file, 5 * PAGE, ALL_ACCESS) == errno.EINVAL
    assert program.fails("dmabuf_region", a.pd, buffer.file, PAGE, ALL_ACCESS, 4 * PAGE) == errno.EINVAL
    assert program.fails("dmabuf_region", a.pd, buffer.file, PAGE, ALL_ACCESS, (1 << 64) - PAGE) == errno.EINVAL
    assert program.fails("dmabuf_region", a.pd, reader.file, PAGE, ALL_ACCESS) == errno.EACCES
    region = program.dmabuf_region(a.pd, reader.file, 4 * PAGE, "REMOTE_READ")
    # This is libibverbs: it changes no regions of buffers.
    assert program.fails("reregister", region, access=ALL_ACCESS) == errno.EINVAL
    program.dmabuf_region(a.pd, buffer.file, 4 * PAGE, ALL_ACCESS)
    # Of what is mapped of it, as of any mapping of a device; together with one that is mapped by the device's file.
    whole = program.map_at(buffer, 4 * PAGE)
    program.region_at(a.pd, whole, 4 * PAGE, ALL_ACCESS)
    program.map_at(file, PAGE, offset=3 * PAGE, address=whole + PAGE)
    program.region_at(a.pd, whole, 4 * PAGE, ALL_ACCESS)
    program.map_at(file, PAGE, offset=PAGE, address=whole + PAGE)
    assert program.fails("region_at", a.pd, whole, 4 * PAGE, ALL_ACCESS) == errno.EFAULT
    assert program.fails("region_at", a.pd, read_only, PAGE, ALL_ACCESS) == errno.EFAULT
    with graphics(one) as card:
        if card:
            program.map_give_to_graphics(card, program.dmabuf(PAGE).file)
            assert program.fails("map_give_to_graphics", card, buffer.file) == errno.EOPNOTSUPP
    saw("another device gets nothing" if card else "not tried with another device: this kernel has none without hardware")


def test_a_dmabuf_keeps_the_device_open(nodes, rdma, saw):
    """A buffer counts as open, and so does a region of one whose file is closed. If the device is removed all the same, the region goes on, and
    nobody has the memory by the buffer any more."""
    one, two = nodes
    total = rdma.program(one).device()["max_dm_size"]
    create(one, "m", total)
    a, b = rdma.rc(one, two)
    program, local = a.program, b.region(PAGE, 1)
    file = program.map_open("/dev/nupa/m")
    kept, closed = program.map_export(file, 0, total), program.map_export(file, PAGE, PAGE)
    program.map_close(file)
    assert [device["opens"] for device in told(one, "memory list")] == [2]
    held = one.run("grep -ls 'exp_name:.nupa/m$' /proc/[0-9]*/fdinfo/*", check=False).out.split()
    assert [place.split("/")[2] for place in held] == [str(program.pid())] * 2, held
    region = program.dmabuf_region(a.pd, closed.file, PAGE, ALL_ACCESS)
    (listed,) = [mr for mr in one.run("rdma -dd -j resource show mr").json() if mr["pid"] == program.pid()]
    assert listed["drv_memory_device"] == 1 and listed["mrlen"] == PAGE, listed
    program.map_close(closed)
    busy = refused(one, "remove m")
    for _ in range(2):
        write(b, sge(local), remote(region))
    mapping = Look(program, kept, 2 * PAGE)
    mapping.check(1, offset=PAGE, size=PAGE)
    assert program.map_touch(mapping.mapping) is None
    refused(one, "remove m")
    one.run(f"{NUPACTL} memory remove --force m")
    assert program.map_touch(mapping.mapping) == "SIGBUS"
    assert program.fails("map_map", kept, PAGE) == errno.ENODEV
    assert program.fails("dmabuf_region", a.pd, kept.file, PAGE, ALL_ACCESS) == errno.ENODEV
    assert "no room for" in refused(one, "create more 4096")
    for seed in (2, 3):
        b.program.fill(local.buffer, seed)
        write(b, sge(local), remote(region))
    b.post_send("RDMA_READ", sges=[sge(local)], remote=remote(region))
    b.done("RDMA_READ")
    assert b.program.load(local.buffer, 0, PAGE) == pattern(3, PAGE).hex()
    program.destroy(region)
    # The buffer is still there, and has nothing.
    create(one, "m", total)
    assert program.map_touch(mapping.mapping) == "SIGBUS"
    assert program.fails("dmabuf_region", a.pd, kept.file, PAGE, ALL_ACCESS) == errno.ENODEV
    again = rdma.program(one, device=None)
    assert again.map_left(again.map_map(again.map_open("/dev/nupa/m"), total)) is None
    saw(busy.strip().splitlines()[-1])


@long
def test_programs_that_end(nodes, rdma, saw):
    """Killed with a buffer and a region of it; without a driver any more, but with the module, which stays as long as there is a buffer."""
    one, two = nodes
    total = rdma.program(one).device()["max_dm_size"]
    for kill in (True, False):
        create(one, "m", total)
        a, b = rdma.rc(one, two)
        program, local = a.program, b.region(PAGE, 1)
        buffer = program.map_export(program.map_open("/dev/nupa/m"), 0, total)
        region = program.dmabuf_region(a.pd, buffer.file, PAGE, ALL_ACCESS)
        write(b, sge(local), remote(region))
        refused(one, "remove m")
        program.end(kill=kill)
        b.program.end()
        one.run(f"{NUPACTL} memory remove m")
    create(one, "m", total)
    holder = rdma.program(one, device=None)
    stale = holder.map_open("/dev/nupa/m")
    buffer = holder.map_export(stale, 0, total)
    mapping = holder.map_map(buffer, total)
    assert holder.map_touch(mapping) is None
    device, driver = one.device(), one.driver_directory()
    one.run(f"echo {device} >{driver}/unbind")
    try:
        assert holder.map_touch(mapping) == "SIGBUS"
        holder.map_unmap(mapping)
        assert holder.fails("map_map", buffer, PAGE) == errno.ENODEV
        assert holder.fails("map_export", stale, 0, PAGE) == errno.ENODEV
        holder.map_close(stale)
        users = int(one.run("cat /sys/module/nupa_fabric/refcnt").out)
        holder.map_close(buffer)
        left = int(one.run("cat /sys/module/nupa_fabric/refcnt").out)
        assert left == users - 1
    finally:
        one.run(f"echo {device} >{driver}/bind")
        one.up()
        one.await_ping(two.ip)
    saw(f"the module had {users} users with the buffer, {left} without it")


@long
def test_a_path_descriptor_keeps_a_buffer(nodes, rdma, saw):
    """O_PATH keeps the directory entry of a buffer, and with it the buffer, whose file is freed when its last descriptor is closed."""
    one, _ = nodes
    for force in (False, True):
        create(one, "m", SIZE)
        program = rdma.program(one, device=None)
        file = program.map_open("/dev/nupa/m")
        buffers = [program.map_export(file, 0, SIZE) for _ in range(20)]
        for buffer in buffers:
            look = Look(program, buffer, PAGE)
            look.fill(1)
            program.map_unmap(look.mapping)
        paths = [program.map_path(buffer) for buffer in buffers]
        mapped = Look(program, program.map_export(file, 0, SIZE), PAGE)
        for each in (*buffers, file):
            program.map_close(each)
        # What takes the place of the files that are freed.
        others = [program.map_open("/dev/zero") for _ in buffers]
        assert [device["opens"] for device in told(one, "memory list")] == [21]
        refused(one, "remove m")
        if force:
            one.run(f"{NUPACTL} memory remove --force m")
            assert program.map_touch(mapped.mapping) == "SIGBUS"
        for each in (*paths, *others):
            program.map_close(each)
        program.end()
        if not force:
            one.run(f"{NUPACTL} memory remove m")
    saw("20 buffers without a file")


@pytest.fixture
def importer(nodes):
    """A node with a device that imports DMA buffers (tests/importer)."""
    subprocess.run([TOP / "scripts" / "build", "importer"], check=True, stdout=subprocess.DEVNULL)
    nodes[0].run(f"insmod /nupa/build/importer{'-debug' if DEBUG_KERNEL else ''}/nupa_importer.ko delay_ms={LETS_GO * 1000}")
    yield nodes[0]
    nodes[0].run("rmmod nupa_importer")


def exporter(rdma, node):
    """A program that has a device of a name open."""
    create(node, "m", SIZE)
    program = rdma.program(node, device=None)
    return program, program.map_open("/dev/nupa/m")


@only("ivshmem", why="memory of a CXL device other devices can have")
def test_memory_of_a_pci_device_is_for_no_other(importer, rdma, saw):
    program, file = exporter(rdma, importer)
    buffer = program.map_export(file, 0, SIZE)
    found = [program.fails("map_import", buffer.file, kind) for kind in ("static", "pinned", "paged", "dynamic")]
    assert found == [errno.EOPNOTSUPP] * len(found), found
    saw("EOPNOTSUPP for all kinds of devices")


@only("cxl", why="that of an ivshmem device is for no other device: test_memory_of_a_pci_device_is_for_no_other")
def test_another_device_has_the_memory(importer, rdma, saw):
    """One that can give it back when it is told to: it reads and writes what is there until the memory device ends, which waits for it."""
    program, file = exporter(rdma, importer)
    buffer, reader = program.map_export(file, BEGIN, LENGTH), program.map_export(file, BEGIN, LENGTH, mode="R")
    found = [program.fails("map_import", buffer.file, kind) for kind in ("static", "pinned", "paged")]
    assert found == [errno.EOPNOTSUPP] * len(found), found
    assert program.fails("map_import", reader.file) == errno.EACCES
    # A device that only reads.
    quiet = program.map_import(reader.file, "dynamic to")
    device = program.map_import(buffer.file)
    all_of_it = Look(program, file, SIZE)
    all_of_it.fill(1)
    held = pattern(1, SIZE)[BEGIN : BEGIN + LENGTH].hex()
    assert program.map_import_load(device, 0, LENGTH) == program.map_import_load(quiet, 0, LENGTH) == held
    program.map_import_store(device, LENGTH - 7, "07" * 7)
    end = BEGIN + LENGTH
    assert all_of_it.load(end - 8, 9) == pattern(1, SIZE)[end - 8 : end - 7].hex() + "07" * 7 + pattern(1, SIZE)[end : end + 1].hex()
    # A device that has let go is waited for no more.
    program.map_close(quiet)
    for each in (reader, file):
        program.map_close(each)
    program.map_unmap(all_of_it.mapping)
    refused(importer, "remove m")
    start = time.monotonic()
    importer.run(f"{NUPACTL} memory remove --force m")
    took = time.monotonic() - start
    assert took > LETS_GO, took
    assert program.fails("map_import_load", device, 0, 1) == errno.ESTALE
    assert program.fails("map_import", buffer.file) == errno.ENODEV
    # One that lets go at once; and one that goes with its program meanwhile.
    importer.run("echo 0 >/sys/module/nupa_importer/parameters/delay_ms")
    create(importer, "m", SIZE)
    file = program.map_open("/dev/nupa/m")
    devices = [program.map_import(program.map_export(file, 0, SIZE).file) for _ in range(2)]
    importer.run(f"{NUPACTL} memory remove --force m")
    assert [program.fails("map_import_load", each, 0, 1) for each in devices] == [errno.ESTALE] * 2
    program.end()
    saw(f"removal took {took:.1f} s, of which a device took {LETS_GO} s to let go")


@only("cxl", why="that of an ivshmem device is for no other device")
def test_a_slow_device_keeps_no_memory_of_programs(nodes, importer, rdma, saw):
    """When several memory devices end, programs lose all of them before a device is waited for that has imported a part of the first."""
    _, two = nodes
    program, file = exporter(rdma, importer)
    program.map_import(program.map_export(file, 0, SIZE).file)
    create(importer, "n", PAGE)
    mapping = program.map_map(program.map_open("/dev/nupa/n"), PAGE)
    assert program.map_touch(mapping) is None
    device, driver = importer.device(), importer.driver_directory()
    start = time.monotonic()
    unbind = importer.spawn(f"echo {device} >{driver}/unbind")
    try:
        while program.map_ending(mapping) is None:
            assert time.monotonic() - start < 30
        lost = time.monotonic() - start
        assert program.map_touch(mapping) == "SIGBUS"
        assert unbind.wait(60).code == 0
        ended = time.monotonic() - start
    finally:
        importer.run(f"echo {device} >{driver}/bind")
        importer.up()
        importer.await_ping(two.ip)
    assert lost + LETS_GO / 2 < ended, (lost, ended)
    program.end()
    saw(f"lost after {lost:.1f} s, and ended after {ended:.1f} s")
