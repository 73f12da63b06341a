# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Memory that verbs work on: windows, changed regions, dmabufs, device memory, huge regions, locked memory."""

import errno
import hashlib

import pytest

from guest.pattern import pattern
from modes import long
from verbs import ALL_ACCESS, DEVICE, VerbFailed, remote, sge

PAGE = 4096


@pytest.fixture
def ends(settled, rdma):
    return rdma.rc(*settled)



def write(a, b, local, target):
    a.post_send("RDMA_WRITE", sges=[sge(local)], remote=target)
    a.done("RDMA_WRITE")


def bind(side, window, region, offset, length, access="REMOTE_WRITE|REMOTE_READ"):
    """Binds a window to a part of a region; returns its key."""
    key = side.post_send("BIND_MW", bind=[window, region, region.address + offset, length, access])
    side.done("BIND_MW")
    return key


def test_window(settled, rdma, saw):
    """A window opens a part of a region that is closed otherwise, until it is invalidated by its owner or the peer."""
    for closing in ("LOCAL_INV", "SEND_WITH_INV"):
        a, b = rdma.rc(*settled)
        local, far = a.region(100, 1), b.region(3000, 2, access="LOCAL_WRITE|MW_BIND")
        key = bind(b, b.program.window(b.pd), far, 1000, 500)
        write(a, b, local, [far.address + 1000, key])
        write(a, b, local, [far.address + 1400, key])
        patches = [[1000, 1, 0, 100], [1400, 1, 0, 100]]
        b.check(far, patches)
        if closing == "LOCAL_INV":
            b.post_send("LOCAL_INV", invalidate=key)
            b.done("LOCAL_INV")
        else:
            b.post_recv([sge(far, 0, 100)])
            a.post_send("SEND_WITH_INV", sges=[sge(local)], invalidate=key)
            a.done("SEND")
            b.done("RECV", imm=key_in_order(key))
            patches.append([0, 1, 0, 100])
        a.post_send("RDMA_WRITE", sges=[sge(local)], remote=[far.address + 1000, key])
        a.failed("REM_ACCESS_ERR")
        b.check(far, patches)
    saw("bound, used, closed by its owner and by its peer")


def key_in_order(key):
    """The invalidated key of a completion lies where immediate data lies, but in the host's byte order."""
    return int.from_bytes(key.to_bytes(4, "little"), "big")


@pytest.mark.parametrize("start", [999, 1401])
def test_window_bounds(settled, rdma, saw, start):
    a, b = rdma.rc(*settled)
    local, far = a.region(100, 1), b.region(3000, 2, access=f"{ALL_ACCESS}|MW_BIND")
    key = bind(b, b.program.window(b.pd), far, 1000, 500)
    a.post_send("RDMA_WRITE", sges=[sge(local)], remote=[far.address + start, key])
    a.failed("REM_ACCESS_ERR")
    b.check(far)
    saw("one byte outside of the window is refused though the region would allow it")


def test_window_belongs_to_its_queue_pair(settled, rdma, saw):
    """A type 2B window opens its queue pair only; a window beyond its region cannot be bound."""
    a, b = rdma.rc(*settled)
    others = rdma.rc(*settled)
    local, far = a.region(100, 1), b.region(3000, 2, access=f"{ALL_ACCESS}|MW_BIND")
    key = bind(b, b.program.window(b.pd), far, 0, 3000)
    write(a, b, local, [far.address, key])
    c = others[0]
    c.post_send("RDMA_WRITE", sges=[sge(c.region(100, 5))], remote=[far.address, key])
    c.failed("REM_ACCESS_ERR")
    b.check(far, [[0, 1, 0, 100]])
    b.post_send("BIND_MW", bind=[b.program.window(b.pd), far, far.address + 1, 3000, "REMOTE_WRITE"])
    assert b.poll()[0]["status"] in ("MW_BIND_ERR", "LOC_PROT_ERR")
    saw("another connection is refused; too long a window is not bound")


def test_reregister(ends, saw):
    """Rights, memory and domain of a region change; what held before holds no more."""
    a, b = ends
    local, far = a.region(100, 1), b.region(1000, 2, access="LOCAL_WRITE|REMOTE_WRITE")
    write(a, b, local, remote(far))
    b.check(far, [[0, 1, 0, 100]])
    other = b.program.buffer(5000, 3)
    now = b.program.reregister(far, buffer=other)
    write(a, b, local, [other.address + 4900, now["rkey"]])
    assert b.program.check(other, [[4900, 1, 0, 100]]) is None
    b.check(far, [[0, 1, 0, 100]])
    now = b.program.reregister(far, access="LOCAL_WRITE|REMOTE_READ")
    a.post_send("RDMA_READ", sges=[sge(local)], remote=[other.address, now["rkey"]])
    a.done("RDMA_READ")
    a.check(local, [[0, 3, 0, 100]])
    a.post_send("RDMA_WRITE", sges=[sge(local)], remote=[other.address, now["rkey"]])
    a.failed("REM_ACCESS_ERR")
    assert b.program.check(other, [[4900, 1, 0, 100]]) is None
    saw("memory, then rights")


def test_reregister_domain(settled, rdma, saw):
    a, b = rdma.rc(*settled)
    local, far = a.region(100, 1), b.region(1000, 2)
    now = b.program.reregister(far, pd=b.program.pd())
    a.post_send("RDMA_WRITE", sges=[sge(local)], remote=[far.address, now["rkey"]])
    a.failed("REM_ACCESS_ERR")
    b.check(far)
    saw("a region that moved to another domain is closed to the queue pair")


def test_dmabuf(ends, saw):
    """A region of a dmabuf (udmabuf), from an offset on; written and read by the peer."""
    a, b = ends
    shared = b.program.dmabuf(8 * PAGE, 2)
    far = b.program.dmabuf_region(b.pd, shared.file, 6 * PAGE, ALL_ACCESS, PAGE)
    local = a.region(2 * PAGE, 1)
    write(a, b, local, [far.address + 100, far.rkey])
    assert b.program.check(shared, [[PAGE + 100, 1, 0, 2 * PAGE]]) is None
    a.post_send("RDMA_READ", sges=[sge(local)], remote=[far.address + 5000, far.rkey])
    a.done("RDMA_READ")
    a.check(local, [[0, 2, PAGE + 5000, 2 * PAGE], [0, 1, 4900, 2 * PAGE - 4900]])
    a.post_send("RDMA_WRITE", sges=[sge(local)], remote=[far.address + 4 * PAGE + 1, far.rkey])
    a.failed("REM_ACCESS_ERR")
    assert b.program.fails("dmabuf_region", b.pd, -1, PAGE, ALL_ACCESS) == errno.EBADF
    saw("written, read, bounded; a bad descriptor is EBADF")


def test_device_memory(ends, saw):
    """ibv_alloc_dm: copied to and from, written and read by the peer, a source of requests."""
    a, b = ends
    memory = b.program.device_memory(2 * PAGE)
    b.program.device_store(memory, 0, bytes(2 * PAGE).hex())
    b.program.device_store(memory, 64, "0102030405060708")
    far = b.program.device_region(b.pd, memory, 2 * PAGE, ALL_ACCESS)
    local = a.region(1000, 1)
    a.post_send("RDMA_READ", sges=[sge(local, 0, 200)], remote=[far.address, far.rkey])
    a.done("RDMA_READ")
    wanted = bytes(64) + bytes(range(1, 9)) + bytes(128)
    a.check(local, [[0, wanted.hex()]])
    a.program.fill(local.buffer, 1)
    write(a, b, local, [far.address + 5000, far.rkey])
    back = b.region(1000, 3)
    to = a.region(1000, 4)
    assert b.program.device_load(memory, 5000, 1000) == a.program.load(local.buffer, 0, 1000)
    b.post_send("RDMA_WRITE", sges=[[far.address + 5000, 1000, far.lkey]], remote=remote(to))
    b.done("RDMA_WRITE")
    a.check(to, [[0, 1, 0, 1000]])
    b.check(back)
    a.post_send("RDMA_WRITE", sges=[sge(local)], remote=[far.address + 2 * PAGE - 999, far.rkey])
    a.failed("REM_ACCESS_ERR")
    saw("copied, read, written, sent from, bounded")


def test_device_memory_is_returned(settled, rdma, saw):
    """All of it can be had, no more than that, and again after a program was killed."""
    one = settled[0]
    size = rdma.program(one).device()["max_dm_size"]
    for _ in range(3):
        program = rdma.program(one)
        program.device_memory(size - PAGE)
        assert program.fails("device_memory", size) in (errno.ENOMEM, errno.ENOSPC, errno.EINVAL)
        program.end(kill=True)
    saw(f"{size >> 10} KB, three times")


@long
def test_region_of_64_gb(settled, rdma, saw):
    """Huge pages of one small file mapped again and again make a region of 64 GB; its ends work."""
    one, two = settled
    two.run("echo 16 >/proc/sys/vm/nr_hugepages && test $(cat /proc/sys/vm/nr_hugepages) = 16")
    try:
        a, b = rdma.rc(one, two)
        far = b.program.huge_region(b.pd, 64 << 30, 16 << 20, ALL_ACCESS, wait=120)
        local = a.region(100, 1)
        for place in (0, (32 << 30) - 50, (64 << 30) - 100):
            write(a, b, local, [far.address + place, far.rkey])
            assert b.program.load(far, place, 100) == a.program.load(local.buffer, 0, 100)
        a.post_send("RDMA_WRITE", sges=[sge(local)], remote=[far.address + (64 << 30) - 99, far.rkey])
        a.failed("REM_ACCESS_ERR")
        b.program.end()
    finally:
        two.run("echo 0 >/proc/sys/vm/nr_hugepages")
    saw("first, middle and last bytes written, one more is refused")


def test_memory_of_a_file(ends, saw):
    """What comes in to a region of a file is in the file for whoever reads it, and the memory stays when the file is removed."""
    a, b = ends
    node, path, size = b.program.node, "/run/nupa-test-file", 100000
    node.run(f"rm -f {path}; truncate -s {size} {path}")
    try:
        far = b.program.region_of_file(b.pd, path, size, ALL_ACCESS)
        write(a, b, a.region(size, 1), remote(far))
        assert node.run(f"sha256sum <{path}").out.split()[0] == hashlib.sha256(pattern(1, size)).hexdigest()
    finally:
        node.run(f"rm {path}")
    back = a.region(size, 2)
    a.post_send("RDMA_READ", sges=[sge(back)], remote=remote(far))
    a.done("RDMA_READ")
    a.check(back, [[0, 1, 0, size]])
    saw(f"{size} bytes written, read by another program, and by the peer after the file was removed")


def test_memory_lock_limit(settled, rdma, saw):
    """An ordinary user registers as much as the limit allows, rings of queues included, and gets it back."""
    program = rdma.program(settled[0], device=None)
    program.become_user(65534, 1 << 20)
    program.open(DEVICE)
    pd = program.pd()
    small, large = program.buffer(256 << 10), program.buffer(4 << 20)
    assert program.fails("region", pd, large, ALL_ACCESS) == errno.ENOMEM
    for _ in range(20):
        region = program.region(pd, small, ALL_ACCESS)
        program.destroy(region)
    queues = 0
    while queues < 100:
        try:
            program.cq(4096)
        except VerbFailed as failure:
            assert failure.errno == errno.ENOMEM
            break
        queues += 1
    assert queues < 100, "rings of queues do not count"
    saw(f"4 MB refused, 256 KB registered 20 times, {queues} queues of 4096 entries fit into 1 MB")
