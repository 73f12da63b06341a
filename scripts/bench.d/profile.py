# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Where the time goes during a work: threads of QEMU and the switch from outside, functions in the guests."""

import os
import pathlib
import time

PERF = "perf record -q -e cpu-clock -F 499 -a -g -o /tmp/perf.data -- sleep {seconds} >/dev/null 2>&1"
REPORT = ("perf report -i /tmp/perf.data --no-children -g none --stdio --percent-limit 1.5 2>/dev/null "
          "| grep -v '^#' | grep -v '^$' | head -25")


def thread_times(pid):
    """CPU ticks of each thread: {(tid, name): ticks}."""
    times = {}
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*"):
        try:
            name, _, rest = (task / "stat").read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue
        fields = rest.split()
        times[(task.name, name)] = int(fields[11]) + int(fields[12])
    return times


class Profile:
    """Watches some processes and guests for a while."""

    def __init__(self, processes, nodes, seconds):
        self.processes, self.nodes, self.seconds = processes, nodes, seconds

    def __enter__(self):
        self.recording = [(node, node.spawn(PERF.format(seconds=max(1, self.seconds - 1)))) for node in self.nodes]
        self.start = time.monotonic(), {name: thread_times(pid) for name, pid in self.processes.items()}
        return self

    def __exit__(self, *_):
        elapsed = time.monotonic() - self.start[0]
        lines = []
        for name, pid in self.processes.items():
            for thread, ticks in thread_times(pid).items():
                share = (ticks - self.start[1][name].get(thread, 0)) / os.sysconf("SC_CLK_TCK") / elapsed
                if share >= 0.01:
                    lines.append(f"  {share:6.1%} of a CPU  {name} {thread[1]} ({thread[0]})")
        for node, recording in self.recording:
            recording.wait(60)
            lines.append(f"  {node.name}, functions:")
            lines += ["    " + line for line in node.run(REPORT, timeout=90, check=False).out.splitlines()]
        self.text = "\n".join(lines)
