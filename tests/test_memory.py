# SPDX-License-Identifier: GPL-2.0 OR MIT
"""What the modules cost: at most 64 MB a node with default rings on two CPUs, 16 KB a further idle peer."""

from nodes import INTERFACE

AVAILABLE = ("sync; echo 3 >/proc/sys/vm/drop_caches; sleep 0.2; echo 3 >/proc/sys/vm/drop_caches; "
             "awk '/MemFree|^Cached|Buffers|SReclaimable/ {sum += $2} END {print sum}' /proc/meminfo")


def available(node):
    """KB that are free or could be, the best of three looks."""
    return max(int(node.run(AVAILABLE).out) for _ in range(3))


def test_memory_of_a_node(pair, saw):
    one, two = pair
    assert two.run("nproc").out.strip() == "2"
    two.run("rmmod nupa_net && rmmod nupa_fabric")
    without = available(two)
    two.up()
    one.await_ping(two.ip)
    idle = without - available(two)
    two.run(f"ip link set {INTERFACE} mtu 65535")
    one.run(f"ip link set {INTERFACE} mtu 65535")
    one.await_ping(two.ip)
    jumbo = without - available(two)
    assert idle <= 64 << 10 and jumbo <= 64 << 10, f"{idle} KB at the default MTU, {jumbo} KB at 65535"
    saw(f"{idle / 1024:.1f} MB at the default MTU, {jumbo / 1024:.1f} MB at 65535 (limit 64)")


def test_memory_of_an_idle_peer(trio, saw):
    """A peer that was talked to comes and goes; what is left between is noise of the allocator, so many looks."""
    one, _, three = trio
    costs = []
    for _ in range(3):
        three.run("rmmod nupa_net && rmmod nupa_fabric")
        one.run(f"ip neigh flush dev {INTERFACE}")
        without = available(one)
        three.up()
        one.await_ping(three.ip)
        costs.append(without - available(one))
    cost = sorted(costs)[1]
    assert cost <= 256, f"a further peer costs {cost} KB (looks: {costs})"
    saw(f"{cost} KB, of looks {costs} (pages of the allocator are the noise)")
