# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Programs beside each other: isolated while they run, nothing left when they end, however they end."""

import errno

import pytest

from modes import only
from verbs import ALL_ACCESS, DEVICE, Side, connect, remote, sge
from waiting import wait_until

KINDS = ("pd", "cq", "qp", "mr", "srq", "ctx")


def resources(node):
    """What programs have of the device: {kind: count}; the kernel's own is not counted."""
    found = {}
    for kind in KINDS:
        found[kind] = len(of_programs(node, kind))
    return found


def of_programs(node, kind):
    return [entry for entry in node.run(f"rdma -j resource show {kind}").json()
            if entry["ifname"] == DEVICE and "pid" in entry]


def none_left(node):
    wait_until(f"{node.name} to have no resources of programs left", lambda: not any(resources(node).values()), 10)


def test_resources_are_shown(settled, rdma, saw):
    """`rdma resource` has each object, with the process that it belongs to."""
    a, _ = rdma.rc(*settled, shared=16)
    a.region(1000, 1)
    found = resources(settled[0])
    assert all(found[kind] == 1 for kind in KINDS), found
    (queue,) = of_programs(settled[0], "qp")
    assert queue["lqpn"] == a.qp.qpn and queue["state"] == "RTS" and queue["type"] == "RC", queue
    assert "python3" in queue["comm"]
    saw(", ".join(f"{kind} {count}" for kind, count in found.items()))


@pytest.mark.parametrize("ending", ["closes", "exits", "is killed", "is killed under load"])
def test_nothing_is_left(settled, rdma, saw, ending):
    """Queue pairs, regions, windows, device memory, channels: all gone with the program."""
    one, two = settled
    none_left(one)
    a, b = rdma.rc(one, two, events=True, shared=64)
    local, far = a.region(1 << 20, 1), b.region(1 << 20, 2)
    a.program.window(a.pd)
    a.program.device_region(a.pd, a.program.device_memory(4096), 4096, ALL_ACCESS)
    a.program.address(a.pd, b.program.gid()[1], a.program.gid()[0])
    a.program.arm(a.cq)
    assert resources(one)["mr"] == 2
    if ending == "is killed under load":
        a.program.begin("write_endlessly", a.qp, a.cq, sge(local), remote(far))
        wait_until("the load", lambda: b.program.check(far.buffer) is not None)
    if ending == "exits":
        a.program.exit()
    else:
        a.program.end(kill="killed" in ending)
    none_left(one)
    b.post_send("RDMA_WRITE", sges=[sge(far)], remote=remote(local))
    b.failed("RETRY_EXC_ERR")
    saw("rdma resource shows none; the peer's next request fails")


def test_keys_of_other_programs(settled, rdma, saw):
    """Keys of another program on the same node open nothing, locally or from afar."""
    one, two = settled
    a, b = rdma.rc(one, two)
    stranger = Side(rdma.program(two))
    victim = stranger.region(1000, 7)
    local = a.region(1000, 1)
    a.post_send("RDMA_WRITE", sges=[sge(local)], remote=remote(victim))
    a.failed("REM_ACCESS_ERR")
    stranger.check(victim)
    a, b = rdma.rc(one, two)
    local = a.region(1000, 1)
    b.post_send("RDMA_WRITE", sges=[sge(victim)], remote=remote(local))
    b.failed("LOC_PROT_ERR")
    a.check(local)
    saw("remote and local protection errors, both buffers untouched")


def test_queue_pairs_of_other_programs(settled, rdma, saw):
    """A queue pair that is connected to another one takes nothing from a stranger who names it."""
    one, two = settled
    a, b = rdma.rc(one, two)
    stranger = Side(rdma.program(one))
    far, own = b.region(1000, 2), stranger.region(1000, 3)
    (index, _), (_, gid) = stranger.program.gid(), b.program.gid()
    stranger.program.to_init(stranger.qp)
    stranger.program.to_rtr(stranger.qp, b.qp.qpn, gid, index)
    stranger.program.to_rts(stranger.qp)
    stranger.post_send("RDMA_WRITE", sges=[sge(own)], remote=remote(far))
    stranger.failed("RETRY_EXC_ERR")
    b.check(far)
    local = a.region(1000, 4)
    a.post_send("RDMA_WRITE", sges=[sge(local)], remote=remote(far))
    a.done("RDMA_WRITE")
    saw("the stranger fails, the connection goes on")


@only("pcie", why="about nupa_rdma alone, which is the same above whatever is below")
def test_mappings(settled, rdma, saw):
    """A context maps its own doorbell pages; other offsets of its file are refused (those of other processes in test_rdma_limits)."""
    side = Side(rdma.program(settled[0]))
    before = side.program.mappings()
    assert before, "no doorbell page is mapped"
    wrong = [side.program.fails("map", offset) for offset in (0x7FFF000, 1 << 33, (1 << 44) - 4096)]
    assert set(wrong) <= {errno.EINVAL, errno.ENODEV, errno.EPERM}, wrong
    assert side.program.fails("map", 0, pages=4096) in (errno.EINVAL, errno.EACCES)
    saw(f"{len(before)} mappings of its own, others refused")


def test_fork(settled, rdma, saw):
    """A program that forks while it has regions and queues goes on, and its child's end takes nothing away."""
    a, b = rdma.rc(*settled)
    local, far = a.region(10000, 1), b.region(10000, 2)
    a.program.fork_and_wait()
    a.program.fill(local.buffer, 5)
    a.post_send("RDMA_WRITE", sges=[sge(local)], remote=remote(far))
    a.done("RDMA_WRITE")
    b.check(far, [[0, 5, 0, 10000]])
    saw("works after a child came and went")


def test_fork_with_a_child_that_stays(settled, rdma, saw):
    """What a program writes after a fork, and what its peer writes, goes to the same memory, which is not the child's."""
    a, b = rdma.rc(*settled)
    local, far = a.region(10000, 1), b.region(10000, 2)
    b.program.fork_and_go_on()
    b.program.fill(far.buffer, 5)
    a.post_send("RDMA_WRITE", sges=[sge(local, 0, 6000)], remote=remote(far))
    a.done("RDMA_WRITE")
    b.check(far, [[0, 1, 0, 6000]])
    b.program.end_child()
    a.post_send("RDMA_WRITE", sges=[sge(local)], remote=remote(far))
    a.done("RDMA_WRITE")
    b.check(far, [[0, 1, 0, 10000]])
    saw("both see each other's bytes while the child is there, and afterwards")


def test_several_programs_at_once(settled, rdma, saw):
    """Pairs of programs write at the same time, each into its peer's memory only."""
    pairs = [rdma.rc(*settled) for _ in range(4)]
    regions = [(a.region(300000, 10 + n), b.region(300000, 20 + n)) for n, (a, b) in enumerate(pairs)]
    for (a, _), (local, far) in zip(pairs, regions):
        a.program.begin("write_often", a.qp, a.cq, sge(local), remote(far), 50)
    for (a, _) in pairs:
        a.program.result(60)
    for n, ((_, b), (_, far)) in enumerate(zip(pairs, regions)):
        b.check(far, [[0, 10 + n, 0, 300000]])
    saw("4 pairs, 200 writes")


def test_reconnect(settled, rdma, saw):
    """A queue pair that failed is reset and connected again, twenty times."""
    a, b = rdma.rc(*settled)
    local, far = a.region(100, 1), b.region(100, 2)
    for _ in range(20):
        a.post_send("RDMA_WRITE", sges=[sge(local)], remote=[far.address, far.rkey ^ 0x7700])
        a.failed("REM_ACCESS_ERR")
        assert b.program.async_event(5) == "QP_ACCESS_ERR"
        for side in (a, b):
            side.program.to_state(side.qp, "RESET")
        connect(a, b)
        a.post_send("RDMA_WRITE", sges=[sge(local)], remote=remote(far))
        a.done("RDMA_WRITE")
    b.check(far, [[0, 1, 0, 100]])
    saw("20 failures and reconnections")
