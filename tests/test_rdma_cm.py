# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Connections by the RDMA connection manager, as librdmacm's programs make them; they need a working QP1."""

import re

import pytest

from verbs import install


@pytest.fixture
def equipped(settled):
    for node in settled:
        install(node)
    return settled


def address(node, version):
    return node.ip if version == 4 else node.ip6


def converse(server, client, served, asked, timeout=60):
    """Runs a server until it listens, then a client; both must succeed. Returns what the client printed."""
    running = server.spawn(f"timeout {timeout} {served}")
    server.run("for i in $(seq 100); do rdma -j resource show cm_id | grep -q LISTEN && exit 0; sleep 0.1; done; exit 1")
    result = client.run(f"timeout {timeout} {asked}", timeout=timeout + 20, check=False)
    there = running.wait(timeout)
    assert result.code == 0 and there.code == 0, f"{result}\n{there}"
    return result.out


@pytest.mark.parametrize("version", [4, 6])
def test_rping(equipped, saw, version):
    """Checks its data (-V), between two nodes and on one."""
    one, two = equipped
    for server in (two, one):
        to = address(server, version)
        converse(server, one, f"rping -s -a {to} -V -C 50 -S 4000", f"rping -c -a {to} -V -C 50 -S 4000")
    saw("50 rounds of 4000 bytes, two nodes and loopback")


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


def test_two_thousand_connections(equipped, saw):
    """Opened and closed, 100 at a time; nothing is left and none fails."""
    one, two = equipped
    for _ in range(20):
        program = "ucmatose -c 100 -C 1 -S 64"
        converse(two, one, f"{program} -b {two.ip}", f"{program} -s {two.ip}")
    for node in equipped:
        left = node.run("rdma -j resource show cm_id").json()
        assert not [entry for entry in left if entry.get("comm") == "ucmatose"], left
    saw("2,000 connections, each with a message both ways")


def test_cm_refuses(equipped, saw):
    """Nobody listens: the client is told so at once."""
    one, two = equipped
    result = one.run(f"timeout 60 rping -c -a {two.ip} -C 1", timeout=80, check=False)
    assert result.code != 0 and re.search("REJECTED|rejected|event", result.out + result.err), str(result)
    saw((result.out + result.err).strip().splitlines()[0])
