# SPDX-License-Identifier: GPL-2.0 OR MIT
"""nupanet0 against virtio-net: the same work between the same two guests, alternating."""

import re
import shutil
import time

import memory
import results
from nodes import INTERFACE, Node, Switch, make_run_dir, stop_all
from profile import Profile
from waiting import wait_until

PEER = "peer0"


def tcp(streams):
    """A work: iperf3 with so many streams; Gb/s that arrived."""

    def work(client, address, seconds):
        report = client.run(f"iperf3 -J -c {address} -t {seconds} -P {streams}", timeout=seconds + 30).json()
        return report["end"]["sum_received"]["bits_per_second"] / 1e9

    return work


def tcp_rr(client, address, seconds):
    """netperf TCP_RR: transactions a second."""
    out = client.run(f"netperf -H {address} -t TCP_RR -l {seconds} -P 0 -- -r 1,1", timeout=seconds + 30).out
    return float(out.split("\n", 1)[0].split()[5])


def udp_pps(client, address, seconds):
    """netperf UDP_STREAM, 64 bytes: datagrams a second that the receiver's program got."""
    out = client.run(f"netperf -H {address} -t UDP_STREAM -l {seconds} -P 0 -- -m 64 -R 1", timeout=seconds + 30).out
    sent, received = out.splitlines()[:2]
    return int(received.split()[2]) / float(received.split()[1]) if len(received.split()) > 2 else float(sent)


def ping(client, address, _seconds):
    """Average round trip of 200 pings, in ms."""
    out = client.run(f"ping -n -q -c 200 -i 0.01 {address}", timeout=60).out
    return float(re.search(r"= [\d.]+/([\d.]+)/", out).group(1))


# name: (what the table says, unit, function, higher is better)
WORKS = {
    "tcp1": ("TCP one stream", "Gb/s", tcp(1), True),
    "tcp4": ("TCP four streams", "Gb/s", tcp(4), True),
    "rr": ("TCP_RR 1 byte", "transactions/s", tcp_rr, True),
    "pps": ("UDP 64 B received", "packets/s", udp_pps, True),
    "ping": ("ping round trip", "ms", ping, False),
}
SERVERS = ("pkill -x iperf3; pkill -x netserver; iperf3 -s -D >/dev/null; netserver >/dev/null 2>&1; "
           "for p in 5201 12865; do until ss -Hltn \"sport = :$p\" | grep -q .; do sleep 0.1; done; done")


def driver_memory(run_dir):
    """MB that the modules take on a node of two CPUs, with default rings."""
    node = Node(3, run_dir, cpus=2)
    node.start()
    node.up()  # once, so that what stays for good (caches of the modules' files) is there
    node.run("nupa-down")
    time.sleep(2)  # the page pools' pages come back within a second of their end
    without = memory.available(node)
    node.up()
    wait_until("carrier", node.carrier)
    taken = without - memory.available(node)
    node.stop()
    return taken / 1024


def start_nodes(run_dir, cpus):
    """Two guests with both interfaces; returns them and what the peer is."""
    for peernet, name in (("tap", "virtio-net, tap and bridge"), ("stream", "virtio-net, stream socket")):
        nodes = [Node(number, run_dir, cpus=cpus, peernet=peernet) for number in (1, 2)]
        try:
            for node in nodes:
                node.begin_start()
            for node in nodes:
                node.finish_start()
        except AssertionError as error:
            print(f"bench: no {name}: {str(error).splitlines()[0]}", flush=True)
            for node in nodes:
                node.stop()
            continue
        for node in nodes:
            node.up()
            node.run(f"ip address replace 10.78.0.{node.number}/24 dev {PEER} && ip link set {PEER} mtu 9000 up")
        nodes[0].await_ping("10.78.0.2")
        nodes[0].await_ping(nodes[1].ip)
        return nodes, f"{name}, MTU 9000"
    raise SystemExit("bench: neither tap nor stream netdev can be had for the peer")


def alternate(one, names, options, processes, nodes):
    """Runs each work on both sides in turn; {work: ([ours], [peer])}."""
    sides = [("ours", "10.77.0.2"), ("peer", "10.78.0.2")]
    values = {name: {"ours": [], "peer": []} for name in names}
    for run in range(options.runs):
        for name in names:
            text, unit, work, _ = WORKS[name]
            for side, address in sides if run % 2 == 0 else reversed(sides):
                value = work(one, address, options.seconds)
                values[name][side].append(value)
                print(f"run {run + 1}/{options.runs}  {text:<20} {side}  {value:10.3f} {unit}", flush=True)
    if options.profile:
        for name in names:
            for side, address in sides:
                with Profile(processes, nodes, options.seconds) as profile:
                    WORKS[name][2](one, address, options.seconds)
                print(f"\nprofile of {WORKS[name][0]}, {side}\n{profile.text}", flush=True)
    return values


def measure(mode, options):
    """Entries of all IP works, and of the driver's memory."""
    names = [name for name in WORKS if not options.work or name in options.work]
    run_dir = make_run_dir("nupa-bench-")
    switch = Switch(run_dir, nodes=4)
    nodes = []
    try:
        print("starting the switch and two nodes", flush=True)
        switch.start()
        nodes, peer_name = start_nodes(run_dir, options.cpus)
        one, two = nodes
        two.run(SERVERS)
        mtu = one.link()["mtu"]
        processes = {"switch": switch.process.pid, **{node.name: node.pid for node in nodes}}
        values = alternate(one, names, options, processes, nodes)
        found = []
        for name in names:
            text, unit, _, higher = WORKS[name]
            sides = values[name]
            found.append(results.entry(f"{text} ({INTERFACE} MTU {mtu})", mode, unit, sides["ours"], sides["peer"],
                                       peer_name, options.runs, higher))
        for node in nodes:
            node.stop()
        nodes = []
        if not options.work:
            found.append(results.entry("driver memory of a node, 2 CPUs", mode, "MB", driver_memory(run_dir), 64.0,
                                       "budget", 1, higher_is_better=False))
        return found
    finally:
        switch.stop()
        stop_all(run_dir)
        shutil.rmtree(run_dir, ignore_errors=True)
