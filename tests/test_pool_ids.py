# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Node ids of one's choice in a pool: kept over everything but another choice, and refused where they are others'."""

from modes import POOLS, long, only
from pages import follows
from test_nupactl import FAILED, FINE, NUPACTL, USAGE, told
from waiting import wait_until

pytestmark = only(*POOLS, why="a controller tells its node which id it has")
LOAD = "insmod /nupa/build/modules/nupa_fabric.ko"


class Host:
    """A node with the memory of a pool, and what an administrator types there."""

    def __init__(self, node):
        self.node, self.device = node, node.run("nupa-pool device").out.strip()

    def pool(self, command, code=FINE, options=""):
        """`nupactl pool`; returns what it said."""
        done = self.node.run(f"{NUPACTL} pool {command} {self.device} {options}", check=False, timeout=60)
        assert done.code == code, done
        return done.out + done.err

    def number(self):
        """The node id that the kernel has."""
        wait_until("the node to run", lambda: told(self.node, "status")[0]["state"] == "running")
        return told(self.node, "status")[0]["node"]


def hosts(fabric):
    """Two hosts with the module and a new pool, which no node has joined yet."""
    found = [Host(node) for node in fabric.bare(1, 2)]
    for host in found:
        if host.node.fabric == "cxl":
            host.node.run("nupa-pool device_dax", timeout=60)
    found[0].pool("format", options="--yes")
    for host in found:
        host.node.run(LOAD)
        host.pool("detach")
    return found


@long
@follows("Documentation/pool.md", "Which node a host is")
def test_ids_of_ones_choice(fabric, said, saw):
    """Two hosts choose, one wants the other's id; the choice outlives the module; and one insists."""
    one, two = hosts(fabric)
    for command in said.commands(replaced={"nupactl": NUPACTL, "dax0.0": one.device}):
        one.node.run(command.text, timeout=60)
    assert one.number() == 3
    refused = two.pool("attach", FAILED, "--node 3 --force")
    assert "this host cannot be node 3: node 3 is another host's, which uses the pool" in refused, refused
    assert "the pool is for 8 nodes, 0 to 7" in two.pool("attach", FAILED, "--node 8")
    two.pool("attach", options="--node 7")
    assert two.number() == 7
    wait_until("both to see each other", lambda: [peer["node"] for host in (one, two) for peer in told(host.node, "peers")] == [7, 3])
    one.node.run("insmod /nupa/build/modules/nupa_net.ko")
    wait_until("the interface", lambda: one.node.link()["address"] == "02:4e:55:50:00:03")
    one.node.run("rmmod nupa_net")
    assert "it is attached already" in one.pool("attach", options="--node 3")
    refused = one.pool("attach", FAILED, "--node 6")
    assert f"attached as node 3; for another id, first: nupactl pool detach {one.device}" in refused, refused
    # What is loaded anew is the same node.
    one.node.run("rmmod nupa_fabric && " + LOAD)
    one.pool("attach")
    assert one.number() == 3
    # The id of a host that is not attached is that host's, until somebody insists.
    for host in (one, two):
        host.pool("detach")
    refused = two.pool("attach", FAILED, "--node 3")
    assert "another host was node 3 last" in refused and "--force takes it nevertheless" in refused, refused
    two.pool("attach", options="--node 3 --force")
    one.pool("attach")
    assert two.number() == 3 and one.number() != 3
    two.pool("attach", USAGE, "--force")
    saw(f"nodes 3 and 7, then {one.number()} and 3")
