# SPDX-License-Identifier: GPL-2.0 OR MIT
"""librdmacm's own programs, and its rsockets: alone, and below programs that know of sockets only."""

from stage import TCP, Failed
from work import RDMA, Work, number

PRELOAD = "LD_PRELOAD=/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so"
PORT = 7471


def program(name, done, served, asked, ends=True, pattern=None, unit=""):
    """A program that is both server and client; `pattern` finds its figure."""
    def run(stage):
        with stage.serving(served.replace("NODE", stage.server), ends=ends):
            out = stage.run(asked.replace("NODE", stage.server), seconds=120)
        return number(pattern, out, "figure") if pattern else None
    return Work(name, "rdmacm-utils", done, unit, run, RDMA)


def multicast(stage):
    """mckey's receiver listens nowhere; it says when it waits for messages, so the sender starts when it has, or has given up."""
    group, printed = "239.77.0.9", "/tmp/mckey.out"
    stage.two.run(f"rm -f {printed}")
    receiver = stage.two.spawn(stage.inside(f"stdbuf -oL mckey -m {group} -b {stage.server} >{printed} 2>&1", 60))
    try:
        stage.two.run(f"for i in $(seq 100); do grep -qE 'receiving|failed|error|status' {printed} && exit; sleep 0.1; done", timeout=30)
        if "receiving" not in stage.two.read(printed):
            stage.stop(stage.two)
            raise Failed(f"its receiver: {told(stage.two.read(printed))}")
        stage.run(f"mckey -s -m {group} -b {stage.one.ip}")
        if stage.ended(receiver).code != 0:
            raise Failed(f"its receiver: {told(stage.two.read(printed))}")
    finally:
        stage.stop(stage.two)
        receiver.abandon()


def told(printed):
    """The line about an error of what mckey printed, which ends with success after one too."""
    lines = printed.splitlines() or ["it printed nothing"]
    return next((line for line in lines if "error" in line.lower() or "fail" in line), lines[-1])


def rstream(name, package, done, preload=False):
    """Streams of bytes that both ends check. Below sockets alone it is a program like any other, for librspreload to take over."""
    def run(stage):
        options = f"-T v -S 65536 -C 1000 -I 2{' -T s' if preload or stage.path == TCP else ''}"
        command = f"{PRELOAD + ' ' if preload and stage.path != TCP else ''}rstream {options}"
        with stage.serving(command, port=PORT if stage.path == TCP else None):
            out = stage.run(f"{command} -s {stage.server}", seconds=120)
        return number(r"^custom .* ([\d.]+)\s+[\d.]+$", out, "figure") * 125
    return Work(name, package, done, "MB/s", run)


def fio(verb):
    """fio's engine of RDMA: a job of the client moves its buffers to, or from, one of the server."""
    def run(stage):
        each = "--ioengine=rdma --port=8888 --bs=64k --size=16m --thread"
        with stage.serving(f"fio --name=server {each} --rw=read --iodepth=16", ends=True):
            # A client is what writes, whatever its verb.
            out = stage.run(f"fio --name=client {each} --hostname={stage.server} --verb={verb} --rw=write "
                            "--iodepth=1 --iodepth_batch_complete=1 --output-format=json")
        return number(r'"bw_bytes" : ([1-9]\d*)', out, "figure") / 1e6
    return Work("fio", "fio", f"`--ioengine=rdma --verb={verb} --bs=64k --size=16m`", "MB/s", run, RDMA)


WORKS = [
    program("rping", "`rping -V -C 100`, data compared", "rping -s -a NODE -V -C 100", "rping -c -a NODE -V -C 100"),
    program("ucmatose", "`ucmatose -s NODE`", "ucmatose", "ucmatose -s NODE"),
    program("udaddy", "`udaddy -s NODE`", "udaddy", "udaddy -s NODE"),
    program("rdma_client", "`rdma_client -s NODE`", "rdma_server", "rdma_client -s NODE"),
    program("cmtime", "`cmtime -s NODE`, 100 connections; time of one connect", "cmtime -b NODE", "cmtime -s NODE", False,
            r"^(?:cm )?connect\b.*\s([\d.]+)$", "us"),
    fio("write"), fio("read"),
    Work("mckey", "rdmacm-utils", "`mckey -s -m 239.77.0.9`: multicast", "", multicast, RDMA),
    rstream("rstream", "rdmacm-utils", "`rstream -T v -S 65536 -C 1000 -I 2`, data compared"),
    rstream("librspreload", "librdmacm1t64", "below `rstream -T s -T v -S 65536 -C 1000 -I 2`, a program of sockets; data compared", preload=True),
]
