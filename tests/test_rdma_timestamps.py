# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Completions that say when they were written, and the clock that this is by."""

import time

from verbs import remote, sge

BOTH = "COMPLETION_TIMESTAMP|COMPLETION_TIMESTAMP_WALLCLOCK"
# The time of day is known as well as the device's clock can be read, which may take an emulated one a moment.
SLACK = 500_000_000


def test_the_clock(settled, rdma, saw):
    """The device's clock never goes back, and is as fast as the device says, as far as a node's own clock can tell."""
    program = rdma.program(settled[0])
    device = program.device()
    khz, mask = device["hca_core_clock"], device["timestamp_mask"]
    assert khz > 0 and mask == 2**64 - 1
    first = program.clocks()
    seen = [first["device"], *(program.clocks()["device"] for _ in range(20))]
    time.sleep(1)
    last = program.clocks()
    assert seen == sorted(seen) and last["device"] > seen[-1]
    passed = (last["device"] - first["device"]) * 10**6 // khz
    least, most = last["before"] - first["after"], last["after"] - first["before"]
    # The clocks are those of two machines, and one of them is emulated.
    assert 0.5 * least < passed < 2 * most, f"{passed} ns, between {least} and {most} by the node's clock"
    saw(f"{khz} kHz; {passed / 1e9:.3f} s in {least / 1e9:.3f} to {most / 1e9:.3f} s")


def test_completions_have_timestamps(settled, rdma, saw):
    """Both ends' timestamps are in order, and between two readings of the clock before and after the transfer."""
    a, b = rdma.rc(*settled, extended=True, more=BOTH, sends=200, recvs=200)
    local, far = a.region(4096, 1), b.region(4096, 2)
    before = [side.program.clocks() for side in (a, b)]
    b.post_recv([sge(far)], count=100)
    a.post_send("SEND", sges=[sge(local)], count=100)
    found = [side.program.stamps(side.cq, 100, wait=30) for side in (a, b)]
    after = [side.program.clocks() for side in (a, b)]
    for stamps, first, last in zip(found, before, after):
        clock = [stamp for stamp, _ in stamps]
        assert len(clock) == 100 and clock == sorted(clock), clock
        assert first["device"] <= clock[0] and clock[-1] <= last["device"], f"{clock[0]} to {clock[-1]}: {first}, {last}"
        days = [day for _, day in stamps]
        assert first["wall"] - SLACK < min(days) and max(days) < last["wall"] + SLACK, f"{min(days)} to {max(days)}: {first}, {last}"
    spread = [stamps[-1][0] - stamps[0][0] for stamps in found]
    saw(f"100 in {spread[0] / 1e6:.2f} ms at the sender, {spread[1] / 1e6:.2f} ms at the receiver")


def test_one_kind_of_timestamp_is_enough(settled, rdma, saw):
    """A program may ask for either, and one that asks for none gets none."""
    a, b = rdma.rc(*settled, extended=True, more="COMPLETION_TIMESTAMP_WALLCLOCK")
    local, far = a.region(64, 1), b.region(64, 2)
    first = a.program.clocks()
    a.post_send("RDMA_WRITE", sges=[sge(local)], remote=remote(far))
    ((clock, day),) = a.program.stamps(a.cq, 1)
    last = a.program.clocks()
    assert clock > 0 and first["wall"] - SLACK < day < last["wall"] + SLACK, f"{day}: {first}, {last}"
    a, b = rdma.rc(*settled, extended=True)
    local, far = a.region(64, 1), b.region(64, 2)
    a.post_send("RDMA_WRITE", sges=[sge(local)], remote=remote(far))
    assert a.program.stamps(a.cq, 1, wall=False) == [[0, 0]]
    saw("the time of day alone; none without asking")
