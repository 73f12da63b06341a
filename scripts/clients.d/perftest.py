# SPDX-License-Identifier: GPL-2.0 OR MIT
"""perftest and qperf: programs that measure verbs."""

import re

from stage import ROCE, TCP, Failed
from work import RDMA, Work, number

# Columns of perftest's lines, each of which starts with the size and the number of iterations.
TYPICAL, AVERAGE = 4, 3
MIB = 1.048576
# Sizes that -a goes through, from 2 bytes to 8 MiB.
SIZES = 23
ROUNDS = 200
UNITS = {"bytes/sec": 1e-6, "KB/sec": 1e-3, "MB/sec": 1.0, "GB/sec": 1e3, "ns": 1e-3, "us": 1.0, "ms": 1e3, "sec": 1e6,
         "/sec": 1.0, "K/sec": 1e3, "M/sec": 1e6}


def lines_of(out):
    """The lines of figures that perftest printed, as words."""
    return [words for words in map(str.split, out.splitlines()) if len(words) > 4 and words[0].isdigit() and words[1].isdigit()]


def perftest(program, size, column, scale=1.0, options="", sizes=SIZES):
    """Runs a program of perftest at all sizes. Soft RoCE needs minutes for that, so there it is the size of the figure alone."""
    def run(stage):
        which = f"-s {size}" if stage.path == ROCE else "-a"
        command = " ".join(filter(None, [program, options, which if sizes > 1 else "", f"-n {ROUNDS}"]))
        with stage.serving(command, port=18515, ends=True):
            found = lines_of(stage.run(f"{command} {stage.server}", seconds=300))
        if stage.path != ROCE and len(found) < sizes:
            raise Failed(f"it printed {len(found)} sizes of {sizes}")
        figures = [float(words[column]) * scale for words in found if words[0] == str(size)]
        if not figures:
            raise Failed(f"it printed no figure for {size} bytes")
        return figures[-1]
    words = f"`{program} {options} {'-a ' if sizes > 1 else ''}-n {ROUNDS}"
    shown = f", {f'{size} B' if size < 1024 else f'{size >> 10} KB'} shown" if sizes > 1 else ""
    return Work(f"perftest: {program}", "perftest", f"{re.sub(' +', ' ', words)}`{shown}", "MB/s" if column == AVERAGE else "us", run, RDMA)


def qperf_figure(out, what):
    """The figure that qperf printed under this name, in MB/s, microseconds or messages a second."""
    found = re.search(rf"^\s+{what}\s+=\s+([\d.,]+)\s+(\S+)", out, re.MULTILINE)
    if not found or found[2] not in UNITS:
        raise Failed(f"it printed no {what}; its last line: {(out.strip().splitlines() or ['none'])[-1]}")
    return float(found[1].replace(",", "")) * UNITS[found[2]]


def qperf(verbs, sockets, what):
    """Runs one test of qperf, or over sockets the one that does the same there."""
    def run(stage):
        test = sockets if stage.path == TCP else verbs
        options = "" if stage.path == TCP else "-cm 1 "
        with stage.serving("qperf", port=19765):
            return qperf_figure(stage.run(f"qperf {options}{stage.server} {test}"), what)
    unit = {"bw": "MB/s", "latency": "us", "msg_rate": "messages/s"}[what]
    beside = f" (TCP: `{sockets}`)" if sockets else ""
    return Work("qperf", "qperf", f"`qperf -cm 1 NODE {verbs}`{beside}", unit, run, (*RDMA, TCP) if sockets else RDMA)


def pingpong(program, options=""):
    """One of libibverbs' own programs, which compares what it gets (`-c`)."""
    def run(stage):
        command = f"{program} -g 0 -c {options}".rstrip()
        with stage.serving(command, port=18515, ends=True):
            out = stage.run(f"{command} {stage.server}")
        return number(r"= ([\d.]+) usec/iter", out, "figure")
    return Work(program, "ibverbs-utils", f"`{program} -g 0 -c{f' {options}' if options else ''}`, data compared", "us", run, RDMA)


WORKS = [
    pingpong("ibv_rc_pingpong"),
    pingpong("ibv_rc_pingpong", "-e"),
    pingpong("ibv_srq_pingpong"),
    pingpong("ibv_ud_pingpong"),
    perftest("ib_write_bw", 65536, AVERAGE, MIB),
    perftest("ib_read_bw", 65536, AVERAGE, MIB),
    perftest("ib_send_bw", 65536, AVERAGE, MIB),
    perftest("ib_send_bw", 1024, AVERAGE, MIB, options="-c UD", sizes=10),
    perftest("ib_atomic_bw", 8, AVERAGE, MIB, sizes=1),
    perftest("ib_write_lat", 8, TYPICAL),
    perftest("ib_read_lat", 8, TYPICAL),
    perftest("ib_send_lat", 8, TYPICAL),
    perftest("ib_send_lat", 8, TYPICAL, options="-c UD", sizes=10),
    perftest("ib_atomic_lat", 8, TYPICAL, sizes=1),
    qperf("rc_bw", "tcp_bw", "bw"),
    qperf("rc_lat", "tcp_lat", "latency"),
    qperf("rc_rdma_write_bw", None, "bw"),
    qperf("rc_rdma_read_bw", None, "bw"),
    qperf("rc_rdma_write_lat", None, "latency"),
    qperf("ver_rc_compare_swap", None, "msg_rate"),
    qperf("ver_rc_fetch_add", None, "msg_rate"),
]
