# SPDX-License-Identifier: GPL-2.0 OR MIT
"""UCX's own measurements between two processes of this machine, a core each, over shared memory of POSIX (its transport `posix`).

It is what MPI and others send through within a host: no kernel, no protection of one side against the other, no registered memory.
"""

import contextlib
import os
import pathlib
import socket
import subprocess
import sys
import time

import cargo

NAME = "UCX posix"
# Of each measurement: what ucx_perftest calls it, bytes, messages, and the column of its last line.
MEDIAN, RATE = 1, 7
MEASUREMENTS = {
    "send_8": ("tag_lat", 8, 300_000, MEDIAN),
    "sends_64": ("tag_bw", 64, 1_000_000, RATE),
    "send_64k": ("tag_bw", 64 << 10, 50_000, RATE),
    "send_1m": ("tag_bw", 1 << 20, 5_000, RATE),
    "write_1m_pool": ("ucp_put_bw", 1 << 20, 5_000, RATE),
}
# Those that count bytes, not messages.
LARGE = ("send_64k", "send_1m", "write_1m_pool")
TIMEOUT = 120


def installed():
    """Where set-up has unpacked it."""
    found = subprocess.run([cargo.TOP / "scripts" / "env", "UCX"], capture_output=True, text=True, check=True).stdout.strip()
    if not pathlib.Path(found).is_dir():
        sys.exit("bench: UCX's measurements are not there: scripts/setup --ucx")
    return pathlib.Path(found)


def environment(directory):
    libraries = directory / "usr" / "lib" / "x86_64-linux-gnu"
    return dict(os.environ, LD_LIBRARY_PATH=str(libraries), UCX_MODULE_DIR=str(libraries / "ucx"), UCX_TLS="posix",
                UCX_WARN_UNUSED_ENV_VARS="n")


def free_port():
    with contextlib.closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def listens(port):
    """Whether a socket of this machine listens at a port; nobody is connected to it for that."""
    lines = pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]
    return any(fields[1].endswith(f":{port:04X}") and fields[3] == "0A" for fields in map(str.split, lines))


def once(directory, work):
    """One figure: nanoseconds for half a round trip, or messages a second."""
    kind, size, count, column = MEASUREMENTS[work]
    program, port = str(directory / "usr" / "bin" / "ucx_perftest"), free_port()
    first, second, *_ = sorted(os.sched_getaffinity(0)) * 2
    # It takes itself for a part of an MPI job unless a terminal is its input.
    terminal, side = os.openpty()
    common = {"env": environment(directory), "stdin": side, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen([program, "-c", str(first), "-p", str(port)], stdout=subprocess.PIPE, **common) as server:
        try:
            deadline = time.monotonic() + TIMEOUT
            while not listens(port):
                if server.poll() is not None or time.monotonic() > deadline:
                    server.kill()
                    sys.exit(f"bench: the server of {program} did not listen: {server.stdout.read()[-2000:]}")
                time.sleep(0.05)
            done = subprocess.run([program, "-c", str(second), "-p", str(port), "127.0.0.1", "-t", kind, "-s", str(size), "-n", str(count), "-f", "-v"],
                                  stdout=subprocess.PIPE, timeout=TIMEOUT, check=False, **common)
        except subprocess.TimeoutExpired as late:
            sys.exit(f"bench: {' '.join(late.cmd)} was not done after {TIMEOUT} s")
        finally:
            server.kill()
            os.close(terminal)
            os.close(side)
    lines = [line.split(",") for line in done.stdout.splitlines() if line.startswith(f"{count},")]
    if done.returncode != 0 or len(lines) != 1 or len(lines[0]) <= column:
        sys.exit(f"bench: {' '.join(done.args)} failed:\n{done.stdout[-2000:]}")
    figure = float(lines[0][column])
    return figure * 1000 if column == MEDIAN else figure


def measure():
    """One figure of each measurement: nanoseconds, messages a second, or bytes in a nanosecond."""
    directory = installed()
    found = {work: once(directory, work) for work in MEASUREMENTS}
    for work in LARGE:
        found[work] *= MEASUREMENTS[work][1] / 1e9
    return found
