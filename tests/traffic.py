# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Traffic whose bytes are verified (userspace/netcheck), and load by iperf3."""

import json

from nodes import INTERFACE
from waiting import PATIENCE, wait_until

NETCHECK = "netcheck"
# Seconds without progress after which netcheck gives up.
STALLED = 10 * PATIENCE
CORRUPT = 3
# What tcpdump is to show of ping. Other ICMP messages come at any time: a host complains of fragments that others lost half a minute ago.
PING = "icmp[icmptype] == icmp-echo or icmp[icmptype] == icmp-echoreply"


def endpoint(address, port=5300):
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def capture(node, what, seconds, interface=INTERFACE, prefix=""):
    """Starts tcpdump with such arguments for at most so many seconds; it sees what is sent once this returns."""
    # What the one before said is not waited for.
    node.run("rm -f /run/tcpdump.err /run/tcpdump.out")
    running = node.spawn(f"{prefix}timeout {seconds * PATIENCE} tcpdump -lnn -i {interface} {what} 2>/run/tcpdump.err "
                         "| tee /run/tcpdump.out")
    node.run(f"for i in $(seq {100 * PATIENCE}); do grep -q listening /run/tcpdump.err && exit 0; sleep 0.1; done; exit 1")
    return running


def await_captured(node, text):
    """Waits until the last capture that was started on the node has printed `text`, and so every frame before that."""
    wait_until(f"tcpdump on {node.name} to print {text!r}", lambda: text in node.run("cat /run/tcpdump.out").out)


def options(seed, largest):
    """What all clients of netcheck are told."""
    return f"--seed {seed} --max {largest} --timeout {STALLED}"


def tcp(node, address, size=4 << 20, seed=1, timeout=90, largest=65507, prefix="", port=5300):
    """Sends verified chunks both ways; fails on any wrong byte or lost connection."""
    command = f"{prefix}{NETCHECK} tcp --to {endpoint(address, port)} --bytes {size} {options(seed, largest)}"
    report = node.run(command, timeout=timeout).json()
    assert report["sent"] >= size and report["received"] >= size, report
    return report


def udp(node, address, count=100, seed=1, largest=65507, timeout=90, prefix=""):
    """Sends verified datagrams of sizes 1 to `largest`; fails on a wrong byte or a lost datagram."""
    command = f"{prefix}{NETCHECK} udp --to {endpoint(address)} --count {count} {options(seed, largest)}"
    report = node.run(command, timeout=timeout).json()
    assert report["datagrams"] == count, report
    return report


def start(node, address, seconds, seed=1, timeout=STALLED):
    """Starts verified TCP traffic that ends after `seconds`; returns when it runs."""
    load = node.spawn(f"{NETCHECK} tcp --to {endpoint(address)} --seconds {seconds} --seed {seed} --timeout {timeout}")
    wait_until(f"traffic of {node.name} to {address}",
               lambda: node.run(f"ss -Htn state established dst {address} dport = :5300").out.strip())
    return load


def start_rounds(node, address, until, timeout=STALLED):
    """Starts verified TCP traffic of two seconds again and again, until there is a file `until` on the node; returns when it runs."""
    node.run(f"rm -f {until}")
    load = node.spawn(f"while [ ! -e {until} ]; do {NETCHECK} tcp --to {endpoint(address)} --seconds 2 --timeout {timeout} || exit 1; done")
    wait_until(f"traffic of {node.name} to {address}",
               lambda: node.run(f"ss -Htn state established dst {address} dport = :5300").out.strip())
    return load


def survived(load, timeout=60):
    """Traffic that had to go on through what the test did."""
    result = load.wait(timeout)
    assert result.code == 0, f"traffic did not survive:\n{result}"
    return result.json()


def interrupted(load, timeout=60):
    """Traffic that may have been cut, but must not have delivered a wrong byte."""
    result = load.wait(timeout)
    assert result.code != CORRUPT, f"wrong bytes arrived:\n{result}"
    return result


def iperf3(client, server, options="", seconds=3):
    """Runs iperf3 to a one-shot server on the other node; returns its report."""
    served = server.spawn("iperf3 -s -1 -J")
    try:
        server.run("for i in $(seq 100); do ss -Hltn 'sport = :5201' | grep -q . && exit 0; sleep 0.1; done; exit 1")
        result = client.run(f"iperf3 -J -c {server.ip} -t {seconds} {options}", timeout=seconds + 30, check=False)
        report = json.loads(result.out or "{}")
        assert result.code == 0 and "error" not in report, f"iperf3 failed:\n{result}"
        return report
    finally:
        served.abandon()
        server.run("pkill -x iperf3", check=False)
