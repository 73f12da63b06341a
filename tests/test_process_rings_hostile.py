# SPDX-License-Identifier: GPL-2.0 OR MIT
"""A program that writes what it likes into process rings (Documentation/process-rings.md, "What a peer can do")."""

import pytest

from modes import POOLS, long, only
from test_process_rings import BATCH, LONG, SHORT, compare, connected, free_again, regions, transfer, warm
from verbs import remote, sge

pytestmark = only(*POOLS, why="process rings are memory of a pool whose hosts are coherent")

SECONDS = 1.0
KINDS = ("word", "entry", "word entry anywhere")
SIZES = [(SHORT, 1, LONG, 40, 41, 2000, 2024, 2025)[number % 8] for number in range(2 * BATCH)]


class Bystanders:
    """A connection of other programs between the same nodes, which must not notice."""

    def __init__(self, rdma, pair):
        self.ends = connected(rdma, pair)
        warm(*self.ends)
        self.regions = [(one, two, *regions(one, two, len(SIZES), LONG)) for one, two in (self.ends, reversed(self.ends))]
        self.seed = 10

    def go_on(self):
        for one, two, source, target in self.regions:
            self.seed += 1
            source.program.fill(source.buffer, self.seed)
            transfer(one, two, source, target, 0, SIZES)
            compare(two, source, target, SIZES)


@long
@pytest.mark.parametrize("shared", [0, 64], ids=["own", "shared"])
def test_nonsense_in_rings_harms_nobody_else(pair, rdma, saw, shared):
    """The peer of a program that writes nonsense gets errors at worst. Its process lives on, and ends as any does; other connections do not notice, and no memory is lost."""
    total = rdma.program(pair[0]).device()["max_dm_size"]
    others = Bystanders(rdma, pair)
    found, wrote = [], 0
    for kinds in KINDS:
        victim, hostile = connected(rdma, pair, shared=shared)
        source, target, back = victim.region(SHORT, 1), victim.region(LONG, 2), hostile.region(SHORT, 3)
        warm(victim, hostile)
        # The peer has no key of it.
        private = victim.region(LONG, 4)
        assert [side.program.ring_count() for side in (victim, hostile)] == [2, 2], "no rings"
        victim.program.begin("endure", victim.srq or victim.qp, victim.qp, victim.cq, sge(source), sge(target), remote(back), SECONDS)
        hostile.program.begin("scribble", hostile.srq or hostile.qp, hostile.cq, sge(back), remote(target), kinds, SECONDS)
        others.go_on()
        wrote += hostile.program.result(60)
        found.append(victim.program.result(60))
        others.go_on()
        victim.check(private)
        hostile.program.end(kill=len(found) % 2 == 0)
        assert victim.program.end() == 0, "the peer of a hostile program did not end as it should"
    saw(f"{wrote} times nonsense; {found}")
    assert any(set(ends) - {"RECV SUCCESS", "SEND SUCCESS", "RDMA_WRITE SUCCESS"} for ends in found), f"nobody found nonsense: {found}"
    for side in others.ends:
        side.program.end()
    free_again(rdma, pair, total)
