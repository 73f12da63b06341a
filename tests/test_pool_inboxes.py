# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Pools with inboxes: nodes make links to those that they talk with, and all goes there as over rings for every two nodes."""

import contextlib
import re
import time

import pytest

import traffic
from modes import POOLS, long, only
from test_pool_memory import Memory
from test_pool_nodes import NOTICED, Transfers, works
from test_rdma_direct import PAGE, Target, direct_writes, write
from verbs import sge
from waiting import PATIENCE

pytestmark = only(*POOLS, why="about pools")

NODES = 3


@contextlib.contextmanager
def formatted(fabric, *options):
    """Nodes without our modules, whose pool was made with these options, and what was said of it; afterwards they have one as ever."""
    nodes = fabric.bare(*range(1, NODES + 1))
    try:
        yield Memory(nodes[0]).format("--yes", *options).out.splitlines()[-1], nodes
    finally:
        Memory(fabric.bare(*range(1, NODES + 1))[0]).format("--yes")


@pytest.fixture
def eight(fabric):
    """A pool for eight nodes that all have an inbox for each other."""
    with formatted(fabric, "--nodes", "8", "--inboxes") as (said, nodes):
        assert said.endswith("for 8 nodes with 7 inboxes each"), said
        yield said, fabric.ensure(*(node.number for node in nodes))


@pytest.fixture
def many(fabric):
    """A pool for many nodes that have one inbox each. Nobody has come up yet."""
    with formatted(fabric, "--nodes", "700", "--inboxes") as (said, nodes):
        assert said.endswith("for 700 nodes with 1 inboxes each"), said
        yield said, nodes


def test_all_goes_over_links_on_demand(eight, fabric, rdma, saw):
    """Packets and all operations between nodes, and direct writes, whose grants lie in inboxes."""
    said, (one, two, three) = eight
    for source, target in ((one, two), (three, one)):
        works(fabric, rdma, source, target)
    a, b = rdma.rc(one, two)
    target, local = Target(b, 2 * PAGE), a.region(PAGE, 1)
    before = direct_writes(one)
    for seed in (2, 3, 4):
        a.program.fill(local.buffer, seed)
        write(a, sge(local), target, seed)
        assert target.load(seed, PAGE) == a.program.load(local.buffer, 0, PAGE)
    assert direct_writes(one) == before + 2
    saw(said)


@long
def test_a_node_dies_that_has_links_on_demand(eight, fabric, rdma, saw):
    """Under load, and comes back."""
    said, (one, two, three) = eight
    works(fabric, rdma, one, three)
    transfers = Transfers(rdma, one, three)
    load = traffic.start(one, two.ip, 3 * NOTICED)
    transfers.begin()
    time.sleep(2 * PATIENCE)
    three.kill()
    counts = transfers.asker_ended()
    traffic.survived(load)
    rdma.kill_all()
    fabric.ensure(3)
    works(fabric, rdma, two, three)
    works(fabric, rdma, three, one)
    moved = ", ".join(f"{count} {name}" for name, count in counts.items())
    saw(f"{said}; {moved}, then a node died and came back")


@long
def test_fewer_inboxes_than_nodes_to_talk_with(many, fabric, rdma, saw):
    """A link that is idle ends for another one: packets and all operations between all nodes, of which each can have one link at a time."""
    said, nodes = many
    one, two, three = fabric.ensure(*(node.number for node in nodes))
    pairs = [(one, two), (two, three), (three, one)]
    for source, target in 2 * pairs:
        # Any packet of the third node's, such as a question for an address, wants a link.
        works(fabric, rdma, source, target, keeps_links=False)
    lines = [re.search(r"node \d+: no inbox is left.*", node.run("dmesg").out) for node in nodes]
    assert any(lines), "no node says that it has had no inbox"
    saw(f"{said}; {next(filter(None, lines))[0]}")
