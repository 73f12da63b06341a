# SPDX-License-Identifier: GPL-2.0 OR MIT
"""nupanet0 against virtio-net: the same work between the same two guests, alternating."""

import re
import time

import memory
import results
from nodes import INTERFACE
from pair import Pair
from profile import Profile
from steps import Steps
from waiting import wait_until


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


def udp_paced(client, address, seconds):
    """iperf3, datagrams of 8 KB at 0.3 Gb/s: Gb/s that the receiver's program got."""
    report = client.run(f"iperf3 -J -c {address} -t {seconds} -u -b 300M -l 8192", timeout=seconds + 30).json()
    return report["end"]["sum_received"]["bits_per_second"] / 1e9


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
    "udp": ("UDP 8 KB received of 0.3 Gb/s", "Gb/s", udp_paced, True),
    "ping": ("ping round trip", "ms", ping, False),
}
# The work whose packets come one at a time, each when the guest has nothing else to do, so that the steps of one can be told.
ONE_AT_A_TIME = "rr"
# What the interrupts of each side's queues are called.
INTERRUPTS = {"ours": "nupa", "peer": "virtio"}
SERVERS = ("pkill -x iperf3; pkill -x netserver; iperf3 -s -D >/dev/null; netserver >/dev/null 2>&1; "
           "for p in 5201 12865; do until ss -Hltn \"sport = :$p\" | grep -q .; do sleep 0.1; done; done")


def driver_memory(pair):
    """MB that the modules take on a node of two CPUs, with default rings."""
    node = pair.node(3, cpus=2)
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
                if name == ONE_AT_A_TIME:
                    with Steps(nodes, INTERRUPTS[side]) as steps:
                        value = WORKS[name][2](one, address, options.seconds)
                    print(f"steps of {WORKS[name][0]}, {side}, at {value:.3f} {WORKS[name][1]}\n{steps.text}", flush=True)
    return values


def measure(mode, options):
    """Entries of all IP works, and of the driver's memory."""
    names = [name for name in WORKS if not options.work or name in options.work]
    with Pair(mode, options.cpus) as pair:
        pair.boot()
        one, two = pair.up()
        two.run(SERVERS)
        link = one.link()
        ours = f"{INTERFACE} MTU {link['mtu']}, frames up to {link['gso_max_size'] >> 10} KiB"
        values = alternate(one, names, options, pair.processes(), pair.nodes)
        found = []
        for name in names:
            text, unit, _, higher = WORKS[name]
            sides = values[name]
            found.append(results.entry(f"{text} ({ours})", mode, unit, sides["ours"], sides["peer"],
                                       pair.peer_name, options.runs, higher))
        pair.stop_nodes()
        if not options.work:
            found.append(results.entry("driver memory of a node, 2 CPUs", mode, "MB", driver_memory(pair), 64.0,
                                       "budget", 1, higher_is_better=False))
        return found
