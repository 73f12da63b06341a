# SPDX-License-Identifier: GPL-2.0 OR MIT
"""The machine that is measured on: what it is, and whether it is quiet."""

import os
import pathlib
import time

# Share of all CPUs' time that may go elsewhere.
QUIET = 0.08


def cpu_times():
    """Ticks of all CPUs since boot: busy, all."""
    fields = [int(word) for word in pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle = fields[3] + fields[4]
    return sum(fields) - idle, sum(fields)


def busiest():
    """Name and share of a CPU of the process that uses most of it, over one second."""

    def look():
        ticks = {}
        for entry in pathlib.Path("/proc").glob("[0-9]*/stat"):
            try:
                name, _, rest = entry.read_text().partition("(")[2].rpartition(")")
                fields = rest.split()
                ticks[entry.parent.name] = (name, int(fields[11]) + int(fields[12]))
            except (OSError, IndexError):
                continue
        return ticks

    first = look()
    time.sleep(1)
    used = {pid: (name, ticks - first[pid][1]) for pid, (name, ticks) in look().items() if pid in first}
    name, ticks = max(used.values(), key=lambda item: item[1])
    return name, ticks / os.sysconf("SC_CLK_TCK")


def noise(patience=10):
    """None if the machine is or becomes quiet within `patience` seconds, else words on what disturbs."""
    share = 0.0
    for _ in range(max(1, patience // 2)):
        busy, total = cpu_times()
        time.sleep(2)
        now_busy, now_total = cpu_times()
        share = (now_busy - busy) / max(1, now_total - total)
        if share <= QUIET:
            return None
    name, used = busiest()
    return f"the machine is {share:.0%} busy ('{name}' uses {used:.0%} of a CPU)"


def describe():
    """One line on the machine."""
    text = pathlib.Path("/proc/cpuinfo").read_text()
    model = next((line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("model name")), "?")
    return f"{os.cpu_count()} CPUs: {model}"
