# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Nodes that sleep and wake up, and nodes that go down: nothing of theirs moves afterwards, and the others know at once."""

import errno
import re

import pytest

import traffic
from modes import POOLS, long, long_but_on, only
from nodes import INTERFACE
from test_pool_sharing import PAGE, Sharer
from test_rdma_lifecycle import learn_of_loss, loaded, works, writer_ends
from verbs import DEVICE, build_share_library
from waiting import PATIENCE, wait_until

pytestmark = pytest.mark.skipif(DEVICE.startswith("rxe"), reason="about nupa_fabric")


# Virtio's transport of 9p does not outlive sleep: who uses the checkout's mount afterwards hangs. So it goes before and comes back.
SLEEP = f"""
cd /; driver=/sys/bus/virtio/drivers/9pnet_virtio; device=$(basename $driver/virtio*)
mountpoint -q /nupa/build/modules && umount /nupa/build/modules
umount /nupa && echo $device >$driver/unbind || exit 1
echo {4 * PATIENCE} >/sys/module/suspend/parameters/pm_test_delay; echo devices >/sys/power/pm_test
echo freeze >/sys/power/state; code=$?; echo none >/sys/power/pm_test
echo $device >$driver/bind && mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=524288,cache=readahead nupa /nupa || exit 1
case $(uname -r) in *-debug) mount --bind /nupa/build/modules-debug /nupa/build/modules ;; esac
exit $code
"""


def nodes_up(node):
    """What a node says of the nodes that are up: a line each, with number, identity and epoch."""
    return node.run("cat /sys/kernel/debug/nupa_fabric-*/peers").out.splitlines()[1:]


def number_of(node):
    """A node's number in the fabric."""
    own, = [line for line in nodes_up(node) if "this node" in line]
    return own.split()[0]


def entry_of(node, number):
    """The line that a node has of another one; none if that is not up. Others may be up beside it."""
    return [line for line in nodes_up(node) if line.split()[0] == number]


def await_left(node, number, mark):
    """Waits until another node has left, by what it did itself and not because nothing is heard of it."""
    wait_until(f"node {number} to have left", lambda: not entry_of(node, number), 10, interval=0.02)
    said = node.log.since(mark)
    if node.fabric != "pcie":  # a controller's switch tells the driver, which says nothing
        assert f"node {number} has left" in said and "is dead" not in said, said
    return f"node {number} was up before and not after"


def settings(node):
    """What must be the same after as before."""
    link, = node.run(f"ip -j address show dev {INTERFACE}").json()
    addresses = sorted((entry["local"], entry["prefixlen"]) for entry in link["addr_info"])
    return link["ifindex"], link["mtu"], link["address"], addresses, node.run(f"ethtool -g {INTERFACE}").out


@long_but_on("pcie")
def test_sleep_under_traffic(pair, rdma, saw):
    """All devices of a node are suspended for some seconds, as for sleep, and resumed, under traffic of all kinds: the other sees it
    go and come, and all goes on."""
    one, two = pair
    before, number = settings(two), number_of(two)
    known = entry_of(one, number)
    a, b = loaded(rdma, one, two)
    load = traffic.start(one, two.ip, 30)
    pings = one.spawn(f"ping -n -q -i 0.2 -w 20 {two.ip}")
    mark = one.log.position()
    sleeping = two.spawn(SLEEP)
    said = await_left(one, number, mark)
    slept = sleeping.wait(90)
    assert slept.code == 0 and re.search(r"suspend debug: Waiting for \d+ second", two.run("dmesg").out), f"it did not sleep:\n{slept}"
    writer = writer_ends(a, False)
    learn_of_loss(b)
    report = traffic.survived(load, timeout=120)
    pings.wait(60)
    one.await_ping(two.ip)
    after = entry_of(one, number)
    assert len(after) == len(known) == 1 and after != known, f"the same node has another epoch: {known}, {after}"
    assert settings(two) == before
    works(rdma, one, two)
    works(rdma, two, one)
    saw(f"{said}; {report['sent'] + report['received']} bytes of TCP went on, the writer saw {writer}")


@long_but_on("cxl")
@only(*POOLS, why="nodes share memory on pools only")
def test_a_node_that_goes_down_holds_what_its_programs_map(pair, fabric, rdma, saw):
    """They may write there until the processors stop: what one has imported is given to nobody else, although its owner frees it."""
    build_share_library()
    one, two = pair
    number = number_of(two)
    owner, importer = Sharer(rdma, one), Sharer(rdma, two)
    total = owner.program.device()["max_dm_size"]
    piece = owner.alloc(PAGE)
    importer.take(owner.export(piece))
    owner.free(piece)
    assert owner.program.fails("share_alloc", total) == errno.ENOMEM
    mark = one.log.position()
    halting = two.spawn("halt -f")
    try:
        await_left(one, number, mark)
        wait_until("node 2 to be halted", lambda: "System halted" in two.log.tail(5), 20)
        assert owner.program.fails("share_alloc", total) == errno.ENOMEM
    finally:
        two.kill()
        halting.abandon()
    fabric.ensure(2)
    # It has its slot again, and began anew.
    assert owner.alloc(total).size == total
    saw(f"a page of {total >> 10} KiB was held until the node was back")


@long
def test_shutdown_under_traffic(pair, fabric, rdma, saw):
    """A node is halted: its machine stays on, and still the others know at once that it left."""
    one, two = pair
    number = number_of(two)
    assert entry_of(one, number), nodes_up(one)
    a, _ = loaded(rdma, one, two)
    load = traffic.start(one, two.ip, 60, timeout=4)
    mark = one.log.position()
    halting = two.spawn("halt -f")
    try:
        said = await_left(one, number, mark)
        writer = writer_ends(a, False)
        wait_until("node 2 to be halted", lambda: "System halted" in two.log.tail(5), 20)
        assert two.alive()
        traffic.interrupted(load)
    finally:
        # Nobody can log in to it any more.
        two.kill()
        halting.abandon()
    fabric.ensure(2)
    one.await_ping(two.ip)
    works(rdma, one, two)
    saw(f"{said}; the writer saw {writer}")
