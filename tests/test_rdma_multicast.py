# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Multicast groups of unconnected queue pairs: who gets a copy, how many may be in one, and what is left at the end."""

import errno
import re

import pytest

from modes import only
from test_cleared import program_of
from test_rdma_datagrams import GRH, QKEY, datagram_side
from test_rdma_device import counters
from test_rdma_lifecycle import MODULE, await_device, await_fatal
from verbs import DEVICE, gid_of, install, sge
from waiting import PATIENCE, wait_until

EVERYBODY = 0xFFFFFF
GROUPS = {4: "239.77.1.2", 6: "ff0e::77:1:2"}
MEMBERS, ATTACHMENTS = 32, 256
USER = 1234

ours = pytest.mark.skipif(DEVICE.startswith("rxe"), reason="about nupa_rdma0")
above = only("pcie", why="about nupa_rdma and what the engine keeps, which are the same above whatever is below")


def test_mckey(settled, saw):
    """The connection manager's program joins on both nodes, and all that one sends comes to the other."""
    one, two = settled
    for node in settled:
        install(node)
    count, size, log = 40, 1000, "/run/mckey.log"
    command = f"timeout {60 * PATIENCE} stdbuf -oL mckey -m {GROUPS[4]} -C {count} -S {size}"
    two.run(f"rm -f {log}")
    receiver = two.spawn(f"{command} -b {two.ip} >{log} 2>&1")
    wait_until("the receiver to have joined", lambda: "receiving data" in two.run(f"cat {log}").out)
    before = counters(two)
    sent = one.run(f"{command} -b {one.ip} -s", timeout=80)
    done = receiver.wait(80)
    assert done.code == 0, f"{done}\n{two.run(f'cat {log}').out}"
    if not DEVICE.startswith("rxe"):
        grown = {name: counters(two)[name] - before[name] for name in ("rx_messages", "rx_message_bytes", "rx_datagram_drops")}
        assert grown == {"rx_messages": count, "rx_message_bytes": count * size, "rx_datagram_drops": 0}, grown
    saw(f"{count} datagrams of {size} bytes; {sent.out.strip().splitlines()[-1]}")


def to_group(side, version):
    """A side's handle for all members of the group."""
    address = side.program.node.ip if version == 4 else side.program.node.ip6
    return side.program.address(side.pd, gid_of(GROUPS[version]), side.program.gid(address)[0])


def cast(side, version, region, qkey=QKEY):
    side.post_send("SEND", sges=[sge(region)], address=[to_group(side, version), EVERYBODY, qkey])


@pytest.mark.parametrize("version", [4, 6])
def test_copies(settled, rdma, saw, version):
    """Members on both nodes get every byte once, the sender and another program of its node among them; others get nothing."""
    one, two = settled
    members = [datagram_side(rdma.program(node)) for node in (one, one, two, two)]
    outsider, sender = datagram_side(rdma.program(two)), members[0]
    group, size = gid_of(GROUPS[version]), 3000
    for side in members:
        side.program.attach(side.qp, group)
        side.program.attach(side.qp, group)  # as if it had not been
    inboxes = {side: side.region(GRH + size, 50 + number) for number, side in enumerate([*members, outsider])}
    for side, inbox in inboxes.items():
        side.post_recv([sge(inbox)], wr_id=7)
    local = sender.region(size, 3)
    cast(sender, version, local)
    assert sorted(found["opcode"] for found in sender.poll(2)) == ["RECV", "SEND"]
    for side in members[1:]:
        side.done("RECV", wr_id=7, byte_len=GRH + size, src_qp=sender.qp.qpn)
    for side in members:
        header = side.program.load(inboxes[side].buffer, 0, GRH)
        side.check(inboxes[side], [[0, header], [GRH, 3, 0, size]])
    outsider.quiet()
    outsider.check(inboxes[outsider])
    # Who has left gets nothing, and the rest goes on.
    gone, *rest = members[1:]
    gone.program.detach(gone.qp, group)
    assert gone.program.fails("detach", gone.qp, group) == errno.EINVAL
    for side in (gone, *rest):
        side.post_recv([sge(inboxes[side])], wr_id=8)
    cast(sender, version, local)
    sender.done("SEND")  # it has no buffer for its own copy
    for side in rest:
        side.done("RECV", wr_id=8, byte_len=GRH + size)
    gone.quiet()
    # Nor does anybody with another key.
    rest[-1].post_recv([sge(inboxes[rest[-1]])], wr_id=9)
    cast(sender, version, local, qkey=QKEY ^ 1)
    sender.done("SEND")
    rest[-1].quiet()
    saw(f"IPv{version}: {len(members)} members on two nodes, {size} bytes each")


def many_groups(count):
    return [gid_of(f"ff0e::{number + 1:x}") for number in range(count)]


@ours
@above
def test_limits(settled, rdma, saw):
    """What query_device says is what there is, and a user gets a part of it."""
    node = settled[0]
    side = datagram_side(rdma.program(node))
    told = dict(re.findall(r"(max_\w*mcast\w*):\s*(\d+)", node.run(f"ibv_devinfo -v -d {DEVICE}").out))
    assert told == {"max_mcast_qp_attach": str(MEMBERS), "max_mcast_grp": str(ATTACHMENTS),
                    "max_total_mcast_qp_attach": str(ATTACHMENTS)}
    group = gid_of(GROUPS[4])
    queues = [side.another_qp(kind="UD", sends=4, recvs=4) for _ in range(MEMBERS + 1)]
    for queue in queues[:-1]:
        side.program.attach(queue, group)
    assert side.program.fails("attach", queues[-1], group) == errno.ENOSPC
    side.program.detach(queues[0], group)
    side.program.attach(queues[-1], group)
    connected = side.another_qp(kind="RC")
    for queue, gid in ((connected, group), (queues[0], gid_of("10.77.0.1")), (queues[0], gid_of("fe80::1"))):
        assert side.program.fails("attach", queue, gid) == errno.EINVAL
    # The core tells attachments with other LIDs, which mean nothing here, from this one, and detaches for each that succeeds.
    side.program.attach(queues[0], gid_of(GROUPS[6]), lid=1)
    side.program.attach(queues[0], gid_of(GROUPS[6]), lid=1)
    assert side.program.fails("attach", queues[0], gid_of(GROUPS[6]), lid=2) == errno.EINVAL
    user = program_of(USER, rdma, node)
    queue = user.qp(user.pd(), user.cq(16), kind="UD", sends=4, recvs=4)
    # As many as are left to users by then: half of what the root's program and the kernel's reserve leave.
    left = ATTACHMENTS - 16 - MEMBERS - 1
    share = (left + 1) // 2
    user.attach(queue, *many_groups(share))
    assert user.fails("attach", queue, group) == errno.EDQUOT
    user.detach(queue, *many_groups(share))
    # And half of a group.
    others = [user.qp(user.pd(), user.cq(16), kind="UD", sends=4, recvs=4) for _ in range(MEMBERS // 2)]
    for other in others:
        user.attach(other, gid_of("239.77.1.3"))
    assert user.fails("attach", queue, gid_of("239.77.1.3")) == errno.EDQUOT
    user.detach(others[0], gid_of("239.77.1.3"))
    user.attach(queue, gid_of("239.77.1.3"))
    saw(f"{MEMBERS} pairs in a group, {share} of {left} for one user, and {len(others)} of a group")


@ours
@above
@pytest.mark.parametrize("ending", ["closes", "is killed"])
def test_endings(settled, rdma, saw, ending):
    """A program that ends while its queue pairs are attached leaves nothing: all there is can be had again."""
    node = settled[0]
    room = ATTACHMENTS - 16  # the kernel's reserve
    for _ in range(2):
        side = datagram_side(rdma.program(node))
        side.program.attach(side.qp, *many_groups(room))
        assert side.program.fails("attach", side.qp, gid_of(GROUPS[4])) == errno.ENOSPC
        if ending == "closes":
            assert side.program.fails("destroy", side.qp) == errno.EBUSY
            side.program.detach(side.qp, *many_groups(room))
        side.program.end(kill=ending == "is killed")
    saw(f"{room} attachments, twice")


@ours
@above
@pytest.mark.parametrize("how", ["rmmod", "reset"])
def test_device_goes(pair, rdma, saw, how):
    """The module or the controller goes while programs are attached: they can end, and the next ones join."""
    one, two = pair
    member = datagram_side(rdma.program(two))
    member.program.attach(member.qp, gid_of(GROUPS[4]))
    away, back = {"rmmod": ("rmmod nupa_rdma", f"insmod {MODULE}"),
                  "reset": (f"echo 1 >{two.device_directory()}/reset", "nupa-up")}[how]
    two.run(away, timeout=30)
    try:
        await_fatal(member.program)
        member.program.end()
    finally:
        two.run(back, timeout=60)
    await_device(two)
    wait_until("a GID", lambda: rdma.program(two).gid(), 10)
    one.await_ping(two.ip)
    again, sender = datagram_side(rdma.program(two)), datagram_side(rdma.program(one))
    again.program.attach(again.qp, gid_of(GROUPS[4]))
    inbox = again.region(GRH + 100, 1)
    again.post_recv([sge(inbox)])
    cast(sender, 4, sender.region(100, 2))
    sender.done("SEND")
    again.done("RECV", byte_len=GRH + 100)
    saw("joined again afterwards")
