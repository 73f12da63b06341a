# SPDX-License-Identifier: GPL-2.0 OR MIT
"""A user whose queues have all the work that they can hold, or doorbells that nobody honest writes: others go on."""

import pytest

import storm
from modes import EVERYTHING, long, short_on
from test_cleared import ONE
from verbs import DEVICE, remote, sge

# Beside other tests, these would be what delays them.
pytestmark = [pytest.mark.alone, pytest.mark.skipif(DEVICE.startswith("rxe"), reason="about nupa_rdma0")]

SECONDS = 60 if EVERYTHING else 8
# Pings of a second.
RATE = 5
# What the user may lock of memory: its rings and its messages are in it.
LOCKED = 16 << 20
STORMS = {"16 of 1 GiB": (256 << 20, "messages 16 1024"), "256 of 32 MiB": (LOCKED, "messages 256 32"),
          "flushes": (LOCKED, "flush 60 1024"), "doorbells": (LOCKED, "scribble 60 1024")}


@pytest.fixture(scope="module", autouse=True)
def program():
    """Builds what runs on a node; nodes see the tree."""
    storm.build()


def pinging(node, address):
    """Pings for as long as the storm lasts, with time for late answers."""
    return node.spawn(f"ping -n -q -i {1 / RATE} -c {SECONDS * RATE} -W 10 {address}")


def answered(ping):
    """The longest time, in ms, that an answer took; there must be one to each."""
    out = ping.wait(SECONDS + 60).out
    assert " 0% packet loss" in out, out
    return float(out.split("mdev = ")[1].split("/")[2])


def losses(nodes):
    """Lines of the nodes' kernel logs about nodes and functions that were lost."""
    return {node.name: node.run("dmesg | grep -cE 'is gone|stopped|refused|evicted'", check=False).out.strip() for node in nodes}


# What longer messages show, shorter ones do not show better. On a pool the engine is in the kernel that pings are answered by.
WHERE = {"16 of 1 GiB": short_on("pcie"), "256 of 32 MiB": long, "flushes": (), "doorbells": short_on("pcie")}


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=WHERE[kind]) for kind in STORMS])
def test_others_go_on(trio, rdma, saw, kind):
    """Pings to the node and between others are all answered, and a connection between others works."""
    one, two, three = trio
    locked, what = STORMS[kind]
    a, b = rdma.rc(two, three)
    local, far = a.region(64, 1), b.region(64, 2)
    before = losses(trio)
    process = one.spawn(f"ulimit -l {locked >> 10} && setpriv --reuid {ONE} --clear-groups --no-new-privs "
                      f"{storm.PROGRAM} {DEVICE} {what} {SECONDS}")
    a.program.begin("write_for", a.qp, a.cq, sge(local), remote(far), SECONDS)
    pings = [pinging(two, one.ip), pinging(two, three.ip)]
    worst = [answered(ping) for ping in pings]
    writes, slowest = a.program.result(SECONDS + 60)
    done = process.wait(60)
    assert done.code == 0 and done.out.startswith("storm\n"), done
    completions = int(done.out.split()[1])
    assert writes > 0
    # Messages of 1 GiB go on in turns, so none may be complete yet; and a completion queue may be one of what was scribbled on.
    if kind in ("256 of 32 MiB", "flushes"):
        assert completions > 0
    assert losses(trio) == before
    b.check(far, [[0, 1, 0, 64]])
    saw(f"{completions} completions in {SECONDS} s; pings took {worst[0]:.0f} ms at most, between others {worst[1]:.0f} ms; "
        f"of {writes} WRITEs between others the slowest {slowest * 1000:.1f} ms")


def test_storms_can_be_killed(settled, saw):
    """All four at once, as a user that is killed in the midst of it."""
    one, two = settled
    command = " & ".join(f"{storm.PROGRAM} {DEVICE} {what} 600" for _, what in STORMS.values())
    process = one.spawn(f"ulimit -l unlimited && exec setpriv --reuid {ONE} --clear-groups --no-new-privs bash -c '{command} & wait'")
    one.run("for i in $(seq 100); do [ $(pgrep -c nupa-storm) = 4 ] && break; sleep 0.1; done; sleep 3; pgrep -c nupa-storm",
            timeout=60)
    one.run("pkill -KILL nupa-storm; for i in $(seq 300); do pgrep nupa-storm >/dev/null || exit 0; sleep 0.1; done; exit 1",
            timeout=60)
    process.wait(30)
    assert two.pings(one.ip) == 3
    saw("gone at once")
