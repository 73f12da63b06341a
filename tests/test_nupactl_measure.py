# SPDX-License-Identifier: GPL-2.0 OR MIT
"""nupactl serve, lat, bw and selftest: measurements between programs on nodes, and what they say where there are none."""

import contextlib
import json
import re

from modes import long, only
from nodes import INTERFACE
from test_nupactl import FAILED, FINE, NAMED, NOTHING, NUPACTL, TROUBLE, USAGE, debugfs_peers, told
from test_nupactl_ping import USER, node_id
from verbs import DEVICE
from waiting import wait_until

PORT = 6872
# Listens where `nupactl serve` would, and answers each client with a head of protocol version 2.
OTHER_VERSION = f"""exec python3 -c '
import socket
listener = socket.create_server(("::", {PORT}), family=socket.AF_INET6)
print("serving", flush=True)
while True:
    client, _ = listener.accept()
    client.recv(48, socket.MSG_WAITALL)
    client.sendall(b"NUPAmeas\\x02" + bytes(7))'"""
# Answers each client that it refuses, as a server does that does not know what it is asked for.
OLDER = OTHER_VERSION.replace("\\x02", "\\x01").replace("bytes(7)", "b\"\\0\\3\" + bytes(5)")
# Connects so many times, says nothing, and holds that until it is told to end.
CROWD = """exec python3 -c '
import socket, sys
clients = [socket.create_connection((sys.argv[1], {port})) for _ in range({count})]
print("serving", flush=True)
sys.stdin.read()' {address}%{interface} <>/run/crowd.fifo"""


@contextlib.contextmanager
def runs(node, command, output="/run/serve.out"):
    """Runs a command meanwhile; gives a function that returns what it has printed. It has said "serving" by then."""
    node.run(f"rm -f {output}")
    running = node.spawn(f"echo $$ >{output}.pid; {command} >{output} 2>&1")

    def said():
        return node.run(f"cat {output}", check=False).out

    wait_until(f"{command} to begin", lambda: "serving" in said())
    try:
        yield said
    finally:
        node.run(f"kill $(cat {output}.pid)", check=False)
        running.wait(10)


def serving(node):
    return runs(node, f"exec {USER} {NUPACTL} serve")


def rdma_counter(node, name):
    return int(node.run(f"cat /sys/class/infiniband/{DEVICE}/ports/1/hw_counters/{name}").out)


def link_local(node):
    return node.run(f"ip -6 -br address show dev {INTERFACE} scope link").out.split()[2].partition("/")[0]


def says(node, arguments, code, part, prefix=""):
    """Fails unless it ends with this code, and says this."""
    done = node.run(f"{prefix} {NUPACTL} {arguments}", check=False, timeout=60)
    assert done.code == code and part in done.out + done.err, done
    return (done.out + done.err).strip()


def sent_bytes(node):
    return told(node, "stats")[0]["counters"]["tx_bytes"]


@long
def test_latency_and_bandwidth(settled, saw):
    one, two = settled
    number = node_id(two)
    with serving(two) as said:
        # It listens at the interface's link-local address alone.
        tables = two.run("cat /proc/net/tcp /proc/net/tcp6").out
        (where,) = re.findall(rf"^ *\d+: ([0-9A-F]+):{PORT:04X} [0-9A-F:]+ 0A ", tables, re.MULTILINE)
        assert where.startswith("000080FE") and f"{link_local(two)}%{INTERFACE}, port {PORT}" in said()
        found = json.loads(one.run(f"{USER} {NUPACTL} --json lat -n 30 -s 1000 {number}", timeout=60).out)
        assert (found["node"], found["count"], found["size"], found["transport"]) == (number, 30, 1000, "tcp")
        assert 0 < found["min"] <= found["median"] <= found["p99"] <= found["max"] < 60e6, found
        assert found["min"] <= found["mean"] <= found["max"]
        assert sum(bucket["count"] for bucket in found["histogram"]) == 30
        before = sent_bytes(one), sent_bytes(two)
        found = json.loads(one.run(f"{USER} {NUPACTL} --json bw -n 40 -s 5000 {number}", timeout=60).out)
        for way, node, sent in ("sent", one, before[0]), ("received", two, before[1]):
            assert found[way]["bytes"] == 200000 and found[way]["bytes_per_second"] > 0, found
            assert sent_bytes(node) >= sent + 200000, way
        text = one.run(f"{NAMED} '{number} beta\\n' {NUPACTL} lat -d 0.2 beta", timeout=60).out
        assert text.startswith(f"node {number} (beta), fe80::") and " round trips: min " in text and "#" in text, text
        text = one.run(f"{NUPACTL} bw -d 0.2 {number}", timeout=60).out
        assert "\nto the node: " in text and "\nfrom the node: " in text, text
    saw(text.splitlines()[-1])


def test_rdma_latency_and_bandwidth(settled, saw):
    """What was measured went through queue pairs: the RDMA device has counted it, and the interface has not."""
    one, two = settled
    number = node_id(two)

    def counted():
        return [rdma_counter(node, name) for node in settled for name in ("tx_message_bytes", "rx_message_bytes")]

    with serving(two):
        before = counted()
        found = json.loads(one.run(f"{USER} {NUPACTL} --json lat --rdma -n 30 -s 1000 {number}", timeout=60).out)
        assert (found["node"], found["count"], found["size"], found["transport"]) == (number, 30, 1000, "rdma")
        assert 0 < found["min"] <= found["median"] <= found["p99"] <= found["max"] < 60e6, found
        assert [after - then for after, then in zip(counted(), before)] == [30000] * 4
        for size in 5001, 1 << 20:
            before = counted()
            found = json.loads(one.run(f"{USER} {NUPACTL} --json bw --rdma -n 40 -s {size} {number}", timeout=60).out)
            assert found["transport"] == "rdma"
            for way in "sent", "received":
                moved = found[way]
                assert moved["bytes"] == 40 * size and moved["seconds"] > 0, found
                assert abs(moved["bytes_per_second"] * moved["seconds"] / moved["bytes"] - 1) < 0.01, found
            assert [after - then for after, then in zip(counted(), before)] == [40 * size] * 4
        text = one.run(f"{NUPACTL} lat --rdma -d 0.2 {number}", timeout=60).out
        assert ", RDMA, messages of 64 bytes\n" in text and " round trips: min " in text, text
        saw(text.splitlines()[1])
        text = one.run(f"{NUPACTL} bw --rdma -d 0.2 {number}", timeout=60).out
        assert "\nto the node: " in text and "\nfrom the node: " in text, text
    wait_until("queue pairs to be gone", lambda: not any(pair["owner"]["pid"] for node in settled for pair in told(node, "qp")))
    saw(text.splitlines()[-1])


@only("pcie", why="what a host lacks is said in all modes alike")
@long
def test_rdma_lacks_something(pair, saw):
    """What this host or the other one lacks for RDMA is told in a sentence, with what to do; TCP works without it."""
    one, two = pair
    number = node_id(two)
    library = one.run("ldconfig -p | sed -n 's/.*libibverbs.so.1 .*=> //p' | head -n 1").out.strip()
    hidden = "exec unshare --mount sh -c 'mount --bind {} {} && exec \"$@\"' sh"
    no_library, no_provider = hidden.format("/dev/null", library), hidden.format("/run", "/etc/libibverbs.d")
    no_memory = f"ulimit -l 4; exec {USER}"
    lacks = [(no_library, "has no libibverbs, which RDMA takes: install the packages libibverbs1"),
             (no_provider, "install the package libnupa-verbs"), (no_memory, "raise the limit there, by `ulimit -l`")]
    says(one, f"bw --rdma {number}", TROUBLE, f"nobody serves on node {number}")
    with serving(two):
        for prefix, part in lacks:
            told_here = says(one, f"lat --rdma {number}", FAILED, part, prefix)
            assert "this host" in told_here, told_here
        says(one, f"lat -n 2 {number}", FINE, "round trips", no_library)
        one.run("chmod 600 /dev/infiniband/uverbs0")
        says(one, f"bw --rdma {number}", FAILED, "`ls -l /dev/infiniband` on it tells who may", USER)
        one.run("chmod 666 /dev/infiniband/uverbs0")
        two.run(f"{NUPACTL} drain --timeout 0")
        says(one, f"lat --rdma {number}", TROUBLE, f"the controller of node {number} is drained")
        two.run(f"{NUPACTL} drain --undo")
        two.run("rmmod nupa_rdma")
        told_there = says(one, f"lat --rdma {number}", TROUBLE, f"node {number} has no RDMA device on this fabric: `modprobe nupa_rdma`")
        two.up()
        wait_until("the new device", lambda: one.run(f"{NUPACTL} lat --rdma -n 2 {number}", check=False, timeout=60).code == FINE)
    with runs(two, f"{no_library} {NUPACTL} serve"):
        says(one, f"lat --rdma {number}", TROUBLE, f"node {number} {lacks[0][1]}")
        says(one, f"bw -n 2 {number}", FINE, "from the node")
    with runs(two, OLDER):
        says(one, f"lat --rdma {number}", FAILED, f"node {number} serves measurements over TCP alone")
    saw(told_there.splitlines()[-1])


@long
def test_rdma_peer_ends(settled, saw):
    """Who measures is told when the other side ends in the middle, soon, and whichever side moves data."""
    one, two = settled
    number = node_id(two)
    for verb in "lat", "bw":
        with serving(two):
            one.run("rm -f /run/measure.out")
            measuring = one.spawn(f"{NUPACTL} {verb} --rdma -d 30 {number} >/run/measure.out 2>&1; echo code $? >>/run/measure.out")
            wait_until("requests", lambda: any(pair["remote_node"] == number and pair["traffic"]["requests"] > 10 for pair in told(one, "qp")))
        measuring.wait(20)
        said = one.run("cat /run/measure.out").out
        assert f"node {number} ended the connection" in said and f"code {TROUBLE}" in said, said
    wait_until("queue pairs to be gone", lambda: not any(pair["owner"]["pid"] for node in settled for pair in told(node, "qp")))
    with serving(two):
        says(one, f"lat --rdma -n 2 {number}", FINE, "round trips")
    saw(said.splitlines()[-2])


@long
def test_nobody_to_measure_with(pair, saw):
    one, two = pair
    number = node_id(two)
    for verb in "lat", "bw":
        said = says(one, f"{verb} {number}", TROUBLE, f"nobody serves on node {number}: run `nupactl serve` there")
    says(one, "lat nowhere", FAILED, "`nowhere` is neither the id of a node")
    says(one, f"bw {node_id(one)}", FAILED, "is this one")
    done = one.run(f"{NUPACTL} lat -n 0 {number}", check=False)
    assert done.code == USAGE and not done.out, done
    says(one, f"bw -s 7 {number}", FAILED, "messages of 7 bytes are too short")
    with runs(two, OTHER_VERSION):
        says(one, f"lat {number}", TROUBLE, f"node {number} serves version 2 of the protocol")
        says(one, f"bw {number}", TROUBLE, "install the same version of nupa-tools on both")
    two.run("nupa-down", timeout=60)
    wait_until("the node to be down", lambda: number not in [node for node, _ in debugfs_peers(one)[1:]])
    says(one, f"lat {number}", TROUBLE, f"node {number} is down")
    for verb in "selftest", "serve":
        says(two, verb, NOTHING, "`modprobe nupa_fabric`")
    saw(said)


@long
def test_crowd(settled, saw):
    """One who takes all places that it may have costs no more than these, and gets a sentence when it wants another."""
    one, two = settled
    number = node_id(two)
    with serving(two):
        (server,) = two.run("pgrep -x nupactl").out.split()
        crowd = CROWD.format(port=PORT, count=12, address=link_local(two), interface=INTERFACE)
        one.run("rm -f /run/crowd.fifo; mkfifo /run/crowd.fifo")
        with runs(one, crowd, "/run/crowd.out"):
            said = says(one, f"lat -n 1 {number}", FAILED, f"node {number} is busy with other measurements")
            threads = int(two.run(f"ls /proc/{server}/task | wc -l").out)
            descriptors = int(two.run(f"ls /proc/{server}/fd | wc -l").out)
            assert threads <= 5 and descriptors <= 12, (threads, descriptors)
        wait_until("places", lambda: one.run(f"{NUPACTL} lat -n 1 {number}", check=False).code == FINE)
    saw(f"{threads} threads, {descriptors} descriptors; {said}")


@long
def test_serve_goes_on(pair, saw):
    """The module may be unloaded, and the interface be down."""
    one, two = pair
    number = node_id(two)

    def measures():
        return one.run(f"{NUPACTL} lat -n 2 {number}", check=False, timeout=60).code == FINE

    with serving(two) as said:
        assert measures()
        two.run("nupa-down", timeout=60)
        two.up()
        wait_until("the node to serve again", measures, 30)
        two.run(f"ip link set {INTERFACE} down")
        wait_until("a word", lambda: f"{INTERFACE} is down" in said() and "; waiting" in said())
        two.run(f"ip link set {INTERFACE} up")
        wait_until("the node to serve again", measures, 30)
    saw(said().splitlines()[-1])


def test_selftest(settled, fabric, saw):
    one, two = settled
    for other in fabric.running():
        if other not in settled:  # it was left by tests before, and would be measured as well
            other.stop()
    wait_until("the two to be alone", lambda: len(told(one, "peers")) == 1)
    numbers = sorted(node_id(node) for node in settled)
    with serving(two):
        # Nobody serves here, which the other node finds out.
        done = one.run(f"{NUPACTL} selftest -d 0.1", check=False, timeout=60)
        assert done.code == TROUBLE and f"nobody serves on node {node_id(one)}: run" in done.out, done
        assert f"nobody serves on node {node_id(two)}" not in done.out
        with serving(one):
            # Any pair is well by this factor: how busy this machine is, is not the question.
            done = one.run(f"{NUPACTL} --json selftest -d 0.1 --factor 1000000", timeout=60)
            (found,) = json.loads(done.out)
            assert found["fine"] and found["odd_node"] is None and found["fabric"] == told(one, "status")[0]["fabric"]
            assert [(node["node"], node["trouble"]) for node in found["nodes"]] == [(number, None) for number in numbers]
            assert sorted((pair["from"], pair["to"]) for pair in found["pairs"]) == [tuple(numbers), tuple(numbers[::-1])]
            for pair in found["pairs"]:
                assert pair["latency"] > 0 and pair["bytes_per_second"] > 0 and pair["trouble"] is None, pair
            text = says(one, "selftest -d 0.1 --factor 1000000", FINE, "all 2 pairs are well")
    says(one, "selftest -d 0.1", TROUBLE, f"nobody serves on node {node_id(two)}: run")
    saw(text.splitlines()[3])
