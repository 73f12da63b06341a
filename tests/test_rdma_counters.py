# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Counters that queue pairs are bound to (`rdma statistic qp`), in automatic mode and by hand."""

import re

import pytest

from modes import only
from pages import follows
from test_rdma_lifecycle import MODULE, works
from verbs import DEVICE, LINK, counted_by_type, remote, sge
from waiting import wait_until

SIZE = 10000
NAMES = ("qp_requests", "qp_served", "qp_sent_bytes", "qp_received_bytes")


def sets(node):
    """Sets of counters of the port."""
    return node.run(f"rdma -j statistic qp show {LINK}").json()


def values(found):
    """Counters of a set, or of the port."""
    return [found[name] for name in NAMES]


def port(node):
    """The port's counters of queue pairs."""
    (found,) = node.run(f"rdma -j statistic show {LINK}").json()
    return values(found)


def growth(before, after):
    return [new - old for old, new in zip(before, after)]


@pytest.fixture
def automatic(settled):
    """Nodes whose queue pairs are bound by type."""
    with counted_by_type(settled):
        yield settled


def write(a, far, count):
    """Has one side write to the other so many times."""
    local = a.region(SIZE, 1)
    a.post_send("RDMA_WRITE", sges=[sge(local)], remote=remote(far), count=count)
    a.poll(count)


def test_automatic_mode(automatic, rdma, saw):
    """Pairs of a type are counted together, and what they counted stays with the port when they are gone."""
    one, two = automatic
    before = [port(node) for node in automatic]
    a, b = rdma.rc(one, two)
    far = b.region(SIZE, 2)
    write(a, far, 5)
    a.post_send("RDMA_READ", sges=[sge(a.region(SIZE, 3))], remote=remote(far))
    a.poll(1)
    ((here,), (there,)) = (sets(node) for node in automatic)
    assert values(here) == [6, 0, 5 * SIZE, SIZE], here
    assert values(there) == [0, 6, SIZE, 5 * SIZE], there
    # Another pair of the same type is in the same set.
    c, d = rdma.rc(one, two)
    write(c, d.region(SIZE, 2), 3)
    (here,) = sets(one)
    assert values(here) == [9, 0, 8 * SIZE, SIZE] and {a.qp.qpn, c.qp.qpn} <= set(here["lqpn"]), here
    for side in (a, b, c, d):
        side.program.end()
    wait_until("the sets to go", lambda: not sets(one) and not sets(two), 10)
    grown = [growth(old, port(node)) for old, node in zip(before, automatic)]
    assert grown == [[9, 0, 8 * SIZE, SIZE], [0, 9, SIZE, 8 * SIZE]], grown
    saw(", ".join(f"{name} {value}" for name, value in zip(NAMES, grown[0])))


def test_binding_by_hand(settled, rdma, saw):
    """One pair is counted from when it is bound until it is not bound any more."""
    one, two = settled
    before = port(one)
    a, b = rdma.rc(one, two)
    far = b.region(SIZE, 2)
    write(a, far, 3)
    bind = f"rdma statistic qp bind {LINK} lqpn {a.qp.qpn}"
    one.run(bind)
    assert one.run(bind, check=False).code != 0, "bound twice"
    write(a, far, 4)
    (found,) = sets(one)
    assert values(found) == [4, 0, 4 * SIZE, 0] and found["lqpn"] == [a.qp.qpn], found
    one.run(f"rdma statistic qp unbind {LINK} cntn {found['cntn']} lqpn {a.qp.qpn}")
    write(a, far, 2)
    assert not sets(one)
    assert growth(before, port(one)) == [4, 0, 4 * SIZE, 0]
    # The one that is destroyed while it is bound has counted, too.
    one.run(bind)
    write(a, far, 1)
    a.program.end(kill=True)
    wait_until("the set to go", lambda: not sets(one), 10)
    assert growth(before, port(one)) == [5, 0, 5 * SIZE, 0]
    saw(f"cntn {found['cntn']}: 4 of 10 requests")


@only("pcie", why="about nupa_rdma alone, which is the same above whatever is below")
def test_module_goes_while_pairs_are_bound(pair, rdma, saw):
    """The sets go with it, and the next device has none."""
    one, two = pair
    one.run(f"rdma statistic qp set {LINK} auto type on")
    a, _ = rdma.rc(one, two)
    assert [found["lqpn"] for found in sets(one)] == [[a.qp.qpn]]
    one.run("rmmod nupa_rdma", timeout=20)
    one.run(f"insmod {MODULE}")
    works(rdma, one, two)
    assert not sets(one) and port(one) == [0, 0, 0, 0]
    saw("unloaded with a bound pair")


@follows("Documentation/rdma.md", "Counters of queue pairs")
def test_commands_of_the_page(settled, rdma, said):
    one, two = settled
    early, _ = rdma.rc(one, two)
    replaced = {"nupa_rdma0": DEVICE, "lqpn 130": f"lqpn {early.qp.qpn}"}
    for command in said.commands(replaced=replaced):
        out = one.run(command.text).out
        if command.text.endswith(" on"):
            late, _ = rdma.rc(one, two)
        elif " show " in command.text:
            assert re.search(rf"qp_requests 0.*\b{late.qp.qpn}\b", out, re.DOTALL) and str(early.qp.qpn) not in re.findall(r"\d+", out), out
        elif " bind " in command.text:
            (found,) = [found for found in sets(one) if early.qp.qpn in found["lqpn"]]
            replaced["cntn 1 "] = f"cntn {found['cntn']} "
    assert [found["lqpn"] for found in sets(one)] == [[late.qp.qpn]]
