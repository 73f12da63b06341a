# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Where the time goes: CPU of each thread and functions of QEMU and the switch, functions in the guests."""

import os
import pathlib
import subprocess
import tempfile
import time

RECORD = "perf record -q -e cpu-clock -F 499 -o {file} {whom} -- sleep {seconds} >/dev/null 2>&1"
REPORT = ("perf report -i {file} --stdio --sort {keys} --percent-limit {least} 2>/dev/null "
          "| grep -v '^#' | grep -v '^$' | head -30")


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
    """Watches some processes, {name: pid}, and guests for about so many seconds; then `text` tells what they did."""

    def __init__(self, processes, nodes, seconds):
        self.processes, self.nodes, self.seconds = processes, nodes, max(1, seconds - 1)
        self.text = ""

    def __enter__(self):
        self.directory = tempfile.TemporaryDirectory(prefix="nupa-profile-")
        self.file = f"{self.directory.name}/perf.data"
        pids = ",".join(str(pid) for pid in self.processes.values())
        outside = RECORD.format(file=self.file, whom=f"-p {pids}", seconds=self.seconds)
        inside = RECORD.format(file="/tmp/perf.data", whom="-a", seconds=self.seconds)
        self.outside = subprocess.Popen(outside, shell=True)
        self.inside = [(node, node.spawn(inside)) for node in self.nodes]
        self.start = time.monotonic()
        self.before = {name: thread_times(pid) for name, pid in self.processes.items()}
        return self

    def __exit__(self, *_):
        elapsed = time.monotonic() - self.start
        lines = []
        for name, pid in self.processes.items():
            for thread, ticks in thread_times(pid).items():
                share = (ticks - self.before[name].get(thread, 0)) / os.sysconf("SC_CLK_TCK") / elapsed
                if share >= 0.01:
                    lines.append(f"  {share:6.1%} of a CPU  {name} {thread[1]} ({thread[0]})")
        self.outside.wait(timeout=60)
        report = REPORT.format(file=self.file, keys="comm,dso,symbol", least=1)
        done = subprocess.run(report, shell=True, capture_output=True, text=True, check=False)
        lines += ["  outside, functions:", *("    " + line for line in done.stdout.splitlines())]
        for node, recording in self.inside:
            recording.wait(60)
            out = node.run(REPORT.format(file="/tmp/perf.data", keys="comm,symbol", least=1.5), timeout=90,
                           check=False).out
            lines += [f"  {node.name}, functions:", *("    " + line for line in out.splitlines())]
        self.text = "\n".join(lines)
        self.directory.cleanup()
