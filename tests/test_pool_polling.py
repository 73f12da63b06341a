# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Nodes of a pool that have a thread on a processor of its own, which does nothing but poll."""

import json
import re

import pytest

from modes import POOLS, long, only
from test_nupactl import FAILED, NUPACTL, printed, told
from test_pool_memory import refused
from test_pool_nodes import works
from test_power import SLEEP
from waiting import wait_until

pytestmark = only(*POOLS, why="controllers poll by themselves")


@pytest.fixture
def polled(fabric):
    """Two nodes that poll so; afterwards they poll as others do."""
    nodes = fabric.bare(1, 2)
    try:
        for node in nodes:
            node.run(f"nupa-up poll_cpu={cpu_of(node)}", timeout=60)
        yield fabric.ensure(1, 2)
    finally:
        for node in nodes:
            node.run("nupa-down")


def cpu_of(node):
    """Its last processor."""
    return int(node.run("nproc").out) - 1


def threads(node):
    """The threads that poll: their numbers and where they may run."""
    listed = node.run("ps -e -o pid= -o comm=").out
    return [(int(pid), node.run(f"taskset -pc {pid}").out.rpartition(":")[2].strip(), int(cpu))
            for pid, cpu in re.findall(r"(\d+) nupa-poll/(\d+)", listed)]


def interrupts(node):
    """How often others have interrupted the node."""
    lines = [line.split() for line in node.run("cat /proc/interrupts").out.splitlines() if "nupa" in line]
    assert bool(lines) == (node.fabric == "ivshmem"), "nodes of one kind of pool can be interrupted, and of the other not"
    return sum(int(count) for line in lines for count in line[1:] if count.isdigit())


def test_a_thread_polls(polled, fabric, rdma, saw):
    """It is bound to its processor, all kinds of data move, and nobody interrupts the node; with the driver it goes."""
    for node in polled:
        assert [(bound, cpu) for _, bound, cpu in threads(node)] == [(str(cpu_of(node)), cpu_of(node))]
    before = [interrupts(node) for node in polled]
    works(fabric, rdma, *polled)
    assert [interrupts(node) for node in polled] == before
    rdma.kill_all()
    polled[1].run("nupa-down")
    assert threads(polled[1]) == []
    saw(f"polled on CPU {cpu_of(polled[0])}, no interrupts but {before}")


@long
def test_a_thread_polls_again_after_sleep(polled, fabric, rdma, saw):
    """While the node sleeps there is none; afterwards there is one, and data moves."""
    one, two = polled
    (before, *_), = threads(two)
    slept = two.spawn(SLEEP).wait(90)
    assert slept.code == 0, f"it did not sleep:\n{slept}"
    (after, *where), = threads(two)
    assert after != before and where == [str(cpu_of(two)), cpu_of(two)]
    works(fabric, rdma, one, two)
    saw(f"thread {before} before, {after} after")


@long
def test_a_thread_outlives_its_processor(polled, fabric, rdma, saw):
    """The processor goes offline, the node sleeps meanwhile, and it comes back: data moves whenever the node is awake."""
    one, two = polled
    online = f"/sys/devices/system/cpu/cpu{cpu_of(two)}/online"
    assert cpu_of(two) > 0, "the only processor cannot go"
    two.run(f"echo 0 >{online}")
    try:
        one.await_ping(two.ip)
        slept = two.spawn(SLEEP).wait(90)
        assert slept.code == 0, f"it did not sleep:\n{slept}"
        works(fabric, rdma, one, two)
    finally:
        two.run(f"echo 1 >{online}")
    works(fabric, rdma, one, two)
    saw(f"CPU {cpu_of(two)} was offline")


def test_no_thread_on_a_processor_that_is_not_there(fabric, saw):
    """The driver says so and does not take the pool."""
    one, _ = fabric.bare(1, 2)
    line = refused(one, "poll_cpu=999", "poll_cpu")
    assert threads(one) == []
    fabric.ensure(1, 2)
    saw(line)


# Pings without a pause until it is told to end; fails if one is lost.
PINGS = "rm -f /run/enough; until [ -e /run/enough ]; do ping -q -c 100 -i 0.005 {ip} | grep -q ' 0% packet loss' || exit 1; done"


@long
def test_a_thread_comes_and_goes_while_data_moves(fabric, rdma, saw):
    """`nupactl poll` has a thread poll, on another processor, or none; nothing that is under way is lost, and who looks is told."""
    one, two = fabric.ensure(1, 2)
    last = cpu_of(two)
    pings = one.spawn(PINGS.format(ip=two.ip))
    try:
        with printed(two, "--json events --follow") as lines:
            for _ in range(3):
                for cpu in (0, last):
                    said = two.run(f"{NUPACTL} poll --cpu {cpu}").out
                    assert f"processor {cpu}" in said and [where[1:] for where in threads(two)] == [(str(cpu), cpu)]
                two.run(f"{NUPACTL} poll --off")
                assert threads(two) == []
            two.run(f"{NUPACTL} poll --cpu {last}")

            def told_polling():
                return [event["poll_cpu"] for event in map(json.loads, lines()) if event["event"] == "controller"]

            wait_until("all changes to be told", lambda: len(told_polling()) >= 11)
        assert told_polling() == [None, *[0, last, None] * 3, last]
        assert pings.running()
        one.run("touch /run/enough")
        assert pings.wait(60).code == 0, "a ping was lost"
        assert f"polled on processor {last}" in two.run(f"{NUPACTL} status").out
        works(fabric, rdma, one, two)
        refused_cpus = [two.run(f"{NUPACTL} poll --cpu {cpu}", check=False) for cpu in (999, last + 1)]
        assert all(each.code == FAILED and "offline" in each.err for each in refused_cpus), refused_cpus
        as_user = two.run(f"setpriv --reuid=65534 --clear-groups {NUPACTL} poll --off", check=False)
        assert as_user.code == FAILED and "CAP_NET_ADMIN" in as_user.err, as_user
        assert told(two, "poll")[0]["poll_cpu"] == last
    finally:
        one.run("touch /run/enough")
        two.run(f"{NUPACTL} poll --off")
    works(fabric, rdma, one, two)
    saw("on, moved and off 3 times")


@only("pcie", why="about what controllers answer")
def test_nobody_polls_for_a_controller(settled, saw):
    one, _ = settled
    said = one.run(f"{NUPACTL} poll --cpu 0", check=False)
    assert said.code == FAILED and "is a fabric controller" in said.err, said
    assert told(one, "poll")[0]["poll_cpu"] is None
    saw(said.err.strip())
