# SPDX-License-Identifier: GPL-2.0 OR MIT
"""What it costs: 64 MB a node at most (default rings, two CPUs), 16 KB a further idle peer, no CPU when idle."""

import os
import time
from pathlib import Path

import pytest

import memory
from idle_peer import IdlePeer
from modes import emulator_only
from nodes import INTERFACE
from waiting import DEBUG_KERNEL, wait_until

measures_memory = pytest.mark.skipif(DEBUG_KERNEL, reason="the debug kernel's own records would be measured")


@measures_memory
def test_memory_of_a_node(pair, saw):
    one, two = pair
    assert two.run("nproc").out.strip() == "2"
    two.run("nupa-down")
    time.sleep(2)  # the page pools' pages come back within a second of their end
    without = memory.available(two)
    two.up()
    one.await_ping(two.ip)
    idle = without - memory.available(two)
    two.run(f"ip link set {INTERFACE} mtu 65535")
    one.run(f"ip link set {INTERFACE} mtu 65535")
    one.await_ping(two.ip)
    jumbo = without - memory.available(two)
    assert idle <= 64 << 10 and jumbo <= 64 << 10, f"{idle} KB at the default MTU, {jumbo} KB at 65535"
    saw(f"{idle / 1024:.1f} MB at the default MTU, {jumbo / 1024:.1f} MB at 65535 (limit 64)")


@emulator_only
@measures_memory
def test_memory_of_idle_peers(pair, fabric, saw):
    """59 nodes join and leave; the rest of the fabric notices, and pays next to nothing."""
    one, two = pair
    before = memory.available(one)
    peers = [IdlePeer(one.run_dir / f"node{number}.sock") for number in range(5, 64)]
    try:
        wait_until(f"{len(peers)} more nodes to be up", lambda: sum(
            node["enabled"] for node in fabric.switch.control("stats")["nodes"]) == len(peers) + len(fabric.running()))
        one.await_ping(two.ip)
        cost = (before - memory.available(one)) / len(peers)
    finally:
        for peer in peers:
            peer.close()
    one.await_ping(two.ip)
    assert cost <= 16, f"a further idle peer costs {cost:.1f} KB"
    saw(f"{max(cost, 0):.1f} KB for each of {len(peers)} peers (limit 16)")


@emulator_only
@pytest.mark.alone
def test_idle_switch_sleeps(pair, fabric, saw):
    """With nodes up and nothing to do the switch uses next to no CPU."""

    def used():
        fields = Path(f"/proc/{fabric.switch.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    before = used()
    time.sleep(3)
    share = (used() - before) / 3
    assert share < 0.1, f"the idle switch uses {share:.0%} of a CPU"
    saw(f"{share:.1%} of a CPU with two idle nodes")
