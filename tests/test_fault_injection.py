# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Memory that the kernel does not get, and copies from and to programs that fail, at each place once.

What is walked, and how, is in tests/guest/walk.py. At the end of the file kmemleak looks for what was lost meanwhile.
"""

import contextlib
import json
import re

import pytest

import traffic
from modes import debug_kernel, emulator_only, long
from nodes import INTERFACE
from test_cleared import largest_piece
from test_rdma_processes import none_left
from waiting import DEBUG_KERNEL, wait_until

WALK = "python3 -B /nupa/tests/guest/walk.py"
# What the kernel says where it does not get pages that were to be mapped one by one, and kmemleak for itself. Other allocations fail in silence.
NO_PAGES = re.compile(r"vmalloc error|page allocation failure|kmemleak: Cannot allocate")
# What allocates nothing and copies nothing, though others like it do.
NEVER = ("close",)
KINDS = ("pd", "region", "window", "device-memory", "cq", "extended-cq", "srq", "qp", "ud-qp", "address")
WALKS = {
    "contexts": ("open", "close", "end"),
    "making": tuple(f"make-{kind}" for kind in (*KINDS, "large-region", "device-region")),
    "removing": tuple(f"remove-{kind}" for kind in KINDS),
    "changing": ("to-init", "to-rtr", "to-rts", "to-error", "resize", "reregister", "limit", "attach", "detach"),
    "interface": ("net-up", "net-down", "mtu", "rings", "channels", "coalesce", "statistics", "promiscuous", "group", "xdp", "xdp-away"),
}


@pytest.fixture
def walked(pair, fabric):
    """Both nodes; of node 2 it is known that it does not get memory, and all else that its kernel says counts."""
    two = pair[1]
    with two.log.excusing(NO_PAGES):
        yield pair
        trouble = fabric.trouble()
    assert not trouble, trouble


def walk(node, operations, timeout=600):
    """What the walks found, which must have been nothing wrong; one line for each."""
    told = []
    for line in node.run(f"{WALK} {' '.join(operations)}", timeout=timeout).out.splitlines():
        found = json.loads(line)
        assert not found["wrong"], f"{found['operation']}: {found['wrong'][:5]}"
        assert found["points"] or found["operation"] in NEVER, f"{found['operation']}: nothing could fail"
        outcomes = ", ".join(f"{name} {count}" for name, count in sorted(found["outcomes"].items()))
        told.append(f"{found['operation']} {found['points']} ({outcomes})")
    assert len(told) == len(operations), told
    return told


def still_works(pair, rdma, room=None):
    """Nothing is left of the walk, and node 2 moves frames and has as much device memory as before; returns how much."""
    one, two = pair
    none_left(two)
    one.await_ping(two.ip)
    traffic.tcp(one, two.ip, size=1 << 20)
    program = rdma.program(two)
    size = largest_piece(program)[1]
    program.end()
    assert room in (None, size), f"{size} bytes of device memory where {room} were"
    return size


@contextlib.contextmanager
def small_rings(node):
    """Each of a queue's buffers is a point where memory may lack, and one is like the other."""
    before = json.loads(node.run(f"ethtool --json -g {INTERFACE}").out)[0]
    node.run(f"ethtool -G {INTERFACE} rx 64 tx 64")
    yield
    node.run(f"ethtool -G {INTERFACE} rx {before['rx']} tx {before['tx']}")


@debug_kernel
@pytest.mark.parametrize("group", WALKS)
def test_each_failure_once(walked, rdma, saw, group):
    """Each allocation, and each copy, of each operation fails once: an error that fits or none, nothing lost, and the next try works."""
    room = still_works(walked, rdma)
    with small_rings(walked[1]):
        told = walk(walked[1], WALKS[group])
    still_works(walked, rdma, room)
    saw("; ".join(told))


@debug_kernel
@emulator_only
@long
def test_each_failure_of_a_reset(walked, rdma, saw):
    """The controller is reset, and started again, without one allocation after the other."""
    told = walk(walked[1], ["reset"], timeout=1800)
    wait_until("the RDMA device", lambda: walked[1].run("ls /sys/class/infiniband/nupa_rdma0", check=False).code == 0)
    walked[1].up()
    still_works(walked, rdma)
    saw("; ".join(told))


@debug_kernel
@long
@pytest.mark.parametrize("operation", ["bind", "unbind"])
def test_each_failure_of_a_driver(walked, rdma, saw, operation):
    """The driver is bound, and the two above with it, without one allocation after the other; and unbound, which does not fail."""
    told = walk(walked[1], [operation], timeout=3600)
    walked[1].up()
    still_works(walked, rdma)
    saw("; ".join(told))


@long
@pytest.mark.skipif(DEBUG_KERNEL, reason="where things can fail, they do")
def test_walks_without_a_fault(pair, rdma, saw):
    """What is walked works by itself, on any kernel: the debug kernel is not started each day."""
    one, two = pair
    reset = ["reset"] if two.fabric == "pcie" else []
    operations = [operation for group in WALKS.values() for operation in group] + reset + ["bind", "unbind"]
    lines = two.run(f"{WALK} --plain {' '.join(operations)}", timeout=120).out.splitlines()
    wrong = {found["operation"]: found["wrong"] for found in map(json.loads, lines) if found["wrong"]}
    assert not wrong and len(lines) == len(operations), wrong or lines[-1]
    two.up()
    still_works(pair, rdma)
    saw(f"{len(operations)} operations")


SHORT = """for kind in failslab fail_page_alloc; do
    cd /sys/kernel/debug/$kind || exit
    echo 0 >probability; echo 0 >verbose; echo N >ignore-gfp-wait; echo -1 >times; echo 32 >stacktrace-depth
    echo START >require-start; echo END >require-end; echo PERCENT >probability
done
echo 0 >/sys/kernel/debug/fail_page_alloc/min-order; echo N >/sys/kernel/debug/fail_page_alloc/ignore-gfp-highmem"""


def let_fail(node, percent):
    """Has so many of a hundred allocations of our modules fail, of those with their functions on the stack."""
    modules = [line.split() for line in node.run("grep ^nupa_ /proc/modules").out.splitlines()]
    start = min(int(fields[5], 16) for fields in modules)
    end = max(int(fields[5], 16) + int(fields[1]) for fields in modules)
    node.run(SHORT.replace("START", hex(start)).replace("END", hex(end)).replace("PERCENT", str(percent)))


@debug_kernel
def test_traffic_without_memory(walked, saw):
    """A tenth of the allocations of node 2's modules fail while verified bytes come and go: slower, but none is wrong or missing."""
    one, two = walked
    let_fail(two, 10)
    try:
        traffic.tcp(one, two.ip, size=4 << 20, timeout=180)
    finally:
        let_fail(two, 0)
    dropped = two.link()["stats64"]["rx"]["dropped"]
    traffic.tcp(one, two.ip, size=4 << 20)
    saw(f"4 MiB each way, {dropped} frames dropped")
