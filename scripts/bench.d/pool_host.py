# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Two hosts of a pool that both poll, as two processes on two cores: provider, engine and pool without a kernel or a guest.

What there can be at most is measured by the same two processes: a line that goes there and back between the cores, and memcpy. UCX is measured
after each run of them: it passes messages between processes of one host without protecting them from each other.
"""

import json
import re
import statistics
import sys

import cargo
import results
import ucx

TEST = "tests::pool_host::two_processes_are_two_hosts"
# Round trips of each measurement of times.
ROUNDS = "20000"
LINE = "a line between the cores"
# Messages of 64 bytes a second that a pair is to pass.
RATE_BUDGET = 5e6
# Of each measurement of times: what the table calls it.
TIMES = {
    "send_8": "pool host SEND 8 B, half a round trip",
    "write_8": "pool host WRITE 8 B to its completion",
    "write_8_pool": "pool host WRITE 8 B to pool memory",
    "read_8_pool": "pool host READ 8 B of pool memory",
}
# What the other host has no part in is beside a goal, the others beside what the line takes that they need.
COPY_BUDGET = 300
COPIED = ("write_8_pool", "read_8_pool")
SMALL_RATE = "pool host SEND 64 B, messages a second"
SMALL_TIME = "pool host SEND 64 B, from one to the next"
LIST_RATE = "pool host SEND 64 B in lists of 16, messages a second"
# Of each of bytes in a nanosecond, and the copy of as many bytes.
RATES = {
    "send_64k": ("pool host SEND 64 KiB", "memcpy_64k"),
    "send_1m": ("pool host SEND 1 MiB", "memcpy_1m"),
    "write_1m": ("pool host WRITE 1 MiB", "memcpy_1m"),
    "write_1m_pool": ("pool host WRITE 1 MiB to pool memory", "memcpy_1m"),
    "read_1m_pool": ("pool host READ 1 MiB of pool memory", "memcpy_1m"),
}


def once():
    """The figures of one run."""
    output = cargo.run("the measurement of two hosts of a pool", "test", "--release", "-p", "nupa-provider", "--", "--exact", TEST,
                       "--nocapture", NUPA_POOL_HOST_ROUNDS=ROUNDS)
    found = re.search(r"^\{.*\}$", output, re.MULTILINE)
    if not found:
        sys.exit("bench: the measurement of two hosts of a pool printed no figures")
    return json.loads(found.group())


def beside(work):
    """What a work that UCX does as well is called beside it, its unit, and whether more is better."""
    if work in TIMES:
        return TIMES[work], "ns", False
    return (SMALL_RATE, "/s", True) if work == "sends_64" else (RATES[work][0], "GB/s", True)


def figures(run, name):
    """A figure of a run: of times the median."""
    return run[name]["median"] if isinstance(run[name], dict) else run[name]


def measure(mode, options):
    """Runs it so many times; returns an entry for each figure, the median of the runs. `mode` is what tables have it under: no guest has a part in it."""
    ucx.installed()
    print("building and running two hosts of a pool", flush=True)
    runs, peers = [], []
    for _ in range(options.runs):
        runs.append(once())
        peers.append(ucx.measure())
    for name in ("line", *TIMES):
        low = min(run[name]["min"] for run in runs)
        print(f"{TIMES.get(name, LINE)}: {low} ns at best, {statistics.median(run[name]['median'] for run in runs)} ns in the median")

    def all_of(name):
        return [figures(run, name) for run in runs]

    line = all_of("line")
    # What the other host has to take part in takes a line there, and one back if it is waited for.
    floors = {"send_8": (LINE, line), "write_8": (f"{LINE}, there and back", [2 * time for time in line])}
    floors |= {name: ("budget", COPY_BUDGET) for name in COPIED}
    found = [results.entry(text, mode, "ns", all_of(name), floors[name][1], floors[name][0], options.runs, higher_is_better=False)
             for name, text in TIMES.items()]
    rates = all_of("sends_64")
    for text, each in ((SMALL_RATE, rates), (LIST_RATE, all_of("lists_64"))):
        found.append(results.entry(text, mode, "/s", each, RATE_BUDGET, "budget", options.runs))
    # A SEND of 64 bytes takes two lines. They move at the same time, so it is beside one.
    times = [1e9 / rate for rate in rates]
    found.append(results.entry(SMALL_TIME, mode, "ns", times, line, LINE, options.runs, higher_is_better=False))
    found += [results.entry(text, mode, "GB/s", all_of(name), all_of(copy), "memcpy", options.runs) for name, (text, copy) in RATES.items()]
    for work in ucx.MEASUREMENTS:
        text, unit, more = beside(work)
        found.append(results.entry(text, mode, unit, all_of(work), [peer[work] for peer in peers], ucx.NAME, options.runs, higher_is_better=more))
    return found
