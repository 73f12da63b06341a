# SPDX-License-Identifier: GPL-2.0 OR MIT
"""nupactl stats: what went through RDMA queue pairs, by process and by node, and how long it took."""

import re

from test_nupactl import NUPACTL, debugfs_peers, told
from test_nupactl_resources import pid_of
from verbs import DEVICE, remote, sge

SIZE = 4096
COUNTS = ("queue_pairs", "requests", "served", "sent_bytes", "received_bytes")


def counted(usages, wanted):
    """Counts of the only entry that is wanted."""
    (usage,) = [usage for usage in usages if wanted(usage)]
    return tuple(usage[name] for name in COUNTS)


def test_by_process_and_by_peer(settled, rdma, saw):
    one, two = settled
    a, b = rdma.rc(one, two)
    here, there = a.region(SIZE, 1), b.region(SIZE, 2)
    a.post_send("RDMA_WRITE", sges=[sge(here)], remote=remote(there), count=3)
    a.poll(3)
    a.post_send("RDMA_READ", sges=[sge(here)], remote=remote(there))
    a.poll(1)
    pids = [pid_of(side.program.node, side.qp.qpn) for side in (a, b)]

    def of(node, pid):
        return counted(told(node, "stats --by process"), lambda usage: usage["owner"]["pid"] == pid)

    assert of(one, pids[0]) == (1, 4, 0, 3 * SIZE, SIZE)
    assert of(two, pids[1]) == (1, 0, 4, SIZE, 3 * SIZE)
    # Two connections to the same node are added up.
    c, d = rdma.rc(one, two)
    near, far = c.region(100, 1), d.region(100, 2)
    c.post_send("RDMA_WRITE", sges=[sge(near)], remote=remote(far))
    c.poll(1)
    number = debugfs_peers(two)[0][0]
    assert counted(told(one, "stats --by peer"), lambda usage: usage["node"] == number) == (2, 5, 0, 3 * SIZE + 100, SIZE)
    text = one.run(f"{NUPACTL} stats --by peer").out
    assert re.search(rf"^{DEVICE} +{number} +2 +5 +0 +12.4 kB +4.1 kB$", text, re.MULTILINE), text
    process = one.run(f"{NUPACTL} stats --by process").out
    assert re.search(rf"^{DEVICE} +{pids[0]} python3 +1 +4 +0 +12.3 kB +4.1 kB$", process, re.MULTILINE), process
    delta = told(one, "stats --by peer --delta")
    assert counted(delta, lambda usage: usage["node"] == number) == (2, 0, 0, 0, 0)
    a.program.end()
    c.program.end()
    assert not [usage for usage in told(one, "stats --by peer") if usage["node"] == number]
    saw(text.splitlines()[-1].strip())


def measured(node):
    """How many messages a node's controller has measured."""
    (histogram,) = told(node, "stats --histogram")
    assert [found["below_us"] for found in histogram["classes"]] == [*(1 << power for power in range(11)), None]
    return sum(found["messages"] for found in histogram["classes"])


def test_histogram(settled, rdma, saw):
    """The first message of a queue pair is measured, the 65th, the 129th."""
    one, two = settled
    a, b = rdma.rc(one, two, sends=200)
    here, there = a.region(SIZE, 1), b.region(SIZE, 2)
    before = measured(one)
    for requests, expected in (1, 1), (63, 1), (1, 2), (63, 2), (1, 3):
        a.post_send("RDMA_WRITE", sges=[sge(here)], remote=remote(there), count=requests)
        a.poll(requests)
        assert measured(one) - before == expected
    (statistic,) = one.run(f"rdma -j statistic show link {DEVICE}/1").json()
    shown = {name: value for name, value in statistic.items() if name.startswith("tx_latency_")}
    assert len(shown) == 12 and sum(shown.values()) == before + 3, shown
    text = one.run(f"{NUPACTL} stats --histogram").out
    assert re.search(rf"^{re.escape(one.device())} +(below [\d.]+ [um]s|longer) +\d+ +#+$", text, re.MULTILINE), text
    saw(text.splitlines()[-1].strip())
