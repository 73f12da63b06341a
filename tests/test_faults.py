# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Links that fail, nodes that die, controllers that lie - and the way back."""

import contextlib
import os
import pathlib
import re
import signal
import time

import pytest

import traffic
from modes import emulator_only, long
from nodes import INTERFACE
from waiting import PATIENCE, wait_until

# Nodes of a pool that die are in test_pool_nodes.
pytestmark = emulator_only


def test_link_down_stops_the_carrier(pair, fabric, saw):
    one, two = pair
    fabric.switch.link(2, up=False)
    wait_until("node 2 to lose its carrier", lambda: not two.carrier())
    assert one.carrier(), "node 1 lost its carrier though its own link is up"
    assert two.link()["operstate"] == "DOWN"
    assert one.pings(two.ip, 2, deadline=2) == 0
    fabric.switch.link(2, up=True)
    wait_until("node 2 to get its carrier back", two.carrier)
    took = one.await_ping(two.ip)
    saw(f"carrier off and on; first answer {took:.1f} s after it")


def test_link_flaps_under_traffic(pair, fabric, saw):
    """TCP connections outlive short outages, and no byte is wrong or missing."""
    one, two = pair
    load = traffic.start(one, two.ip, 8, timeout=30)
    for number in (1, 2, 1, 2):
        fabric.switch.link(number, up=False)
        wait_until("the carrier to go", lambda n=number: not fabric.nodes[n].carrier())
        fabric.switch.link(number, up=True)
        wait_until("the carrier to return", lambda n=number: fabric.nodes[n].carrier())
    report = traffic.survived(load, timeout=90)
    saw(f"four outages under {report['sent'] + report['received']} verified bytes")


def test_node_killed_under_traffic(pair, fabric, saw):
    one, two = pair
    mark = one.log.position()
    # A neighbour counts as reachable for up to 45 s by default; the same steps in a few seconds.
    neighbours = f"net.ipv4.neigh.{INTERFACE}"
    one.run(f"sysctl -q {neighbours}.base_reachable_time_ms=1000 {neighbours}.delay_first_probe_time=1; "
            f"ip neigh flush dev {INTERFACE}")
    load = traffic.start(one, two.ip, 60, timeout=4)
    two.kill()
    traffic.interrupted(load)
    assert one.carrier(), "node 1 lost its carrier with node 2"
    assert one.pings(two.ip, 2, deadline=2) == 0

    def given_up():
        """Whether the address is no longer known; each further ping asks for it anew."""
        state = one.run(f"ping -n -c 1 -w 1 {two.ip} >/dev/null; ip neigh show {two.ip} dev {INTERFACE}").out
        return re.search("FAILED|INCOMPLETE", state)

    wait_until("the neighbour to be given up", given_up, 45)
    one.run(f"sysctl -q {neighbours}.base_reachable_time_ms=30000 {neighbours}.delay_first_probe_time=5")
    fabric.ensure(2)
    took = one.await_ping(two.ip)
    traffic.tcp(one, two.ip, size=4 << 20)
    traffic.tcp(two, one.ip, size=4 << 20)
    said = [line for line in one.log.since(mark).splitlines() if "nupa" in line]
    saw(f"node 1 went on; {took:.1f} s to the first answer of the restarted node; {len(said)} lines in its log")


@long
def test_node_killed_while_it_sends(pair, fabric, saw):
    one, two = pair
    load = traffic.start(two, one.ip, 60, timeout=4)
    two.kill()
    load.abandon()
    assert one.carrier()
    fabric.ensure(2)
    one.await_ping(two.ip)
    traffic.tcp(one, two.ip, size=4 << 20)
    saw("rejoined without anything done on the other side")


# Seconds that setting an interface down and up takes at least with a controller that is late by a fifth of a second.
LATE = 1
# What the network core says of a queue that does not move.
WATCHDOG = re.compile("NETDEV WATCHDOG|transmit queue")
# What the driver must say in each case (any of the words), so that a person knows what to do.
FAULTS = {
    "version": ("version",),
    "magic": ("magic", "not a NUPA", "no NUPA"),
    "mute": ("time", "answer", "respond"),
    "hang": ("time", "ready", "answer"),
    "garbage": ("admin", "invalid", "unexpected", "garbage", "status"),
    "badstatus": ("status", "admin", "failed"),
    "allones": ("all ones", "removed", "gone", "magic", "no longer", "ffffffff"),
}


# A register that is wrong, a controller that does not get ready, and one that is gone; `make test-long` has wrong and missing answers, too.
@pytest.mark.parametrize("fault", [fault if fault in ("magic", "hang", "allones") else pytest.param(fault, marks=long) for fault in FAULTS])
def test_controller_fault_at_load(pair, fabric, saw, fault):
    """A controller that lies or is silent: a clear message, no device, a clean unload; then a good one works."""
    one, two = pair
    two.run("nupa-down")
    fabric.switch.fault(2, fault)
    mark = two.log.position()
    start = time.monotonic()
    two.run("insmod /nupa/build/modules/nupa_fabric.ko; insmod /nupa/build/modules/nupa_net.ko", timeout=60,
            check=False)

    def message():
        lines = [line for line in two.log.since(mark).splitlines() if "nupa_fabric" in line]
        return next((line for line in lines if any(word.lower() in line.lower() for word in FAULTS[fault])), None)

    said = wait_until(f"a message about '{fault}'", message, timeout=30)
    took = time.monotonic() - start
    assert two.run(f"ls -d /sys/class/net/{INTERFACE}", check=False).code != 0, "an interface in spite of the fault"
    two.run("nupa-down", timeout=30)
    fabric.switch.fault(2, "none")
    two.up()
    one.await_ping(two.ip)
    saw(f"{took:.1f} s: {said.split('] ')[-1].strip()}")


@pytest.mark.parametrize("fault", [pytest.param("mute", marks=long), "allones", "garbage", "cqe"])
def test_controller_fault_under_traffic(pair, fabric, saw, fault):
    """The controller fails while it works: the modules still unload, and nothing hangs."""
    one, two = pair
    load = traffic.start(one, two.ip, 60, timeout=4)
    fabric.switch.fault(2, fault)
    start = time.monotonic()
    two.run("nupa-down", timeout=60)
    took = time.monotonic() - start
    fabric.switch.fault(2, "none")
    traffic.interrupted(load)
    two.up()
    one.await_ping(two.ip)
    traffic.tcp(one, two.ip, size=1 << 20)
    saw(f"unloaded in {took:.1f} s, works again after a new load")


def test_controller_is_late(pair, fabric, saw):
    """Each admin command takes a fifth of a second: what needs many takes its time, and everything works."""
    one, two = pair
    times = []
    for fault in ("none", "delay"):
        fabric.switch.fault(2, fault)
        start = time.monotonic()
        two.run(f"ip link set {INTERFACE} down; ip link set {INTERFACE} up", timeout=60)
        one.await_ping(two.ip)
        times.append(time.monotonic() - start)
    traffic.tcp(one, two.ip, size=1 << 20)
    fabric.switch.fault(2, "none")
    assert times[1] > LATE, times
    saw(f"down, up and the first answer in {times[1]:.1f} s, where it takes {times[0]:.1f} s otherwise")


def test_queues_that_stall(pair, fabric, saw):
    """The controller does not look at what node 2 posts: the kernel says so, nothing is lost but time."""
    one, two = pair
    # So that a frame that is not sent stops its queue: the network core looks at queues that are stopped.
    limits = f"/sys/class/net/{INTERFACE}/queues/tx-*/byte_queue_limits/limit_max"
    (before,) = set(two.run(f"cat {limits}").out.split())
    two.run(f"for limit in {limits}; do echo 1000 >$limit; done")
    # A slow kernel takes longer for one of these commands than it sends.
    load = traffic.start(two, one.ip, 4, timeout=60 * PATIENCE)
    with two.log.excusing(WATCHDOG):
        mark = two.log.position()
        fabric.switch.fault(2, "stall")
        start = time.monotonic()
        try:
            said = wait_until("the driver to say that a queue is stuck", lambda: re.search(r"queue \d+ is stuck.*", two.log.since(mark)), 30)
            assert one.pings(two.ip, 1, deadline=1) == 0
        finally:
            fabric.switch.fault(2, "none")
            two.run(f"for limit in {limits}; do echo {before} >$limit; done")
        took = time.monotonic() - start
        traffic.survived(load, timeout=90)
        trouble = fabric.trouble()
    assert not trouble, trouble
    traffic.tcp(one, two.ip, size=1 << 20)
    saw(f"{said[0]} ({took:.0f} s); TCP went on afterwards")


def test_controller_dies_under_traffic(pair, fabric, saw):
    """It stops by itself: the driver says why, resets it, and what is under way goes on."""
    one, two = pair
    load = traffic.start(one, two.ip, 8, timeout=60 * PATIENCE)
    mark = two.log.position()
    fabric.switch.fault(2, "die")
    said = wait_until("the driver to say why", lambda: re.search(r"controller stopped: .*", two.log.since(mark)), 30)
    wait_until("the controller to work again", lambda: "controller works again" in two.log.since(mark), 30)
    traffic.survived(load, timeout=90)
    saw(f"{said[0]}; reset, and TCP went on")


def test_interface_that_cannot_recover(pair, fabric, saw):
    """After a reset the controller refuses what the interface needs: it is down, and not up with nothing behind it."""
    one, two = pair
    fabric.switch.fault(2, "filter")
    mark = two.log.position()
    two.run(f"echo 1 >{two.device_directory()}/reset", timeout=20)
    wait_until("the reason", lambda: "cannot recover" in two.log.since(mark), timeout=30)
    flags = two.run(f"ip -o link show {INTERFACE}").out
    assert "UP" not in flags.partition("<")[2].partition(">")[0].split(","), flags
    assert two.run(f"ip link set {INTERFACE} up", check=False).code != 0, "set up in spite of the fault"
    fabric.switch.fault(2, "none")
    two.run(f"ip link set {INTERFACE} up")
    one.await_ping(two.ip)
    saw("down until it can be set up again")


@contextlib.contextmanager
def standing_still(nodes):
    """Nodes whose QEMUs do nothing meanwhile."""
    states = [pathlib.Path(f"/proc/{node.pid}/task") for node in nodes]
    for node in nodes:
        os.kill(node.pid, signal.SIGSTOP)
    try:
        wait_until("all threads of QEMU to stand still", lambda: all(
            path.read_text().rpartition(") ")[2].startswith("T") for state in states for path in state.glob("*/stat")))
        yield
    finally:
        for node in nodes:
            os.kill(node.pid, signal.SIGCONT)


@long
def test_switch_stands_still(pair, fabric, saw):
    """For longer than QEMU would wait by itself: what was under way goes on."""
    one, two = pair
    load = traffic.start(one, two.ip, 15, timeout=30)
    time.sleep(2)
    pid = fabric.switch.process.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(8)
    finally:
        os.kill(pid, signal.SIGCONT)
    found = traffic.survived(load)
    one.await_ping(two.ip)
    saw(f"{found['sent']} verified bytes with a pause of 8 s")


@long
def test_switch_killed(pair, fabric, saw):
    """The device is gone for good (all ones): it is said in the log, unload is clean, nothing hangs.

    QEMU 11.1 aborts (an assertion in error_setv) if its server dies with a request unread. So they ask nothing while it is killed.
    """
    one, two = pair
    load = one.spawn(f"ping -n -q -i 0.2 -w 15 {two.ip}")
    marks = {node: node.log.position() for node in pair}
    with standing_still(pair):
        # It has one thread: what was there before the first question is read before the second one is.
        for _ in range(2):
            fabric.switch.control("stats")
        fabric.switch.kill()
    load.wait(40)
    said = []
    for node in pair:
        node.run(f"ip -s link show {INTERFACE}; ethtool -S {INTERFACE}", check=False)
        assert not node.carrier(), "carrier without a switch"
        node.run("nupa-down", timeout=60)
        assert node.run("lsmod").out.count("nupa") == 0
        said += [line for line in node.log.since(marks[node]).splitlines() if "nupa_fabric" in line]
    assert said, "the log does not mention that the device is gone"
    saw(said[0].split("] ")[-1].strip())


def test_switch_ends_when_told(pair, fabric, saw):
    """SIGTERM ends the switch with status 0, with nodes connected."""
    assert fabric.switch.stop() == 0
    for node in pair:
        node.run("nupa-down", timeout=60)
        assert node.run("lsmod").out.count("nupa") == 0
    saw("exit 0; both nodes unloaded their modules")
