# SPDX-License-Identifier: GPL-2.0 OR MIT
"""A hostile process (userspace/hostile): others on its node and elsewhere get what is theirs, and nothing of it is left."""

import json
import os
import random

import pytest

from modes import EVERYTHING, long_but_on
from test_cleared import ONE
from test_rdma_processes import none_left
from verbs import DEVICE, gid_of, remote, sge
from waiting import wait_until

pytestmark = [long_but_on("pcie"), pytest.mark.skipif(DEVICE.startswith("rxe"), reason="about nupa_rdma0")]

SECONDS = 60 if EVERYTHING else 20
# The same each time where a change is judged by it, and another one each time where there is time to find more.
SEED = int(os.environ.get("NUPA_SEED") or (random.SystemRandom().getrandbits(32) if EVERYTHING else 1))
PROGRAM = "/nupa/build/bin/nupa-hostile"
# What the user may lock of memory.
LOCKED = 64 << 20
SIZE = 20000
# Classes that must have had effect, or the test is about nothing; and how many kinds of commands at least.
REACHED = ("ring words", "descriptors", "doorbells", "push slots", "kicks and polls", "maps", "connections", "contexts")
COMMANDS = 8


class Victims:
    """Two programs that transfer all the time, and compare it."""

    def __init__(self, rdma, one, two):
        self.a, self.b = rdma.rc(one, two)
        local, back, word = (self.a.region(size, 100) for size in (SIZE, SIZE, 8))
        self.far, counter, message = (self.b.region(size, 200) for size in (SIZE, 8, SIZE))
        self.b.program.store(counter.buffer, 0, bytes(8).hex())
        self.b.program.begin("take_messages", self.b.qp, self.b.cq, message.buffer, sge(message), SECONDS + 60)
        pieces = [[piece.buffer, sge(piece)] for piece in (local, back, word)]
        self.a.program.begin("exchange_for", self.a.qp, self.a.cq, *pieces, remote(self.far), remote(counter), SECONDS)

    def result(self):
        """How many rounds there were, and the longest time of a transfer."""
        rounds, longest = self.a.program.result(SECONDS + 120)
        messages = self.b.program.result(60)
        assert rounds == messages and rounds > 0, (rounds, messages)
        self.b.check(self.far, [[0, rounds, 0, SIZE]])
        for side in (self.a, self.b):
            side.program.end()
        return rounds, longest


def resources(node):
    """All objects of the device by kind, those of the kernel too."""
    (found,) = [entry for entry in node.run("rdma -j resource show").json() if entry["ifname"] == DEVICE]
    return found


def test_others_go_on(pair, rdma, saw):
    """All transfers of others are right while it works, and afterwards the modules go and come."""
    one, two = pair
    before = [resources(node) for node in pair]
    victims = [Victims(rdma, one, one), Victims(rdma, one, two), Victims(rdma, two, one)]
    process = one.spawn(f"ulimit -l {LOCKED >> 10} && exec setpriv --reuid {ONE} --regid {ONE} --clear-groups --no-new-privs "
                        f"{PROGRAM} process --device {DEVICE} --seed {SEED} --seconds {SECONDS} --peer {gid_of(two.ip)}")
    try:
        found = [each.result() for each in victims]
        done = process.wait(SECONDS + 60)
    finally:
        one.run("pkill -9 -x nupa-hostile", check=False)
    assert done.code == 0, f"seed {SEED}: {done}"
    report = json.loads(done.out.splitlines()[-1])
    classes, children = report["classes"], report["children"]
    never = [name for name in REACHED if not classes.get(name, {}).get("ok")]
    assert not never, f"seed {SEED}: never without an error: {never} in {report}"
    commands = [name for name, ends in classes.items() if name.isupper() and ends.get("ok")]
    assert len(commands) >= COMMANDS, f"seed {SEED}: only {commands} in {report}"
    assert children["killed"] and children["ended"], report
    assert children["failed"] <= children["ended"], f"seed {SEED}: most processes could do nothing: {report}"
    none_left(one)
    wait_until("the objects to be those of before", lambda: [resources(node) for node in pair] == before, 10)
    one.run("nupa-down", timeout=60)
    one.up()
    saw(f"seed {SEED}: {report['operations']} operations, children {children}; rounds of others "
        f"{[rounds for rounds, _ in found]}, the slowest transfer took {max(longest for _, longest in found) * 1000:.0f} ms")
