# SPDX-License-Identifier: GPL-2.0 OR MIT
"""The device goes while programs use it: they get errors, nobody hangs, and it comes back."""

import time

import pytest

import memory
from modes import EVERYTHING, emulator_only, long, only
from nodes import INTERFACE
from test_rdma_processes import none_left
from verbs import DEVICE, VerbFailed, remote, sge
from waiting import PATIENCE, many, wait_until

MODULE = "/nupa/build/modules/nupa_rdma.ko"

pytestmark = pytest.mark.skipif(DEVICE.startswith("rxe"), reason="about nupa_rdma0")
# In a pool a peer is dead after two seconds without a heartbeat; test_pool_nodes is about that.
in_a_second = only("pcie", why="the switch tells of a node's end at once")
above = only("pcie", why="about nupa_rdma alone, which is the same above whatever is below")


def there(node):
    return node.run(f"ls -d /sys/class/infiniband/{DEVICE}", check=False).code == 0


def await_device(node):
    wait_until(f"{DEVICE} on {node.name}", lambda: there(node), 15)


def works(rdma, one, two):
    """A write over a new connection, by new programs."""
    for node in (one, two):
        await_device(node)
    wait_until("a GID on both", lambda: all(rdma.program(node).gid() for node in (one, two)), 10)
    a, b = rdma.rc(one, two)
    local, far = a.region(100000, 1), b.region(100000, 2)
    a.post_send("RDMA_WRITE", sges=[sge(local)], remote=remote(far))
    a.done("RDMA_WRITE")
    b.check(far, [[0, 1, 0, 100000]])


def loaded(rdma, one, two):
    """Two sides, of which the first writes to the second until that fails."""
    a, b = rdma.rc(one, two, events=True)
    local, far = a.region(100000, 1), b.region(100000, 2)
    a.program.begin("write_endlessly", a.qp, a.cq, sge(local), remote(far))
    wait_until("the load", lambda: b.program.check(far.buffer) is not None)
    return a, b


def await_fatal(program):
    """Waits until a program is told of the loss; that its port or peers went may be told before."""
    events = []
    while "DEVICE_FATAL" not in events:
        events.append(program.async_event(10))
        assert events[-1], f"no fatal event, only {events}"


def learn_of_loss(side):
    """A program whose device went: it is told, every verb fails, and it can end."""
    await_fatal(side.program)
    for verb in (("pd",), ("cq",), ("device",)):
        assert side.program.fails(*verb) is not None
    side.program.end()


@only("pcie", why="nupa_rdma alone comes and goes the same way above whatever is below")
def test_loads_and_unloads(pair, rdma, saw):
    one, two = pair
    works(rdma, one, two)
    rdma.kill_all()
    two.run(f"cp {MODULE} /run/nupa_rdma.ko")
    count = 25 if EVERYTHING else 5
    cycle = f"for i in $(seq {count}); do rmmod nupa_rdma && insmod /run/nupa_rdma.ko || exit 1; done"
    two.run(cycle, timeout=120)
    # What cycles lose they lose each time; what the kernel keeps for later, it takes once.
    left = [memory.available(two)]
    for _ in range(3):
        two.run(cycle, timeout=120)
        left.append(memory.available(two))
    works(rdma, one, two)
    lost = [before - after for before, after in zip(left, left[1:])]
    assert min(lost) < 20 * count, f"{lost} KB less memory after {count} cycles each"
    saw(f"{4 * count} cycles; the last {3 * count} cost {lost} KB")


def writer_ends(a, lost):
    """What a writer sees at the end: its peer's loss as a completion, its own device's also as an event or errno."""
    try:
        status = a.program.result(20)["status"]
    except VerbFailed as failure:
        assert lost and failure.errno
        return f"errno {failure.errno}"
    # The target's region may go before its queue pair does.
    assert status in ("RETRY_EXC_ERR", "WR_FLUSH_ERR", "REM_ACCESS_ERR") or lost and status == "DEVICE_FATAL", status
    return status


REMOVED = only("pcie", why="test_lifecycle removes an ivshmem device")
RESET = only("pcie", why="only the controller is a function that can be reset")


@pytest.mark.parametrize("how, side", [
    ("rmmod", "writer's"), pytest.param("rmmod", "target's", marks=long), pytest.param("unbind", "writer's", marks=long), ("unbind", "target's"),
    pytest.param("remove", "writer's", marks=REMOVED), pytest.param("remove", "target's", marks=[REMOVED, long]),
    pytest.param("reset", "writer's", marks=[RESET, long]), pytest.param("reset", "target's", marks=RESET)])
def test_device_goes_under_load(pair, rdma, saw, how, side):
    """Module unloaded, driver unbound, function removed, function reset: on either side."""
    one, two = pair
    a, b = loaded(rdma, one, two)
    node, lost = (one, a) if side == "writer's" else (two, b)
    device, directory, driver = node.device(), node.device_directory(), node.driver_directory()
    away, back = {"rmmod": ("rmmod nupa_rdma", f"insmod {MODULE}"),
                  "unbind": (f"echo {device} >{driver}/unbind", f"echo {device} >{driver}/bind && nupa-up"),
                  "remove": (f"echo 1 >{directory}/remove", "echo 1 >/sys/bus/pci/rescan && nupa-up"),
                  "reset": (f"echo 1 >{directory}/reset", "nupa-up")}[how]
    node.run(away, timeout=30)
    try:
        said = writer_ends(a, lost is a)
        if lost is a:
            a.program.end()
        else:
            learn_of_loss(b)
    finally:
        node.run(back, timeout=60)
    one.await_ping(two.ip)
    works(rdma, one, two)
    saw(f"the writer saw {said}; works again")


@emulator_only
def test_lost_controller_flushes_for_those_who_poll(pair, fabric, rdma, saw):
    """The controller is gone without a word (all ones): polling alone gives back all work, once and in order."""
    one, two = pair
    a, _ = rdma.rc(one, two, rts={"rnr_retry": 7})
    local = a.region(100, 1)
    a.post_recv([sge(local)], wr_id=100, count=8)
    a.post_send("SEND", sges=[sge(local)], count=16)
    a.quiet(0.5)
    try:
        start = time.monotonic()
        fabric.switch.fault(1, "allones")
        found = a.poll(24, timeout=10)
        took = time.monotonic() - start
        assert [wc["wr_id"] for wc in found] == [*range(16), *range(100, 108)]
        assert {wc["status"] for wc in found} == {"WR_FLUSH_ERR"}
        a.quiet()
        a.post_send("SEND", sges=[sge(local)], wr_id=200)
        assert a.failed("WR_FLUSH_ERR")["wr_id"] == 200
        a.program.end()
    finally:
        one.run("nupa-down", timeout=60)
        fabric.switch.fault(1, "none")
        one.up()
    one.await_ping(two.ip)
    works(rdma, one, two)
    saw(f"24 flushed {took:.1f} s after the loss; works again")


def test_idle_programs_learn_of_the_loss(pair, rdma, saw):
    """Programs that wait for events when the module goes are woken, and end."""
    one, two = pair
    a, b = rdma.rc(one, two, events=True)
    a.program.arm(a.cq)
    a.program.begin("async_event", 20)
    start = time.monotonic()
    one.run("rmmod nupa_rdma", timeout=20)
    assert a.program.result(20) == "DEVICE_FATAL"
    took = time.monotonic() - start
    a.program.end()
    one.run(f"insmod {MODULE}")
    works(rdma, one, two)
    saw(f"woken {took:.1f} s after rmmod began")


@emulator_only
@pytest.mark.parametrize("number", [1, 2])
def test_link_down_under_load(pair, fabric, rdma, saw, number):
    """The link of either side goes: work is flushed, the port says DOWN, and is ACTIVE again afterwards."""
    one, two = pair
    a, _ = loaded(rdma, one, two)
    fabric.switch.link(number, up=False)
    result = a.program.result(20)
    assert result["status"] in ("RETRY_EXC_ERR", "WR_FLUSH_ERR") and result["flushed"] == 15, result

    def state():
        return fabric.nodes[number].run(f"rdma -j link show {DEVICE}/1").json()[0]["state"]

    wait_until("the port to be down", lambda: state() == "DOWN")
    fabric.switch.link(number, up=True)
    wait_until("the port to be active", lambda: state() == "ACTIVE")
    one.await_ping(two.ip)
    works(rdma, one, two)
    saw(f"{result['status']}, 15 flushed; works again")


@in_a_second
@pytest.mark.alone
def test_peer_program_dies_under_load(pair, rdma, saw):
    """All work of the survivor is flushed within a second."""
    one, two = pair
    a, b = loaded(rdma, one, two)
    start = time.monotonic()
    b.program.end(kill=True)
    said = flushed_in_time(a, start)
    works(rdma, one, two)
    saw(said)


def flushed_in_time(a, start):
    """What the writer of `loaded` says of the loss of its peer, which was at `start`."""
    result = a.program.result(10)
    took = time.monotonic() - start
    assert result["status"] in ("RETRY_EXC_ERR", "WR_FLUSH_ERR", "REM_ACCESS_ERR") and result["flushed"] == 15, result
    assert took < 1 and result["seconds"] < 1, f"flushed {took:.2f} s after the end"
    assert a.state() == "ERR"
    return f"{result['status']} and 15 flushed, {took:.2f} s after the end"


@in_a_second
@pytest.mark.alone
def test_peer_node_dies_under_load(pair, fabric, rdma, saw):
    """All work of the survivor is flushed within a second; so are messages that wait for buffers without end."""
    one, two = pair
    waiting, _ = rdma.rc(one, two, rts={"rnr_retry": 7})
    waiting.post_send("SEND", sges=[sge(waiting.region(100, 1))], count=32)
    a, _ = loaded(rdma, one, two)
    waiting.quiet(0.5)
    start = time.monotonic()
    two.kill()
    said = flushed_in_time(a, start)
    found = waiting.poll(32, timeout=5)
    took = time.monotonic() - start
    assert found[0]["status"] in ("RETRY_EXC_ERR", "WR_FLUSH_ERR"), found[0]
    assert {wc["status"] for wc in found[1:]} == {"WR_FLUSH_ERR"}, found[1:3]
    assert took < 1, f"waiting work was flushed {took:.2f} s after the node's end"
    fabric.ensure(2)
    works(rdma, one, two)
    saw(f"{said}; 32 that waited, {took:.2f} s after it")


def test_netdevice_goes(pair, rdma, saw):
    """nupa_net unloaded and loaded: the RDMA device stays without GIDs meanwhile, or comes back with it."""
    one, two = pair
    two.run("rmmod nupa_net", timeout=30)
    two.up()
    one.await_ping(two.ip)
    works(rdma, one, two)
    saw("works again after nupanet0 came back")


@above
def test_exclusive_namespaces(pair, rdma, saw):
    """In exclusive mode the device moves into a namespace with its netdevice, works there, and comes back."""
    one, two = pair
    two.run("rdma system set netns exclusive")
    try:
        a, _ = rdma.rc(two, two)
        two.run(f"ip netns add blue && ip link set {INTERFACE} netns blue && rdma dev set {DEVICE} netns blue && "
                f"ip -n blue link set {INTERFACE} up && ip -n blue address add {two.ip}/24 dev {INTERFACE}")
        await_fatal(a.program)
        a.program.end(kill=True)
        outsider = rdma.program(two, device=None)
        assert outsider.fails("open", DEVICE) is not None
        one.await_ping(two.ip)
        two.run(f"ip netns exec blue ibv_devinfo -d {DEVICE} | grep PORT_ACTIVE")
        two.run(f"ip netns exec blue rping -s -a {two.ip} -V -C 10 >/run/rping.log 2>&1 </dev/null & "
                "for i in $(seq 50); do ip netns exec blue rdma -j res show cm_id | grep -q LISTEN && exit 0; sleep 0.1; done; exit 1")
        one.run(f"timeout {30 * PATIENCE} rping -c -a {two.ip} -V -C 10", timeout=40)
    finally:
        rdma.kill_all()
        two.run("ip netns pids blue | xargs -r kill -9; ip netns del blue", check=False)
        await_device(two)
        wait_until(INTERFACE, lambda: two.run(f"ls -d /sys/class/net/{INTERFACE}", check=False).code == 0)
        two.run("rdma system set netns shared", check=False)
        two.up()
    works(rdma, one, two)
    saw("moved, used, rping over it, moved back")


@above
@long
def test_hundred_programs_in_a_row(pair, rdma, saw):
    """Contexts come and go; what they used is free again."""
    one, two = pair
    for _ in range(many(50)):
        a, b = rdma.rc(one, two)
        local, far = a.region(1000, 1), b.region(1000, 2)
        a.post_send("RDMA_WRITE", sges=[sge(local)], remote=remote(far))
        a.done("RDMA_WRITE")
        for side in (a, b):
            side.program.end()
    for node in pair:
        none_left(node)
    saw(f"{2 * many(50)} programs, {many(50)} connections, nothing left")
