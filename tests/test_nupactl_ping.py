# SPDX-License-Identifier: GPL-2.0 OR MIT
"""nupactl ping: round trips to another node, and what it says where there are none."""

import json
import re

from nodes import INTERFACE
from test_nupactl import FAILED, FINE, NAMED, NOTHING, NUPACTL, TROUBLE, USAGE, debugfs_peers
from waiting import wait_until

PING = f"{NUPACTL} ping -i 0.05"
# A user whose group `net.ipv4.ping_group_range` may name.
USER = "setpriv --reuid=65534 --regid=65534 --clear-groups"


def node_id(node):
    return debugfs_peers(node)[0][0]


def echoes(node):
    """Echo requests that a node's kernel has received."""
    return int(re.search(r"^Icmp6InEchos\s+(\d+)$", node.run("cat /proc/net/snmp6").out, re.MULTILINE).group(1))


def groups(node, least, most):
    node.run(f"sysctl -qw net.ipv4.ping_group_range='{least} {most}'")


def says(node, arguments, code, part, prefix=""):
    """Fails unless it ends with this code, and says this on one line of the output of that code."""
    done = node.run(f"{prefix} {PING} {arguments}", check=False, timeout=60)
    text = done.err if code in (FAILED, NOTHING) else done.out + done.err
    assert done.code == code and part in text, done
    return text.strip()


def test_round_trips(settled, saw):
    one, two = settled
    number = node_id(two)
    before = echoes(two)
    pinged = json.loads(one.run(f"{PING} --json -c 3 {number}").out)
    assert echoes(two) == before + 3
    assert (pinged["node"], pinged["sent"], pinged["netdev"]) == (number, 3, INTERFACE)
    assert len(pinged["round_trips"]) == 3 and all(0 < took < 1e6 for took in pinged["round_trips"]), pinged
    assert pinged["address"] in two.run(f"ip -6 address show dev {INTERFACE} scope link").out
    text = one.run(f"{NAMED} '{number} beta\\n' {PING} beta").out
    assert text.startswith(f"node {number} (beta), fe80::") and "4 sent, 4 answered; least " in text, text
    saw(text.splitlines()[-1])


def test_rights(settled, saw):
    """Without rights it takes a socket that the kernel may have for everybody; root gets a raw one where it has not."""
    one, two = settled
    number = node_id(two)
    old = one.run("sysctl -n net.ipv4.ping_group_range").out.split()
    try:
        groups(one, 65534, 65534)
        says(one, f"-c 2 {number}", FINE, "2 answered", USER)
        says(one, f"-c 2 {number}", FINE, "2 answered")
        groups(one, 1, 0)
        refused = says(one, f"-c 2 {number}", FAILED, "net.ipv4.ping_group_range", USER)
        assert "CAP_NET_RAW" in refused
        # Two at a time on raw sockets, which see each other's answers.
        other = one.spawn(f"{PING} -c 20 {number}")
        says(one, f"-c 20 {number}", FINE, "20 answered")
        assert "20 answered" in other.wait(30).out
    finally:
        groups(one, *old)
    saw(refused)


def test_wrong_names_and_arguments(settled, saw):
    one, _ = settled
    said = says(one, "nobody", FAILED, "`nobody` is neither the id of a node, nor a name in /etc/nupa/nodes.conf")
    says(one, "70000", FAILED, "neither the id")
    says(one, "1023", FAILED, "ids of this fabric are below")
    says(one, str(node_id(one)), FAILED, "is this one")
    for wrong in "", "1 2", "-c 0 2", "-i 0 2", "-W x 2", "-c 70000 2":
        done = one.run(f"{PING.split(' -i')[0]} {wrong}", check=False)
        assert done.code == USAGE and not done.out, done
    saw(said)


def test_nodes_that_do_not_answer(pair, saw):
    one, two = pair
    number = node_id(two)
    # One that is up, and its interface is not.
    two.run(f"ip link set {INTERFACE} down")
    said = says(one, f"-c 2 -W 0.2 {number}", TROUBLE, "2 sent, no answer: the interface of node")
    (pinged,) = [json.loads(one.run(f"{PING} --json -c 1 -W 0.2 {number}", check=False).out)]
    assert pinged["round_trips"] == [None], pinged
    two.run("nupa-down", timeout=60)
    wait_until("the node to be down", lambda: number not in [node for node, _ in debugfs_peers(one)[1:]])
    says(one, number, TROUBLE, f"node {number} is down")
    saw(said.splitlines()[-1])


def test_without_an_interface(pair, saw):
    one, two = pair
    number = node_id(two)
    one.run(f"sysctl -qw net.ipv6.conf.{INTERFACE}.disable_ipv6=1")
    said = says(one, f"-c 1 {number}", FAILED, "the interface has perhaps no IPv6 address")
    one.run(f"sysctl -qw net.ipv6.conf.{INTERFACE}.disable_ipv6=0; ip link set {INTERFACE} down")
    says(one, f"-c 1 {number}", FAILED, f"`ip link set {INTERFACE} up`")
    one.run("rmmod nupa_rdma nupa_net", timeout=60)
    says(one, f"-c 1 {number}", FAILED, "`modprobe nupa_net`")
    one.run("nupa-down", timeout=60)
    says(one, f"-c 1 {number}", NOTHING, "`modprobe nupa_fabric`")
    saw(said)
