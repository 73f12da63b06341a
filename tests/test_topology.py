# SPDX-License-Identifier: GPL-2.0 OR MIT
"""More than one cable: VLANs, network namespaces, bridges, three nodes."""

import json
import re
import shlex
import subprocess

import pytest

import traffic
from modes import only
from nodes import INTERFACE, TOP, Node, Switch, make_run_dir, stop_all
from verbs import remote, sge
from waiting import DEBUG_KERNEL, PATIENCE, wait_until

VLAN = f"{INTERFACE}.100"


def add_vlan(node):
    node.run(f"ip link add link {INTERFACE} name {VLAN} type vlan id 100 && ip link set {VLAN} up && "
             f"ip address add 10.77.100.{node.number}/24 dev {VLAN}")


@pytest.mark.parametrize("offload", ["on", "off"])
def test_vlan(pair, saw, offload):
    one, two = pair
    for node in pair:
        node.run(f"ethtool -K {INTERFACE} txvlan {offload} rxvlan {offload}", check=False)
        add_vlan(node)
    try:
        one.await_ping("10.77.100.2")
        assert one.pings("10.77.100.2", 3, options="-M do -s 8972") == 3, "a full packet does not fit with its tag"
        traffic.tcp(one, "10.77.100.2", size=4 << 20)
        traffic.udp(two, "10.77.100.1", count=50)
        capture = traffic.capture(two, f"-e -c 2 'vlan 100 and ({traffic.PING})'", 20)
        one.pings("10.77.100.2", 2)
        out = capture.wait(30).out
        assert out.count("vlan 100") == 2, out
    finally:
        for node in pair:
            node.run(f"ip link del {VLAN}; ethtool -K {INTERFACE} txvlan on rxvlan on", check=False)
    saw("pings of full size, verified TCP and UDP, tags seen by tcpdump")


def test_vlans_are_apart(pair, saw):
    one, two = pair
    add_vlan(one)
    two.run(f"ip link add link {INTERFACE} name {VLAN} type vlan id 101 && ip link set {VLAN} up && "
            f"ip address add 10.77.100.2/24 dev {VLAN}")
    assert one.pings("10.77.100.2", 2, deadline=2) == 0, "VLAN 100 reaches VLAN 101"
    saw("100 does not reach 101")


def test_namespace_move(pair, saw):
    one, two = pair
    two.run(f"ip netns add blue && ip link set {INTERFACE} netns blue && ip -n blue link set {INTERFACE} up && "
            f"ip -n blue address add {two.ip}/24 dev {INTERFACE}")
    two.run("ip netns exec blue setsid netcheck serve --listen 0.0.0.0:5300 >/run/blue.log 2>&1 </dev/null & "
            "for i in $(seq 100); do grep -q ready /run/blue.log && exit 0; sleep 0.1; done; exit 1")
    one.await_ping(two.ip)
    traffic.tcp(one, two.ip, size=4 << 20)
    two.run("ip netns pids blue | xargs -r kill -9; ip netns del blue")
    wait_until(f"{INTERFACE} to come back", lambda: two.run(f"ls -d /sys/class/net/{INTERFACE}", check=False).code == 0)
    two.run("nupa-up")
    one.await_ping(two.ip)
    saw("into a namespace, verified traffic, back when it was deleted")


def test_macvlan_needs_no_promiscuity(pair, saw):
    """A further unicast address is one more in the receive filter."""
    one, two = pair
    two.run(f"ip netns add behind && ip link add link {INTERFACE} name eth0 netns behind type macvlan mode bridge && "
            "ip -n behind link set eth0 up && ip -n behind address add 10.77.0.102/24 dev eth0")
    two.run("ip netns exec behind setsid netcheck serve --listen 0.0.0.0:5300 >/run/behind.log 2>&1 </dev/null & "
            "for i in $(seq 100); do grep -q ready /run/behind.log && exit 0; sleep 0.1; done; exit 1")
    (link,) = two.run(f"ip -d -j link show {INTERFACE}").json()
    assert link["promiscuity"] == 0, f"a macvlan made {INTERFACE} promiscuous"
    one.await_ping("10.77.0.102")
    one.await_ping(two.ip)
    report = traffic.tcp(one, "10.77.0.102", size=1 << 20)
    saw(f"{report['sent'] + report['received']} bytes to and from an address of its own, promiscuity 0")


def add_bridge(node):
    """Puts the interface into a bridge with a veth whose other end is a host of its own, without any offload."""
    node.run(f"""
        ip netns add behind && ip link add veth0 type veth peer name eth0 netns behind &&
        ip link add br0 type bridge forward_delay 0 && ip link set br0 mtu 9000 &&
        ip link set veth0 mtu 9000 && ip -n behind link set eth0 mtu 9000 &&
        ethtool -K veth0 tx off tso off gso off gro off sg off >/dev/null &&
        ip address flush dev {INTERFACE} scope global &&
        ip link set {INTERFACE} master br0 && ip link set veth0 master br0 &&
        ip link set veth0 up && ip link set br0 up && ip address add {node.ip}/24 dev br0 &&
        ip -n behind link set lo up && ip -n behind link set eth0 up &&
        ip -n behind address add 10.77.0.102/24 dev eth0""")
    node.run("ip netns exec behind setsid netcheck serve --listen 0.0.0.0:5300 >/run/behind.log 2>&1 </dev/null & "
             "for i in $(seq 100); do grep -q ready /run/behind.log && exit 0; sleep 0.1; done; exit 1")


def test_bridge_forwards_super_frames_with_right_checksums(pair, saw):
    """A frame that crossed the fabric unsegmented and without a checksum leaves a port that can do neither."""
    one, two = pair
    add_bridge(two)
    one.await_ping("10.77.0.102")
    one.await_ping(two.ip)
    capture = traffic.capture(two, "-vv -c 400 tcp and dst 10.77.0.102", 60, "eth0", "ip netns exec behind ")
    traffic.tcp(one, "10.77.0.102", size=8 << 20)
    traffic.udp(one, "10.77.0.102", count=50)
    traffic.tcp(two, one.ip, size=4 << 20, prefix="ip netns exec behind ")
    out = capture.wait(70).out
    right, wrong = out.count("(correct)"), out.count("incorrect")
    assert right >= 300 and wrong == 0, f"{right} right checksums, {wrong} wrong:\n{out[:2000]}"
    longest = max(int(length) for length in re.findall(r"proto TCP \(6\), length (\d+)", out))
    assert longest <= 9000, f"a packet of {longest} bytes left the bridge"
    errors = two.run("ip netns exec behind nstat -asz TcpInCsumErrors UdpInCsumErrors | tail -n 2").out
    assert re.findall(r"CsumErrors\s+(\d+)", errors) == ["0", "0"], errors
    saw(f"{right} packets of at most {longest} bytes, all checksums right")


def bad_offload(node):
    """Frames that a node has refused for their offload words."""
    found = re.findall(r"rx_bad_offload: (\d+)", node.run(f"ethtool -S {INTERFACE}").out)
    return sum(map(int, found))


def mac_of(node):
    return node.run(f"cat /sys/class/net/{INTERFACE}/address").out.strip()


@pytest.fixture
def hostile(pair):
    """Node 1, whose driver sends the offload words that a frame itself says."""
    one, _ = pair
    subprocess.run([TOP / "scripts/build", "hostile"], check=True, stdout=subprocess.DEVNULL)
    module = f"/nupa/build/hostile{'-debug' if DEBUG_KERNEL else ''}/nupa_net.ko"
    one.run(f"rmmod nupa_net && insmod {module} && nupa-up && ip link set {INTERFACE} mtu 9000")
    yield one
    # The next test finds its interface missing, and has all modules loaded again.
    one.run("rmmod nupa_net")


def test_hostile_offload_words(pair, hostile, saw):
    """All that is wrong with offload words comes from a peer, for a host behind a node's bridge: refused and counted, nothing in
    the log. What is right comes through, cut up for a port that can do nothing. The same with a program that sees frames first."""
    _, two = pair
    add_bridge(two)
    # Frames for the node's own address are not flooded, so none is missed for want of a buffer.
    source, home = mac_of(hostile), mac_of(two)
    two.run(f"ip link set {INTERFACE} address 02:00:00:00:00:99 && ip -n behind link set eth0 address {home}")
    try:
        hostile.await_ping("10.77.0.102")
        segments = 4 * (8 + 1) + 4 * (2 + 1)
        wanted = f"-c {segments} ether src {source} and '(host 10.77.0.201 or host ::2)'"
        for program in (False, True):
            if program:  # The driver segments them itself, for the program to see.
                two.run(f"python3 -B /nupa/tests/guest/xdp.py attach {INTERFACE} pass --frags")
                hostile.await_ping("10.77.0.102")
            capture = traffic.capture(two, wanted, 60, "eth0", "ip netns exec behind ")
            before = bad_offload(two)
            bad, good = map(int, hostile.run(f"python3 /nupa/tests/guest/forge.py {INTERFACE} {source} {home}").out.split())
            wait_until(f"{bad} refused frames", lambda: bad_offload(two) - before == bad)
            lines = capture.wait(70).out.splitlines()
            assert len(lines) == segments, "\n".join(lines)
        traffic.tcp(hostile, "10.77.0.102", size=1 << 20)
    finally:
        two.run(f"ip -n behind link set eth0 address 02:00:00:00:00:99; ip link set {INTERFACE} address {home}")
    saw(f"{bad} bad ones refused, {good} good ones made {segments} packets behind the bridge")


def test_bridge_on_both_sides(pair, saw):
    """Hosts behind both bridges reach each other: frames to and from addresses that are no node's."""
    one, two = pair
    add_bridge(two)
    add_bridge(one)
    one.run("ip -n behind address del 10.77.0.102/24 dev eth0; ip -n behind address add 10.77.0.101/24 dev eth0")
    wait_until("the host behind node 1 to reach the one behind node 2",
               lambda: one.run("ip netns exec behind ping -n -q -c 1 -w 1 10.77.0.102", check=False).code == 0, 20)
    report = traffic.tcp(one, "10.77.0.102", size=4 << 20, prefix="ip netns exec behind ")
    saw(f"{report['sent'] + report['received']} bytes between hosts behind bridges, all right")


def test_three_nodes_all_pairs(trio, saw):
    for source in trio:
        for target in trio:
            if source is not target:
                assert source.pings(target.ip, 3) == 3 and source.pings(target.ip6, 3) == 3
    loads = [traffic.start(trio[n], trio[(n + 1) % 3].ip, 4, seed=n) for n in range(3)]
    moved = sum(report["sent"] + report["received"] for report in map(traffic.survived, loads))
    saw(f"all six ways; a ring of three streams moved {moved} bytes, all right")


@only("pcie", why="test_pool_nodes has four")
def test_rdma_between_three_nodes(trio, rdma, saw):
    """Each node writes to both others at once."""
    ends = []
    for source in trio:
        for target in trio:
            if source is not target:
                a, b = rdma.rc(source, target)
                ends.append((a, b, a.region(100000, len(ends)), b.region(100000, 50)))
    for a, _, local, far in ends:
        a.program.begin("write_often", a.qp, a.cq, sge(local), remote(far), 20)
    for a, *_ in ends:
        a.program.result(60)
    for number, (_, b, _, far) in enumerate(ends):
        b.check(far, [[0, number, 0, 100000]])
    saw("six connections at the same time, all bytes right")


def test_broadcast_and_multicast_reach_all(trio, saw):
    one, two, three = trio
    for node in trio:
        node.run("sysctl -q net.ipv4.icmp_echo_ignore_broadcasts=0")
    def answering(address):
        out = one.run(f"ping -n -c 3 -i 0.3 -w 5 {address}", check=False).out
        return {source.partition("%")[0] for source in re.findall(r"bytes from ([^ ]+?):? ", out)}

    def link_local(node):
        listed = node.run(f"ip -6 -o address show dev {INTERFACE} scope link").out
        return re.search(r"inet6 (\S+)/64", listed).group(1)

    assert answering("-b 10.77.0.255") - {one.ip} == {two.ip, three.ip}
    assert answering(f"ff02::1%{INTERFACE}") - {link_local(one)} == {link_local(two), link_local(three)}
    saw("broadcast and all-nodes multicast answered by both others")


def test_multicast_filter(trio, saw):
    """A group reaches the node that joined, and the others do not even see it."""
    one, two, three = trio
    group, last = "33:33:00:00:12:34", "0x88b6"
    two.run(f"ip maddress add {group} dev {INTERFACE}")
    captures = {node: traffic.capture(node, f"-p -e ether dst {group} or ether proto {last}", 60) for node in (two, three)}
    one.run(f"""python3 -c '
import socket
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW); s.bind(("{INTERFACE}", 0))
mac = bytes.fromhex(open("/sys/class/net/{INTERFACE}/address").read().strip().replace(":", ""))
for _ in range(5): s.send(bytes.fromhex("{group.replace(":", "")}") + mac + b"\\x88\\xb5" + bytes(50))
s.send(b"\\xff" * 6 + mac + b"\\x88\\xb6" + bytes(50))'""")
    for node in captures:
        traffic.await_captured(node, last)
        node.run("pkill -INT -x tcpdump")
    seen = {node.name: capture.wait(20).out.count(group) for node, capture in captures.items()}
    two.run(f"ip maddress del {group} dev {INTERFACE}")
    assert seen == {"node2": 5, "node3": 0}, f"frames of the group seen: {seen}"
    saw("5 of 5 frames on the node that joined, none on the other")


def test_unicast_is_private(trio, saw):
    """Node 3, promiscuous, sees no frame between nodes 1 and 2."""
    one, two, three = trio
    one.await_ping(two.ip)
    capture = traffic.capture(three, "tcp port 5300 or icmp or udp", 30)
    traffic.tcp(one, two.ip, size=2 << 20)
    one.pings(two.ip, 5)
    three.pings(one.ip, 1)
    # What has not been read when tcpdump is told to end is never printed: it has to come to the last frame by itself.
    traffic.await_captured(three, f"{one.ip} > {three.ip}: ICMP echo reply")
    three.run("pkill -INT -x tcpdump")
    lines = [line for line in capture.wait(30).out.splitlines() if " IP " in line]
    foreign = [line for line in lines if three.ip not in line]
    assert not foreign, "node 3 saw:\n" + "\n".join(foreign[:10])
    saw(f"of {len(lines)} frames seen by node 3, none was between the other two")


def test_neighbour_leaves_and_comes_back(trio, saw):
    """A third node that goes silent becomes unreachable, the others do not notice."""
    one, two, three = trio
    three.run(f"ip link set {INTERFACE} down")
    one.run(f"ip neigh flush dev {INTERFACE}")
    assert one.pings(three.ip, 2, deadline=4) == 0
    state = one.run(f"ip neigh show {three.ip} dev {INTERFACE}").out.split()[-1]
    assert state in ("FAILED", "INCOMPLETE"), state
    assert one.pings(two.ip, 3) == 3
    three.run(f"ip link set {INTERFACE} up; nupa-up")
    one.await_ping(three.ip)
    saw(f"{state} while it was down, reachable after")


# Counts the lines of the kernel's log that come in until the last one.
LISTENER = """
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
SO_RCVBUFFORCE = 33
s.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 8 << 20)
s.bind(("", 6666))
print("listening", flush=True)
lines = set()
while True:
    text = s.recv(65536).decode(errors="replace")
    lines |= {word for word in text.split() if word.startswith("netconsole-line-")}
    if "netconsole-end" in text:
        break
print(len(lines))
"""


def test_netconsole(pair, saw):
    """The kernel's log over the network. It is sent with interrupts off, while others send: where there is no room netpoll polls
    the device, and may not take a lock that whoever was interrupted has."""
    one, two = pair
    count = 2000
    two.run("rm -f /run/netconsole.log")
    listener = two.spawn(f"timeout {120 * PATIENCE} python3 -uc {shlex.quote(LISTENER)} >/run/netconsole.log")
    wait_until("the listener", lambda: "listening" in two.run("cat /run/netconsole.log").out)
    try:
        one.run(f"ethtool -G {INTERFACE} tx 64; sysctl -qw kernel.printk_devkmsg=on")
        one.run(f"modprobe netconsole netconsole=@10.77.0.1/{INTERFACE},6666@10.77.0.2/{two.link()['address']}")
        load = traffic.start(one, "10.77.0.2", 10)
        one.run(f"for i in $(seq {count}); do echo \"<6>netconsole-line-$i\"; done >/dev/kmsg", timeout=120)
        traffic.survived(load)

        def ended():
            one.run("echo '<6>netconsole-end' >/dev/kmsg")
            return not listener.running()

        wait_until("the last line", ended, timeout=60, interval=1)
    finally:
        one.run(f"modprobe -r netconsole; ethtool -G {INTERFACE} tx 512; sysctl -qw kernel.printk_devkmsg=ratelimit", check=False)
        listener.abandon()
    came = int(two.run("tail -n 1 /run/netconsole.log").out)
    assert came > count * 9 // 10, f"{came} of {count} lines came"
    saw(f"{came} of {count} lines beside verified TCP")


class Host(Node):
    """A node with a fabric controller, and beside it memory that all such nodes share."""

    def environment(self):
        memory = f"memory-backend-file,id=pool,mem-path={self.run_dir}/memory,size=64M,share=on"
        return dict(super().environment(), QEMU_ARGS=f"-object {memory} -device ivshmem-plain,memdev=pool")


@only("pcie", why="nodes with a controller get a pool as well")
def test_a_host_with_a_controller_and_a_pool(saw):
    """Each has an interface and an RDMA device of its own, and one comes and goes without the other."""
    run_dir = make_run_dir("nupa-two-")
    switch = Switch(run_dir, nodes=2)
    nupactl = "/nupa/build/bin/nupactl"
    try:
        switch.start()
        nodes = one, two = [Host(number, run_dir) for number in (1, 2)]
        for node in nodes:
            node.begin_start()
        for node in nodes:
            node.finish_start()
        pool = one.run("lspci -Dnd 1af4:1110").out.split()[0]
        one.run(f"{nupactl} pool format {pool} --nodes 2 --yes")

        def attach(node):
            """Takes the pool, if the driver has not when it was loaded, and gives its interface an address; that and the RDMA device."""
            node.run(f"{nupactl} pool attach {pool}")
            shown = wait_until("the pool's interface", lambda: next((each for each in json.loads(
                node.run(f"{nupactl} --json status", check=False).out) if each["device"] == pool and each["netdevs"] and each["rdma"]), None))
            netdev, = shown["netdevs"]
            node.run(f"ip address add 10.79.0.{node.number}/24 dev {netdev} && ip link set {netdev} up")
            return netdev, *shown["rdma"]

        for node in nodes:
            node.up()
            assert attach(node) == ("nupanet1", "nupa_rdma1")
        for address in two.ip, "10.79.0.2":
            one.await_ping(address)
        for node in nodes:
            # Of the two fabrics one may have an id for another node that the other one has for this node.
            for peer in json.loads(node.run(f"{nupactl} --json peers").out):
                ping = f"{nupactl} ping -c 1 {peer['node']}"
                wait_until(f"an answer to {ping}", lambda node=node, ping=ping: node.run(ping, check=False).code == 0)
        one.run(f"{nupactl} pool detach {pool}")
        assert one.pings(two.ip, 3) == 3
        attach(one)
        one.await_ping("10.79.0.2")
        for node in nodes:
            assert not node.log.new_trouble()
        saw(one.run(f"{nupactl} status").out.splitlines()[-1])
    finally:
        switch.stop()
        stop_all(run_dir)
