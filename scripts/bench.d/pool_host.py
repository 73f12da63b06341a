# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Two hosts of a pool that both poll, as two processes on two cores: provider, engine and pool without a kernel or a guest.

What there can be at most is measured by the same two processes: a line that goes there and back between the cores, and memcpy.
"""

import json
import re
import statistics
import sys

import cargo
import results

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
}
# Of each of bytes in a nanosecond.
RATES = {
    "send_1m": "pool host SEND 1 MiB",
    "write_1m": "pool host WRITE 1 MiB",
    "write_1m_pool": "pool host WRITE 1 MiB to pool memory",
}


def once():
    """The figures of one run."""
    output = cargo.run("the measurement of two hosts of a pool", "test", "--release", "-p", "nupa-provider", "--", "--exact", TEST,
                       "--nocapture", NUPA_POOL_HOST_ROUNDS=ROUNDS)
    found = re.search(r"^\{.*\}$", output, re.MULTILINE)
    if not found:
        sys.exit("bench: the measurement of two hosts of a pool printed no figures")
    return json.loads(found.group())


def measure(mode, options):
    """Runs it so many times; returns an entry for each figure, the median of the runs. `mode` is what tables have it under: no guest has a part in it."""
    print("building and running two hosts of a pool", flush=True)
    runs = [once() for _ in range(options.runs)]
    for name in ("line", *TIMES):
        low = min(run[name]["min"] for run in runs)
        print(f"{TIMES.get(name, LINE)}: {low} ns at best, {statistics.median(run[name]['median'] for run in runs)} ns in the median")

    def all_of(name):
        return [run[name] for run in runs]

    def medians(name):
        return [figures["median"] for figures in all_of(name)]

    # What completes takes a line there and one back.
    floors = {name: (LINE, 1) if name == "send_8" else (f"{LINE}, there and back", 2) for name in TIMES}
    found = [results.entry(text, mode, "ns", medians(name), [ways * time for time in medians("line")], peer, options.runs, higher_is_better=False)
             for (name, text), (peer, ways) in zip(TIMES.items(), floors.values())]
    found.append(results.entry("pool host SEND 64 B, messages a second", mode, "/s", all_of("sends_64"), RATE_BUDGET, "budget", options.runs))
    found += [results.entry(text, mode, "GB/s", all_of(name), all_of("memcpy_1m"), "memcpy", options.runs) for name, text in RATES.items()]
    return found
