# SPDX-License-Identifier: GPL-2.0 OR MIT
"""The queue engine against memcpy: criterion benchmarks on the host, no guest involved.

A benchmark is taken for the table if its group has an `engine` and a `memcpy` member. The group's name ends in the
bytes of one operation, as in `write_65536`. Below a page an operation costs what its descriptor costs, and a bare
memcpy says nothing about it; there the 64-byte WRITE counts, against its budget.
"""

import json
import re
import sys

import cargo
import results

# Up to here an operation is about its descriptor, above it about its bytes.
SMALL = 4096
# The benchmarks that can become a line of the table.
FILTER = r"^(write_64|write_beside_10000|[a-z_]+_[0-9]{5,})/(engine|memcpy|alone)$"
# Seconds of warming up and of measuring for each benchmark.
TIMES = ["--warm-up-time", "1", "--measurement-time", "3"]
# Nanoseconds from submission to completion that a 64-byte WRITE may take.
WRITE_64_BUDGET = 90.0


def median_ns(directory):
    """Median of criterion's estimates, in ns."""
    estimates = json.loads((directory / "new" / "estimates.json").read_text())
    return estimates["median"]["point_estimate"]


# What benches/waits.rs measures: what the table calls it, and the nanoseconds that the longest wait may take.
WAITS = {
    "behind_1_gib_pool": ("WRITE 8 B behind 1 GiB, between hosts, longest of 2000", 100_000),
    "behind_1_gib_local": ("WRITE 8 B behind 1 GiB, on one host, longest of 2000", 100_000),
    "beside_peers_4_mib": ("WRITE 8 B beside 62 hosts with 4 MiB each, longest of 2000", 5_000_000),
}


def samples(directory):
    return len(json.loads((directory / "new" / "sample.json").read_text())["times"])


def line(group, mode):
    """The entry of one group, or None if it is not a comparison."""
    if group.name == "write_beside_10000":
        beside, alone = (median_ns(group / side) for side in ("engine", "alone"))
        return results.entry("engine WRITE 64 B beside 10,000 queue pairs that wait", mode, "ns/op", beside, alone, results.ALONE,
                             samples(group / "engine"), higher_is_better=False)
    size = re.search(r"_(\d+)$", group.name)
    if not size or not all((group / side / "new" / "estimates.json").exists() for side in ("engine", "memcpy")):
        return None
    size = int(size.group(1))
    ours, peer = median_ns(group / "engine"), median_ns(group / "memcpy")
    name, runs = f"engine {group.name.rpartition('_')[0].upper()} {size} B", samples(group / "engine")
    if group.name == "write_64":
        return results.entry(name, mode, "ns/op", ours, WRITE_64_BUDGET, "budget", runs, higher_is_better=False)
    if size <= SMALL:
        return None
    return results.entry(name, mode, "GB/s", size / ours, size / peer, "memcpy", runs)


def measure(mode):
    """Runs the benchmarks; returns an entry for each comparison."""
    print("building and running the engine's benchmarks", flush=True)
    criterion = cargo.TARGET / "criterion"
    output = cargo.run("the engine's benchmarks", "bench", "-p", "nupa-bench", "--bench", "engine", "--", *TIMES, FILTER,
                       CRITERION_HOME=str(criterion))
    for text in re.findall(r"^\S+ +time: .*$", output, re.MULTILINE):
        print(text)
    groups = sorted(path for path in criterion.iterdir() if path.is_dir())
    found = [entry for entry in (line(group, mode) for group in groups) if entry]
    if not found:
        sys.exit(f"bench: no comparison in {criterion}")
    return found + waits(mode)


def waits(mode):
    """How long small requests wait for others' long ones: the longest wait of each case, against its limit."""
    output = cargo.run("the benchmark of waits", "bench", "-p", "nupa-bench", "--bench", "waits")
    lines = dict(re.findall(r"^(\w+) (\d+ \d+ \d+)$", output, re.MULTILINE))
    entries = []
    for name, (work, limit) in WAITS.items():
        median, late, longest = (int(text) / 1000 for text in lines[name].split())
        print(f"{work}: median {median:.1f} us, 99th percentile {late:.1f} us, longest {longest:.1f} us")
        entries.append(results.entry(f"engine {work}", mode, "us", longest, limit / 1000, "limit", 1, higher_is_better=False))
    return entries
