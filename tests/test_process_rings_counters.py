# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Counters of messages that go from program to program, past the engines (Documentation/process-rings.md, Counters)."""

import pytest

from modes import POOLS, long, only
from test_process_rings import (BATCH, BEFORE, LONG, SHORT, compare_writes, connected, queue_pairs, regions, requests, transfer,
                                warm, writes)
from verbs import DEVICE, LINK, counted_by_type, sge
from waiting import wait_until

pytestmark = only(*POOLS, why="process rings are memory of a pool whose hosts are coherent")

PORT = ("tx_messages", "tx_message_bytes", "rx_messages", "rx_message_bytes")
PAIRS = ("requests", "sent_bytes", "served", "received_bytes")


@pytest.fixture
def counting(pair):
    """Nodes that add up what their queue pairs count."""
    with counted_by_type(pair):
        yield pair


def of_pair(side):
    """What a queue pair has counted: requests and their bytes, those that it has served and theirs."""
    (found,) = [queue for queue in queue_pairs(side.program.node) if queue["lqpn"] == side.qp.qpn]
    return [found[f"drv_{name}"] for name in PAIRS]


def packets(node):
    """Messages sent and received as programs know them that show packets."""
    files = " ".join(f"port_{way}_packets" for way in ("xmit", "rcv"))
    return [int(text) for text in node.run(f"cd /sys/class/infiniband/{DEVICE}/ports/1/counters && cat {files}").out.split()]


class Growth:
    """What nodes count from now on."""

    def __init__(self, nodes):
        self.nodes = nodes
        self.before = [self.read(node) for node in nodes]

    @staticmethod
    def read(node):
        """What the port has counted, what queue pairs that were ever bound to counters have, and messages as programs know them that show packets."""
        (found,) = node.run(f"rdma -j statistic show {LINK}").json()
        return [found[name] for name in PORT], [found[f"qp_{name}"] for name in PAIRS], packets(node)

    def found(self):
        """By node: what its port has counted, which must be what its queue pairs have: messages sent and their bytes, messages received and theirs."""
        return [self.settled(*each) for each in zip(self.nodes, self.before)]

    def settled(self, node, before):
        def same():
            port, pairs, both = ([new - old for old, new in zip(*values)] for values in zip(before, self.read(node)))
            return port if port == pairs and both == port[::2] else None

        # What was read of queue pairs is shown again for a while.
        return wait_until(f"{node.name}: the port to have counted what its queue pairs have", same)


def ended(growth, sides, kill):
    """Ends programs; what was counted before stays."""
    before = growth.found()
    for side in sides:
        side.program.end(kill=kill)
        assert growth.found() == before
    wait_until("queue pairs to go", lambda: not any(map(queue_pairs, growth.nodes)), 10)
    assert growth.found() == before


@pytest.mark.parametrize("kill, shared", [
    pytest.param(False, 0, id="closed-own"), pytest.param(False, 64, id="closed-shared", marks=long),
    pytest.param(True, 0, id="killed-own", marks=long), pytest.param(True, 64, id="killed-shared", marks=long)])
def test_messages_are_counted_at_both_ends(counting, rdma, saw, kill, shared):
    """Whichever way they go, by port and queue pair, once; also when the programs are gone."""
    growth = Growth(counting)
    a, b = connected(rdma, counting, shared=shared)
    warm(a, b)
    warmed = [BEFORE, BEFORE * SHORT]
    assert growth.found() == [of_pair(a), of_pair(b)] == [warmed * 2] * 2
    sizes = [(SHORT, 1, LONG, 0, 41, 2024, 2025, SHORT)[number % 8] for number in range(6 * BATCH)]
    source, target = regions(a, b, len(sizes), LONG)
    before = requests(counting[0])
    transfer(a, b, source, target, 0, sizes)
    moved = [BEFORE + len(sizes), BEFORE * SHORT + sum(sizes)]
    assert growth.found() == [of_pair(a), of_pair(b)] == [moved + warmed, warmed + moved]
    grown = requests(counting[0]) - before
    assert grown < len(sizes) // 2, grown
    ended(growth, (b, a) if shared else (a, b), kill)
    saw(f"{len(sizes)} messages, {grown} by way of the engine: {moved} at both ends")


@long
@pytest.mark.parametrize("kill", [False, True], ids=["closed", "killed"])
def test_writes_are_counted_at_both_ends(counting, rdma, saw, kill):
    """Those that the program takes and those that its engine does, once. The requests of no bytes that the engine comes for count, too."""
    growth = Growth(counting)
    a, b = connected(rdma, counting)
    warm(a, b)
    count = 4 * BATCH
    source, far = regions(a, b, count)
    far.program = b.program
    before = requests(counting[0])
    for _ in range(3):
        b.program.begin("poll", b.cq, 1, 1.0)
        writes(a, b, source, far, range(count))
        b.program.result()
        writes(a, b, source, far, range(count), wait=False)
        a.poll(count)
    compare_writes(b, source, far, range(count))
    grown = requests(counting[0]) - before
    assert 0 < grown < 6 * count, f"{grown}: there are WRITEs of both kinds"
    (sent, sent_bytes, *_), (*_, received, received_bytes) = found = growth.found()
    assert [of_pair(a), of_pair(b)] == found
    assert sent == received >= BEFORE + 6 * count
    assert sent_bytes == received_bytes == BEFORE * SHORT + 6 * sum(1 + number % SHORT for number in range(count))
    ended(growth, (a, b), kill)
    saw(f"{6 * count} writes and {BEFORE} messages: {sent} at both ends")


def test_what_a_killed_program_has_sent_is_counted(counting, rdma):
    """Messages that were sent before a program was killed arrive and are counted, at the receiver when that takes them."""
    growth = Growth(counting)
    a, b = connected(rdma, counting)
    warm(a, b)
    source, target = regions(a, b, BATCH)
    for number in range(BATCH):
        b.post_recv([sge(target, number * SHORT, SHORT)], wr_id=number)
    a.post_send("SEND", sges=[sge(source, 0, SHORT)], count=BATCH // 2)
    a.program.end(kill=True)
    sent, warmed = BEFORE + BATCH // 2, [BEFORE, BEFORE * SHORT]
    moved = [sent, sent * SHORT]
    assert growth.found() == [moved + warmed, warmed + warmed]
    assert {done["status"] for done in b.poll(BATCH // 2)} == {"SUCCESS"}
    assert growth.found() == [moved + warmed, warmed + moved]
    b.program.end()
    assert growth.found() == [moved + warmed, warmed + moved]


def test_messages_received_behind_an_error_are_counted(counting, rdma):
    growth = Growth(counting)
    a, b = connected(rdma, counting)
    warm(a, b)
    source, target = regions(a, b, BATCH)
    for number in range(BATCH):
        b.post_recv([sge(target, number * SHORT, SHORT)], wr_id=number)
    a.post_send("SEND", sges=[sge(source, 0, SHORT)], count=BATCH // 2)
    a.poll(BATCH // 2)
    b.program.to_state(b.qp, "ERR")
    assert [done["status"] for done in b.poll(BATCH)] == ["SUCCESS"] * (BATCH // 2) + ["WR_FLUSH_ERR"] * (BATCH // 2)
    sent, warmed = BEFORE + BATCH // 2, [BEFORE, BEFORE * SHORT]
    moved = [sent, sent * SHORT]
    assert growth.found() == [of_pair(a), of_pair(b)] == [moved + warmed, warmed + moved]
