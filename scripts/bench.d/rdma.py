# SPDX-License-Identifier: GPL-2.0 OR MIT
"""nupa_rdma0 against soft RoCE over virtio-net: perftest between the same two guests, alternating.

Bandwidth with a controller is also held against a memcpy between two shared mappings of the host, which is all that
the emulated one does, and latency over a pool against that of its memory; the provider's cost is counted on the host
(userspace/provider).
"""

import mmap
import os
import re
import time

import cargo
import pool
import results
from pair import Pair
from profile import Profile

OURS, PEER = "nupa_rdma0", "rxe0"
PEER_ROCE = "soft RoCE, {}"
# Instructions that posting one WRITE of 64 bytes and polling its completion may take together.
INSTRUCTIONS_BUDGET = 240
# Columns of perftest's last line, which starts with the size and the number of iterations.
TYPICAL, AVERAGE_MB, MESSAGE_RATE = 4, 3, 4


def perftest(program, size, column, ours, peer, options="", scale=1.0):
    """A work: one figure of one of perftest's programs; `ours` and `peer` are the iterations on each side."""

    def work(client, server, device, address):
        count = ours if device == OURS else peer
        command = f"{program} -d {device} -F -s {size} -n {count} {options}"
        running = server.spawn(f"timeout 100 {command}")
        server.run("for i in $(seq 100); do ss -Hltn 'sport = :18515' | grep -q . && exit 0; sleep 0.1; done; exit 1")
        out = client.run(f"timeout 100 {command} {address}", timeout=120).out
        running.wait(60)
        lines = [line.split() for line in out.splitlines() if line.split()[:1] == [str(size)]]
        return float(lines[-1][column]) * scale

    return work


# name: (what the table says, unit, function, higher is better)
WORKS = {
    "write_lat": ("ib_write_lat 8 B", "us", perftest("ib_write_lat", 8, TYPICAL, 5000, 500), False),
    "read_lat": ("ib_read_lat 8 B", "us", perftest("ib_read_lat", 8, TYPICAL, 5000, 500), False),
    "send_lat": ("ib_send_lat 64 B", "us", perftest("ib_send_lat", 64, TYPICAL, 5000, 500), False),
    "write_bw": ("ib_write_bw 64 KB", "MB/s", perftest("ib_write_bw", 65536, AVERAGE_MB, 50000, 500, scale=1.048576), True),
    "write_rate": ("ib_write_bw 64 B", "messages/s", perftest("ib_write_bw", 64, MESSAGE_RATE, 200000, 5000, scale=1e6), True),
}


def shared_memcpy(size=65536, seconds=1.0):
    """MB/s of copies between two shared mappings, each of many buffers as perftest's are."""
    depth = 128
    mappings = []
    for name in ("source", "target"):
        file = os.memfd_create(name)
        os.ftruncate(file, depth * size)
        mappings.append(memoryview(mmap.mmap(file, depth * size)))
        os.close(file)
        mappings[-1][:] = bytes(depth * size)
    source, target = mappings
    copies, start = 0, time.monotonic()
    while (elapsed := time.monotonic() - start) < seconds:
        for at in range(0, depth * size, size):
            target[at : at + size] = source[at : at + size]
        copies += depth
    return copies * size / elapsed / 1e6


def provider_cost(mode):
    """The entry of what posting and polling costs, in instructions; a count, the same in every run."""
    print("building and counting the provider", flush=True)
    output = cargo.run("the count of the provider's instructions", "test", "--release", "-p", "nupa-provider", "--",
                       "instructions", "--nocapture")
    post, poll = re.search(r"^instructions of a WRITE of 64 B: (\d+) post, (\d+) poll$", output, re.MULTILINE).groups()
    return results.entry("ibv_post_send and ibv_poll_cq, WRITE 64 B", mode, "instructions", int(post) + int(poll),
                         INSTRUCTIONS_BUDGET, "budget", 1, higher_is_better=False)


def add_soft_roce(nodes):
    for node in nodes:
        node.run(f"modprobe -a rdma_rxe rdma_ucm && rdma link add {PEER} type rxe netdev peer0")


def alternate(one, two, runs):
    """Runs each work on both sides in turn; {work: {side: values}}."""
    sides = [("ours", OURS, two.ip), ("peer", PEER, "10.78.0.2")]
    values = {name: {"ours": [], "peer": []} for name in WORKS}
    copies = []
    for run in range(runs):
        copies.append(shared_memcpy())
        for name, (text, unit, work, _) in WORKS.items():
            for side, device, address in sides if run % 2 == 0 else reversed(sides):
                value = work(one, two, device, address)
                values[name][side].append(value)
                print(f"run {run + 1}/{runs}  {text:<20} {side}  {value:10.3f} {unit}", flush=True)
    return values, copies


def print_profiles(pair, one, two, seconds):
    """Says where the time of our side goes, for each work."""
    for text, _, work, _ in WORKS.values():
        with Profile(pair.processes(), pair.nodes, seconds) as profile:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                work(one, two, OURS, two.ip)
        print(f"\nprofile of {text}, ours\n{profile.text}", flush=True)


def measure(mode, options):
    """Entries of all RDMA works."""
    cost = provider_cost(mode)
    with Pair(mode, options.cpus) as pair:
        pair.boot()
        latency = pool.visible(pair.nodes) if mode != "pcie" else None
        nodes = pair.up()
        add_soft_roce(nodes)
        values, copies = alternate(*nodes, options.runs)
        if options.profile:
            print_profiles(pair, *nodes, options.seconds)
        peer_name = PEER_ROCE.format(pair.peer_name)
        found = [results.entry(text, mode, unit, values[name]["ours"], values[name]["peer"], peer_name, options.runs, higher)
                 for name, (text, unit, _, higher) in WORKS.items()]
        if mode == "pcie":
            found.append(results.entry("ib_write_bw 64 KB", mode, "MB/s", values["write_bw"]["ours"], copies,
                                       "memcpy between shared mappings", options.runs))
        else:
            found.append(pool.entry(mode, latency, values["write_lat"]["ours"]))
        found.append(cost)
        return found
