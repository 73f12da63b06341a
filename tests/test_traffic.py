# SPDX-License-Identifier: GPL-2.0 OR MIT
"""What a user tries first: ping, TCP, UDP, IPv6, every MTU."""

import json
import re
import time

import pytest

import traffic
from modes import EVERYTHING, long_but_on
from nodes import INTERFACE
from waiting import wait_until

# What the interface does is the same in all pools.
once_on_pools = long_but_on("pcie", "cxl")


def test_ping(settled, saw):
    one, two = settled
    for source, target in ((one, two.ip), (two, one.ip), (one, two.ip6), (two, one.ip6)):
        for size in (0, 56, 8000, 65000):
            got = source.pings(target, count=5, options=f"-s {size}")
            assert got == 5, f"{source.name} to {target}, {size} bytes: {got} of 5 answers"
    times = one.run(f"ping -q -c 50 -i 0.02 {two.ip}", timeout=30).out
    assert " 0% packet loss" in times, times
    saw("round trip min/avg/max/mdev " + re.search(r"= (\S+ ms)", times).group(1))


@long_but_on("pcie")
def test_mac_comes_from_the_node_and_is_stable(pair, saw):
    one, two = pair
    macs = [node.link()["address"] for node in pair]
    assert macs[0] != macs[1]
    for node, mac in zip(pair, macs):
        assert int(mac[:2], 16) & 3 == 2, f"{mac} is not a local unicast address"
        node.run("nupa-down && nupa-up", timeout=60)
        assert node.link()["address"] == mac, "the address changed with a reload"
    one.await_ping(two.ip)
    saw(" ".join(macs))


@pytest.mark.parametrize("family", ["ipv4", pytest.param("ipv6", marks=once_on_pools)])
def test_tcp_bytes(settled, saw, family):
    one, two = settled
    for source, target in ((one, two), (two, one)):
        report = traffic.tcp(source, target.ip if family == "ipv4" else target.ip6, size=16 << 20, seed=source.number)
        saw(f"{source.name}: {report['sent'] + report['received']} bytes in {report['seconds']:.1f} s, all right")


@pytest.mark.parametrize("family", ["ipv4", pytest.param("ipv6", marks=once_on_pools)])
def test_udp_bytes(settled, saw, family):
    one, two = settled
    for source, target in ((one, two), (two, one)):
        report = traffic.udp(source, target.ip if family == "ipv4" else target.ip6, count=200, seed=source.number)
        saw(f"{source.name}: {report['datagrams']} datagrams, {report['bytes']} bytes, all right")


def test_tcp_one_stream(settled, saw):
    end = traffic.iperf3(*settled)["end"]
    assert end["sum_received"]["bits_per_second"] > 10e6, end
    saw(f"{end['sum_received']['bits_per_second'] / 1e6:.0f} Mb/s, {end['sum_sent']['retransmits']} retransmits")


@once_on_pools
def test_tcp_four_streams_both_ways(settled, saw):
    for options in ("-P 4", "-P 4 -R"):
        end = traffic.iperf3(*settled, options)["end"]
        assert len(end["streams"]) == 4, end
        assert all(stream["receiver"]["bytes"] > 0 for stream in end["streams"]), end
        saw(f"{options}: {end['sum_received']['bits_per_second'] / 1e6:.0f} Mb/s")


# Prints the length of the longest frame that came in at an interface as long as there is a file.
WATCH = """
import os, select, socket, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)); s.bind((sys.argv[1], 0))
open(sys.argv[2], "w").close()
longest, one = 0, bytearray(1)
while os.path.exists(sys.argv[2]):
    if select.select([s], [], [], 0.1)[0]:
        length, _, _, address = s.recvmsg_into([one], 0, socket.MSG_TRUNC)
        longest = max(longest, length) if address[2] != socket.PACKET_OUTGOING else longest
print(longest)
"""
# Bytes of the longest frame of one packet: an IP packet, an Ethernet header and two VLAN tags.
LONGEST_PACKET = 65535 + 14 + 8


# TCP makes a frame as long as what a program has written, what fits into the receiver's window and what it takes for a
# millisecond's worth. Neither the window nor the time shall be what limits it, however slow the nodes are.
ROOMY = {"tcp_rmem": "4096 4194304 6291456", "tcp_tso_rtt_log": "30"}
LARGEST_CHUNK = 1 << 20
ROOMY_PORT = 5301


@pytest.fixture
def roomy(settled):
    """The nodes, with another netcheck server on the second, whose connections may have long frames."""
    def read(node, name):
        return " ".join(node.run(f"sysctl -n net.ipv4.{name}").out.split())

    def write(node, values):
        for name, value in values.items():
            node.run(f"sysctl -q -w net.ipv4.{name}='{value}'")

    before = {node: {name: read(node, name) for name in ROOMY} for node in settled}
    two = settled[1]
    try:
        for node in settled:
            write(node, ROOMY)
        # A connection inherits its buffers from the socket that listens.
        server = two.spawn(f"exec netcheck serve --listen [::]:{ROOMY_PORT}")
        try:
            wait_until("the second netcheck", lambda: two.run(f"ss -Hltn 'sport = :{ROOMY_PORT}'").out.strip())
            yield settled
        finally:
            # If it has ended by itself, that is what failed.
            two.run("pkill -x -f 'netcheck serve --listen .*'", check=False)
            server.wait(20)
    finally:
        for node, values in before.items():
            write(node, values)


@pytest.mark.parametrize("family", [pytest.param("ipv4", marks=long_but_on("pcie")), pytest.param("ipv6", marks=once_on_pools)])
def test_big_tcp(roomy, saw, family):
    """Super-frames are as long as the sender is allowed to make them, and whole."""
    one, two = roomy
    address = two.ip if family == "ipv4" else two.ip6
    most = json.loads(one.run(f"ip -details -json link show {INTERFACE}").out)[0]["tso_max_size"]
    assert most > LONGEST_PACKET
    try:
        for allowed in (65536, most):
            one.run(f"ip link set {INTERFACE} gso_max_size {allowed} gso_ipv4_max_size {allowed}")
            watcher = two.spawn(f"python3 -c '{WATCH}' {INTERFACE} /run/watch")
            two.run("for i in $(seq 100); do [ -e /run/watch ] && exit 0; sleep 0.1; done; exit 1")
            traffic.tcp(one, address, size=32 << 20, seed=allowed, largest=LARGEST_CHUNK, port=ROOMY_PORT)
            two.run("rm /run/watch")
            longest = int(watcher.wait(20).out)
            assert (longest > LONGEST_PACKET) == (allowed > LONGEST_PACKET) and longest <= allowed, longest
            saw(f"up to {allowed} bytes: {longest}")
    finally:
        one.run(f"ip link set {INTERFACE} gso_max_size {most} gso_ipv4_max_size {most}")


def test_udp_stream_loses_nothing_on_the_fabric(settled, saw):
    """Datagrams may be lost only where the receiving program is too slow to read them, and that is counted."""
    one, two = settled

    def full_sockets():
        return int(two.run("nstat -asz UdpRcvbufErrors | tail -n 1").out.split()[1])

    before = full_sockets()
    end = traffic.iperf3(one, two, "-u -b 20M -l 1400")["end"]["sum"]
    lost, full = end["lost_packets"], full_sockets() - before
    assert end["packets"] > 1000 and lost <= full, f"{lost} lost, {full} of them at full sockets: {end}"
    saw(f"{end['packets']} datagrams, {lost} lost at full sockets, none on the way")


@once_on_pools
def test_a_datagram_is_charged_what_it_takes(pair, saw):
    """What a socket of the default size holds while nobody reads: a program that is late by a few milliseconds loses what does not fit.

    A datagram of 8 KB that were charged a whole receive buffer would leave room for a dozen.
    """
    one, two = pair
    sent, size = 40, 8192
    # Large frames of earlier tests leave parts of buffers in the ring. One that is too small to be cut again is charged as a whole.
    two.run(f"ip link set {INTERFACE} down && ip link set {INTERFACE} up", timeout=60)
    one.await_ping(two.ip)
    receiver = two.spawn("""python3 -c '
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(("", 5401))
end = socket.create_server(("", 5401)); end.accept()
print(s.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)); s.setblocking(False)
while True:
    try: data = s.recv(65536)
    except BlockingIOError: break
    print(len(data), sum(data) % 251)'""")
    two.run("for i in $(seq 100); do ss -Hltn 'sport = :5401' | grep -q . && exit 0; sleep 0.1; done; exit 1")

    def arrived():
        return two.link()["stats64"]["rx"]["packets"]

    before = arrived()
    one.run(f"""python3 -c '
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for n in range({sent}): s.sendto(bytes([n]) * {size}, ("{two.ip}", 5401))'""")
    wait_until("the datagrams", lambda: arrived() >= before + sent)
    one.run(f"python3 -c 'import socket; socket.create_connection((\"{two.ip}\", 5401))'")
    room, *lines = receiver.wait(30).out.splitlines()
    held, fits = len(lines), int(room) // size
    expected, certain = [f"{size} {number * size % 251}" for number in range(sent)], fits * 2 // 3
    assert certain <= held <= fits + 1, f"{held} of {sent} in a socket of {room} bytes"
    assert lines[:certain] == expected[:certain], lines
    # Of those that come when it is full, one that takes less memory than another may still fit.
    left = iter(expected[certain:])
    assert all(line in left for line in lines[certain:]), lines
    saw(f"{held} datagrams of {size} bytes in a socket of {room}")


@once_on_pools
def test_udp_segmentation_offload(settled, saw):
    """One send of many datagrams (UDP_SEGMENT) must arrive as that many datagrams."""
    one, two = settled
    receiver = two.spawn("""python3 -c '
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(("", 5400)); s.settimeout(20)
s.setsockopt(socket.SOL_SOCKET, 33, 1 << 23)
print("listening", flush=True)
print(*(f"{len(d)}:{sum(d) % 251}" for d in (s.recv(65536) for _ in range(4 * 11))))'""")
    two.run("for i in $(seq 100); do ss -Hlun 'sport = :5400' | grep -q . && exit 0; sleep 0.1; done; exit 1")
    one.run(f"""python3 -c '
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(("{two.ip}", 5400))
s.setsockopt(17, 103, 1000)
for n in range(4): s.send(bytes((i * 7 + n) % 256 for i in range(10 * 1000 + 77)))'""")
    out = receiver.wait(40).out
    want = []
    for number in range(4):
        data = bytes((i * 7 + number) % 256 for i in range(10 * 1000 + 77))
        parts = (data[at : at + 1000] for at in range(0, len(data), 1000))
        want += [f"{len(part)}:{sum(part) % 251}" for part in parts]
    assert out.split()[1:] == want, out
    saw(f"{len(want)} datagrams of 4 sends, each right")


# (MTU, largest datagram: the reassembly of more fragments than this exceeds a socket's buffer)
MTUS = [(68, 2000), (576, 16000), (1280, 32000), (1500, 65507), (4321, 65507), (9000, 65507), (16384, 65507),
        (40001, 65507), (65535, 65507)]
SHORTER = [MTUS[0], MTUS[3], MTUS[-1]]


@long_but_on("pcie")
def test_mtu_sweep(pair, saw):
    one, two = pair
    for mtu, largest in MTUS if EVERYTHING else SHORTER:
        start = time.monotonic()
        for node in pair:
            # Path MTUs that TCP learnt at a smaller MTU would still count, for minutes.
            # Below 1280 there is no IPv6, and its address is refused.
            node.run(f"ip link set {INTERFACE} mtu {mtu} && ip route flush cache; nupa-up || [ {mtu} -lt 1280 ]")
        one.await_ping(two.ip)
        assert one.pings(two.ip, 3, options=f"-M do -s {mtu - 28}") == 3, f"a packet of the MTU {mtu} does not arrive"
        if mtu < 65535:
            assert one.pings(two.ip, 1, options=f"-M do -s {mtu - 27}", deadline=1) == 0, f"MTU {mtu} is exceeded"
        traffic.tcp(one, two.ip, size=min(mtu << 10, 2 << 20), seed=mtu)
        traffic.udp(two, one.ip, count=30, seed=mtu, largest=largest)
        if mtu >= 1280:
            traffic.tcp(two, one.ip6, size=1 << 20, seed=mtu + 1)
        saw(f"{mtu} ({time.monotonic() - start:.1f} s)")


def test_mtu_limits(settled, saw):
    one, _ = settled
    link = one.link()
    assert (link["min_mtu"], link["max_mtu"]) == (68, 65535), link
    for mtu in (67, 65536):
        assert one.run(f"ip link set {INTERFACE} mtu {mtu}", check=False).code != 0, f"MTU {mtu} is taken"
    saw("67 and 65536 refused")


@long_but_on("pcie")
def test_ssh_copy_keeps_a_file(settled, saw):
    one, two = settled
    one.run("head -c 16M /dev/urandom >/tmp/file && scp -q -o StrictHostKeyChecking=no "
            f"-o UserKnownHostsFile=/dev/null /tmp/file root@{two.ip}:/tmp/file", timeout=90)
    sums = [node.run("sha256sum /tmp/file; rm /tmp/file").out.split()[0] for node in settled]
    assert sums[0] == sums[1], sums
    saw(f"16 MB, SHA-256 {sums[0][:12]}...")


def test_tcpdump_sees_frames(settled, saw):
    one, two = settled
    captures = [traffic.capture(node, f"-c 10 '{traffic.PING}'", 20) for node in settled]
    # Just five, however late the answers are: `ping -w` goes on until they have come.
    one.run(f"ping -n -q -c 5 -i 0.05 -W 15 {two.ip}", check=False)
    for node, capture in zip(settled, captures):
        out = capture.wait(30).out
        requests, replies = out.count("ICMP echo request"), out.count("ICMP echo reply")
        assert requests == replies == 5, f"{node.name} saw {requests} requests, {replies} replies:\n{out}"
    saw("5 requests, 5 replies on both nodes")
