# SPDX-License-Identifier: GPL-2.0 OR MIT
"""What others' work does to a small WRITE between the same two guests: alone and beside it, alternating."""

import contextlib
import os

import rdma
import results
import storm
from pair import Pair
from verbs import DEVICE

PARKED = 8000
MESSAGE = 256 << 20
# perftest holds two of the long messages in memory.
MEMORY = "2G"
# Columns of perftest's last line.
TYPICAL, LATE = 4, 7


def write_lat(column):
    return rdma.perftest("ib_write_lat", 8, column, 5000, 0)


@contextlib.contextmanager
def parked(one, _two):
    """Sends of another process that wait for receive buffers which never come."""
    running = one.spawn(f"exec {storm.PROGRAM} {DEVICE} park {PARKED} 0 600 >/run/storm.log 2>&1")
    one.run("for i in $(seq 1200); do grep -q storm /run/storm.log && exit 0; sleep 0.1; done; cat /run/storm.log; exit 1", timeout=150)
    try:
        yield
    finally:
        one.run("pkill -KILL nupa-storm", check=False)
        running.wait(60)


@contextlib.contextmanager
def long_messages(one, two):
    """WRITEs of long messages of another process, between the same nodes."""
    command = f"exec timeout 300 ib_write_bw -d {DEVICE} -F -s {MESSAGE} -n 100000 -p 18516"
    server = two.spawn(command)
    two.run("for i in $(seq 100); do ss -Hltn 'sport = :18516' | grep -q . && exit 0; sleep 0.1; done; exit 1")
    client = one.spawn(f"{command} {two.ip}")
    one.run("sleep 3; pgrep -x ib_write_bw")
    try:
        yield
    finally:
        for node in (one, two):
            node.run("pkill -KILL -x ib_write_bw", check=False)
        for running in (client, server):
            running.wait(60)


# What the table says, what runs beside, and perftest's column.
CASES = (
    (f"ib_write_lat 8 B beside {PARKED:,} sends that wait for buffers", parked, TYPICAL),
    ("ib_write_lat 8 B, 99th percentile, beside messages of 256 MiB", long_messages, LATE),
)


def measure(mode, options):
    """Entries of all cases."""
    storm.build()
    os.environ["MEM"] = MEMORY
    found = []
    with Pair(mode, options.cpus) as pair:
        pair.boot()
        one, two = pair.up()
        for text, others, column in CASES:
            work = write_lat(column)
            values = {"alone": [], "beside": []}
            for run in range(options.runs):
                values["alone"].append(work(one, two, DEVICE, two.ip))
                with others(one, two):
                    values["beside"].append(work(one, two, DEVICE, two.ip))
                print(f"run {run + 1}/{options.runs}  {text}: {values['beside'][-1]:.2f} us, alone {values['alone'][-1]:.2f} us", flush=True)
            found.append(results.entry(text, mode, "us", values["beside"], values["alone"], results.ALONE, options.runs,
                                       higher_is_better=False))
    return found
