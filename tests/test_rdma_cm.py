# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Connections by the RDMA connection manager, as librdmacm's programs make them; they need a working QP1."""

import re

import pytest

from modes import long, only
from nodes import INTERFACE
from verbs import DEVICE, gid_of, install
from waiting import PATIENCE, many, wait_until


@pytest.fixture
def equipped(settled):
    for node in settled:
        install(node)
    return settled


def address(node, version):
    return node.ip if version == 4 else node.ip6


def converse(server, client, served, asked, timeout=60):
    """Runs a server until it listens, then a client; both must succeed."""
    converse_all([(server, client, served, asked)], timeout)


def converse_all(talks, timeout=60):
    """Runs servers, at most one on a node, until they listen, then their clients; all must succeed.

    A talk is server, client, the server's command and the client's.
    """
    servers = [server.spawn(f"timeout {timeout * PATIENCE} {served}") for server, _, served, _ in talks]
    for server, *_ in talks:
        server.run(f"for i in $(seq {100 * PATIENCE}); do rdma -j resource show cm_id | grep -q LISTEN && exit 0; "
                   "sleep 0.1; done; exit 1")
    clients = [client.spawn(f"timeout {timeout * PATIENCE} {asked}") for _, client, _, asked in talks]
    results = [running.wait(timeout + 20) for running in clients + servers]
    assert all(result.code == 0 for result in results), "\n".join(map(str, results))


@pytest.mark.parametrize("version", [4, 6])
def test_rping(equipped, saw, version):
    """Checks its data (-V), between two nodes and on one."""
    one, two = equipped
    for server in (two, one):
        to = address(server, version)
        converse(server, one, f"rping -s -a {to} -V -C 50 -S 4000", f"rping -c -a {to} -V -C 50 -S 4000")
    saw("50 rounds of 4000 bytes, two nodes and loopback")


@pytest.fixture
def tagged(pair):
    """Nodes with an interface each in VLAN 7 and in VLAN 8, with addresses of their own."""
    for node in pair:
        install(node)
        for number in (7, 8):
            name = f"{INTERFACE}.{number}"
            node.run(f"ip link add link {INTERFACE} name {name} type vlan id {number} && ip link set {name} up && "
                     f"ip addr add 10.77.{number}.{node.number}/24 dev {name} && "
                     f"ip addr add fd77:{number}::{node.number}/64 dev {name} nodad")
    # Until its link-local address is no longer tentative, an interface asks for no neighbour unless a packet waits for it, and the RDMA
    # core sends none: the connection manager gives up after two seconds, or the request is lost and sent again after four.
    for node in pair:
        wait_until(f"{node.name} to have link-local addresses in the VLANs", lambda node=node: not node.run(
            "ip -6 -o addr show tentative").out, 15)
    yield pair
    for node in pair:
        node.run(f"ip link del {INTERFACE}.7; ip link del {INTERFACE}.8", check=False)


@only("pcie", why="about GIDs in VLANs, which are not told below")
@pytest.mark.parametrize("version", [4, 6])
def test_rping_in_vlans(tagged, saw, version):
    """Over the interfaces of two VLANs, whose addresses the device has as GIDs in these VLANs."""
    one, two = tagged
    gids = f"/sys/class/infiniband/{DEVICE}/ports/1"
    for number in (7, 8):
        to = f"10.77.{number}.{two.number}" if version == 4 else f"fd77:{number}::{two.number}"
        index = two.run(f"grep -l '^{gid_of(to)}$' {gids}/gids/*").out.split()[0].rpartition("/")[2]
        assert two.read(f"{gids}/gid_attrs/ndevs/{index}") == f"{INTERFACE}.{number}"
        converse(two, one, f"rping -s -a {to} -V -C 50 -S 4000", f"rping -c -a {to} -V -C 50 -S 4000")
    saw("50 rounds of 4000 bytes in each of two VLANs")


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("program", ["ucmatose", "udaddy"])
def test_message_programs(equipped, saw, program, version):
    one, two = equipped
    to = address(two, version)
    kind = f"-f {'ip6' if version == 6 else 'ip'}"
    converse(two, one, f"{program} {kind} -b {to} -c 4 -C 20", f"{program} {kind} -s {to} -c 4 -C 20")
    saw("4 connections, 20 messages each")


@pytest.mark.parametrize("version", [4, 6])
def test_rdma_client(equipped, saw, version):
    one, two = equipped
    to = address(two, version)
    converse(two, one, f"rdma_server -s {to}", f"rdma_client -s {to}")
    saw("a message each way")


@long
@only("pcie", why="test_rdma_queues has a thousand connections in each mode, and each message of these crosses like others")
def test_two_thousand_connections(equipped, saw):
    """Opened and closed, 100 from each node at a time; nothing is left and none fails."""
    program = "ucmatose -c 100 -C 1 -S 64"
    one, two = equipped
    for _ in range(many(10)):
        converse_all([(server, client, f"{program} -b {server.ip}", f"{program} -s {server.ip}")
                      for server, client in ((one, two), (two, one))])
    for node in equipped:
        left = node.run("rdma -j resource show cm_id").json()
        assert not [entry for entry in left if entry.get("comm") == "ucmatose"], left
    saw(f"{many(10) * 200:,} connections, each with a message both ways")


def test_cm_refuses(equipped, saw):
    """Nobody listens: the client is told so at once."""
    one, two = equipped
    result = one.run(f"timeout {60 * PATIENCE} rping -c -a {two.ip} -C 1", timeout=80, check=False)
    assert result.code != 0 and re.search("REJECTED|rejected|event", result.out + result.err), str(result)
    saw((result.out + result.err).strip().splitlines()[0])
